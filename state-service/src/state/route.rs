//! One request asks where it goes: bound, joined, held afresh, or unpinned.
//!
//! Owns the order of these questions. A route moves nothing: a binding moves when a hold is committed. Turns whose caller
//! names the target are in `named.rs`; whether a soft session stays is judged in `soft.rs`.

use super::State;
use super::binding::{Place, Record, Slot};
use super::choice::{Who, pins};
use super::limits::{OWNERS_MAX, SEQ_MAX};
use super::report::HoldEnd;
use super::sessions::{Hold, Owner, Room, Session};
use super::vms::VmId;
use routing::contract::{
    Cached, Entry, Outcome, Policy, PoolInfo, Refusal, RouteReply, RouteRequest, SessionRef,
};
use routing::id::{HoldId, RequestId, SessionId, Version};
use routing::time::Timestamp;

/// Who asks, when, with what luck.
pub(super) struct Asked {
    pub(super) now: Timestamp,
    vm: Option<VmId>,
    request: RequestId,
    pub(super) pool: PoolInfo,
    draw: u64,
    /// Only the slot in the answer will do.
    exact: bool,
}

/// A live binding whose slot can serve.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    pub(super) slot: Slot,
    pub(super) version: Version,
    /// Learned from the caller's cache just now.
    adopted: bool,
}

