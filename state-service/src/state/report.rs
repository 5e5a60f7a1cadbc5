//! What happened, as VMs tell it: commits, failures, touches, releases, slots; and releases by hand.
//!
//! Owns what each entry changes and which ones are too late to. Every entry carries the version or hold it belongs to, so
//! any of them may come late, twice or out of order.

use super::State;
use super::binding::{Merged, Place, Record, Slot, merge};
use super::choice::pins;
use super::error::StateError;
use super::health::Observation;
use super::journal::OWN;
use super::limits::IN_FLIGHT_SLOTS_MAX;
use super::sessions::{Owner, Session};
use super::shared::Sharing;
use super::vms::{Freshness, VmId};
use routing::contract::{Entry, InFlight, Move, PoolInfo, REPORT_ENTRIES_MAX, Report, SessionRef, Target};
use routing::hash::worker_hash;
use routing::id::{Epoch, HoldId, PoolName, Rank, RequestId, SessionId, Version, WorkerId};
use routing::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// A commit as it came.
struct Commit {
    session: SessionRef,
    owner: Option<Owner>,
    hold: Option<HoldId>,
    slot: Slot,
    version: Version,
}

impl State {
    pub(super) fn report(&mut self, now: Timestamp, report: Report) {
        self.counters.reports += 1;
        let vm = self.vms.seen(now, &report.caller, self.config.limits.vms_max);
        self.counters.vms_refused += u64::from(vm.is_none());
        vm.into_iter().for_each(|vm| self.vms.told_by_itself(now, vm));
        let freshness =
            vm.map_or(Freshness::Newer, |vm| self.take_in_flight(now, vm, report.seq, &report.in_flight));
        self.counters.reports_old += u64::from(freshness == Freshness::Old);
        let dropped = report.entries.len().saturating_sub(REPORT_ENTRIES_MAX);
        self.counters.report_entries_dropped += u64::try_from(dropped).unwrap_or(u64::MAX);
        for entry in report.entries.into_iter().take(REPORT_ENTRIES_MAX) {
            // A report that comes twice must not make a slot look twice as bad.
            let of_slot = matches!(entry, Entry::SlotFailed { .. } | Entry::SlotAnswered { .. });
            if freshness == Freshness::Newer || !of_slot {
                self.take_entry(now, vm, entry);
            }
        }
    }

    pub(super) fn take_in_flight(
        &mut self,
        now: Timestamp,
        vm: VmId,
        seq: u64,
        in_flight: &[InFlight],
    ) -> Freshness {
        let mut slots: BTreeMap<Slot, u32> = BTreeMap::new();
        for entry in in_flight.iter().take(IN_FLIGHT_SLOTS_MAX) {
            let count = slots.entry(self.slot_of(&entry.target)).or_default();
            *count = count.saturating_add(entry.count);
        }
        let dropped = in_flight.len().saturating_sub(IN_FLIGHT_SLOTS_MAX);
        self.counters.in_flight_dropped += u64::try_from(dropped).unwrap_or(u64::MAX);
        self.load_changed = true;
        self.vms.report(now, vm, seq, slots.into_iter().collect(), &mut self.workers)
    }

    /// A target as it is kept; also for workers that are not declared (yet).
    fn slot_of(&self, target: &Target) -> Slot {
        let known = self.workers.by_id(&target.worker).map(|worker| worker.slot_of(target.rank));
        known.unwrap_or_else(|| Slot::new(worker_hash(&target.worker), target.rank))
    }

