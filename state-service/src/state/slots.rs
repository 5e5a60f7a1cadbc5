//! Numbers of the fleet's gauges: each worker has a contiguous run of them, first fit.
//!
//! Envoy never frees a gauge, so numbers of removed workers are given again and the highest one stays what it was. Knows
//! nothing of workers: who has which run is written in the worker.

use super::limits::SLOT_NUMBERS_MAX;
use std::collections::BTreeMap;

/// How many numbers a worker needs: one a rank and, where there are several, one for requests without a rank.
pub(super) const fn needed(rank_count: u32) -> u32 {
    if rank_count > 1 { rank_count.saturating_add(1) } else { 1 }
}

/// Runs given away, none of which overlap: first number to length.
#[derive(Debug, Default)]
pub(super) struct Slots {
    runs: BTreeMap<u32, u32>,
}

impl Slots {
    /// The lowest run of `len` free numbers; `None` when there is none below [`SLOT_NUMBERS_MAX`].
    pub(super) fn take(&mut self, len: u32) -> Option<u32> {
        let mut free = 0;
        for (first, taken) in &self.runs {
            if first.saturating_sub(free) >= len {
                break;
            }
            free = first.saturating_add(*taken);
        }
        self.put(free, len)
    }

    /// The run as long as it must be now: where it is if that can be, else elsewhere.
    pub(super) fn resize(&mut self, first: Option<u32>, len: u32) -> Option<u32> {
        let Some(first) = first else { return self.take(len) };
        self.give_back(Some(first));
        let next = self.runs.range(first..).next().map_or(SLOT_NUMBERS_MAX, |(next, _)| *next);
        if next.saturating_sub(first) >= len { self.put(first, len) } else { self.take(len) }
    }

    /// Frees a run.
    pub(super) fn give_back(&mut self, first: Option<u32>) {
        if let Some(first) = first {
            self.runs.remove(&first);
        }
    }

    fn put(&mut self, first: u32, len: u32) -> Option<u32> {
        let fits = first.checked_add(len).is_some_and(|end| end <= SLOT_NUMBERS_MAX);
        fits.then(|| {
            self.runs.insert(first, len);
            first
        })
    }

    /// One past the highest number in use.
    #[cfg(test)]
    pub(super) fn end(&self) -> u32 {
        self.runs.last_key_value().map_or(0, |(first, len)| first + len)
    }
}
