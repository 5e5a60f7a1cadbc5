//! One rank's subscription: connect, subscribe, hand on what comes, replay what the state asks for, and connect again.
//!
//! When a connection is lost a new one is made, and told to the stream before anything it brings. A replay that fails ends no connection
//! that lives: when to ask again is the stream's to say.

use super::frames;
use super::hub::{Ask, Connected, Hub, Rank};
use super::pipeline::{Pipeline, Raw, Sink, limited};
use super::replay;
use super::zmtp::{Connection, Role};
use crate::state::kv_stream::{Input, Link, ReplayFailure};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

/// A connection that is not made by then has failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two tries to connect: doubled each time, up to a second, until a connection has lasted as long.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Messages handed on at once.
const BURST: usize = 64;
/// Replays under way at once, all ranks together: a restart of the network lets every rank ask.
pub(super) const REPLAYS_MAX: usize = 128;

/// Where a rank's events are published.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Whose.
    pub rank: Rank,
    /// `tcp://host:port` to subscribe to.
    pub endpoint: String,
    /// `tcp://host:port` of the replay socket, if there is one.
    pub replay: Option<String>,
    /// Prefix of the topics wanted; empty: all.
    pub topic: String,
}

/// What all subscriptions share.
pub struct Shared {
    /// Where decoded events go.
    pub sink: Arc<dyn Sink>,
    /// Finds the tasks.
    pub hub: Arc<Hub>,
    /// Decodes.
    pub pipeline: Pipeline,
    places: Semaphore,
}

impl Shared {
    /// Starts what they share.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(sink: Arc<dyn Sink>, hub: Arc<Hub>) -> std::io::Result<Arc<Self>> {
        let pipeline = Pipeline::start(&sink, &hub)?;
        Ok(Arc::new(Self { sink, hub, pipeline, places: Semaphore::new(REPLAYS_MAX) }))
    }
}

/// A connection that has shaken hands, in time.
pub(super) async fn connect(endpoint: &str, role: Role) -> io::Result<Connection> {
    timeout(CONNECT_TIMEOUT, Connection::connect(endpoint, role)).await?
}

async fn subscribe(source: &Source) -> io::Result<Connection> {
    let mut connection = connect(&source.endpoint, Role::Sub).await?;
    timeout(CONNECT_TIMEOUT, connection.subscribe(&source.topic)).await??;
    Ok(connection)
}

/// Keeps one rank subscribed until it is aborted.
pub async fn keep(shared: Arc<Shared>, source: Source) {
    let rank = Arc::new(source.rank.clone());
    let mut entry = shared.hub.enter(&source);
    let mut back_off = BACK_OFF_MIN;
    loop {
        shared.sink.link(&rank, Link::Connecting);
        match subscribe(&source).await {
            Ok(connection) => {
                let made = Instant::now();
                let _connected = Connected::new(&shared.hub, &rank.worker);
                shared.sink.link(&rank, Link::Up);
                let subscription = Subscription { shared: &shared, source: &source, rank: &rank };
                subscription.follow(connection, &mut entry.asks).await;
                if made.elapsed() >= BACK_OFF_MAX {
                    back_off = BACK_OFF_MIN;
                }
            }
            Err(error) => {
                tracing::debug!(worker = %rank.worker, rank = rank.rank, %error, "no KV events");
            }
        }
        sleep(back_off).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

struct Subscription<'a> {
    shared: &'a Shared,
    source: &'a Source,
    rank: &'a Arc<Rank>,
}

impl Subscription<'_> {
    /// Until the connection is lost.
    async fn follow(&self, mut connection: Connection, asks: &mut watch::Receiver<Option<Ask>>) {
        self.send(vec![Raw::Input(Input::Connected)]).await;
        // An ask from before is of the connection before: `Connected` makes a new one.
        let mut replay = std::pin::pin!(self.answer(None));
        loop {
            // In no fixed order: a busy stream must not keep a replay waiting.
            tokio::select! {
                changed = asks.changed() => {
                    let Ok(()) = changed else { return };
                    let ask = *asks.borrow_and_update();
                    replay.set(self.answer(ask));
                }
                message = connection.recv() => {
                    let burst = match message {
                        Ok(first) => self.burst(&mut connection, first).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = burst {
                        self.lost(&error);
                        return;
                    }
                }
                lives = &mut replay => {
                    if !lives {
                        // A peer that lost its power says no goodbye.
                        return;
                    }
                    replay.set(self.answer(None));
                }
            }
        }
    }

    /// Fulfils one ask; without one waits for ever. False: neither the replay came nor can the publisher be reached.
    async fn answer(&self, ask: Option<Ask>) -> bool {
        let Some(ask) = ask else { return std::future::pending().await };
        let Some(endpoint) = &self.source.replay else {
            let failed = Input::ReplayFailed(ask.attempt, ReplayFailure::Unavailable);
            self.send(vec![Raw::Input(failed)]).await;
            return true;
        };
        replay::make(&self.shared.pipeline, &self.shared.places, self.rank, endpoint, ask).await
            || connect(&self.source.endpoint, Role::Sub).await.is_ok()
    }

    /// Hands on a message and all that came with it.
    async fn burst(&self, connection: &mut Connection, first: Vec<Bytes>) -> io::Result<()> {
        let (mut raws, mut next) = (Vec::new(), Ok(Some(first)));
        for _ in 0..BURST {
            let Ok(Some(message)) = next else { break };
            self.note(&mut raws, &message);
            next = connection.try_recv();
        }
        if let Ok(Some(message)) = &next {
            self.note(&mut raws, message);
        }
        // What came before the loss came.
        self.send(raws).await;
        next.map(drop)
    }

    fn note(&self, raws: &mut Vec<Raw>, message: &[Bytes]) {
        match frames::live(message) {
            Some(batch) => raws.push(Raw::Live(limited(batch))),
            None => self.bad_message(),
        }
    }

    fn lost(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::InvalidData {
            self.bad_message();
        }
        let Rank { worker, rank } = &**self.rank;
        tracing::debug!(%worker, rank, %error, "KV events are lost");
    }

    fn bad_message(&self) {
        self.shared.hub.bad_messages.fetch_add(1, Ordering::Relaxed);
    }

    async fn send(&self, raws: Vec<Raw>) {
        if !raws.is_empty() {
            self.shared.pipeline.send(self.rank, raws).await;
        }
    }
}
