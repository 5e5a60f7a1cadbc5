//! A turn whose caller names the target: served exactly there, or refused.
//!
//! Owns what a named target agrees with. A refused request changes nothing. A binding is judged before a hold: while a soft
//! session moves, its binding is still what the caller must agree with.

use super::State;
use super::binding::{Place, Record, Slot};
use super::route::{Asked, Bound, Decision};
use super::sessions::Session;
use routing::contract::{Cached, PoolInfo, Refusal, SessionRef, Target};
use routing::id::PoolName;

impl State {
    /// `pinned` is `session` where the pool keeps sessions.
    pub(super) fn route_named(
        &mut self,
        asked: &Asked,
        named: &Target,
        session: Option<SessionRef>,
        pinned: Option<SessionRef>,
        cached: Option<Cached>,
    ) -> Decision {
        match (self.named_slot(&asked.pool.name, named), pinned) {
            (Err(refusal), _) => self.refuse(refusal),
            (Ok(slot), Some(session)) => self.exactly(asked, session, slot, cached),
            (Ok(slot), None) if !self.takes_named(slot) => self.refuse(Refusal::WorkerUnavailable),
            (Ok(slot), None) => {
                let slot = self.with_rank(&asked.pool, slot, session);
                self.unpinned_at(slot, "named")
            }
        }
    }

    /// What the caller means, if it is there.
    fn named_slot(&self, pool: &PoolName, named: &Target) -> Result<Slot, Refusal> {
        let worker = self.workers.by_id(&named.worker).filter(|worker| worker.spec.pool == *pool);
        let worker = worker.ok_or(Refusal::WorkerUnknown)?;
        if worker.has_rank(named.rank) {
            Ok(worker.slot_of(named.rank))
        } else {
            Err(Refusal::RankUndeclared)
        }
    }

    /// A session that is kept: its binding, its hold, or the named worker must agree, in this order.
    fn exactly(
        &mut self,
        asked: &Asked,
        session: SessionRef,
        named: Slot,
        cached: Option<Cached>,
    ) -> Decision {
        let cached = cached.filter(|cached| self.plausible(cached.version));
        if let Some(bound) = self.binding(asked, session, cached) {
            return self.exactly_bound(asked, session, bound, named);
        }
        let held = self.open_hold(&asked.pool.name, session.id);
        let agrees = held.is_some_and(|held| self.merged(session, held, named).is_some());
        if !agrees && !self.takes_named(named) {
            return self.refuse(Refusal::WorkerUnavailable);
        }
        if !agrees && held.is_some() {
            return self.refuse(Refusal::BoundElsewhere);
        }
        let slot = self.with_rank(&asked.pool, named, Some(session));
        let owner = match self.owner(asked) {
            Ok(owner) => owner,
            Err(why) => return self.unpinned_because(slot, why),
        };
        match self.join(asked, session, owner, cached) {
            Some(Decision::Held { slot: held, version, hold, reason }) => {
                let slot = self.merged(session, held, named).unwrap_or(held);
                Decision::Held { slot, version, hold, reason }
            }
            _ => self.hold_at(asked, session, owner, cached, slot, "named"),
        }
    }

    fn exactly_bound(&mut self, asked: &Asked, session: SessionRef, bound: Bound, named: Slot) -> Decision {
        match self.merged(session, bound.slot, named) {
            None => self.refuse(Refusal::BoundElsewhere),
            Some(slot) if slot == bound.slot => self.go_on(asked, session, bound),
            Some(slot) => self.add_rank(asked, session, bound, slot),
        }
    }

    /// Where both agree: the same worker and no other rank. A worker-only binding takes its hashed rank and no other.
    fn merged(&self, session: SessionRef, known: Slot, named: Slot) -> Option<Slot> {
        let worker = self.workers.by_hash(known.worker).filter(|_| known.worker == named.worker)?;
        let hashed = worker.slot_for(session.rank_hash).rank();
        match (worker.slot_of(known.rank()).rank(), named.rank()) {
            (_, None) => Some(known),
            (Some(known_rank), Some(rank)) => (known_rank == rank).then_some(known),
            (None, Some(rank)) => (hashed == Some(rank)).then_some(named),
        }
    }

    /// From now on the binding has the rank that its caller named: other Envoys learn it as a move.
    fn add_rank(&mut self, asked: &Asked, session: SessionRef, bound: Bound, slot: Slot) -> Decision {
        let known = self.sessions.by_id(session.id).map_or(bound.version.seq, Session::seq);
        let version = self.next_version(known);
        let record = Record { version, place: Place::Bound(slot), deadline: asked.now + asked.pool.ttl_ms };
        if self.replace_record(session, record).is_none() {
            return self.go_on(asked, session, bound);
        }
        self.counters.route_bound += 1;
        Decision::Bound { slot, version, reason: "rank_added" }
    }

    /// The named rank, else that of a session without a binding: hashed where ranks are pinned.
    fn with_rank(&self, pool: &PoolInfo, named: Slot, session: Option<SessionRef>) -> Slot {
        if named.rank().is_some() { named } else { self.plain_slot(pool, named.worker, session) }
    }

    /// Whether a turn that is not bound there may begin there because its caller says so.
    fn takes_named(&self, slot: Slot) -> bool {
        self.workers.by_hash(slot.worker).is_some_and(|worker| worker.state().is_open())
    }

    pub(super) const fn refuse(&mut self, refusal: Refusal) -> Decision {
        let counter = match refusal {
            Refusal::WorkerRequired => &mut self.counters.refused_worker_required,
            Refusal::WorkerUnknown => &mut self.counters.refused_worker_unknown,
            Refusal::RankUndeclared => &mut self.counters.refused_rank_undeclared,
            Refusal::BoundElsewhere => &mut self.counters.refused_bound_elsewhere,
            Refusal::Excluded => &mut self.counters.refused_excluded,
            Refusal::Unmet => &mut self.counters.refused_unmet,
            Refusal::Overloaded => &mut self.counters.refused_overloaded,
            Refusal::WorkerUnavailable => &mut self.counters.refused_worker_unavailable,
        };
        *counter += 1;
        Decision::Refused(refusal)
    }
}
