//! Places for hosts that follow the bindings: how many there are, whose is taken, where each may go on, and why streams ended.
//!
//! Knows no binding.

use super::Followers;
use crate::metrics::Text;
use crate::state::Position;
use routing::id::Epoch;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, watch};

/// Streams at once, one a host. At it a new one is refused for now.
pub const STREAMS_MAX: usize = 64;
/// Snapshots being read at once. At it a new one is refused for now.
pub const SNAPSHOTS_MAX: usize = 8;

/// Hosts that follow, and what was told to them.
#[derive(Debug)]
pub struct Hosts {
    pub(super) streams: Arc<Semaphore>,
    pub(super) snapshots: Arc<Semaphore>,
    /// Writers whose stream lives.
    streaming: Arc<Mutex<BTreeSet<u64>>>,
    /// Number of the last change, as long as anybody follows.
    pub(super) changes: watch::Sender<u64>,
    /// Whether they may.
    pub(super) followers: Followers,
    pub(super) told: AtomicU64,
    pub(super) snapshots_begun: AtomicU64,
    ended: [AtomicU64; Ended::ALL.len()],
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its host went away.
    Gone,
    /// The service stops.
    Stopping,
    /// Its host took nothing for too long.
    Slow,
    /// Its host was so slow that not every change after its cursor is known any more.
    Gap,
}

impl Ended {
    const ALL: [Self; 4] = [Self::Gone, Self::Stopping, Self::Slow, Self::Gap];

    /// Stable word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Stopping => "stopping",
            Self::Slow => "slow",
            Self::Gap => "gap",
        }
    }
}

/// A place in the order of changes of one life of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub(super) epoch: Epoch,
    pub(super) position: Position,
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}-{:x}", self.epoch.0, self.position.0)
    }
}

impl Cursor {
    /// Reads what [`Self::fmt`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |digits: &str| {
            let plain = (1..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        let (epoch, position) = text.split_once('-')?;
        Some(Self { epoch: Epoch(hex(epoch)?), position: Position(hex(position)?) })
    }
}

impl Hosts {
    pub(super) fn new(followers: Followers) -> Self {
        Self {
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            snapshots: Arc::new(Semaphore::new(SNAPSHOTS_MAX)),
            streaming: Arc::default(),
            changes: watch::Sender::new(0),
            followers,
            told: AtomicU64::new(0),
            snapshots_begun: AtomicU64::new(0),
            ended: Default::default(),
        }
    }

    /// The order of changes ends here now; whoever follows wakes.
    pub(super) fn changed(&self, position: Position) {
        if self.changes.receiver_count() > 0 {
            self.changes.send_if_modified(|last| std::mem::replace(last, position.0) != position.0);
        }
    }

    pub(super) fn render(&self, text: &mut Text) {
        let streams = self.streaming().len();
        text.single("rankpin_host_streams", "gauge", "Hosts that follow the bindings.", streams);
        let told = self.told.load(Ordering::Relaxed);
        let help = "Bindings told to hosts that follow.";
        text.single("rankpin_host_bindings_told_total", "counter", help, told);
        let begun = self.snapshots_begun.load(Ordering::Relaxed);
        let help = "Snapshots of all bindings that hosts began to read.";
        text.single("rankpin_host_snapshots_total", "counter", help, begun);
        text.family("rankpin_host_streams_ended_total", "counter", "Streams of hosts that ended, by why.");
        for (why, count) in Ended::ALL.iter().zip(&self.ended) {
            let labels = format!("reason=\"{}\"", why.word());
            text.sample("rankpin_host_streams_ended_total", &labels, count.load(Ordering::Relaxed));
        }
    }

    pub(super) fn streaming(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.streaming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_end(&self, why: Ended) {
        let counts = Ended::ALL.iter().zip(&self.ended).filter(|(one, _)| **one == why);
        for (_, count) in counts {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is() {
        let cursor = Cursor { epoch: Epoch(0xfe), position: Position(u64::MAX) };
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        for text in ["", "-", "1", "1-", "-1", "1-2-3", "+1-2", "g-1", "11111111111111111-1", "1-2 "] {
            assert_eq!(Cursor::parse(text), None, "{text:?}");
        }
    }
}
