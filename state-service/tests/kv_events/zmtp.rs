//! Publishers that are none, or not well: they announce the impossible, ping, send without end, or too much at once.

use bytes::{BufMut, Bytes};
use routing::id::WorkerId;
use state_service::kv_events::hub::{Hub, Rank};
use state_service::kv_events::pipeline::Sink;
use state_service::kv_events::subscriber::{Shared, Source, keep};
use state_service::kv_events::zmtp::MESSAGE_BYTES_MAX;
use state_service::state::kv_stream::{Input, Link};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

const MORE: u8 = 1;
const LONG: u8 = 2;

/// Counts what is handed on.
#[derive(Default)]
struct Seen {
    live: AtomicUsize,
    link: Mutex<Option<Link>>,
}

impl Sink for Seen {
    fn take(&self, _: &Rank, inputs: Vec<Input>) {
        let live = inputs.iter().filter(|input| matches!(input, Input::Live(_))).count();
        self.live.fetch_add(live, Ordering::Relaxed);
    }

    fn link(&self, _: &Rank, link: Link) {
        *self.link.lock().unwrap() = Some(link);
    }
}

struct Rig {
    seen: Arc<Seen>,
    hub: Arc<Hub>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn listen_to(port: u16) -> Rig {
    let (hub, seen) = (Arc::new(Hub::default()), Arc::new(Seen::default()));
    let source = Source {
        rank: Rank { worker: WorkerId::parse("w0").unwrap(), rank: 0 },
        endpoint: format!("tcp://127.0.0.1:{port}"),
        replay: None,
        topic: String::new(),
    };
    let shared = Shared::start(Arc::clone(&seen) as Arc<dyn Sink>, Arc::clone(&hub)).unwrap();
    Rig { seen, hub, task: tokio::spawn(keep(shared, source)) }
}

async fn until(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !met() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Shakes hands as a PUB, up to and with the subscription.
async fn shaken(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut greeting = [0_u8; 64];
    greeting[..16].copy_from_slice(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL");
    stream.write_all(&greeting).await.unwrap();
    stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB").await.unwrap();
    let mut theirs = vec![0; 64 + 2 + 25 + 2 + 10];
    stream.read_exact(&mut theirs).await.unwrap();
    assert_eq!(&theirs[64 + 2 + 25..], b"\x04\x0a\x09SUBSCRIBE", "a subscription to everything");
    stream
}

fn live(seq: u64) -> Vec<u8> {
    let payload = b"\x92\x01\x90";
    [&[MORE, 0, MORE, 8][..], &seq.to_be_bytes(), &[0, 3], payload].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_announces_the_impossible_costs_its_connection_and_one_that_pings_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = listen_to(listener.local_addr().unwrap().port());
    let mut stream = shaken(&listener).await;
    stream.write_all(&live(0)).await.unwrap();
    until("a batch", || rig.seen.live.load(Ordering::Relaxed) == 1).await;
    // Two bytes of time to live, then what comes back.
    stream.write_all(b"\x04\x09\x04PING\0\x0aab").await.unwrap();
    let mut pong = [0; 9];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"\x04\x07\x04PONGab");
    let mut head = vec![LONG];
    head.put_u64(1 << 62);
    stream.write_all(&head).await.unwrap();
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0, "we hang up");
    assert_eq!(rig.hub.bad_messages.load(Ordering::Relaxed), 1);
    let mut stream = shaken(&listener).await;
    // A gigabyte is announced and a little of it comes: nothing is kept for it.
    let mut head = live(1);
    head.extend([LONG]);
    head.put_u64(1 << 30);
    stream.write_all(&head).await.unwrap();
    until("a batch after it", || rig.seen.live.load(Ordering::Relaxed) == 2).await;
    assert!(resident_bytes() < 400 << 20, "{} bytes", resident_bytes());
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_no_publisher_is_left_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = listen_to(listener.local_addr().unwrap().port());
    let answers: [&[u8]; 3] = [
        b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n                ",
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\0",
        b"",
    ];
    for answer in answers {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(answer).await.unwrap();
        drop(stream);
    }
    let mut stream = shaken(&listener).await;
    stream.write_all(&live(0)).await.unwrap();
    until("a batch in the end", || rig.seen.live.load(Ordering::Relaxed) == 1).await;
    assert_eq!(*rig.seen.link.lock().unwrap(), Some(Link::Up));
}

/// A message past the limit costs the connection; what the next one brings is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_large_costs_the_connection() {
    let mut socket = PubSocket::new();
    let bound = socket.bind("tcp://127.0.0.1:0").await.unwrap();
    let zeromq::Endpoint::Tcp(_, port) = bound else { panic!("{bound}") };
    let rig = listen_to(port);
    let mut seq = 0_u64;
    let mut publish = async |payload: Vec<u8>| {
        let mut message = ZmqMessage::from(Bytes::new());
        message.push_back(Bytes::copy_from_slice(&seq.to_be_bytes()));
        message.push_back(payload.into());
        socket.send(message).await.unwrap();
        seq += 1;
    };
    for round in 0..2 {
        let before = rig.seen.live.load(Ordering::Relaxed);
        while rig.seen.live.load(Ordering::Relaxed) == before {
            publish(b"\x92\x01\x90".to_vec()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        publish(vec![0; MESSAGE_BYTES_MAX + 1]).await;
        until("it is counted", || rig.hub.bad_messages.load(Ordering::Relaxed) == round + 1).await;
    }
}

/// Parts without end are a message past the limit, too: each takes room.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_end_stays_small() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = listen_to(listener.local_addr().unwrap().port());
    let mut stream = shaken(&listener).await;
    let parts: Vec<u8> = [MORE, 1, b'x'].repeat(100_000);
    let hung_up = async { while stream.write_all(&parts).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(60), hung_up).await.expect("it is read for ever");
    until("it is counted", || rig.hub.bad_messages.load(Ordering::Relaxed) == 1).await;
    assert!(resident_bytes() < 400 << 20, "{} bytes", resident_bytes());
}
