//! Failure memory of one VM: outlives the request that met the failure, so that the next one need not meet it again.
//!
//! Holds only workers with recent trouble, and forgets them when it is over. Knows neither sessions nor who is told.

use crate::contract::SlotFailure;
use crate::id::Rank;
use crate::penalty::Penalty;
use crate::time::{Millis, Timestamp};
use std::collections::BTreeMap;

/// After a refused or broken connection, bound turns of that worker go elsewhere for this long: the probes decide meanwhile.
pub const UNREACHABLE_FOR: Millis = Millis(1000);
/// An engine that says it is busy and not for how long is left alone for this long.
pub const BUSY_DEFAULT: Millis = Millis(1000);
/// Longest `Retry-After` believed.
pub const BUSY_MAX: Millis = Millis(10_000);

/// What an attempt says of the slot it went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It failed.
    Failed(SlotFailure),
    /// The engine is there and says it is busy, for this long.
    Busy(Millis),
    /// It answered.
    Good,
}

impl Verdict {
    /// Of an engine's answer. `retry_after` is read only where it matters: 429 and 503.
    #[must_use]
    pub fn of_status(status: u16, retry_after: Option<&[u8]>) -> Self {
        match status {
            429 => Self::Busy(busy_for(retry_after)),
            503 if retry_after.is_some() => Self::Busy(busy_for(retry_after)),
            // A server that does not say when it will be back is as good as not there (affinity section 4, the table).
            503 => Self::Failed(SlotFailure::Connection),
            500.. => Self::Failed(SlotFailure::Status5xx),
            _ => Self::Good,
        }
    }
}

/// Seconds of a `Retry-After`, within 1 s and [`BUSY_MAX`]; a date or nonsense counts as [`BUSY_DEFAULT`].
fn busy_for(retry_after: Option<&[u8]>) -> Millis {
    let seconds = retry_after.and_then(|value| std::str::from_utf8(value).ok()?.trim().parse::<u64>().ok());
    seconds.map_or(BUSY_DEFAULT, |s| Millis::from_secs(s).clamp(BUSY_DEFAULT, BUSY_MAX))
}

/// Why a turn had better go elsewhere for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Avoid {
    /// The worker was just unreachable.
    Unreachable,
    /// That slot said it is busy, for so much longer.
    Busy(Millis),
}

#[derive(Debug, Default)]
struct Trouble {
    penalty: Penalty,
    unreachable: Option<Timestamp>,
    busy: BTreeMap<Option<Rank>, Timestamp>,
}

impl Trouble {
    fn is_over(&self, now: Timestamp) -> bool {
        self.penalty.requests(now) == 0
            && !self.unreachable.is_some_and(|until| runs(now, until, UNREACHABLE_FOR))
            && !self.busy.values().any(|until| runs(now, *until, BUSY_MAX))
    }
}

/// Whether a period is still running; one that would run longer than it can was set by a clock that went back since.
fn runs(now: Timestamp, until: Timestamp, longest: Millis) -> bool {
    now < until && until.since(now) <= longest
}

/// Workers with recent trouble.
#[derive(Debug, Default)]
pub struct Troubles {
    workers: BTreeMap<u64, Trouble>,
}

impl Troubles {
    /// Takes a verdict in; says whether the worker is or was in trouble.
    pub fn note(&mut self, now: Timestamp, worker: u64, rank: Option<Rank>, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Good => self.answered(now, worker, rank),
            Verdict::Busy(how_long) => {
                let trouble = self.workers.entry(worker).or_default();
                trouble.unreachable = None;
                trouble.busy.insert(rank, now + how_long);
                true
            }
            Verdict::Failed(failure) => {
                let trouble = self.workers.entry(worker).or_default();
                trouble.penalty.add(now, 1);
                if failure == SlotFailure::Connection {
                    trouble.unreachable = Some(now + UNREACHABLE_FOR);
                }
                true
            }
        }
    }

    fn answered(&mut self, now: Timestamp, worker: u64, rank: Option<Rank>) -> bool {
        // The usual case, on every answer: nobody is in trouble.
        if self.workers.is_empty() {
            return false;
        }
        let Some(trouble) = self.workers.get_mut(&worker) else { return false };
        trouble.penalty.proved(now);
        trouble.unreachable = None;
        trouble.busy.remove(&rank);
        true
    }

    /// Why a turn had better go elsewhere for now, if it had.
    #[must_use]
    pub fn why(&self, now: Timestamp, worker: u64, rank: Option<Rank>) -> Option<Avoid> {
        if self.workers.is_empty() {
            return None;
        }
        let trouble = self.workers.get(&worker)?;
        if trouble.unreachable.is_some_and(|until| runs(now, until, UNREACHABLE_FOR)) {
            return Some(Avoid::Unreachable);
        }
        let until = trouble.busy.get(&rank).filter(|until| runs(now, **until, BUSY_MAX))?;
        Some(Avoid::Busy(until.since(now)))
    }

    /// Whether a turn had better go elsewhere for now.
    #[must_use]
    pub fn avoids(&self, now: Timestamp, worker: u64, rank: Option<Rank>) -> bool {
        self.why(now, worker, rank).is_some()
    }

    /// What the worker's recent failures count as, in requests.
    #[must_use]
    pub fn penalty(&self, now: Timestamp, worker: u64) -> u32 {
        self.workers.get(&worker).map_or(0, |trouble| trouble.penalty.requests(now))
    }

    /// Forgets troubles that are over: called on every tick, so that only live ones are kept.
    pub fn sweep(&mut self, now: Timestamp) {
        self.workers.retain(|_, trouble| !trouble.is_over(now));
    }

    /// Workers in trouble.
    #[must_use]
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }
}
