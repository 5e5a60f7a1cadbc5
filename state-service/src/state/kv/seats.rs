//! Slots on which anything is booked: a small number each, and the sums over its bookings.

use super::super::binding::Slot;
use super::bookings::{Load, Owner};
use super::spread::Spread;
use std::collections::{BTreeSet, HashMap};

/// Most slots that anything was booked on. Past it nothing is booked on another one.
const SEATS_MAX: usize = 16_384;

/// One slot.
#[derive(Debug, Default)]
pub(in crate::state) struct Seat {
    /// None while it is free.
    pub(super) slot: Option<Slot>,
    pub(super) sums: Sums,
    pub(super) prefilling: BTreeSet<Owner>,
    /// Prompts expected there.
    pub(super) expected: u32,
}

/// Sums over the bookings of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Tokens that wait for prefill, or are prefilled now.
    pub(super) prefill_tokens: u64,
    /// Blocks that active requests hold, shared ones once.
    pub(super) decode_blocks: u64,
    /// Bookings.
    pub(super) booked: u64,
    /// Of these, by hosts: no VM reports them.
    pub(super) by_hosts: u64,
    /// Blocks of their prompts, shared ones each time.
    pub(super) prompt_blocks: u64,
}

/// All of them. A number is given to another slot once its own is gone.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// Asked for each slot at each choice; never walked.
    by_slot: HashMap<Slot, u32, Spread>,
    seats: Vec<Seat>,
    free: Vec<u32>,
}

impl Seats {
    pub(super) fn of(&self, slot: Slot) -> Option<u32> {
        self.by_slot.get(&slot).copied()
    }

    pub(super) fn get(&self, seat: u32) -> Option<&Seat> {
        self.seats.get(seat as usize)
    }

    pub(super) fn get_mut(&mut self, seat: u32) -> Option<&mut Seat> {
        self.seats.get_mut(seat as usize)
    }

    /// How many numbers were ever given.
    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    /// Those that are taken.
    pub(super) fn all(&self) -> impl Iterator<Item = (Slot, Sums)> {
        self.seats.iter().filter_map(|seat| Some((seat.slot?, seat.sums)))
    }

    /// By slot.
    pub(super) fn of_worker(&self, worker: u64) -> Vec<(Slot, u32)> {
        let taken = (0..).zip(&self.seats).filter_map(|(seat, place)| Some((place.slot?, seat)));
        let mut all: Vec<(Slot, u32)> = taken.filter(|(slot, _)| slot.worker == worker).collect();
        all.sort_unstable();
        all
    }

    /// The slot's, perhaps a new one.
    pub(super) fn take(&mut self, slot: Slot) -> Option<u32> {
        if let Some(seat) = self.of(slot) {
            return Some(seat);
        }
        let fresh = u32::try_from(self.seats.len()).ok().filter(|_| self.seats.len() < SEATS_MAX);
        let seat = self.free.pop().or(fresh)?;
        let empty = Seat { slot: Some(slot), ..Seat::default() };
        match self.get_mut(seat) {
            Some(place) => *place = empty,
            None => self.seats.push(empty),
        }
        self.by_slot.insert(slot, seat);
        Some(seat)
    }

    /// Nothing is booked there any more.
    pub(super) fn free(&mut self, slot: Slot) {
        let Some(seat) = self.by_slot.remove(&slot) else { return };
        if let Some(place) = self.get_mut(seat) {
            place.slot = None;
        }
        self.free.push(seat);
    }
}

impl Seat {
    pub(super) fn take_in(&mut self, owner: Owner, load: &Load, added: u64) {
        let sums = &mut self.sums;
        sums.booked += 1;
        sums.by_hosts += u64::from(matches!(owner, Owner::Host(_)));
        sums.prompt_blocks += load.blocks;
        sums.decode_blocks += added;
        sums.prefill_tokens += load.prefill;
        if load.prefill > 0 {
            self.prefilling.insert(owner);
        }
    }

    /// What is left of its prefill goes too.
    pub(super) fn give_back(&mut self, owner: Owner, load: &Load, gone: u64) {
        self.prefilling.remove(&owner);
        let sums = &mut self.sums;
        sums.prefill_tokens = sums.prefill_tokens.saturating_sub(load.prefill);
        sums.booked = sums.booked.saturating_sub(1);
        sums.by_hosts = sums.by_hosts.saturating_sub(u64::from(matches!(owner, Owner::Host(_))));
        sums.prompt_blocks = sums.prompt_blocks.saturating_sub(load.blocks);
        sums.decode_blocks = sums.decode_blocks.saturating_sub(gone);
    }
}

impl Sums {
    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            prefill_tokens: self.prefill_tokens.saturating_add(other.prefill_tokens),
            decode_blocks: self.decode_blocks.saturating_add(other.decode_blocks),
            booked: self.booked.saturating_add(other.booked),
            by_hosts: self.by_hosts.saturating_add(other.by_hosts),
            prompt_blocks: self.prompt_blocks.saturating_add(other.prompt_blocks),
        }
    }

    /// One of `parts`, >= 1; rounded up, so that something is never nothing.
    pub(super) const fn divided(self, parts: u64) -> Self {
        Self {
            prefill_tokens: self.prefill_tokens.div_ceil(parts),
            decode_blocks: self.decode_blocks.div_ceil(parts),
            booked: self.booked.div_ceil(parts),
            by_hosts: self.by_hosts.div_ceil(parts),
            prompt_blocks: self.prompt_blocks.div_ceil(parts),
        }
    }
}
