//! A turn whose caller names the target: served exactly there, or refused.
//!
//! Owns what a named target agrees with. A refused request changes nothing. A binding is judged before a hold: while a soft
//! session moves, its binding is still what the caller must agree with.

use super::State;
use super::binding::Slot;
use super::judge::Asked;
use super::verdict::{Act, Bound, Fresh, Loose, Verdict};
use routing::contract::{PoolInfo, Refusal, SessionRef, Target};

impl State {
    pub(super) fn judge_named(&self, asked: &Asked, named: &Target) -> Verdict {
        let slot = match self.named_slot(asked, named) {
            Ok(slot) => slot,
            Err(refusal) => return Act::Refused(refusal).alone(),
        };
        if !self.keeps(asked, self.with_rank(&asked.pool, slot, asked.session)) {
            return Act::Refused(Refusal::Excluded).alone();
        }
        match asked.pinned() {
            Some(session) => self.exactly(asked, session, slot),
            None if !self.takes_named(slot) => Act::Refused(Refusal::WorkerUnavailable).alone(),
            None => Act::Unpinned(self.with_rank(&asked.pool, slot, asked.session), Loose::Named).alone(),
        }
    }

    /// What the caller means, if it is there. A worker of the other phase is not.
    fn named_slot(&self, asked: &Asked, named: &Target) -> Result<Slot, Refusal> {
        let worker = self.workers.by_id(&named.worker).filter(|worker| asked.concerns(worker));
        let worker = worker.ok_or(Refusal::WorkerUnknown)?;
        if worker.has_rank(named.rank) {
            Ok(worker.slot_of(named.rank))
        } else {
            Err(Refusal::RankUndeclared)
        }
    }

    /// A session that is kept: its binding, its hold, or the named worker must agree, in this order.
    fn exactly(&self, asked: &Asked, session: SessionRef, named: Slot) -> Verdict {
        if let Some(bound) = self.binding(asked, session) {
            return self.exactly_bound(session, bound, named);
        }
        let held = self.open_hold(asked, session.id, None);
        let agreed = held.map(|held| self.merged(session, held, named));
        if agreed.flatten().is_none() && !self.takes_named(named) {
            return Act::Refused(Refusal::WorkerUnavailable).alone();
        }
        let slot = self.with_rank(&asked.pool, named, Some(session));
        match (agreed, self.cannot_own(asked)) {
            (Some(None), _) => Act::Refused(Refusal::BoundElsewhere).alone(),
            (_, Some(why)) => Act::Unpinned(slot, why).alone(),
            (Some(Some(agreed)), None) => Act::Join(agreed).alone(),
            (None, None) => self.hold_at(asked, session, slot, Fresh::Named).alone(),
        }
    }

    fn exactly_bound(&self, session: SessionRef, bound: Bound, named: Slot) -> Verdict {
        match self.merged(session, bound.slot, named) {
            None => Act::Refused(Refusal::BoundElsewhere).alone(),
            Some(slot) if slot == bound.slot => bound.go_on(),
            Some(slot) => Act::AddRank(slot).keeping(Some(bound)),
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

    /// The named rank, else that of a session without a binding: hashed where ranks are pinned.
    fn with_rank(&self, pool: &PoolInfo, named: Slot, session: Option<SessionRef>) -> Slot {
        if named.rank().is_some() { named } else { self.plain_slot(pool, named.worker, session) }
    }

    /// Whether a turn that is not bound there may begin there because its caller says so.
    fn takes_named(&self, slot: Slot) -> bool {
        self.workers.by_hash(slot.worker).is_some_and(|worker| worker.state().is_open())
    }
}
