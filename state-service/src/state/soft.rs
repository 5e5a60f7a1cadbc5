//! Whether a soft session stays where it is bound, by what this service knows of everybody's load.
//!
//! Owns that question only: where the session goes instead is the policy's to say, and a move is a hold like any other.

use super::State;
use super::binding::Slot;
use super::route::Asked;
use routing::contract::{Affinity, Policy, WorkerState, soft_stays};
use routing::id::{PoolName, SessionId};

impl State {
    /// True of every session that is not soft: load never moves those. Nor does it where only callers choose.
    pub(super) fn stays(&self, asked: &Asked, session: SessionId, bound: Slot) -> bool {
        let pool = &asked.pool;
        if pool.affinity != Affinity::Soft || pool.policy == Policy::Direct {
            return true;
        }
        // A move is under way: of two that move at once the second goes along.
        self.open_hold(&pool.name, session).is_none() && self.carries(asked, bound)
    }

    /// Whether the bound worker is good enough, compared with the best one that takes new sessions.
    fn carries(&self, asked: &Asked, bound: Slot) -> bool {
        let willing = self.workers.iter().filter(|w| w.spec.pool == asked.pool.name && w.state().takes_new());
        let Some(best) = willing.map(|worker| worker.load_at(asked.now)).min() else { return true };
        self.workers.by_hash(bound.worker).is_some_and(|worker| {
            let load = worker.load_at(asked.now);
            worker.state() != WorkerState::Suspect && soft_stays(asked.pool.soft_margin_percent, load, best)
        })
    }

    /// Slot of a session's hold, if it can still serve.
    pub(super) fn open_hold(&self, pool: &PoolName, session: SessionId) -> Option<Slot> {
        let slot = self.sessions.by_id(session)?.hold.as_ref()?.slot;
        self.usable(pool, slot).map(|_| slot)
    }
}
