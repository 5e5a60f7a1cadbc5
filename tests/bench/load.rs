//! The load: keep-alive HTTP/1.1 chat requests over a few connections, one after the other on each, as cheap as can be. Knows who is
//! asked and under which session keys; judges nothing but that every answer is a 200.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

/// Bytes of a chat body: a short conversation.
pub(crate) const BODY_BYTES: usize = 1400;
/// Bytes of a longer one.
pub(crate) const LARGE_BODY_BYTES: usize = 20_000;
/// Largest answer read; a worker's is a tenth of it.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Session keys of a run, by the number of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys<'a> {
    /// These many sessions, turn by turn.
    Turns { sessions: u64 },
    /// A new session each time; the word keeps runs apart.
    New { run: &'a str },
}

/// Where a request has its session key, and how long its body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In `x-session-id`, with a body of so many bytes.
    KeyInHead(usize),
    /// In `prompt_cache_key` at the end of a body of so many bytes (and the key's).
    KeyInBody(usize),
}

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) keys: Keys<'a>,
    pub(crate) shape: Shape,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// From the first request to the last answer.
    pub(crate) wall: Duration,
    /// Time of each answer in microseconds, ascending.
    latencies_us: Vec<u32>,
}

impl Sent {
    /// Requests answered in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.latencies_us.len() as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// The time within which this share of the answers came, in microseconds.
    pub(crate) fn within_us(&self, share: f64) -> f64 {
        within_us(&self.latencies_us, share)
    }
}

/// The time within which this share of ascending ones lies; 0 of none.
pub(crate) fn within_us(ascending: &[u32], share: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    ascending.get(at).map_or(0.0, |us| f64::from(*us))
}

impl Load<'_> {
    /// Sends it all and waits for the answers.
    ///
    /// # Errors
    /// An answer is no 200, or does not come.
    pub(crate) async fn run(self) -> Result<Sent> {
        let (Shape::KeyInHead(bytes) | Shape::KeyInBody(bytes)) = self.shape;
        let body: Rc<str> = chat_body(bytes).into();
        let next = Rc::new(Cell::new(0));
        let run: Rc<str> = match self.keys {
            Keys::Turns { .. } => "".into(),
            Keys::New { run } => run.into(),
        };
        let sessions = match self.keys {
            Keys::Turns { sessions } => Some(sessions.max(1)),
            Keys::New { .. } => None,
        };
        let tasks = LocalSet::new();
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            let socket = TcpStream::connect(self.to).await.context("Envoy takes no connection")?;
            socket.set_nodelay(true)?;
            let (next, body, run) = (Rc::clone(&next), Rc::clone(&body), Rc::clone(&run));
            let key = move |n: u64| match sessions {
                Some(sessions) => format!("session-{}", n % sessions),
                None => format!("new-{run}-{n}"),
            };
            connections.push((socket, next, body, key));
        }
        let plan = Plan { requests: self.requests, shape: self.shape };
        let began = Instant::now();
        let handles: Vec<_> = connections
            .into_iter()
            .map(|(socket, next, body, key)| tasks.spawn_local(speak(socket, next, plan, body, key)))
            .collect();
        tasks.await;
        let wall = began.elapsed();
        let mut latencies_us = Vec::new();
        for handle in handles {
            latencies_us.extend(handle.await??);
        }
        latencies_us.sort_unstable();
        ensure!(latencies_us.len() as u64 == self.requests, "not every request was sent");
        Ok(Sent { wall, latencies_us })
    }
}

/// What each connection does.
#[derive(Clone, Copy)]
struct Plan {
    requests: u64,
    shape: Shape,
}