/// Where a request goes.
pub(super) enum Decision {
    Held { slot: Slot, version: Version, hold: HoldId, reason: &'static str },
    Bound { slot: Slot, version: Version, reason: &'static str },
    Unpinned { slot: Slot, reason: &'static str },
    NoWorker,
    Refused(Refusal),
}

/// Why a request cannot own a hold.
#[derive(Clone, Copy)]
pub(super) enum Ownerless {
    VmsFull,
    Over,
}

impl State {
    pub(super) fn route(&mut self, now: Timestamp, request: RouteRequest, draw: u64) -> RouteReply {
        let vm = self.vms.seen(now, &request.caller, self.config.limits.vms_max);
        let Some(pool) = self.pools.get(&request.pool).cloned() else {
            if self.is_unsure(now, true) {
                return self.answer_unsure();
            }
            self.counters.route_unknown_pool += 1;
            return self.answer_nowhere(Outcome::UnknownPool, "unknown_pool");
        };
        let exact = request.named.is_some() || pool.policy == Policy::Direct;
        let asked = Asked { now, vm, request: request.request, pool, draw, exact };
        let session = request.session;
        if let Some(session) = session {
            self.take_unsent(&asked, session, request.unsent);
        }
        if self.leaves_to_filter(now, &asked.pool, session, request.cached) {
            return self.answer_unsure();
        }
        let decision = match (request.named, session.filter(|_| pins(&asked.pool))) {
            (Some(named), pinned) => self.route_named(&asked, &named, session, pinned, request.cached),
            (None, Some(pinned)) => self.decide(&asked, pinned, request.cached),
            (None, None) => self.unpinned(&asked, session),
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
                | Entry::Released { session, .. }
                | Entry::Alias { session, .. } => Some(session.id),
                // Slots are counted once, from the report.
                Entry::SlotFailed { .. }
                | Entry::SlotAnswered { .. }
                | Entry::VmGone { .. }
                | Entry::Unknown => None,
            };
            if about == Some(session.id) {
                self.take_entry(asked.now, asked.vm, entry);
            }
        }
    }

    fn decide(&mut self, asked: &Asked, session: SessionRef, cached: Option<Cached>) -> Decision {
        let cached = cached.filter(|cached| self.plausible(cached.version));
        let bound = self.binding(asked, session, cached);
        if let Some(bound) = bound.filter(|bound| self.stays(asked, session.id, bound.slot)) {
            return self.go_on(asked, session, bound);
        }
        match (self.owner(asked), bound) {
            (Ok(owner), _) => {
                self.keep_alive(asked, session, bound);
                let joined = self.join(asked, session, owner, cached);
                joined.unwrap_or_else(|| self.hold(asked, session, owner, cached, bound))
            }
            (Err(_), Some(bound)) => self.go_on(asked, session, bound),
            (Err(why), None) => self.unpinned_now(asked, session, why),
        }
    }

    /// Who may own a hold for this request.
    pub(super) fn owner(&self, asked: &Asked) -> Result<Owner, Ownerless> {
        let vm = asked.vm.ok_or(Ownerless::VmsFull)?;
        let over = self.vms.is_over(vm, asked.request);
        if over { Err(Ownerless::Over) } else { Ok(Owner { vm, request: asked.request }) }
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

    /// The live binding, if its slot can serve.
    pub(super) fn binding(
        &mut self,
        asked: &Asked,
        session: SessionRef,
        cached: Option<Cached>,
    ) -> Option<Bound> {
        let adopted = cached.is_some_and(|cached| self.adopt(asked, session, cached));
        let record = self.live_record(asked.now, session.id)?;
        let slot = record.slot()?;
        self.usable(&asked.pool.name, slot)?;
        Some(Bound { slot, version: record.version, adopted })
    }

    /// The turn that asks keeps its binding alive, also while the binding is about to move: the move may fail.
    fn keep_alive(&mut self, asked: &Asked, session: SessionRef, bound: Option<Bound>) {
        let deadline = asked.now + asked.pool.ttl_ms;
        if bound.is_some() {
            self.sessions.edit(session.id, session.rank_hash, |s| refresh(s, deadline));
        }
    }

    /// Goes where the session is bound.
    pub(super) fn go_on(&mut self, asked: &Asked, session: SessionRef, bound: Bound) -> Decision {
        self.keep_alive(asked, session, Some(bound));
        self.counters.route_bound += u64::from(!bound.adopted);
        self.counters.route_adopted += u64::from(bound.adopted);
        let reason = if bound.adopted { "adopted" } else { "bound" };
        Decision::Bound { slot: bound.slot, version: bound.version, reason }
    }

    /// What is known of a session, unless its time is over.
    fn live_record(&self, now: Timestamp, id: SessionId) -> Option<Record> {
        self.sessions.by_id(id)?.record.filter(|record| !record.is_expired(now))
    }

    /// Goes where another first turn of this session goes, if that slot can still serve.
    pub(super) fn join(
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

    /// Chooses afresh; a soft session whose policy chooses its own worker stays.
    fn hold(
        &mut self,
        asked: &Asked,
        session: SessionRef,
        owner: Owner,
        cached: Option<Cached>,
        bound: Option<Bound>,
    ) -> Decision {
        let chosen = self.choose(asked.who(Some(session.id)));
        if let Some(bound) = bound.filter(|bound| chosen.is_none_or(|worker| worker == bound.slot.worker)) {
            return self.go_on(asked, session, bound);
        }
        let Some(worker) = chosen else { return self.nobody(asked) };
        let slot = self.new_slot(&asked.pool, worker, session.rank_hash, asked.draw);
        let reason = if bound.is_some() { "moved" } else { policy_word(asked.pool.policy) };
        self.hold_at(asked, session, owner, cached, slot, reason)
    }

    /// A fresh hold, under a version above all that are known. One that was there has lost its slot.
    pub(super) fn hold_at(
        &mut self,
        asked: &Asked,
        session: SessionRef,
        owner: Owner,
        cached: Option<Cached>,
        slot: Slot,
        reason: &'static str,
    ) -> Decision {
        if !self.room_for(session.id) {
            self.counters.unpinned_table_full += 1;
            return self.unpinned_at(slot, "table_full");
        }
        let known = self.sessions.by_id(session.id).map_or(0, Session::seq);
        let version = self.next_version(known.max(cached.map_or(0, |c| c.version.seq)));
        self.next_hold += 1;
        let id = HoldId(self.next_hold);
        let hold = Box::new(Hold { id, slot, version, owners: vec![owner] });
        let replaced = self.sessions.edit(session.id, session.rank_hash, |s| s.hold.replace(hold).is_some());
        self.counters.holds_replaced += u64::from(replaced);
        let reason = self.count_hold(asked.now, session.id, reason);
        Decision::Held { slot, version, hold: id, reason }
    }

    /// Counts a fresh hold by what was there before; its word.
    fn count_hold(&mut self, now: Timestamp, id: SessionId, reason: &'static str) -> &'static str {
        let was_bound = self.live_record(now, id).is_some_and(|record| record.slot().is_some());
        let (counter, reason) = match reason {
            "moved" => (&mut self.counters.route_moved, reason),
            _ if was_bound => (&mut self.counters.route_rebound, "rebound"),
            _ => (&mut self.counters.route_held, reason),
        };
        *counter += 1;
        reason
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
        let Some(worker) = self.choose(asked.who(session.map(|s| s.id))) else { return self.nobody(asked) };
        let slot = self.plain_slot(&asked.pool, worker, session);
        self.unpinned_at(slot, policy_word(asked.pool.policy))
    }

    fn unpinned_now(&mut self, asked: &Asked, session: SessionRef, why: Ownerless) -> Decision {
        let Some(worker) = self.choose(asked.who(Some(session.id))) else { return self.nobody(asked) };
        let slot = self.plain_slot(&asked.pool, worker, Some(session));
        self.unpinned_because(slot, why)
    }

    pub(super) fn unpinned_because(&mut self, slot: Slot, why: Ownerless) -> Decision {
        let (counter, word) = match why {
            Ownerless::VmsFull => (&mut self.counters.unpinned_vms_full, "vms_full"),
            Ownerless::Over => (&mut self.counters.route_over, "over"),
        };
        *counter += 1;
        self.unpinned_at(slot, word)
    }

    pub(super) const fn unpinned_at(&mut self, slot: Slot, reason: &'static str) -> Decision {
        self.counters.route_unpinned += 1;
        Decision::Unpinned { slot, reason }
    }

    /// Nobody may be chosen: there is none, or only the caller chooses.
    fn nobody(&mut self, asked: &Asked) -> Decision {
        if asked.pool.policy == Policy::Direct {
            return self.refuse(Refusal::WorkerRequired);
        }
        self.counters.route_no_worker += 1;
        Decision::NoWorker
    }

    /// Load is counted at the choice, or a burst would all go to the idlest worker.
    fn reserve(&mut self, asked: &Asked, decision: &Decision) {
        let (Some(vm), Some(slot)) = (asked.vm, decision.slot()) else { return };
        let dropped = self.vms.reserve(asked.now, vm, asked.request, slot, &mut self.workers);
        self.counters.reservations_dropped += u64::from(dropped);
    }

    fn answer(&self, asked: &Asked, session: Option<SessionId>, decision: &Decision) -> RouteReply {
        let (outcome, version, hold, reason) = match *decision {
            Decision::Held { version, hold, reason, .. } => (Outcome::Held, version, Some(hold), reason),
            Decision::Bound { version, reason, .. } => (Outcome::Bound, version, None, reason),
            Decision::Unpinned { reason, .. } => (Outcome::Unpinned, Version::default(), None, reason),
            Decision::NoWorker => return self.answer_nowhere(Outcome::NoWorker, "no_worker"),
            Decision::Refused(refusal) => {
                let nowhere = self.answer_nowhere(Outcome::Refused, refusal_word(refusal));
                return RouteReply { refusal: Some(refusal), ..nowhere };
            }
        };
        let slot = decision.slot();
        let target = slot.and_then(|slot| Some(self.workers.by_hash(slot.worker)?.target(slot)));
        let chosen = slot.map_or(0, |slot| slot.worker);
        let alternates = if asked.exact { Vec::new() } else { self.alternates(asked.who(session), chosen) };
        RouteReply {
            target,
            alternates,
            version,
            hold,
            ttl_ms: asked.pool.ttl_ms,
            ..self.answer_nowhere(outcome, reason)
        }
    }

    fn answer_unsure(&mut self) -> RouteReply {
        self.counters.route_unsure += 1;
        self.answer_nowhere(Outcome::Unsure, "settling")
    }

    fn answer_nowhere(&self, outcome: Outcome, reason: &'static str) -> RouteReply {
        RouteReply::nowhere(outcome, self.moves.cursor(), self.epoch, reason)
    }
}

impl Decision {
    const fn slot(&self) -> Option<Slot> {
        match self {
            Self::Held { slot, .. } | Self::Bound { slot, .. } | Self::Unpinned { slot, .. } => Some(*slot),
            Self::NoWorker | Self::Refused(_) => None,
        }
    }
}

impl Asked {
    const fn who(&self, session: Option<SessionId>) -> Who<'_> {
        Who { now: self.now, pool: &self.pool, session, draw: self.draw }
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

const fn refusal_word(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::WorkerRequired => "worker_required",
        Refusal::WorkerUnknown => "worker_unknown",
        Refusal::RankUndeclared => "rank_undeclared",
        Refusal::BoundElsewhere => "bound_elsewhere",
        Refusal::Excluded => "excluded",
        Refusal::Unmet => "unmet",
        Refusal::Overloaded => "overloaded",
        Refusal::WorkerUnavailable => "worker_unavailable",
    }
}
