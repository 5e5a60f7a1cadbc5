//! What requests that were placed with their prompt load their slots with, from the choice to their end.
//!
//! Owns the tokens that wait for prefill and the blocks being decoded, by slot, and who books them; and what is expected to be
//! cached because it was just sent somewhere. Every booking ends: by its request, its VM's death, its worker's removal, or its
//! time. Knows neither costs nor events.

use super::super::binding::Slot;
use super::super::vms::VmId;
use super::counts::Count;
use super::recent::Recent;
use super::runs::{Depths, Mark, Marks, Runs};
use super::seats::{Seat, Seats, Sums};
use routing::id::RequestId;
use routing::time::{Millis, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most bookings. At it the one that would end first by its time goes.
const BOOKINGS_MAX: usize = 65_536;
/// Most prompts expected somewhere. Past it the oldest is not expected any more.
const EXPECTED_MAX: usize = 65_536;
/// Most marks kept of all these prompts, 128 MiB of them. Past it a prompt is not followed.
const KEPT_MAX: usize = 8_000_000;
/// A request whose end nobody told is over by then.
pub(super) const BOOKING_MAX: Millis = Millis::from_secs(3600);

/// Who books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::state) enum Owner {
    /// A request of an Envoy.
    Vm(VmId, RequestId),
    /// A reservation of a host that dispatches itself, by the hash of its id.
    Host(u128),
}

/// What one request loads its slot with.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) marks: Marks,
    /// Blocks of the whole prompt.
    pub(super) blocks: u64,
    /// Tokens that must be prefilled.
    pub(super) prefill: u64,
}

/// How long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The booking lives if nobody ends it.
    pub(super) within: Millis,
    /// Its prompt counts as cached although nobody told so.
    pub(super) expected: Millis,
}

#[derive(Debug)]
struct Booking {
    seat: u32,
    load: Load,
    /// Its prompt is not among the runs: there was no room.
    unfollowed: bool,
    made: Timestamp,
    until: Timestamp,
}

#[derive(Debug)]
struct Expected {
    until: Timestamp,
    seat: u32,
    marks: Marks,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::state) struct Bookings {
    seats: Seats,
    bookings: BTreeMap<Owner, Booking>,
    due: BTreeSet<(Timestamp, Owner)>,
    /// Ends of requests whose route has not come.
    early: Recent,
    /// Reservations that are over: their hosts may tell it again.
    over: Recent,
    /// When something was told last.
    now: Timestamp,
    runs: Runs,
    /// Marks of bookings and of what is expected.
    kept: usize,
    /// Oldest first; each waits as long, so that is their order too, nearly.
    expected: VecDeque<Expected>,
    counts: BTreeMap<Count, u64>,
}

impl Bookings {
    pub(super) fn seat_of(&self, slot: Slot) -> Option<u32> {
        self.seats.of(slot)
    }

    /// Slots with their sums.
    pub(super) fn slots(&self) -> impl Iterator<Item = (Slot, Sums)> {
        self.seats.all()
    }

    pub(super) fn seat(&self, slot: Slot) -> Option<&Seat> {
        self.seats.get(self.seat_of(slot)?)
    }

    /// Sums of a slot's seat; none of a slot that never had one.
    pub(super) fn sums(&self, seat: Option<u32>) -> Sums {
        seat.and_then(|seat| self.seats.get(seat)).map_or_else(Sums::default, |seat| seat.sums)
    }

    pub(super) fn find(&self, marks: &[Mark], now: Timestamp, out: &mut Depths) {
        self.runs.find(marks, (now, self.seats.len()), out);
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Count::ALL.iter().map(|count| (count.word(), self.counts.get(count).copied().unwrap_or(0)))
    }

    /// Bookings, prompts expected somewhere, and marks kept of both.
    pub(in crate::state) fn sizes(&self) -> [usize; 3] {
        [self.bookings.len(), self.expected.len(), self.runs.len().max(self.kept)]
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.bookings.contains_key(&owner)
    }

