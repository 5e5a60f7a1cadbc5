//! One request asks where it goes: bound, joined, held afresh, or unpinned.
//!
//! Owns the order of these questions. A route moves nothing: a binding moves when a hold is committed.

use super::State;
use super::binding::{Place, Record, Slot};
use super::choice::pins;
use super::limits::{OWNERS_MAX, SEQ_MAX};
use super::report::HoldEnd;
use super::sessions::{Hold, Owner, Room, Session};
use super::vms::VmId;
use routing::contract::{
    Affinity, Cached, Entry, Outcome, Policy, PoolInfo, RouteReply, RouteRequest, SessionRef,
};
use routing::id::{Cursor, HoldId, RequestId, SessionId, Version};
use routing::time::Timestamp;

/// Who asks, when, with what luck.
struct Asked {
    now: Timestamp,
    vm: Option<VmId>,
    request: RequestId,
    pool: PoolInfo,
    draw: u64,
}

/// Where a request goes.
enum Decision {
    Held { slot: Slot, version: Version, hold: HoldId, reason: &'static str },
    Bound { slot: Slot, version: Version, reason: &'static str },
    Unpinned { slot: Slot, reason: &'static str },
    NoWorker,
}

impl State {
    pub(super) fn route(&mut self, now: Timestamp, request: RouteRequest, draw: u64) -> RouteReply {
        let vm = self.vms.seen(now, &request.caller, self.config.limits.vms_max);
        let Some(pool) = self.pools.get(&request.pool).cloned() else {
            self.counters.route_unknown_pool += 1;
            return self.answer_nowhere(Outcome::UnknownPool, "unknown_pool");
        };
        let asked = Asked { now, vm, request: request.request, pool, draw };
        let session = request.session;
        if let Some(session) = session {
            self.take_unsent(&asked, session, request.unsent);
        }
        let decision = match session.filter(|_| pins(&asked.pool)) {
            Some(pinned) => self.decide(&asked, pinned, request.cached),
            None => self.unpinned(&asked, session),
        };
        self.reserve(&asked, &decision);
        self.answer(&asked, session.map(|s| s.id), &decision)
    }

    /// A failure that is still on its way must not be joined by its own retry.
    fn take_unsent(&mut self, asked: &Asked, session: SessionRef, unsent: Vec<Entry>) {
        for entry in unsent {
            let about = match &entry {
                Entry::Committed { session, .. }
                | Entry::Failed { session, .. }
                | Entry::Touched { session, .. }
                | Entry::Released { session, .. } => Some(session.id),
                // Slots are counted once, from the report.
                Entry::SlotFailed { .. } | Entry::SlotAnswered { .. } | Entry::VmGone { .. } | Entry::Unknown => None,
            };
            if about == Some(session.id) {
                self.take_entry(asked.now, asked.vm, entry);
            }
        }
    }

    fn decide(&mut self, asked: &Asked, session: SessionRef, cached: Option<Cached>) -> Decision {
        let cached = cached.filter(|cached| self.plausible(cached.version));
        let adopted = cached.is_some_and(|cached| self.adopt(asked, session, cached));
        if let Some(bound) = self.bound(asked, session, adopted) {
            return bound;
        }
        let Some(vm) = asked.vm else {
            self.counters.unpinned_vms_full += 1;
            return self.unpinned_now(asked, session, "vms_full");
        };
        if self.vms.is_over(vm, asked.request) {
            self.counters.route_over += 1;
            return self.unpinned_now(asked, session, "over");
        }
        let owner = Owner { vm, request: asked.request };
        self.join(asked, session, owner, cached).unwrap_or_else(|| self.hold(asked, session, owner, cached))
    }

    /// A version that nobody can have given would end all counting.
    pub(super) fn plausible(&mut self, version: Version) -> bool {
        let plausible = version.seq <= SEQ_MAX;
        self.counters.version_implausible += u64::from(!plausible);
        plausible
    }

    /// Learns a binding from the caller's cache, when it is newer than what is known and its slot can serve.
    fn adopt(&mut self, asked: &Asked, session: SessionRef, cached: Cached) -> bool {
        let slot = Slot::new(cached.worker_hash, cached.rank);
        let known = self.sessions.by_id(session.id).and_then(|s| s.record);
        let newer = known.is_none_or(|known| cached.version > known.version);
        if !newer || self.usable(&asked.pool.name, slot).is_none() {
            return false;
        }
        let deadline = asked.now + asked.pool.ttl_ms;
        let record = Record { version: cached.version, place: Place::Bound(slot), deadline };
        let Some(joined) = self.merge_record(session, record) else { return false };
        self.counters.holds_gave_way += u64::from(joined.hold == HoldEnd::Ended);
        if known.is_some_and(|known| known.slot().is_some()) {
            self.publish(session, record);
        }
        true
    }

    /// The live binding, if its slot can serve; the turn that asks keeps it alive.
    fn bound(&mut self, asked: &Asked, session: SessionRef, adopted: bool) -> Option<Decision> {
        let record = self.live_record(asked.now, session.id)?;
        let slot = record.slot()?;
        self.usable(&asked.pool.name, slot)?;
        let deadline = asked.now + asked.pool.ttl_ms;
        self.sessions.edit(session.id, session.rank_hash, |s| refresh(s, deadline));
        self.counters.route_bound += u64::from(!adopted);
        self.counters.route_adopted += u64::from(adopted);
        let reason = if adopted { "adopted" } else { "bound" };
        Some(Decision::Bound { slot, version: record.version, reason })
    }

    /// What is known of a session, unless its time is over.
    fn live_record(&self, now: Timestamp, id: SessionId) -> Option<Record> {
        self.sessions.by_id(id)?.record.filter(|record| !record.is_expired(now))
    }

    /// Goes where another first turn of this session goes, if that slot can still serve.
    fn join(
        &mut self,
        asked: &Asked,
        session: SessionRef,
        owner: Owner,
        cached: Option<Cached>,
    ) -> Option<Decision> {
        let hold = self.sessions.by_id(session.id)?.hold.as_ref()?;
        let (slot, id, version) = (hold.slot, hold.id, hold.version);
        self.usable(&asked.pool.name, slot)?;
        let seen = cached.map_or(0, |c| c.version.seq);
        let version = if seen < version.seq { version } else { self.next_version(seen) };
        let full = self.sessions.edit(session.id, session.rank_hash, |s| own(s, owner, version));
        self.counters.hold_owners_full += u64::from(full);
        self.counters.route_joined += 1;
        Some(Decision::Held { slot, version, hold: id, reason: "joined" })
    }

    /// Chooses afresh.
    fn hold(&mut self, asked: &Asked, session: SessionRef, owner: Owner, cached: Option<Cached>) -> Decision {
        let Some(worker) = self.choose(&asked.pool, Some(session.id), asked.draw) else {
            self.counters.route_no_worker += 1;
            return Decision::NoWorker;
        };
        let rebound = self.live_record(asked.now, session.id).is_some_and(|r| r.slot().is_some());
        if !self.room_for(session.id) {
            self.counters.unpinned_table_full += 1;
            return self.unpinned_at(worker, Some(session), "table_full");
        }
        let known = self.sessions.by_id(session.id).map_or(0, Session::seq);
        let version = self.next_version(known.max(cached.map_or(0, |c| c.version.seq)));
        self.next_hold += 1;
        let id = HoldId(self.next_hold);
        let slot = self.slot_at(worker, Some(session));
        let hold = Box::new(Hold { id, slot, version, owners: vec![owner] });
        let replaced = self.sessions.edit(session.id, session.rank_hash, |s| s.hold.replace(hold).is_some());
        self.counters.holds_replaced += u64::from(replaced);
        self.counters.route_held += u64::from(!rebound);
        self.counters.route_rebound += u64::from(rebound);
        let reason = if rebound { "rebound" } else { policy_word(asked.pool.policy) };
        Decision::Held { slot, version, hold: id, reason }
    }

    /// Makes room for one more session; counts what had to go.
    pub(super) fn room_for(&mut self, id: SessionId) -> bool {
        let room = self.sessions.make_room(id);
        self.counters.sessions_evicted += u64::from(room == Room::Evicted);
        room != Room::Full
    }

    /// Greater than any version this state gave or saw.
    pub(super) fn next_version(&mut self, seen: u64) -> Version {
        self.clock = self.clock.max(seen).saturating_add(1);
        Version { seq: self.clock, writer: self.epoch.0 }
    }

    fn unpinned(&mut self, asked: &Asked, session: Option<SessionRef>) -> Decision {
        let ranked = session.filter(|_| asked.pool.affinity != Affinity::Off);
        let Some(worker) = self.choose(&asked.pool, session.map(|s| s.id), asked.draw) else {
            self.counters.route_no_worker += 1;
            return Decision::NoWorker;
        };
        self.unpinned_at(worker, ranked, policy_word(asked.pool.policy))
    }

    fn unpinned_now(&mut self, asked: &Asked, session: SessionRef, reason: &'static str) -> Decision {
        match self.choose(&asked.pool, Some(session.id), asked.draw) {
            Some(worker) => self.unpinned_at(worker, Some(session), reason),
            None => Decision::NoWorker,
        }
    }

    fn unpinned_at(&mut self, worker: u64, session: Option<SessionRef>, reason: &'static str) -> Decision {
        self.counters.route_unpinned += 1;
        Decision::Unpinned { slot: self.slot_at(worker, session), reason }
    }

    /// The hashed rank for a session; none without one: the engine balances those.
    fn slot_at(&self, worker: u64, session: Option<SessionRef>) -> Slot {
        let slot = |session: SessionRef| Some(self.workers.by_hash(worker)?.slot_for(session.rank_hash));
        session.and_then(slot).unwrap_or_else(|| Slot::new(worker, None))
    }

    /// Load is counted at the choice, or a burst would all go to the idlest worker.
    fn reserve(&mut self, asked: &Asked, decision: &Decision) {
        let (Some(vm), Some(slot)) = (asked.vm, decision.slot()) else { return };
        let dropped = self.vms.reserve(asked.now, vm, asked.request, slot.worker, &mut self.workers);
        self.counters.reservations_dropped += u64::from(dropped);
    }

    fn answer(&self, asked: &Asked, session: Option<SessionId>, decision: &Decision) -> RouteReply {
        let (outcome, version, hold, reason) = match *decision {
            Decision::Held { version, hold, reason, .. } => (Outcome::Held, version, Some(hold), reason),
            Decision::Bound { version, reason, .. } => (Outcome::Bound, version, None, reason),
            Decision::Unpinned { reason, .. } => (Outcome::Unpinned, Version::default(), None, reason),
            Decision::NoWorker => return self.answer_nowhere(Outcome::NoWorker, "no_worker"),
        };
        let slot = decision.slot();
        let target = slot.and_then(|slot| Some(self.workers.by_hash(slot.worker)?.target(slot)));
        let chosen = slot.map_or(0, |slot| slot.worker);
        let alternates = self.alternates(&asked.pool, chosen, session, asked.draw);
        RouteReply {
            refusal: None,
            outcome,
            target,
            alternates,
            version,
            hold,
            ttl_ms: asked.pool.ttl_ms,
            as_of: self.moves.cursor(),
            epoch: self.epoch,
            reason: reason.to_owned(),
        }
    }

    fn answer_nowhere(&self, outcome: Outcome, reason: &'static str) -> RouteReply {
        let as_of: Cursor = self.moves.cursor();
        RouteReply {
            refusal: None,
            outcome,
            target: None,
            alternates: Vec::new(),
            version: Version::default(),
            hold: None,
            ttl_ms: routing::time::Millis(0),
            as_of,
            epoch: self.epoch,
            reason: reason.to_owned(),
        }
    }
}

impl Decision {
    const fn slot(&self) -> Option<Slot> {
        match self {
            Self::Held { slot, .. } | Self::Bound { slot, .. } | Self::Unpinned { slot, .. } => Some(*slot),
            Self::NoWorker => None,
        }
    }
}

/// Lets a binding live until `deadline`, unless it lives longer already.
pub(super) fn refresh(session: &mut Session, deadline: Timestamp) {
    if let Some(record) = &mut session.record {
        record.deadline = record.deadline.max(deadline);
    }
}

/// Makes `owner` one of the hold's; true when there is no room for its name.
fn own(session: &mut Session, owner: Owner, version: Version) -> bool {
    let Some(hold) = &mut session.hold else { return false };
    hold.version = version;
    let known = hold.owners.contains(&owner);
    let full = !known && hold.owners.len() >= OWNERS_MAX;
    if !known && !full {
        hold.owners.push(owner);
    }
    full
}

const fn policy_word(policy: Policy) -> &'static str {
    match policy {
        Policy::LeastLoaded => "least_loaded",
        Policy::RoundRobin => "round_robin",
        Policy::Random => "random",
        Policy::PowerOfTwo => "power_of_two",
        Policy::DeviceAware => "device_aware",
        Policy::Direct => "direct",
        Policy::SessionHash => "session_hash",
    }
}
