//! A connection to the service that stays, and a filter's VM that speaks over it: `route` and `report` as Envoy carries them, without
//! an Envoy. Cheap, because benches send tens of thousands; judges nothing but a status.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use routing::contract::{
    Caller, Entry, InFlight, Outcome, REPORT_ENTRIES_MAX, REPORT_PATH, ROUTE_PATH, Report, RouteReply,
    RouteRequest, SessionRef,
};
use routing::hash::{Phase, rank_hash, session_id};
use routing::id::{Epoch, PoolName, RequestId};
use routing::time::Millis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The service waits ten seconds for the first request of a connection: one that was made long before is made anew.
const UNUSED_MAX: Duration = Duration::from_secs(3);
/// Largest answer read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// What a filter waits for `route`, unless told otherwise.
pub const DEADLINE: Millis = Millis(250);

/// The session of a key in pool `default` under an empty secret and scope.
#[must_use]
pub fn session_of(key: &str) -> SessionRef {
    let id = session_id(b"", b"", "default", Phase::Aggregated, key.as_bytes());
    SessionRef { id, rank_hash: rank_hash(key.as_bytes()) }
}

/// A kept HTTP/1.1 connection: one request after the other.
#[derive(Debug)]
pub struct Kept {
    stream: TcpStream,
    to: SocketAddr,
    /// When it was made, until it is first used.
    unused: Option<Instant>,
    /// What is sent, in one piece.
    out: Vec<u8>,
    buffer: Vec<u8>,
    body: std::ops::Range<usize>,
}

impl Kept {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens.
    pub async fn connect(to: SocketAddr) -> Result<Self> {
        let (stream, unused) = (dial(to).await?, Some(Instant::now()));
        Ok(Self { stream, to, unused, out: Vec::new(), buffer: Vec::new(), body: 0..0 })
    }

    /// Asks; the status. The body is in [`Self::body`].
    ///
    /// # Errors
    /// There is no whole answer.
    pub async fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Result<u16> {
        if self.unused.take().is_some_and(|since| since.elapsed() > UNUSED_MAX) {
            self.stream = dial(self.to).await?;
        }
        self.out.clear();
        write!(
            self.out,
            "{method} {path} HTTP/1.1\r\nhost: rankpin\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )?;
        self.out.extend_from_slice(body);
        self.stream.write_all(&self.out).await?;
        timeout(PATIENCE, self.answer()).await.context("no answer")?
    }

    /// The last answer's body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.buffer[self.body.clone()]
    }

    async fn answer(&mut self) -> Result<u16> {
        self.buffer.clear();
        loop {
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the service closed the connection");
            ensure!(self.buffer.len() <= ANSWER_BYTES_MAX, "an answer is over {ANSWER_BYTES_MAX} bytes");
            if let Some((status, body)) = parse(&self.buffer)?
                && self.buffer.len() >= body.end
            {
                self.body = body;
                return Ok(status);
            }
        }
    }
}

async fn dial(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to).await.with_context(|| format!("cannot connect to {to}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Status of an answer whose head is there, and where its body is; one without a length has none.
fn parse(bytes: &[u8]) -> Result<Option<(u16, std::ops::Range<usize>)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).context("a head that is no text")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status")?;
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.map_or(Ok(0), |(_, value)| value.trim().parse()).context("no length")?;
    Ok(Some((status, end + 4..end + 4 + length)))
}

/// One VM of a filter, asking one replica.
#[derive(Debug)]
pub struct Vm {
    kept: Kept,
    caller: Caller,
    pool: PoolName,
    seq: u64,
    requests: u64,
    /// What happened since the last report.
    pub entries: Vec<Entry>,
}

impl Vm {
    /// Connects to a replica's data listener; `node` and `life` name it.
    ///
    /// # Errors
    /// Nobody listens.
    pub async fn connect(to: SocketAddr, node: &str, life: u64) -> Result<Self> {
        let caller = Caller { node: node.to_owned(), vm: Epoch(life) };
        let pool = PoolName::parse("default").context("a pool's name")?;
        Ok(Self { kept: Kept::connect(to).await?, caller, pool, seq: 0, requests: 0, entries: Vec::new() })
    }

    /// Asks where a turn of a session goes; a hold is committed with the next report, as an accepted turn is.
    ///
    /// # Errors
    /// No answer, or no place.
    pub async fn turn(&mut self, session: SessionRef) -> Result<RouteReply> {
        self.requests += 1;
        let request = RequestId(self.requests);
        let mut asked = RouteRequest::new(self.caller.clone(), request, self.pool.clone(), DEADLINE);
        asked.session = Some(session);
        let status = self.kept.call("POST", ROUTE_PATH, &serde_json::to_vec(&asked)?).await?;
        let said = || String::from_utf8_lossy(self.kept.body()).into_owned();
        ensure!(status == 200, "route: {status} {}", said());
        let reply: RouteReply = serde_json::from_slice(self.kept.body())?;
        let target = reply.target.clone().with_context(|| format!("nowhere to go: {}", said()))?;
        if reply.outcome == Outcome::Held {
            let (pool, version, hold) = (self.pool.clone(), reply.version, reply.hold);
            self.entries.push(Entry::Committed { session, pool, request, hold, target, version });
        }
        Ok(reply)
    }

    /// Tells what happened since the last report, and what is in flight.
    ///
    /// # Errors
    /// It is not taken.
    pub async fn report(&mut self, in_flight: Vec<InFlight>) -> Result<()> {
        self.seq += 1;
        let entries = self.entries.drain(..self.entries.len().min(REPORT_ENTRIES_MAX)).collect();
        let (caller, seq) = (self.caller.clone(), self.seq);
        let report = Report { caller, seq, in_flight, entries, upstream_role_missing: 0 };
        let status = self.kept.call("POST", REPORT_PATH, &serde_json::to_vec(&report)?).await?;
        ensure!(status == 204, "report: {status} {}", String::from_utf8_lossy(self.kept.body()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_where_it_says_and_one_without_a_length_has_no_body() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx: y\r\n\r\nok";
        assert_eq!(parse(bytes).unwrap(), Some((200, bytes.len() - 2..bytes.len())));
        assert_eq!(parse(&bytes[..20]).unwrap(), None);
        let bytes = b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n";
        assert_eq!(parse(bytes).unwrap(), Some((204, bytes.len()..bytes.len())));
    }
}
