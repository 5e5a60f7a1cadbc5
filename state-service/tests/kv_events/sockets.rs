//! The whole way from a publisher's sockets to a slot, over real ZeroMQ.

use crate::publisher::{Framing, Publisher, TOPIC};
use routing::id::WorkerId;
use routing::time::Timestamp;
use state_service::kv_events::hub::{Ask, Hub, Rank};
use state_service::kv_events::pipeline::Sink;
use state_service::kv_events::subscriber::{Shared, Source, keep};
use state_service::state::kv_event::KvEvent;
use state_service::state::kv_stream::{Count, Effect, Frame, Input, KvStream, Link, Trouble};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);

/// Instead of the service: one stream and the blocks it makes believe in.
struct Slot {
    hub: Arc<Hub>,
    began: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    stream: KvStream,
    held: BTreeSet<u64>,
    link: Option<Link>,
    counts: Vec<Count>,
    /// Most blocks that came at once.
    at_once: usize,
}

impl Slot {
    fn step(&self, rank: &Rank, inputs: Vec<Input>) {
        let mut inner = self.inner.lock().unwrap();
        let now = Timestamp(u64::try_from(self.began.elapsed().as_millis()).unwrap());
        for input in inputs {
            let mut out = Vec::new();
            inner.stream.step(now, input, &mut out);
            for effect in out {
                match effect {
                    Effect::Apply(batch) => batch.events.iter().for_each(|event| inner.apply(event)),
                    Effect::Clear => inner.held.clear(),
                    Effect::AskReplay { attempt, from } => drop(self.hub.ask(rank, Ask { attempt, from })),
                    Effect::Count(count) => inner.counts.push(count),
                }
            }
        }
    }
}

impl Inner {
    fn apply(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored { hashes, .. } => self.held.extend(hashes.iter().map(|hash| hash.0)),
            KvEvent::Removed { hashes, .. } => {
                self.held.retain(|block| !hashes.iter().any(|hash| hash.0 == *block))
            }
            KvEvent::Cleared => self.held.clear(),
        }
    }
}

fn blocks(input: &Input) -> usize {
    let (Input::Live(Frame { batch, .. })
    | Input::Replayed(_, Frame { batch, .. })
    | Input::More { batch, .. }) = input
    else {
        return 0;
    };
    let of = |event: &KvEvent| match event {
        KvEvent::Stored { hashes, .. } | KvEvent::Removed { hashes, .. } => hashes.len(),
        KvEvent::Cleared => 1,
    };
    batch.events.iter().map(of).sum()
}

impl Sink for Slot {
    fn take(&self, rank: &Rank, inputs: Vec<Input>) {
        let at_once = inputs.iter().map(blocks).sum();
        let mut inner = self.inner.lock().unwrap();
        inner.at_once = inner.at_once.max(at_once);
        drop(inner);
        self.step(rank, inputs);
    }

    fn link(&self, rank: &Rank, link: Link) {
        self.inner.lock().unwrap().link = Some(link);
        self.step(rank, vec![Input::Link(link)]);
    }
}

/// A subscription under way, with the ticks the service would give it.
struct Rig {
    slot: Arc<Slot>,
    hub: Arc<Hub>,
    _tasks: JoinSet<()>,
}

impl Rig {
    fn start(publisher: &Publisher, topic: &str, replay: bool) -> Self {
        Self::replaying_at(publisher, topic, replay.then_some(publisher.replay_port))
    }

    fn replaying_at(publisher: &Publisher, topic: &str, replay: Option<u16>) -> Self {
        let hub = Arc::new(Hub::default());
        let slot = Arc::new(Slot { hub: Arc::clone(&hub), began: Instant::now(), inner: Mutex::default() });
        let rank = Rank { worker: WorkerId::parse("w0").unwrap(), rank: 0 };
        let at = |port: u16| format!("tcp://127.0.0.1:{port}");
        let source = Source {
            rank: rank.clone(),
            endpoint: at(publisher.port),
            replay: replay.map(at),
            topic: topic.to_owned(),
        };
        let shared = Shared::start(Arc::clone(&slot) as Arc<dyn Sink>, Arc::clone(&hub)).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(keep(shared, source));
        let ticked = Arc::clone(&slot);
        tasks.spawn(async move {
            loop {
                sleep(Duration::from_millis(50)).await;
                ticked.step(&rank, vec![Input::Tick]);
            }
        });
        Self { slot, hub, _tasks: tasks }
    }

    /// Waits until the slot believes in just these.
    async fn holds(&self, expected: impl IntoIterator<Item = u64>) {
        let expected: BTreeSet<u64> = expected.into_iter().collect();
        self.until(|inner| inner.held == expected && !inner.stream.is_asking()).await;
    }