    pub(super) fn take_entry(&mut self, now: Timestamp, vm: Option<VmId>, entry: Entry) {
        match entry {
            Entry::Committed { session, pool, request, hold, target, version } => {
                let unknown = self.workers.by_id(&target.worker).is_none();
                if unknown {
                    self.counters.commit_unknown_worker += 1;
                    // The others are to be told where its session is.
                    self.gone.remember(&target.worker, 0);
                }
                let owner = vm.map(|vm| Owner { vm, request });
                let commit = Commit { session, owner, hold, slot: self.slot_of(&target), version };
                if !self.is_booked(vm, request) {
                    self.kv_served(now, commit.slot);
                }
                self.committed(now, &pool, &commit);
                self.leave_hold(&commit);
            }
            Entry::Failed { session, request, hold, pool: _ } => {
                self.failed(vm, self.held_as(now, session.id), request, hold);
            }
            Entry::Touched { session, pool, version, slot } => {
                self.touched(now, session, &pool, version, slot);
                let bound = self.sessions.by_id(session.id).and_then(|known| known.record?.slot());
                bound.into_iter().for_each(|slot| self.kv_served(now, slot));
            }
            Entry::Released { session, pool, version } => self.released(now, session, &pool, version),
            Entry::SlotFailed { target: Target { worker, rank }, failure, count } => {
                let rank = self.known_rank(&worker, rank);
                self.observe_slot(now, &worker, Observation::Failed { rank, failure, count });
            }
            Entry::SlotAnswered { target: Target { worker, rank } } => {
                let rank = self.known_rank(&worker, rank);
                self.observe_slot(now, &worker, Observation::Answered { rank });
            }
            Entry::Alias { alias, session, pool } => self.alias_told(now, alias, session, &pool),
            Entry::Prefilled { request } => self.prefilled(vm, request),
            Entry::Ended { request } => {
                let elsewhere = vm.filter(|vm| !self.ended(now, *vm, request));
                elsewhere.into_iter().for_each(|vm| self.note_freed(vm, request));
            }
            Entry::VmGone { vm: dead } => self.vm_gone(vm, dead),
            Entry::Unknown => self.counters.entry_unknown += 1,
        }
    }

    /// Keeps runs of failures to ranks that exist.
    fn known_rank(&self, worker: &WorkerId, rank: Option<Rank>) -> Option<Rank> {
        rank.filter(|rank| self.workers.by_id(worker).is_some_and(|worker| worker.has_rank(Some(*rank))))
    }

    fn observe_slot(&mut self, now: Timestamp, worker: &WorkerId, observation: Observation) {
        let known = self.observe(now, worker, observation);
        self.counters.slot_unknown_worker += u64::from(!known);
    }

    fn committed(&mut self, now: Timestamp, pool: &PoolName, commit: &Commit) {
        let Some(pool) = self.pools.get(pool) else {
            self.counters.commit_unknown_pool += 1;
            return;
        };
        if !pins(pool) {
            self.counters.commit_unstored += 1;
            return;
        }
        let deadline = now + pool.ttl_ms;
        if !self.plausible(commit.version) {
            return;
        }
        let of_hold = self.version_of_hold(commit);
        let version = of_hold.unwrap_or(commit.version);
        let theirs = Record { version, place: Place::Bound(commit.slot), deadline };
        let Some(joined) = self.merge_record(commit.session, theirs) else { return };
        let committed = of_hold.is_some() && joined.hold == HoldEnd::Ended;
        self.counters.holds_committed += u64::from(committed);
        self.counters.holds_gave_way += u64::from(joined.hold == HoldEnd::Ended && !committed);
        self.tell_others(commit, &joined);
    }

    /// The version a commit gets: that of the hold it names, whoever of its owners got the answer. An owner that did not
    /// hear of its hold names none, and may have an older version in mind.
    fn version_of_hold(&self, commit: &Commit) -> Option<Version> {
        let id = commit.session.id;
        let hold = self.sessions.by_id(id)?.hold.as_ref()?;
        let named = commit.hold == Some(hold.id) || commit.version == hold.version;
        let owned = commit.owner.is_some_and(|owner| hold.owners.contains(&owner));
        (named || owned && commit.version < hold.version).then_some(hold.version)
    }

    /// A request that was answered owns no hold any more, whatever became of its commit.
    fn leave_hold(&mut self, commit: &Commit) {
        let Some(owner) = commit.owner else { return };
        let SessionRef { id, rank_hash } = commit.session;
        let held = self.sessions.by_id(id).is_some_and(|s| s.hold.is_some());
        let left = if held {
            self.sessions.edit(id, rank_hash, |session| leave(session, owner, None))
        } else {
            Left::NotOwned
        };
        match left {
            Left::RolledBack => self.counters.holds_gave_way += 1,
            // Placed alone: its route may still be under way.
            Left::NotOwned if commit.hold.is_none() => {
                self.vms.note_over(owner.vm, owner.request);
                self.note_end(owner, id, None);
            }
            Left::NotOwned | Left::OthersRemain => {}
        }
    }

