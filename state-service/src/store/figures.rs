//! What is counted about the store: calls, failures by reason, what could not be read, how late news came. Decides nothing.

use super::error::{REASONS, StoreError};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper ends of the lag histogram's buckets, in ms; one more bucket is for all above.
pub const LAG_BUCKETS_MS: [u64; 11] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000];
const BUCKETS: usize = LAG_BUCKETS_MS.len() + 1;

/// The counters themselves.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) calls: AtomicU64,
    pub(super) commands: AtomicU64,
    failures: [AtomicU64; REASONS.len()],
    pub(super) connects: AtomicU64,
    pub(super) foreign_records: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) entries: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) epoch_changes: AtomicU64,
    pub(super) lost_writes: AtomicU64,
    lag: [AtomicU64; BUCKETS],
    lag_sum_ms: AtomicU64,
}

/// The counters at one moment; all since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Calls made, those that failed included.
    pub calls: u64,
    /// Commands of the server that these took.
    pub commands: u64,
    /// Calls that failed, in the order of [`REASONS`].
    pub failures: [u64; REASONS.len()],
    /// Connections made.
    pub connects: u64,
    /// Records of sessions that another program wrote.
    pub foreign_records: u64,
    /// Lines of the log, records and declarations that are not ours to read.
    pub unreadable: u64,
    /// Entries of the log that came.
    pub entries: u64,
    /// Times that the log did not reach back far enough.
    pub gaps: u64,
    /// Times that the store came back without its memory.
    pub epoch_changes: u64,
    /// Times that it forgot its last writes.
    pub lost_writes: u64,
    /// How late entries of others came, by [`LAG_BUCKETS_MS`] and one above all; not cumulative.
    pub lag: [u64; BUCKETS],
    /// Their sum, ms.
    pub lag_sum_ms: u64,
}

impl Counters {
    pub(super) fn failed(&self, error: &StoreError) {
        if let Some(counter) = self.failures.get(error.reason()) {
            counter.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn saw_lag(&self, ms: u64) {
        let bucket = LAG_BUCKETS_MS.iter().position(|end| ms <= *end).unwrap_or(LAG_BUCKETS_MS.len());
        if let Some(counter) = self.lag.get(bucket) {
            counter.fetch_add(1, Relaxed);
        }
        self.lag_sum_ms.fetch_add(ms, Relaxed);
    }

    pub(super) fn figures(&self) -> StoreFigures {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        StoreFigures {
            calls: read(&self.calls),
            commands: read(&self.commands),
            failures: self.failures.each_ref().map(read),
            connects: read(&self.connects),
            foreign_records: read(&self.foreign_records),
            unreadable: read(&self.unreadable),
            entries: read(&self.entries),
            gaps: read(&self.gaps),
            epoch_changes: read(&self.epoch_changes),
            lost_writes: read(&self.lost_writes),
            lag: self.lag.each_ref().map(read),
            lag_sum_ms: read(&self.lag_sum_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_falls_into_the_bucket_that_holds_it() {
        let counters = Counters::default();
        [0, 1, 2, 3, 9000].iter().for_each(|ms| counters.saw_lag(*ms));
        let figures = counters.figures();
        assert_eq!((figures.lag[0], figures.lag[1], figures.lag[2], figures.lag[11]), (2, 1, 1, 1));
        assert_eq!(figures.lag_sum_ms, 9006);
    }
}
