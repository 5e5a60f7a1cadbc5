//! Sends a schedule to Envoys and keeps what engines say of each turn: who served it and how much of its prompt was cached. A session's
//! turns go to the Envoys in turn, one after the other. Knows no service.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

use super::schedule::Due;
use super::trace::Trace;
use crate::load;

/// What became of a schedule.
#[derive(Debug, Default)]
pub(crate) struct Played {
    pub(crate) wall: Duration,
    pub(crate) requests: usize,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    /// Turns that another worker served than the session's turn before.
    pub(crate) changes: u64,
    /// Of those, at the worker that the session had left with its change before.
    pub(crate) returns: u64,
    pub(crate) status_5xx: u64,
    /// Neither 200 nor a 5xx, or no answer.
    pub(crate) failed: u64,
    /// Requests of each worker.
    pub(crate) served: BTreeMap<String, u64>,
    /// Answer times, µs, ascending.
    pub(crate) took_us: Vec<u32>,
    /// How late turns were sent, since the one before was not answered or the machine was busy, µs, ascending.
    pub(crate) late_us: Vec<u32>,
}

/// Open connections that nobody uses, by Envoy.
struct Pool {
    to: Vec<SocketAddr>,
    idle: Vec<Vec<TcpStream>>,
}

/// What all users share.
struct Shared {
    trace: Rc<Trace>,
    pool: RefCell<Pool>,
    played: RefCell<Played>,
}

/// Sends it all.
///
/// # Errors
/// A user's task failed; what Envoys answer is counted, whatever it is.
pub(crate) async fn play(trace: &Rc<Trace>, schedule: &[Vec<Due>], envoys: &[SocketAddr]) -> Result<Played> {
    let pool = Pool { to: envoys.to_vec(), idle: envoys.iter().map(|_| Vec::new()).collect() };
    let (trace, pool) = (Rc::clone(trace), RefCell::new(pool));
    let shared = Rc::new(Shared { trace, pool, played: RefCell::default() });
    let (tasks, began) = (LocalSet::new(), Instant::now());
    let users: Vec<_> = schedule
        .iter()
        .enumerate()
        .map(|(user, dues)| tasks.spawn_local(plays(user, dues.clone(), began, Rc::clone(&shared))))
        .collect();
    tasks.await;
    for user in users {
        user.await?;
    }
    let mut played = shared.played.take();
    played.wall = began.elapsed();
    played.took_us.sort_unstable();
    played.late_us.sort_unstable();
    Ok(played)
}

async fn plays(user: usize, dues: Vec<Due>, began: Instant, shared: Rc<Shared>) {
    let mut places: HashMap<(usize, u32), Vec<String>> = HashMap::new();
    let mut answer = Vec::new();
    for (nth, due) in dues.into_iter().enumerate() {
        sleep_until(began + due.at).await;
        let request = request(&shared.trace, due);
        let sent = Instant::now();
        let status = shared.exchange(user + nth, &request, &mut answer).await;
        let mut played = shared.played.borrow_mut();
        played.requests += 1;
        played.late_us.push(micros(sent.duration_since(began + due.at)));
        played.took_us.push(micros(sent.elapsed()));
        match status {
            Ok(200) => played.take(&answer, places.entry((due.session, due.pass)).or_default()),
            Ok(500..) => played.status_5xx += 1,
            _ => played.failed += 1,
        }
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl Shared {
    /// Over an idle connection to the Envoy whose turn it is, or a new one.
    async fn exchange(&self, nth: usize, request: &str, answer: &mut Vec<u8>) -> Result<u16> {
        let (at, to, idle) = {
            let mut pool = self.pool.borrow_mut();
            let at = nth % pool.to.len();
            (at, pool.to[at], pool.idle[at].pop())
        };
        let mut stream = match idle {
            Some(stream) => stream,
            None => TcpStream::connect(to).await.context("Envoy takes no connection")?,
        };
        stream.set_nodelay(true)?;
        let status = load::exchange(&mut stream, request, answer).await?;
        self.pool.borrow_mut().idle[at].push(stream);
        Ok(status)
    }
}

impl Played {
    fn take(&mut self, answer: &[u8], places: &mut Vec<String>) {
        let text = String::from_utf8_lossy(answer);
        self.prompt_tokens += number_after(&text, "\"prompt_tokens\":");
        self.cached_tokens += number_after(&text, "\"cached_tokens\":");
        let Some(worker) = text.lines().find_map(|line| line.strip_prefix("x-engine-name: ")) else { return };
        *self.served.entry(worker.to_owned()).or_default() += 1;
        match &places[..] {
            [.., last] if last == worker => return,
            [.., left, _] if left == worker => {
                (self.changes, self.returns) = (self.changes + 1, self.returns + 1)
            }
            [_, ..] => self.changes += 1,
            [] => {}
        }
        places.push(worker.to_owned());
    }

    /// Share of prompts' tokens that engines found cached.
    pub(crate) fn hit_ratio(&self) -> f64 {
        self.cached_tokens as f64 / (self.prompt_tokens as f64).max(1.0)
    }

    /// Requests of the worker with the most over the mean.
    pub(crate) fn max_over_mean(&self, workers: usize) -> f64 {
        let most = self.served.values().max().copied().unwrap_or(0);
        most as f64 * workers as f64 / (self.requests as f64).max(1.0)
    }
}

fn number_after(text: &str, name: &str) -> u64 {
    let Some((_, rest)) = text.split_once(name) else { return 0 };
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// A completion of the turn's tokens: two for each block and one more, so that each full block can be found cached.
fn request(trace: &Trace, due: Due) -> String {
    let blocks = &trace.sessions[due.session][due.turn].blocks;
    let mut body = String::with_capacity(64 + 12 * blocks.len());
    body.push_str(r#"{"model":"tiny","max_tokens":1,"prompt":["#);
    for block in blocks {
        let [one, two] = block.tokens(due.pass);
        let _ = write!(body, "{one},{two},");
    }
    let _ = write!(body, "{}]}}", due.turn);
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: bench.test\r\ncontent-type: application/json\r\nx-session-id: s{}-{}\r\n\
         content-length: {}\r\n\r\n{body}",
        due.session,
        due.pass,
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_returns_are_told_from_turns_that_stay() {
        let (mut played, mut places) = (Played::default(), Vec::new());
        for worker in ["a", "a", "b", "a", "c"] {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nx-engine-name: {worker}\r\n\r\n{{\"prompt_tokens\":10,\"cached_tokens\": 4}}"
            );
            played.take(answer.as_bytes(), &mut places);
        }
        assert_eq!((played.changes, played.returns, played.served["a"]), (3, 1, 3));
        assert_eq!((played.prompt_tokens, played.cached_tokens), (50, 20));
    }
}