    /// Joins a record into the table; `None` when there is no room for it. Anything newer ends a hold.
    pub(super) fn merge_record(&mut self, session: SessionRef, theirs: Record) -> Option<Joined> {
        if !self.room_for(session.id) {
            self.counters.commit_table_full += 1;
            return None;
        }
        let mut joined = self.sessions.edit(session.id, session.rank_hash, |s| join(s, theirs));
        self.count_merge(joined.merged);
        self.parked.forget(session.id, joined.now.version);
        if joined.merged == Merged::EqualConflict {
            // Nobody knows of this version, not even who wrote the two.
            self.sessions.write_for(OWN);
            joined.now.version = self.next_version(theirs.version.seq);
            let now = joined.now;
            self.sessions.edit(session.id, session.rank_hash, |s| s.record = Some(now));
        }
        Some(joined)
    }

    /// Puts a newer binding in place of the one that is known, and tells everybody.
    pub(super) fn replace_record(&mut self, session: SessionRef, record: Record) -> Option<()> {
        let joined = self.merge_record(session, record)?;
        self.counters.holds_gave_way += u64::from(joined.hold == HoldEnd::Ended);
        self.publish(session, record);
        Some(())
    }

    fn count_merge(&mut self, merged: Merged) {
        let counter = match merged {
            Merged::Inserted => &mut self.counters.merge_inserted,
            Merged::Refreshed => &mut self.counters.merge_refreshed,
            Merged::ReplacedNewer => &mut self.counters.merge_replaced_newer,
            Merged::EqualConflict => &mut self.counters.merge_equal_conflict,
            Merged::IgnoredConflict => &mut self.counters.merge_ignored_conflict,
            Merged::IgnoredStale => &mut self.counters.merge_ignored_stale,
        };
        *counter += 1;
    }

    /// Publishes the binding when an Envoy is known to cache another: the committer's, or the one that was replaced.
    fn tell_others(&mut self, commit: &Commit, joined: &Joined) {
        let now = joined.now;
        let committer_differs = (now.version, now.slot()) != (commit.version, Some(commit.slot));
        let moved = joined.before.is_some_and(|b| b.slot().is_some() && b.version != now.version);
        if committer_differs || moved {
            self.publish(commit.session, now);
        }
    }

    /// Tells all Envoys where a session is now. Of a worker that is not declared (yet) there is nothing to tell: without a target
    /// the news would read as a release.
    pub(super) fn publish(&mut self, session: SessionRef, record: Record) {
        let worker = |slot: Slot| Some(self.workers.by_hash(slot.worker)?.target(slot));
        let target = record.slot().and_then(worker);
        if record.slot().is_some() && target.is_none() {
            self.counters.moves_untold += 1;
            return;
        }
        self.moves.push(Move { session, version: record.version, target }, self.config.limits.moves_max);
        self.counters.moves_published += 1;
        self.news = true;
    }

    /// A request that hung on a response id and failed before it was answered knows no other name of its session.
    pub(super) fn held_as(&self, now: Timestamp, id: SessionId) -> SessionId {
        let known = self.sessions.by_id(id).map(|_| id);
        known.or_else(|| self.session_of_alias(now, id).map(|session| session.id)).unwrap_or(id)
    }

    fn failed(&mut self, vm: Option<VmId>, id: SessionId, request: RequestId, hold: Option<HoldId>) {
        let Some(vm) = vm else {
            self.counters.failed_late += 1;
            return;
        };
        let owner = Owner { vm, request };
        if self.end_of(owner, id, hold) == Left::NotOwned {
            self.counters.failed_late += 1;
            self.note_end(owner, id, hold);
        }
    }

    /// A request is over that was not answered: it owns no hold any more, and nothing is kept free for it.
    pub(super) fn end_of(&mut self, owner: Owner, id: SessionId, hold: Option<HoldId>) -> Left {
        self.vms.end_reservation(owner.vm, owner.request, &mut self.workers);
        let held = self.sessions.by_id(id).filter(|s| s.hold.is_some()).map(|s| s.rank_hash);
        let leaves = |session: &mut Session| leave(session, owner, hold);
        let left = held.map_or(Left::NotOwned, |rank_hash| self.sessions.edit(id, rank_hash, leaves));
        match left {
            Left::NotOwned => self.vms.note_over(owner.vm, owner.request),
            Left::OthersRemain => {}
            Left::RolledBack => self.counters.holds_rolled_back += 1,
        }
        left
    }