    /// Where a booking is.
    pub(super) fn slot_of(&self, owner: Owner) -> Option<Slot> {
        self.seats.get(self.bookings.get(&owner)?.seat)?.slot
    }

    /// Books until the request ends, and expects its prompt to be cached there for a while; whether it did. An older booking of the
    /// same owner gives way.
    pub(super) fn book(
        &mut self,
        now: Timestamp,
        owner: Owner,
        slot: Slot,
        mut load: Load,
        times: Times,
    ) -> bool {
        self.now = now;
        if self.early.take(now, owner) {
            self.count(Count::EndedFirst);
            return false;
        }
        self.free_booking(owner);
        self.over.take(now, owner);
        let Some(seat) = self.seats.take(slot) else {
            self.count(Count::NoSeat);
            return false;
        };
        self.make_room();
        let unfollowed = !self.runs.has_room(&load.marks) || self.kept + 2 * load.marks.len() > KEPT_MAX;
        let expected = now + times.expected;
        let added = match unfollowed {
            true => load.blocks,
            false => self.runs.enter(seat, &load.marks, load.prefill > 0, expected),
        };
        self.follow(unfollowed, &mut load);
        if !load.marks.is_empty() {
            self.expected.push_back(Expected { until: expected, seat, marks: Marks::clone(&load.marks) });
        }
        let until = now + times.within;
        if let Some(seat) = self.seats.get_mut(seat) {
            seat.take_in(owner, &load, added);
            seat.expected += u32::from(!load.marks.is_empty());
        }
        self.due.insert((until, owner));
        self.bookings.insert(owner, Booking { seat, load, unfollowed, made: now, until });
        self.count(Count::Made);
        true
    }

    /// Keeps the marks of a prompt twice, for its booking and for where it is expected; or not at all.
    fn follow(&mut self, unfollowed: bool, load: &mut Load) {
        if unfollowed {
            load.marks = Marks::default();
            self.count(Count::Unfollowed);
        }
        self.kept += 2 * load.marks.len();
    }

    /// For one more booking, and one more prompt expected somewhere.
    fn make_room(&mut self) {
        if self.bookings.len() >= BOOKINGS_MAX
            && let Some((_, first)) = self.due.first().copied()
        {
            self.free_booking(first);
            self.count(Count::Evicted);
        }
        if self.expected.len() >= EXPECTED_MAX
            && let Some(oldest) = self.expected.pop_front()
        {
            self.expect_no_more(&oldest, oldest.until);
            self.count(Count::ExpectedDropped);
        }
    }

    fn expect_no_more(&mut self, one: &Expected, until: Timestamp) {
        self.kept = self.kept.saturating_sub(one.marks.len());
        self.runs.forget(one.seat, &one.marks, until);
        if let Some(seat) = self.seats.get_mut(one.seat) {
            seat.expected = seat.expected.saturating_sub(1);
        }
    }

    /// Nothing is expected there any more: its cache is gone. A clear after a clear, and there may be many, has nothing to look for.
    pub(super) fn forget_expected(&mut self, slot: Slot) {
        let Some(seat) = self.seat_of(slot) else { return };
        let expected = self.seats.get_mut(seat).map(|seat| std::mem::take(&mut seat.expected));
        if expected.is_none_or(|expected| expected == 0) {
            return;
        }
        let (runs, kept) = (&mut self.runs, &mut self.kept);
        self.expected.retain(|one| {
            if one.seat == seat {
                *kept = kept.saturating_sub(one.marks.len());
                runs.forget(seat, &one.marks, one.until);
            }
            one.seat != seat
        });
    }

    /// The first byte came.
    pub(super) fn prefilled(&mut self, owner: Owner) -> bool {
        let done = self.end_prefill(owner);
        if done {
            self.count(Count::Prefilled);
        }
        done
    }

