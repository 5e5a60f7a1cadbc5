//! One request asks where it goes, and what the verdict says is done: bound, joined, held afresh, unpinned.
//!
//! Owns what a route changes. It moves nothing: a binding moves when a hold is committed. Where a request goes is judged in
//! `judge.rs`; a request of a split pool asks twice, and each half is a question of its own.

use super::State;
use super::binding::{Place, Record, Slot};
use super::judge::{Asked, Seat, is_plausible};
use super::kv::Looked;
use super::limits::OWNERS_MAX;
use super::report::{HoldEnd, Left, leave};
use super::sessions::{Hold, Owner, Room, Session};
use super::shared::Sharing;
use super::verdict::{Act, Bound, Fresh, Loose, Verdict};
use super::vms::VmId;
use routing::block::Chain;
use routing::contract::{Caller, Entry, Outcome, PoolInfo, PrefillAsk, RouteReply, RouteRequest, SessionRef};
use routing::hash::Phase;
use routing::id::{HoldId, SessionId, Version};
use routing::policy::mix;
use routing::time::Timestamp;

/// Tells the draw of the prefill half from that of the other.
const PREFILL_DRAW: u64 = 0x7072_6566;

impl<'a> Asked<'a> {
    /// The half that every request has; `session` is its own, or the one behind its alias.
    pub(super) fn serving(
        (now, seat, draw): (Timestamp, Seat, u64),
        pool: PoolInfo,
        request: &RouteRequest,
        (session, looked): (Option<SessionRef>, Option<&'a Looked>),
    ) -> Self {
        Self {
            now,
            seat,
            request: request.request,
            pool,
            phase: if request.prefill.is_some() { Phase::Decode } else { Phase::Aggregated },
            session,
            cached: request.cached,
            named: request.named.clone(),
            demands: request.demands.clone(),
            looked,
            draw,
        }
    }

    /// The prefill half of the same request.
    pub(super) fn prefill(&self, ask: &PrefillAsk) -> Self {
        Self {
            request: ask.request,
            pool: self.pool.clone(),
            phase: Phase::Prefill,
            session: ask.session,
            cached: ask.cached,
            named: ask.named.clone(),
            demands: self.demands.clone(),
            draw: mix(self.draw, PREFILL_DRAW),
            ..*self
        }
    }
}

impl State {
    pub(super) fn route(
        &mut self,
        now: Timestamp,
        request: RouteRequest,
        prompt: Option<Chain>,
        draw: u64,
    ) -> RouteReply {
        if request.dry_run {
            return self.dry_run(now, &request, prompt, draw);
        }
        let seat = self.take_seat(now, &request.caller);
        self.take_unsent(now, seat.vm(), request.session, request.alias, &request.unsent);
        let behind = self.resolve(now, &request);
        let Some(pool) = self.pools.get(&request.pool).cloned() else { return self.no_such_pool(now) };
        let found = std::mem::take(&mut self.kv.found);
        let looked = self.look(now, &pool, prompt, found);
        let session = request.session.or(behind);
        let asked = Asked::serving((now, seat, draw), pool, &request, (session, looked.as_ref()));
        let mut reply = self.settle(&asked);
        reply.session = behind;
        // Without a place for the one half the other would be held for nothing.
        match request.prefill {
            Some(ask) if reply.target.is_some() => {
                self.take_unsent(now, seat.vm(), ask.session, None, &ask.unsent);
                reply.prefill = Some(Box::new(self.settle(&asked.prefill(&ask))));
            }
            Some(ask) => self.disown(&asked.prefill(&ask)),
            None => {}
        }
        if let Some(looked) = looked {
            self.kv.found = looked.into_found();
        }
        reply
    }

    /// What a request was given is not load when it is asked for again, after a claim: it would be in its own way.
    pub(super) fn take_back(&mut self, request: &RouteRequest) {
        if self.sharing == Sharing::Single || request.dry_run {
            return;
        }
        let Some(vm) = self.vms.id_of(&request.caller) else { return };
        let half = request.prefill.as_ref().map(|ask| ask.request);
        for id in [Some(request.request), half].into_iter().flatten() {
            self.vms.end_reservation(vm, id, &mut self.workers);
        }
    }

    fn no_such_pool(&mut self, now: Timestamp) -> RouteReply {
        let nowhere = self.unknown_pool(now);
        match nowhere.outcome {
            Outcome::Unsure => self.counters.route_unsure += 1,
            _ => self.counters.route_unknown_pool += 1,
        }
        nowhere
    }

    fn take_seat(&mut self, now: Timestamp, caller: &Caller) -> Seat {
        let vm = self.vms.seen(now, caller, self.config.limits.vms_max);
        vm.map_or(Seat::Full, Seat::Of)
    }

