//! Slots on which anything is booked: a small number each, and the sums over its bookings.

use super::super::binding::Slot;
use super::bookings::{Load, Owner};
use routing::id::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Most slots that anything was booked on. Past it nothing is booked on another one.
const SEATS_MAX: usize = 16_384;

/// Sums over the bookings of one slot.
#[derive(Debug, Default)]
pub(in crate::state) struct Seat {
    pub(super) slot: Option<Slot>,
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
    pub(super) prefilling: BTreeSet<Owner>,
}

/// All of them. A number is given to another slot once its own is gone.
#[derive(Debug, Default)]
pub(super) struct Seats {
    by_slot: BTreeMap<Slot, u32>,
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

    pub(super) fn of_worker(&self, worker: u64) -> Vec<(Slot, u32)> {
        let all = Slot::new(worker, Some(Rank(0)))..=Slot::new(worker, None);
        self.by_slot.range(all).map(|(slot, seat)| (*slot, *seat)).collect()
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
        self.free.extend(self.by_slot.remove(&slot));
    }
}

impl Seat {
    pub(super) fn take_in(&mut self, owner: Owner, load: &Load, added: u64) {
        self.booked += 1;
        self.by_hosts += u64::from(matches!(owner, Owner::Host(_)));
        self.prompt_blocks += load.blocks;
        self.decode_blocks += added;
        self.prefill_tokens += load.prefill;
        if load.prefill > 0 {
            self.prefilling.insert(owner);
        }
    }

    /// Its prefill has been given back before.
    pub(super) const fn give_back(&mut self, owner: Owner, load: &Load, gone: u64) {
        self.booked = self.booked.saturating_sub(1);
        self.by_hosts = self.by_hosts.saturating_sub(matches!(owner, Owner::Host(_)) as u64);
        self.prompt_blocks = self.prompt_blocks.saturating_sub(load.blocks);
        self.decode_blocks = self.decode_blocks.saturating_sub(gone);
    }
}
