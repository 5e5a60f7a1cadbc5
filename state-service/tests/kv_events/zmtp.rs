//! Messages out of bytes, whoever sends them: cut anywhere, too long, without end. And the same over a socket.

use bytes::{BufMut, Bytes, BytesMut};
use routing::id::WorkerId;
use state_service::kv_events::hub::{Hub, Rank};
use state_service::kv_events::pipeline::Sink;
use state_service::kv_events::subscriber::{Shared, Source, keep};
use state_service::kv_events::zmtp::{FRAMES_MAX, Item, MESSAGE_BYTES_MAX, Reader, Wrong};
use state_service::state::kv_stream::{Input, Link};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flags | LONG];
    bytes.put_u64(body.len() as u64);
    bytes.extend_from_slice(body);
    bytes
}

fn items(reader: &mut Reader, bytes: &[u8]) -> Result<Vec<Item>, Wrong> {
    let mut buffer = BytesMut::from(bytes);
    let mut all = Vec::new();
    while let Some(item) = reader.next(&mut buffer)? {
        all.push(item);
    }
    Ok(all)
}

fn message(frames: &[&[u8]]) -> Item {
    Item::Message(frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect())
}

#[test]
fn a_stream_says_the_same_wherever_it_is_cut() {
    let long = vec![7; 70_000];
    let mut stream = vec![COMMAND, 5, 4, b'P', b'I', b'N', b'G'];
    stream.extend([MORE, 1, b't', MORE, 0, 0, 2, b'o', b'k']);
    stream.extend(frame(MORE, b"long head"));
    stream.extend(frame(0, &long));
    stream.extend([0, 0]);
    let expected = [
        Item::Command(Bytes::from_static(b"\x04PING")),
        message(&[b"t", b"", b"ok"]),
        message(&[b"long head", &long]),
        message(&[b""]),
    ];
    assert_eq!(items(&mut Reader::default(), &stream).unwrap(), expected);
    for step in [1, 2, 3, 7, 1000, 65_537] {
        let (mut reader, mut buffer, mut all) = (Reader::default(), BytesMut::new(), Vec::new());
        for piece in stream.chunks(step) {
            buffer.extend_from_slice(piece);
            while let Some(item) = reader.next(&mut buffer).unwrap() {
                all.push(item);
            }
        }
        assert_eq!(all, expected, "{step} bytes at a time");
    }
}

#[test]
fn what_is_too_long_is_read_past_and_what_is_absurd_ends_it() {
    let mut reader = Reader::default();
    let mut head = vec![MORE | LONG];
    head.put_u64(MESSAGE_BYTES_MAX as u64 + 1);
    assert_eq!(items(&mut reader, &head).unwrap(), []);
    let piece = vec![9; 1 << 20];
    for _ in 0..MESSAGE_BYTES_MAX >> 20 {
        assert_eq!(items(&mut reader, &piece).unwrap(), []);
    }
    assert_eq!(items(&mut reader, &[9]).unwrap(), []);
    assert_eq!(items(&mut reader, &[0, 1, b'x']).unwrap(), [message(&[b"", b"x"])], "in place, and empty");
    // The message after it has all the room again.
    let whole = vec![1; 1 << 20];
    assert_eq!(items(&mut reader, &frame(0, &whole)).unwrap(), [message(&[&whole])]);
    for length in [(1_u64 << 30) + 1, 1 << 62, u64::MAX] {
        let mut head = vec![LONG];
        head.put_u64(length);
        assert_eq!(items(&mut Reader::default(), &head), Err(Wrong::FrameTooLong(length)));
    }
    let mut head = vec![COMMAND | LONG];
    head.put_u64(1 << 20);
    assert_eq!(items(&mut Reader::default(), &head), Err(Wrong::CommandTooLong(1 << 20)));
}

#[test]
fn a_message_without_end_stays_small() {
    let mut reader = Reader::default();
    for _ in 0..1_000_000 {
        assert_eq!(items(&mut reader, &[MORE, 1, b'x']).unwrap(), []);
    }
    let Item::Message(frames) = &items(&mut reader, &[0, 0]).unwrap()[0] else { panic!() };
    assert_eq!(frames.len(), FRAMES_MAX);
}

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
    let mut theirs = vec![0; 64 + 2 + 25 + 3];
    stream.read_exact(&mut theirs).await.unwrap();
    assert_eq!(&theirs[64 + 2 + 25..], b"\x00\x01\x01", "a subscription to everything");
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

/// A payload past the limit is its rank's loss (an unreadable batch clears it), not the stream's.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_large_is_one_unreadable_batch() {
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
    while rig.seen.live.load(Ordering::Relaxed) == 0 {
        publish(b"\x92\x01\x90".to_vec()).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = rig.hub.skips().not_a_batch;
    publish(vec![0; MESSAGE_BYTES_MAX + 1]).await;
    until("it is counted", || rig.hub.skips().not_a_batch == before + 1).await;
    let live = rig.seen.live.load(Ordering::Relaxed);
    publish(b"\x92\x01\x90".to_vec()).await;
    until("the stream goes on", || rig.seen.live.load(Ordering::Relaxed) > live).await;
    assert_eq!(rig.hub.connections.load(Ordering::Relaxed), 1);
}
