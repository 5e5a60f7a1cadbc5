//! Batches on their way out: numbered, waiting, kept for replay, and the faults that fall between. Bounded; knows no events.

use std::collections::VecDeque;

use hyper::body::Bytes;
use tokio::time::{Duration, Instant};

/// Batches waiting to be sent; the next one is lost, as on a full socket: its number is used up.
const PENDING_MAX: usize = 100_000;
/// Payload bytes kept for replay; the oldest batches go first, whatever the number of steps to keep.
const RING_BYTES_MAX: usize = 64 << 20;

/// A batch and its number.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) seq: u64,
    pub(crate) payload: Bytes,
}

/// What is ordered to go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Troubles {
    /// Batches that are not sent but can be replayed.
    pub(crate) drop: u64,
    /// Batches that are neither sent nor kept.
    pub(crate) lose: u64,
    /// Batches that are sent twice.
    pub(crate) duplicate: u64,
    /// Nothing leaves, live or replayed, until then; `Some(None)` is until told otherwise.
    pub(crate) stall: Option<Option<Instant>>,
    /// Nothing is published at all.
    pub(crate) silent: bool,
}

/// One rank's batches.
#[derive(Default)]
pub(crate) struct Ring {
    pub(crate) next_seq: u64,
    pub(crate) pending: VecDeque<Batch>,
    pub(crate) kept: VecDeque<Batch>,
    kept_bytes: usize,
    pub(crate) troubles: Troubles,
}

impl Ring {
    /// Empty and counting from 0; what is ordered to go wrong goes on.
    pub(crate) fn restart(&mut self) {
        *self = Self { troubles: self.troubles, ..Self::default() };
    }

    /// Numbers a batch and queues it.
    pub(crate) fn publish(&mut self, payload: Vec<u8>) {
        let seq = self.next_seq;
        self.next_seq += 1;
        if self.pending.len() < PENDING_MAX {
            self.pending.push_back(Batch { seq, payload: payload.into() });
        }
    }

    /// The next batch to send and how often; kept from now on, at most `steps`, unless it shall be lost.
    pub(crate) fn take(&mut self, steps: usize) -> Option<(Batch, u64)> {
        let batch = self.pending.pop_front()?;
        let due = |left: &mut u64| {
            let is_due = *left > 0;
            *left -= u64::from(is_due);
            is_due
        };
        let Troubles { drop, lose, duplicate, .. } = &mut self.troubles;
        if due(lose) {
            return Some((batch, 0));
        }
        let times = match (due(drop), due(duplicate)) {
            (true, _) => 0,
            (false, twice) => 1 + u64::from(twice),
        };
        self.keep(&batch, steps);
        Some((batch, times))
    }

    fn keep(&mut self, batch: &Batch, steps: usize) {
        self.kept_bytes += batch.payload.len();
        self.kept.push_back(batch.clone());
        while self.kept.len() > steps || self.kept_bytes > RING_BYTES_MAX {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.kept_bytes -= oldest.payload.len();
        }
    }

    /// `Some` while stalled; within, until when.
    pub(crate) fn stalled_until(&mut self) -> Option<Option<Instant>> {
        if let Some(Some(until)) = self.troubles.stall
            && until <= Instant::now()
        {
            self.troubles.stall = None;
        }
        self.troubles.stall
    }
}

/// How long a stall of so many milliseconds lasts.
pub(crate) fn stall_until(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}