    async fn until(&self, met: impl Fn(&Inner) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !met(&self.slot.inner.lock().unwrap()) {
            let inner = self.slot.inner.lock().unwrap();
            assert!(Instant::now() < deadline, "holds {:?}, {:?}", inner.held, inner.counts);
            drop(inner);
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn counted(&self, count: Count) -> usize {
        self.slot.inner.lock().unwrap().counts.iter().filter(|counted| **counted == count).count()
    }

    fn is_cold(&self) -> bool {
        self.slot.inner.lock().unwrap().stream.is_cold()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_before_and_after_arrives_in_either_framing() {
    for framing in [Framing::Topic, Framing::Old] {
        let mut publisher = Publisher::start(1, (0, 0), framing).await;
        for block in 0..5 {
            publisher.store(block).await;
        }
        let rig = Rig::start(&publisher, "kv@", true);
        rig.holds(0..5).await;
        for block in 5..200 {
            publisher.store(block).await;
        }
        rig.holds(0..200).await;
        assert!(!rig.is_cold());
        assert_eq!(rig.slot.inner.lock().unwrap().link, Some(Link::Up));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_batch_comes_from_the_ring() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    let rig = Rig::start(&publisher, "", true);
    publisher.store(0).await;
    rig.holds(0..1).await;
    publisher.lose(1);
    publisher.lose(2);
    publisher.store(3).await;
    rig.holds(0..4).await;
    assert_eq!(rig.counted(Count::Cold), 0);
    assert!(rig.counted(Count::Replayed) >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_an_engine_that_restarts_at_the_same_address_is_believed_anew() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    let rig = Rig::start(&publisher, TOPIC, true);
    for block in 0..10 {
        publisher.store(block).await;
    }
    rig.holds(0..10).await;
    let ports = publisher.die().await;
    let mut publisher = Publisher::start(2, ports, Framing::Topic).await;
    for block in 100..120 {
        publisher.store(block).await;
    }
    rig.holds(100..120).await;
    assert_eq!(rig.counted(Count::Epoch), 1);
    assert_eq!(rig.hub.connected.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_replay_socket_a_lost_connection_makes_the_slot_cold() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    let rig = Rig::start(&publisher, "", false);
    rig.until(|inner| inner.counts.contains(&Count::ReplayFailed)).await;
    // Until the publisher knows of the subscription what it publishes is lost, and here nothing can bring it back.
    let mut block = 0;
    while rig.slot.inner.lock().unwrap().held.is_empty() {
        publisher.store(block).await;
        block += 1;
        sleep(Duration::from_millis(10)).await;
    }
    let ports = publisher.die().await;
    rig.until(|inner| inner.link == Some(Link::Connecting)).await;
    let _publisher = Publisher::start(2, ports, Framing::Topic).await;
    rig.holds([]).await;
    assert!(rig.is_cold());
}

/// A firewall, a container that publishes one port of two: the live stream is all there is, and it is whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_socket_that_is_not_reached_ends_no_connection_that_lives() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    // Whoever hears the first batch has missed nothing.
    publisher.lose(0);
    // Nobody listens at port 1.
    let rig = Rig::replaying_at(&publisher, "", Some(1));
    rig.until(|inner| inner.counts.contains(&Count::ReplayFailed)).await;
    assert!(rig.is_cold());
    let mut block = 1;
    while rig.slot.inner.lock().unwrap().held.is_empty() {
        publisher.store(block).await;
        block += 1;
        sleep(Duration::from_millis(10)).await;
    }
    // Past the first attempt to repair, which fails too.
    rig.until(|inner| inner.counts.iter().filter(|count| **count == Count::ReplayFailed).count() >= 2).await;
    let first = *rig.slot.inner.lock().unwrap().held.iter().next().unwrap();
    for _ in 0..20 {
        publisher.store(block).await;
        block += 1;
    }
    rig.holds(first..block).await;
    assert_eq!((rig.counted(Count::Cold), rig.hub.connections.load(Ordering::Relaxed)), (1, 1));
    let inner = rig.slot.inner.lock().unwrap();
    let now = Timestamp(u64::try_from(rig.slot.began.elapsed().as_millis()).unwrap());
    assert_eq!(inner.stream.trouble(now), Some(Trouble::ReplayUnreachable));
}

/// The state is locked for a slice of a message at a time, however long the message is.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_batch_is_taken_in_slices() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    publisher.lose_blocks(0..10_000);
    let rig = Rig::start(&publisher, "", true);
    rig.holds(0..10_000).await;
    publisher.lose_blocks(10_000..30_000);
    publisher.send_last().await;
    rig.holds(0..30_000).await;
    let at_once = rig.slot.inner.lock().unwrap().at_once;
    assert!((1000..=2048).contains(&at_once), "{at_once}");
    assert!(!rig.is_cold());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_topics_are_not_heard_and_other_messages_are_counted() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    let rig = Rig::start(&publisher, "kv@", true);
    publisher.store(0).await;
    rig.holds(0..1).await;
    publisher.send("load", 77, bytes::Bytes::from_static(b"\x91\xa8LoadStat")).await;
    publisher.store(1).await;
    rig.holds(0..2).await;
    assert_eq!(
        (rig.counted(Count::Gap), rig.counted(Count::Epoch)),
        (0, 0),
        "number 77 was of another topic"
    );
    assert_eq!(rig.hub.skips().total(), 0);
    // A payload that is no batch: nothing that was held can be trusted.
    publisher.send("kv@x", 2, bytes::Bytes::from_static(b"\xc1")).await;
    rig.holds([]).await;
    assert_eq!(rig.hub.skips().not_a_batch, 1);
}