    /// The request is over; if it never booked, its route may still be under way. That it is over may be told twice.
    pub(super) fn end(&mut self, now: Timestamp, owner: Owner) -> bool {
        self.now = now;
        if self.free_booking(owner) {
            self.count(Count::Ended);
            return true;
        }
        if !self.over.has(now, owner) {
            self.early.note(now, owner);
        }
        false
    }

    /// A VM is dead, and all its requests with it.
    pub(super) fn end_vm(&mut self, vm: VmId) {
        let all = Owner::Vm(vm, RequestId(0))..=Owner::Vm(vm, RequestId(u64::MAX));
        let gone: Vec<Owner> = self.bookings.range(all).map(|(owner, _)| *owner).collect();
        gone.into_iter().for_each(|owner| self.orphan(owner));
    }

    /// Slots of a worker that are not there any more; the seats that are free now.
    pub(super) fn settle(&mut self, worker: u64, stays: impl Fn(Slot) -> bool) -> Vec<u32> {
        let mut gone = self.seats.of_worker(worker);
        gone.retain(|(slot, _)| !stays(*slot));
        for (slot, seat) in &gone {
            let on_it = self.bookings.iter().filter(|(_, booking)| booking.seat == *seat);
            let owners: Vec<Owner> = on_it.map(|(owner, _)| *owner).collect();
            owners.into_iter().for_each(|owner| self.orphan(owner));
            self.forget_expected(*slot);
            self.seats.free(*slot);
        }
        gone.into_iter().map(|(_, seat)| seat).collect()
    }

    /// The engine says that nothing waits there: whatever was booked before `before` has been prefilled.
    pub(super) fn nothing_waits(&mut self, slot: Slot, before: Timestamp) {
        let Some(seat) = self.seat(slot).filter(|seat| !seat.prefilling.is_empty()) else { return };
        let old = |owner: &&Owner| self.bookings.get(*owner).is_some_and(|booking| booking.made <= before);
        let done: Vec<Owner> = seat.prefilling.iter().filter(old).copied().collect();
        for owner in done {
            self.end_prefill(owner);
            self.count(Count::PrefilledByGauges);
        }
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        self.now = now;
        while let Some((until, owner)) = self.due.first().copied()
            && until <= now
        {
            self.free_booking(owner);
            self.count(Count::Expired);
        }
        while let Some(oldest) = self.expected.front()
            && oldest.until <= now
        {
            let Some(oldest) = self.expected.pop_front() else { break };
            self.expect_no_more(&oldest, now);
        }
    }

    fn orphan(&mut self, owner: Owner) {
        self.free_booking(owner);
        self.count(Count::Orphaned);
    }

    fn end_prefill(&mut self, owner: Owner) -> bool {
        let Some(booking) = self.bookings.get_mut(&owner) else { return false };
        let tokens = std::mem::take(&mut booking.load.prefill);
        let Some(seat) = self.seats.get_mut(booking.seat) else { return false };
        seat.sums.prefill_tokens = seat.sums.prefill_tokens.saturating_sub(tokens);
        let was = seat.prefilling.remove(&owner);
        if was && !booking.unfollowed {
            self.runs.computed(booking.seat, &booking.load.marks);
        }
        was
    }

    fn free_booking(&mut self, owner: Owner) -> bool {
        let Some(booking) = self.bookings.remove(&owner) else { return false };
        if matches!(owner, Owner::Host(_)) {
            self.over.note(self.now, owner);
        }
        self.due.remove(&(booking.until, owner));
        self.kept = self.kept.saturating_sub(booking.load.marks.len());
        let Booking { seat, load, unfollowed, .. } = booking;
        let gone = match unfollowed {
            true => load.blocks,
            false => self.runs.leave(seat, &load.marks, load.prefill > 0),
        };
        if let Some(sums) = self.seats.get_mut(seat) {
            sums.give_back(owner, &load, gone);
        }
        true
    }

    fn count(&mut self, count: Count) {
        *self.counts.entry(count).or_default() += 1;
    }
}
