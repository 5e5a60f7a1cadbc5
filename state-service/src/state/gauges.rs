//! What a worker's engine said of itself, slot by slot, while it is new enough to be believed.
//!
//! Owns the age of gauges. Whoever scrapes, and what a slot's load or overload is, is elsewhere.

use super::limits::GAUGES_AGE_MAX;
use routing::id::Rank;
use routing::time::Timestamp;
use std::collections::BTreeMap;

/// One slot's gauges, as its engine shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGauges {
    /// Global rank; absent for a worker of one rank, and where the engine does not tell its ranks apart.
    pub rank: Option<Rank>,
    /// Requests it works on.
    pub running: u32,
    /// Requests it has taken and not begun.
    pub waiting: u32,
    /// Share of its KV cache in use, in thousandths; absent when it does not say.
    pub kv_permille: Option<u32>,
}

/// The newest gauges of each slot of one worker: at most one a declared rank, and one without a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gauges {
    slots: BTreeMap<Option<Rank>, (Timestamp, SlotGauges)>,
    /// Sum over the slots, kept because each choice asks for it.
    waiting: u64,
    /// Nothing is older.
    oldest: Timestamp,
}

impl Gauges {
    /// Takes what was told of one slot.
    pub(super) fn take(&mut self, now: Timestamp, rank: Option<Rank>, told: SlotGauges) {
        if self.slots.is_empty() {
            self.oldest = now;
        }
        let before = self.slots.insert(rank, (now, told));
        let before = before.map_or(0, |(_, told)| u64::from(told.waiting));
        self.waiting = self.waiting.saturating_add(told.waiting.into()).saturating_sub(before);
    }

    /// Forgets what is too old; the ranks of which something was forgotten.
    pub(super) fn forget(&mut self, now: Timestamp) -> Vec<Option<Rank>> {
        let old = |at: Timestamp| now.since(at) > GAUGES_AGE_MAX;
        if self.slots.is_empty() || !old(self.oldest) {
            return Vec::new();
        }
        let gone = self.slots.iter().filter(|(_, (at, _))| old(*at)).map(|(rank, _)| *rank).collect();
        self.slots.retain(|_, (at, _)| !old(*at));
        self.waiting = self.slots.values().map(|(_, told)| u64::from(told.waiting)).sum();
        self.oldest = self.slots.values().map(|(at, _)| *at).min().unwrap_or(now);
        gone
    }

    /// Slots of which something is known.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Option<Rank>> {
        self.slots.keys().copied()
    }

    /// Requests waiting in the engine, over all slots.
    pub(super) const fn waiting(&self) -> u64 {
        self.waiting
    }

    /// What is known of one slot.
    pub(super) fn on(&self, rank: Option<Rank>) -> Option<&SlotGauges> {
        self.slots.get(&rank).map(|(_, told)| told)
    }

    /// Requests waiting on one slot.
    pub(super) fn waiting_on(&self, rank: Option<Rank>) -> u64 {
        self.on(rank).map_or(0, |told| told.waiting.into())
    }
}
