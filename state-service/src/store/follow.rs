//! Following the log: entries in order, each once, and a gap where some are lost. Each entry names the one before it, so a gap is seen
//! whatever its cause: trimmed, deleted, a store that came back empty.

use super::connect::Connection;
use super::{Store, StoreError, StreamId, record, reply};
use crate::state::Binding;
use redis::{Cmd, Pipeline, RedisResult, Value};
use routing::time::Millis;
use std::sync::atomic::Ordering::Relaxed;

/// Longest that news are waited for in one call.
pub const FOLLOW_WAIT_MAX: Millis = Millis(5000);
/// Entries in one call: each has 256 bindings at most.
const ENTRIES_PER_CALL: usize = 64;
/// The time and the epoch, without a script: it runs once the waiting is over, on the same connection.
const TIME_AND_EPOCH: &str = "local t = redis.call('TIME') return {t[1] * 1000 + math.floor(t[2] / 1000), redis.call('GET', KEYS[1]) or ''}";

/// One entry of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub id: StreamId,
    /// Who wrote it.
    pub writer: u64,
    /// The bindings that changed, as they were then; what is over by now has an end of 0 ms.
    pub bindings: Vec<Binding>,
    /// What was noted; our own notes are `worker ID GENERATION` and `removed ID GENERATION`.
    pub notes: Vec<String>,
}

/// What came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// In order.
    pub entries: Vec<Entry>,
    /// To go on from.
    pub cursor: StreamId,
    /// Something after the cursor is lost: take a snapshot and go on from there. No entry comes with it.
    pub gap: bool,
}

/// An entry with what says whether it follows.
struct Raw {
    entry: Entry,
    previous: Option<StreamId>,
    unreadable: u64,
}

impl Store {
    /// What the log has after a place; waits up to [`FOLLOW_WAIT_MAX`] for something to come.
    ///
    /// # Errors
    /// Any of [`StoreError`]; nothing is lost by asking again.
    pub async fn follow(&self, after: StreamId, wait: Millis) -> Result<Followed, StoreError> {
        let config = &self.inner.config;
        let wait = wait.min(FOLLOW_WAIT_MAX);
        let deadline = Millis(wait.0 + config.deadline.0);
        let pipeline = self.follow_commands(after, wait);
        self.inner.counters.commands.fetch_add(2, Relaxed);
        let ask = |mut connection: Connection| async move {
            let answers: RedisResult<Vec<Value>> = pipeline.query_async(&mut connection).await;
            answers
        };
        let answers = self.inner.waits.call("follow", deadline, ask).await?;
        let (now, epoch, entries) = read(answers).ok_or_else(|| StoreError::answer("follow"))?;
        self.saw_epoch(epoch).await;
        let at = |clock: &super::StoreClock| match clock {
            super::StoreClock::Server => now,
            super::StoreClock::Given(given) => given.load(std::sync::atomic::Ordering::SeqCst),
        };
        let entries = entries.into_iter().map(|entry| raw(entry, at(&config.clock)));
        let entries: Vec<Raw> = entries.collect::<Option<_>>().ok_or_else(|| StoreError::answer("follow"))?;
        if entries.is_empty() && after != StreamId::default() {
            return self.nothing_new(after).await;
        }
        Ok(self.in_order(after, now, entries))
    }

    /// Nothing came; which may also be because the log began anew, below the cursor: its ids go by the server's clock.
    async fn nothing_new(&self, after: StreamId) -> Result<Followed, StoreError> {
        let gap = self.tail().await? < after;
        self.inner.counters.gaps.fetch_add(u64::from(gap), Relaxed);
        Ok(Followed { entries: Vec::new(), cursor: after, gap })
    }

    fn follow_commands(&self, after: StreamId, wait: Millis) -> Pipeline {
        let keys = &self.inner.config.keys;
        let mut read = Cmd::new();
        read.arg("XREAD").arg("COUNT").arg(ENTRIES_PER_CALL);
        // 0 would be for ever.
        if wait.0 > 0 {
            read.arg("BLOCK").arg(wait.0);
        }
        read.arg("STREAMS").arg(&keys.log).arg(after.to_string());
        let mut pipeline = Pipeline::new();
        pipeline.add_command(read).cmd("EVAL").arg(TIME_AND_EPOCH).arg(1).arg(&keys.epoch);
        pipeline
    }

    /// The entries up to the first that does not follow the one before it.
    fn in_order(&self, after: StreamId, now: u64, entries: Vec<Raw>) -> Followed {
        let counters = &self.inner.counters;
        let mut followed = Followed { cursor: after, ..Followed::default() };
        for Raw { entry, previous, unreadable } in entries {
            if previous != Some(followed.cursor) {
                followed.gap = followed.entries.is_empty();
                break;
            }
            counters.unreadable.fetch_add(unreadable, Relaxed);
            if entry.writer != self.inner.config.writer {
                counters.saw_lag(now.saturating_sub(entry.id.ms));
            }
            followed.cursor = entry.id;
            followed.entries.push(entry);
        }
        if let Some(last) = followed.entries.last() {
            self.inner.epochs.saw_entry(last.id);
        }
        counters.entries.fetch_add(followed.entries.len() as u64, Relaxed);
        counters.gaps.fetch_add(u64::from(followed.gap), Relaxed);
        followed
    }
}

/// The time, the epoch, the entries.
fn read(answers: Vec<Value>) -> Option<(u64, Option<u64>, Vec<Value>)> {
    let [streams, clock] = <[Value; 2]>::try_from(answers).ok()?;
    let clock = reply::list(clock)?;
    let (now, epoch) = (reply::number(clock.first()?)?, reply::epoch(clock.get(1)?)?);
    if streams == Value::Nil {
        return Some((now, epoch, Vec::new()));
    }
    let stream = reply::list(reply::list(streams)?.pop()?)?;
    Some((now, epoch, reply::list(stream.into_iter().nth(1)?)?))
}

/// One entry; what in it is not ours is left out and counted.
fn raw(entry: Value, now: u64) -> Option<Raw> {
    let parts = reply::list(entry)?;
    let id = StreamId::parse(reply::text(parts.first()?)?)?;
    let fields = reply::list(parts.into_iter().nth(1)?)?;
    let mut raw = Raw { entry: Entry { id, ..Entry::default() }, previous: None, unreadable: 0 };
    for pair in fields.chunks_exact(2) {
        let [name, value] = pair else { continue };
        match (reply::text(name), reply::text(value)) {
            (Some("p"), Some(text)) => raw.previous = StreamId::parse(text),
            (Some("w"), Some(text)) => raw.entry.writer = u64::from_str_radix(text, 16).unwrap_or(0),
            (Some("b"), Some(text)) => raw.read_bindings(text, now),
            (Some("n"), Some(text)) => {
                raw.entry.notes = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
            }
            _ => raw.unreadable += 1,
        }
    }
    Some(raw)
}

impl Raw {
    fn read_bindings(&mut self, text: &str, now: u64) {
        for line in text.lines() {
            match record::read_line(line, now) {
                Some(binding) => self.entry.bindings.push(binding),
                None => self.unreadable += 1,
            }
        }
    }
}
