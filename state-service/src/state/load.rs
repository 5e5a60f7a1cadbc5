//! Requests on one worker and on each of its slots, as sums that are kept up with every change.
//!
//! Whoever adds something takes the same out again; the state's storm test compares with the sum anew. Slots without a
//! request are not kept, so this is bounded by what VMs have in flight. Knows neither VMs nor failures.

use super::binding::Slot;
use std::collections::BTreeMap;

/// Requests on one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerLoad {
    all: Requests,
    slots: BTreeMap<Slot, Requests>,
}

/// Requests by how much is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Requests {
    /// Sum of the last reports of all VMs.
    reported: u64,
    /// Choices not yet covered by a report.
    reserved: u64,
}

impl WorkerLoad {
    /// Requests that VMs reported.
    pub(super) const fn reported(&self) -> u64 {
        self.all.reported
    }

    /// Choices that no report covers yet.
    pub(super) const fn reserved(&self) -> u64 {
        self.all.reserved
    }

    /// Both.
    pub(super) const fn requests(&self) -> u64 {
        self.all.sum()
    }

    /// Both, on one slot.
    pub(super) fn requests_on(&self, slot: Slot) -> u64 {
        self.slots.get(&slot).map_or(0, |on| on.sum())
    }

    /// Reported requests on one slot.
    pub(super) fn reported_on(&self, slot: Slot) -> u64 {
        self.slots.get(&slot).map_or(0, |on| on.reported)
    }

    /// Slots that have requests.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.slots.keys().copied()
    }

    pub(super) fn report(&mut self, slot: Slot, count: u32) {
        self.change(slot, |requests| requests.reported = requests.reported.saturating_add(count.into()));
    }

    pub(super) fn take_back(&mut self, slot: Slot, count: u32) {
        self.change(slot, |requests| requests.reported = requests.reported.saturating_sub(count.into()));
    }

    pub(super) fn reserve(&mut self, slot: Slot) {
        self.change(slot, |requests| requests.reserved = requests.reserved.saturating_add(1));
    }

    pub(super) fn give_back(&mut self, slot: Slot) {
        self.change(slot, |requests| requests.reserved = requests.reserved.saturating_sub(1));
    }

    fn change(&mut self, slot: Slot, change: impl Fn(&mut Requests)) {
        change(&mut self.all);
        let on = self.slots.entry(slot).or_default();
        change(on);
        if *on == Requests::default() {
            self.slots.remove(&slot);
        }
    }
}

impl Requests {
    const fn sum(&self) -> u64 {
        self.reported.saturating_add(self.reserved)
    }
}
