//! What a choice by prompt leaves behind: a booking until the request ends, and what is expected to be cached from now on.
//!
//! Owns when bookings begin and end. Their sums are `bookings.rs`'.

use super::super::State;
use super::super::binding::Slot;
use super::super::gauges::SlotGauges;
use super::super::judge::{Asked, Seat};
use super::super::vms::VmId;
use super::Kv;
use super::bookings::{BOOKING_MAX, Load, Owner, Times};
use super::look::{Found, Looked};
use routing::block::Chain;
use routing::contract::PoolInfo;
use routing::hash::Phase;
use routing::id::{Rank, RequestId};
use routing::time::{Millis, Timestamp};
use std::collections::BTreeSet;

/// Gauges tell of requests that reached the engine before they were scraped: so much earlier they were placed.
const GAUGES_LAG: Millis = Millis::from_secs(2);

impl Kv {
    /// Books a prompt on a slot.
    pub(in crate::state) fn book(
        &mut self,
        now: Timestamp,
        (owner, within): (Owner, Millis),
        (pool, phase, looked): (&PoolInfo, Phase, &Looked),
        (worker, slot): (&super::super::workers::Worker, Slot),
    ) -> bool {
        let held = self.holds(looked, worker, slot);
        let cached = u64::from(held.known() + held.expected).saturating_mul(looked.size.block_size.into());
        let prefill = if phase == Phase::Decode { 0 } else { looked.size.tokens.saturating_sub(cached) };
        let load = Load { marks: looked.marks.clone(), blocks: looked.blocks, prefill };
        let times = Times { within, expected: self.settings(&pool.name).prediction_ttl };
        if !self.bookings.book(now, owner, slot, load, times) {
            return false;
        }
        let seat = self.bookings.seat_of(slot);
        if let (Some(placements), Some(seat)) = (self.placements.get_mut(&pool.name), seat) {
            placements.learn(&looked.chain.hashes, seat, Millis(now.0));
        }
        true
    }

    /// Slots of a worker that are not there any more book nothing.
    pub(super) fn settle_bookings(&mut self, hash: u64, worker: Option<&super::super::workers::Worker>) {
        let is_there = |worker: &super::super::workers::Worker, slot: Slot| {
            worker.has_rank(slot.rank()) && worker.slot_of(slot.rank()) == slot
        };
        let stays = |slot| worker.is_some_and(|worker| is_there(worker, slot));
        for seat in self.bookings.settle(hash, stays) {
            self.placements.values_mut().for_each(|placements| placements.forget(seat));
        }
    }
}

#[cfg(test)]
impl State {
    /// Of a slot: tokens to be prefilled, blocks held, bookings.
    pub(in crate::state) fn kv_sums(&self, target: &routing::contract::Target) -> [u64; 3] {
        let worker = self.workers.by_id(&target.worker).map(|worker| worker.slot_of(target.rank));
        let sums = worker.and_then(|slot| self.kv.bookings.seat(slot)).map(|seat| seat.sums);
        sums.map_or([0; 3], |sums| [sums.prefill_tokens, sums.decode_blocks, sums.booked])
    }
}

impl State {
    /// Looks a prompt up for the pool it is for.
    pub(in crate::state) fn look(
        &self,
        now: Timestamp,
        pool: &PoolInfo,
        chain: Option<Chain>,
        found: Found,
    ) -> Option<Looked> {
        self.kv.look(now, pool, chain, found)
    }

    /// Books what was placed with its prompt.
    pub(in crate::state) fn book(&mut self, asked: &Asked, slot: Option<Slot>) {
        let Some(looked) = asked.looked.filter(|looked| looked.has_prompt) else { return };
        let (Seat::Of(vm), Some(slot)) = (asked.seat, slot) else { return };
        let Some(worker) = self.workers.by_hash(slot.worker) else { return };
        let owner = Owner::Vm(vm, asked.request);
        let slot = worker.slot_of(slot.rank());
        self.kv.book(asked.now, (owner, BOOKING_MAX), (&asked.pool, asked.phase, looked), (worker, slot));
    }

    /// The first byte of an answer came.
    pub(in crate::state) fn prefilled(&mut self, vm: Option<VmId>, request: RequestId) {
        if let Some(vm) = vm {
            self.kv.bookings.prefilled(Owner::Vm(vm, request));
        }
    }

    /// A request is over; whether it was booked here.
    pub(in crate::state) fn ended(&mut self, now: Timestamp, vm: VmId, request: RequestId) -> bool {
        self.end_booking(now, Owner::Vm(vm, request))
    }

    /// A request or a reservation is over. What was placed with its prompt and is over was served there: of one without a session
    /// nothing else tells so. False: it was not booked.
    pub(super) fn end_booking(&mut self, now: Timestamp, owner: Owner) -> bool {
        let slot = self.kv.bookings.slot_of(owner);
        let booked = self.kv.bookings.end(now, owner);
        slot.filter(|_| booked).into_iter().for_each(|slot| self.kv_served(now, slot));
        booked
    }

    /// Whether a request is booked: its end will tell that it was served.
    pub(in crate::state) fn is_booked(&self, vm: Option<VmId>, request: RequestId) -> bool {
        vm.is_some_and(|vm| self.kv.bookings.has(Owner::Vm(vm, request)))
    }

    pub(in crate::state) fn end_bookings_of(&mut self, dead: &BTreeSet<VmId>) {
        dead.iter().for_each(|vm| self.kv.bookings.end_vm(*vm));
    }

    /// An engine that has nothing waiting has begun, and so mostly ended, every prefill placed a while ago.
    pub(in crate::state) fn kv_gauges(&mut self, now: Timestamp, worker: u64, told: &SlotGauges) {
        if told.waiting > 0 {
            return;
        }
        let Some(worker) = self.workers.by_hash(worker) else { return };
        let before = Timestamp(now.0.saturating_sub(GAUGES_LAG.0));
        let (start, count) = (worker.spec.rank_start(), worker.spec.rank_count());
        let all = (start..start.saturating_add(count)).map(|rank| worker.slot_of(Some(Rank(rank))));
        let whole = worker.slot_of(None);
        let slots: Vec<Slot> = match told.rank {
            Some(rank) => vec![worker.slot_of(Some(rank))],
            None => all.chain([whole]).collect(),
        };
        slots.into_iter().for_each(|slot| self.kv.bookings.nothing_waits(slot, before));
    }
}
