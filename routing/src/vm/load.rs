//! In-flight requests of this VM per slot: absolute counts, so that a lost report never leaves a drift.

use crate::contract::{InFlight, Target};
use crate::directory::Directory;
use crate::id::Rank;
use std::collections::BTreeMap;

/// Counts per slot; a slot is (worker hash, rank), without a rank where the engine balances.
#[derive(Debug, Default)]
pub struct Loads {
    slots: BTreeMap<(u64, Option<Rank>), u32>,
    reported: BTreeMap<u64, u32>,
}

impl Loads {
    /// A request was placed there.
    pub fn add(&mut self, worker: u64, rank: Option<Rank>) {
        let count = self.slots.entry((worker, rank)).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// A request placed there ended. Never goes below zero.
    pub fn remove(&mut self, worker: u64, rank: Option<Rank>) {
        let Some(count) = self.slots.get_mut(&(worker, rank)) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.slots.remove(&(worker, rank));
        }
    }

    /// In flight on all ranks of a worker.
    #[must_use]
    pub fn of_worker(&self, worker: u64) -> u32 {
        let range = (worker, None)..=(worker, Some(Rank(u32::MAX)));
        self.slots.range(range).fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// In flight on one slot.
    #[must_use]
    pub fn of_slot(&self, worker: u64, rank: Option<Rank>) -> u32 {
        self.slots.get(&(worker, rank)).copied().unwrap_or(0)
    }

    /// What the fleet's figure holds of this VM.
    #[must_use]
    pub fn reported(&self, worker: u64) -> u32 {
        self.reported.get(&worker).copied().unwrap_or(0)
    }

    /// Requests in flight on all slots.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.slots.values().map(|count| u64::from(*count)).sum()
    }

    /// Every slot with requests in flight; those of workers the directory no longer has are left out.
    #[must_use]
    pub fn absolute(&self, directory: Option<&Directory>) -> Vec<InFlight> {
        let Some(directory) = directory else { return Vec::new() };
        let named = |(&(worker, rank), &count): (&(u64, Option<Rank>), &u32)| {
            let (_, worker) = directory.worker_by_hash(worker)?;
            Some(InFlight { target: Target { worker: worker.id.clone(), rank }, count })
        };
        self.slots.iter().filter_map(named).collect()
    }

    /// Every slot with requests in flight, by the number of its gauge; slots without one are left out.
    #[must_use]
    pub fn by_gauge(&self, directory: &Directory) -> Vec<(u32, u32)> {
        let numbered = |(&(worker, rank), &count): (&(u64, Option<Rank>), &u32)| {
            let (_, worker) = directory.worker_by_hash(worker)?;
            Some((worker.gauge(rank)?, count))
        };
        self.slots.iter().filter_map(numbered).collect()
    }

    /// A report with the present counts is on its way.
    pub fn note_reported(&mut self) {
        self.reported.clear();
        for ((worker, _), count) in &self.slots {
            let sum = self.reported.entry(*worker).or_insert(0);
            *sum = sum.saturating_add(*count);
        }
    }
}