/// One connection: takes the next number until all are taken.
async fn speak(
    mut socket: TcpStream,
    next: Rc<Cell<u64>>,
    plan: Plan,
    body: Rc<str>,
    key: impl Fn(u64) -> String,
) -> Result<Vec<u32>> {
    let mut latencies = Vec::new();
    let mut buffer = Vec::with_capacity(ANSWER_BYTES_MAX);
    loop {
        let n = next.replace(next.get() + 1);
        if n >= plan.requests {
            return Ok(latencies);
        }
        let request = match plan.shape {
            Shape::KeyInHead(_) => request(&key(n), &body),
            Shape::KeyInBody(_) => request_by_body(&key(n), &body),
        };
        let began = Instant::now();
        let status = exchange(&mut socket, &request, &mut buffer).await?;
        ensure!(status == 200, "request {n} got a {status}: {}", String::from_utf8_lossy(&buffer));
        latencies.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
}

/// Sends one request and reads its answer into `buffer`; its status.
///
/// # Errors
/// There is no whole answer.
pub(crate) async fn exchange(socket: &mut TcpStream, request: &str, buffer: &mut Vec<u8>) -> Result<u16> {
    socket.write_all(request.as_bytes()).await.context("Envoy closed the connection")?;
    tokio::time::timeout(PATIENCE, answer(socket, buffer)).await.context("no answer")?
}

/// Head and body of one request of a session.
pub(crate) fn request(key: &str, body: &str) -> String {
    format!("{}content-length: {}\r\n\r\n{body}", head(key), body.len())
}

/// The same with the key as the last member of its body, and none in its head.
fn request_by_body(key: &str, body: &str) -> String {
    let body = body.strip_suffix('}').unwrap_or(body);
    let end = format!(r#","prompt_cache_key":"{key}"}}"#);
    format!("{PLAIN}content-length: {}\r\n\r\n{body}{end}", body.len() + end.len())
}

/// All of a head without a session key but its `content-length` and the empty line.
const PLAIN: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench.test\r\naccept: application/json\r\nuser-agent: bench\r\n\
                     content-type: application/json\r\n";

/// All of a head but its `content-length` and the empty line.
pub(crate) fn head(key: &str) -> String {
    format!("{PLAIN}x-session-id: {key}\r\n")
}

/// A chat request of exactly so many bytes.
pub(crate) fn chat_body(bytes: usize) -> String {
    let (before, after) =
        (r#"{"model":"tiny","messages":[{"role":"user","content":""#, r#""}],"max_tokens":1}"#);
    let text: String =
        "a turn of a conversation ".chars().cycle().take(bytes - before.len() - after.len()).collect();
    format!("{before}{text}{after}")
}

/// Reads one answer that names its length; its status.
async fn answer(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<u16> {
    buffer.clear();
    loop {
        if socket.read_buf(buffer).await? == 0 {
            bail!("the connection ended in the middle of an answer");
        }
        ensure!(buffer.len() <= ANSWER_BYTES_MAX, "an answer is over {ANSWER_BYTES_MAX} bytes");
        if let Some((status, whole)) = parse(buffer)?
            && buffer.len() >= whole
        {
            return Ok(status);
        }
    }
}

/// Status and whole length of an answer whose head is there.
fn parse(bytes: &[u8]) -> Result<Option<(u16, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(bytes.get(..end).unwrap_or_default()).context("a head that is no text")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status")?;
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize =
        length.and_then(|(_, value)| value.trim().parse().ok()).context("no content-length")?;
    Ok(Some((status, end + 4 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_the_stated_size() {
        for bytes in [BODY_BYTES, LARGE_BODY_BYTES] {
            let body = chat_body(bytes);
            assert_eq!(body.len(), bytes);
            serde_json::from_str::<serde_json::Value>(&body).unwrap();
            let request = request_by_body("k", &body);
            let keyed = request.split("\r\n\r\n").nth(1).unwrap();
            let read: serde_json::Value = serde_json::from_str(keyed).unwrap();
            assert_eq!(read["prompt_cache_key"], "k");
            assert!(request.contains(&format!("content-length: {}\r\n", keyed.len())));
        }
    }

    #[test]
    fn an_answer_ends_where_it_says() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx: y\r\n\r\nok";
        assert_eq!(parse(bytes).unwrap(), Some((200, bytes.len())));
        assert_eq!(parse(&bytes[..20]).unwrap(), None);
        assert!(parse(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n").is_err());
    }

    #[test]
    fn shares_of_latencies() {
        let sent = Sent { wall: Duration::from_secs(2), latencies_us: (1..=101).collect() };
        assert_eq!((sent.within_us(0.5), sent.within_us(0.99), sent.rate()), (51.0, 100.0, 50.5));
    }
}