    /// A failure that is still on its way must not be joined by its own retry.
    fn take_unsent(
        &mut self,
        now: Timestamp,
        vm: Option<VmId>,
        session: Option<SessionRef>,
        alias: Option<SessionId>,
        unsent: &[Entry],
    ) {
        let about_session =
            |id: SessionId| session.is_some_and(|session| session.id == id) || alias == Some(id);
        let concerns = |entry: &&Entry| match entry {
            Entry::Committed { session, .. }
            | Entry::Failed { session, .. }
            | Entry::Touched { session, .. }
            | Entry::Released { session, .. } => about_session(session.id),
            Entry::Alias { alias: told, .. } => alias == Some(*told),
            // Slots are counted once, from the report.
            Entry::SlotFailed { .. }
            | Entry::SlotAnswered { .. }
            | Entry::Prefilled { .. }
            | Entry::Ended { .. }
            | Entry::VmGone { .. }
            | Entry::Unknown => false,
        };
        for entry in unsent.iter().filter(concerns) {
            self.take_entry(now, vm, entry.clone());
        }
    }

    /// Judges one half, does what the verdict says and tells.
    fn settle(&mut self, asked: &Asked) -> RouteReply {
        let implausible = asked.cached.is_some_and(|cached| !is_plausible(cached.version));
        self.counters.version_implausible += u64::from(implausible);
        let verdict = self.judge(asked);
        let (version, hold) = self.carry_out(asked, verdict);
        if hold.is_none() {
            self.disown(asked);
        }
        let reply = RouteReply { version, hold, ..self.answer(asked, verdict) };
        self.reserve(asked, verdict.act.slot());
        self.book(asked, verdict.act.slot());
        reply
    }

    /// It was asked again, after a claim, and answered otherwise: it will not tell how the hold of its first answer ends.
    fn disown(&mut self, asked: &Asked) {
        let (Some(session), Some(owner)) = (asked.session, asked.owner()) else { return };
        let hold = self.sessions.by_id(session.id).and_then(|known| known.hold.as_ref());
        if !hold.is_some_and(|hold| hold.owners.contains(&owner)) {
            return;
        }
        let left = self.sessions.edit(session.id, session.rank_hash, |known| leave(known, owner, None));
        self.counters.holds_gave_way += u64::from(matches!(left, Left::RolledBack));
    }

    /// Does what a verdict says: version of the binding or hold, and the hold.
    fn carry_out(&mut self, asked: &Asked, verdict: Verdict) -> (Version, Option<HoldId>) {
        if let Some(turn) = verdict.turn {
            self.turns.insert(asked.turn_key(), turn);
        }
        self.counters.chosen_all_overloaded += u64::from(verdict.all_overloaded);
        if let (Some(session), Some(bound)) = (asked.session, verdict.bound) {
            self.keep_alive(asked, session, bound);
        }
        match (verdict.act, asked.session) {
            (Act::GoOn(bound), _) => (self.go_on(bound), None),
            (Act::AddRank(slot), Some(session)) => (self.add_rank(asked, session, slot), None),
            (Act::Join(_), Some(session)) => self.join(asked, session),
            (Act::Hold(slot, why), Some(session)) => self.hold(asked, session, slot, why),
            (Act::Unpinned(_, why), _) => (self.go_loose(verdict.bound, why), None),
            (Act::Refused(refusal), _) => (self.count_refusal(refusal), None),
            (Act::NoWorker, _) => (self.count(|counters| &mut counters.route_no_worker), None),
            (Act::Unsure, _) => (self.count(|counters| &mut counters.route_unsure), None),
            // Only sessions are bound and held.
            (Act::AddRank(_) | Act::Join(_) | Act::Hold(..), None) => (Version::default(), None),
        }
    }

    /// The turn that asks keeps its binding alive, also while the binding is about to move: the move may fail. What the
    /// caller's cache knew better is learned here.
    fn keep_alive(&mut self, asked: &Asked, session: SessionRef, bound: Bound) {
        let deadline = asked.now + asked.pool.ttl_ms;
        if bound.adopted {
            self.adopt(session, bound, deadline);
        }
        self.sessions.edit(session.id, session.rank_hash, |s| refresh(s, deadline));
    }

    fn adopt(&mut self, session: SessionRef, bound: Bound, deadline: Timestamp) {
        let was_bound = self.sessions.by_id(session.id).and_then(|s| s.record?.slot()).is_some();
        let record = Record { version: bound.version, place: Place::Bound(bound.slot), deadline };
        let Some(joined) = self.merge_record(session, record) else { return };
        self.counters.holds_gave_way += u64::from(joined.hold == HoldEnd::Ended);
        if was_bound {
            self.publish(session, record);
        }
    }