    /// Another VM of the teller's Envoy is dead. If it lives after all, its next report brings its share back.
    fn vm_gone(&mut self, teller: Option<VmId>, vm: Epoch) {
        let dead = teller.and_then(|teller| self.vms.gone(teller, vm, &mut self.workers));
        if let Some((id, caller)) = dead {
            self.bury_vm(id);
            if self.sharing != Sharing::Single {
                self.gone_untold.push(caller);
            }
        }
    }

    pub(super) fn bury_vm(&mut self, dead: VmId) {
        self.counters.vms_gone += 1;
        let dead = BTreeSet::from([dead]);
        self.counters.holds_orphaned += self.sessions.bury_owners(&dead);
        self.end_bookings_of(&dead);
        self.load_changed = true;
    }

    fn released(&mut self, now: Timestamp, session: SessionRef, pool: &PoolName, version: Version) {
        let known = self.sessions.by_id(session.id).and_then(|s| s.record);
        let (Some(record), Some(pool)) = (known, self.pools.get(pool)) else {
            self.counters.release_unknown += 1;
            return;
        };
        if version < record.version || record.slot().is_none() {
            self.counters.release_late += 1;
            return;
        }
        let deadline = now + self.tombstone_ttl(pool);
        if self.plausible(version) {
            self.bury(session, version.seq, deadline, Concurrent::Stays);
        }
    }

    fn tombstone_ttl(&self, pool: &PoolInfo) -> routing::time::Millis {
        pool.ttl_ms.max(self.config.limits.tombstone_ttl)
    }

    /// Ends a session by hand, a hold included: its answers, when they come, are stale.
    pub(super) fn release_by_hand(&mut self, now: Timestamp, id: SessionId) -> Result<(), StateError> {
        let known = self
            .sessions
            .by_id(id)
            .filter(|s| s.hold.is_some() || s.record.is_some_and(|r| r.slot().is_some()));
        let Some(known) = known else { return Err(StateError::UnknownSession { prefix: id.prefix() }) };
        let session = SessionRef { id, rank_hash: known.rank_hash };
        let lives_until = known.record.map_or(now, |r| r.deadline);
        let deadline = lives_until.max(now + self.config.limits.tombstone_ttl);
        self.bury(session, known.seq(), deadline, Concurrent::Goes);
        Ok(())
    }

    fn bury(&mut self, session: SessionRef, seen: u64, deadline: Timestamp, hold: Concurrent) {
        let known = self.sessions.by_id(session.id).map_or(0, Session::seq);
        let version = self.next_version(seen.max(known));
        let tombstone = Record { version, place: Place::Released, deadline };
        self.sessions.edit(session.id, session.rank_hash, |s| {
            s.record = Some(tombstone);
            if hold == Concurrent::Goes {
                s.hold = None;
            }
        });
        self.counters.released += 1;
        self.publish(session, tombstone);
    }
}

/// What becomes of a hold when its session is released.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Concurrent {
    Stays,
    Goes,
}

/// What a merge found and left.
pub(super) struct Joined {
    pub(super) before: Option<Record>,
    pub(super) now: Record,
    pub(super) merged: Merged,
    pub(super) hold: HoldEnd,
}

/// Whether a merge ended a hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldEnd {
    /// There was none, or it stays.
    None,
    Ended,
}

/// What a failed request leaves behind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    NotOwned,
    OthersRemain,
    RolledBack,
}

pub(super) fn leave(session: &mut Session, owner: Owner, named: Option<HoldId>) -> Left {
    let Some(hold) = session.hold.as_mut().filter(|hold| named.is_none_or(|named| named == hold.id)) else {
        return Left::NotOwned;
    };
    let owners = hold.owners.len();
    hold.owners.retain(|o| *o != owner);
    match hold.owners.len() {
        0 => {
            session.hold = None;
            Left::RolledBack
        }
        left if left == owners => Left::NotOwned,
        _ => Left::OthersRemain,
    }
}

fn join(session: &mut Session, theirs: Record) -> Joined {
    let before = session.record;
    let (now, merged) = merge(before, theirs);
    session.record = Some(now);
    let newer = matches!(merged, Merged::Inserted | Merged::ReplacedNewer);
    let ended = newer && session.hold.take().is_some();
    Joined { before, now, merged, hold: if ended { HoldEnd::Ended } else { HoldEnd::None } }
}