    /// A spilled turn is told of the binding that it leaves for once: its Envoy may know an older one, or none to release.
    fn go_loose(&mut self, bound: Option<Bound>, why: Loose) -> Version {
        let none = self.count_loose(why);
        bound.filter(|_| why == Loose::Spilled).map_or(none, |bound| bound.version)
    }

    const fn go_on(&mut self, bound: Bound) -> Version {
        let counter =
            if bound.adopted { &mut self.counters.route_adopted } else { &mut self.counters.route_bound };
        *counter += 1;
        bound.version
    }

    /// From now on the binding has the rank that its caller named: other Envoys learn it as a move.
    fn add_rank(&mut self, asked: &Asked, session: SessionRef, slot: Slot) -> Version {
        let version = self.next_version(self.sessions.by_id(session.id).map_or(0, Session::seq));
        let record = Record { version, place: Place::Bound(slot), deadline: asked.now + asked.pool.ttl_ms };
        self.replace_record(session, record);
        self.counters.route_bound += 1;
        version
    }

    /// Becomes an owner of the hold that is there.
    fn join(&mut self, asked: &Asked, session: SessionRef) -> (Version, Option<HoldId>) {
        let hold = self.sessions.by_id(session.id).and_then(|s| s.hold.as_ref());
        let Some((id, version)) = hold.map(|hold| (hold.id, hold.version)) else {
            return (Version::default(), None);
        };
        let seen = asked.cached.filter(|cached| is_plausible(cached.version)).map_or(0, |c| c.version.seq);
        let version = if seen < version.seq { version } else { self.next_version(seen) };
        let owner = asked.owner();
        let full = self.sessions.edit(session.id, session.rank_hash, |s| own(s, owner, version));
        self.counters.hold_owners_full += u64::from(full);
        self.counters.route_joined += 1;
        (version, Some(id))
    }

    /// A fresh hold, under a version above all that are known. One that was there has lost its slot.
    fn hold(
        &mut self,
        asked: &Asked,
        session: SessionRef,
        slot: Slot,
        why: Fresh,
    ) -> (Version, Option<HoldId>) {
        self.room_for(session.id);
        let known = self.sessions.by_id(session.id).map_or(0, Session::seq);
        let seen = asked.cached.filter(|cached| is_plausible(cached.version)).map_or(0, |c| c.version.seq);
        let version = self.next_version(known.max(seen));
        self.next_hold += 1;
        let id = HoldId(self.next_hold);
        let owners = asked.owner().into_iter().collect();
        let hold = Box::new(Hold { id, slot, version, claimed: false, owners });
        let replaced = self.sessions.edit(session.id, session.rank_hash, |s| s.hold.replace(hold).is_some());
        self.counters.holds_replaced += u64::from(replaced);
        self.count_hold(why);
        (version, Some(id))
    }

    /// Whether a version may be one of ours; counts those that cannot.
    pub(super) const fn plausible(&mut self, version: Version) -> bool {
        let plausible = is_plausible(version);
        self.counters.version_implausible += !plausible as u64;
        plausible
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

    /// Load is counted at the choice, or a burst would all go to the idlest worker.
    fn reserve(&mut self, asked: &Asked, slot: Option<Slot>) {
        let (Some(vm), Some(slot)) = (asked.seat.vm(), slot) else { return };
        let dropped = self.vms.reserve(asked.now, vm, asked.request, slot, &mut self.workers);
        self.counters.reservations_dropped += u64::from(dropped);
    }
}

impl Seat {
    const fn vm(self) -> Option<VmId> {
        match self {
            Self::Of(vm) => Some(vm),
            Self::New | Self::Full => None,
        }
    }
}

impl Asked<'_> {
    fn owner(&self) -> Option<Owner> {
        self.seat.vm().map(|vm| Owner { vm, request: self.request })
    }
}

/// Lets a binding live until `deadline`, unless it lives longer already.
pub(super) fn refresh(session: &mut Session, deadline: Timestamp) {
    if let Some(record) = &mut session.record {
        record.deadline = record.deadline.max(deadline);
    }
}

/// Makes `owner` one of the hold's; true when there is no room for its name.
fn own(session: &mut Session, owner: Option<Owner>, version: Version) -> bool {
    let (Some(hold), Some(owner)) = (&mut session.hold, owner) else { return false };
    hold.version = version;
    let known = hold.owners.contains(&owner);
    let full = !known && hold.owners.len() >= OWNERS_MAX;
    if !known && !full {
        hold.owners.push(owner);
    }
    full
}
