//! Whether a soft session stays where it is bound, by what this service knows of everybody's load.
//!
//! Owns that question only: where the session goes instead is the policy's to say, and a move is a hold like any other.

use super::State;
use super::judge::Asked;
use super::verdict::Bound;
use routing::contract::{Affinity, Policy, WorkerState, soft_stays};
use routing::id::SessionId;

impl State {
    /// True of every session that is not soft: load never moves those. Nor does it where only callers choose.
    pub(super) fn stays(&self, asked: &Asked, session: SessionId, bound: Bound) -> bool {
        let pool = &asked.pool;
        if pool.affinity != Affinity::Soft || pool.policy == Policy::Direct {
            return true;
        }
        // A move is under way: of two that move at once the second goes along, unless it may not go there.
        let moving = self.open_hold(asked, session, Some(bound)).filter(|held| self.keeps(asked, *held));
        moving.is_none() && self.carries(asked, bound)
    }

    /// Whether the bound slot is good enough, compared with the best worker that takes new sessions. What other VMs have there counts
    /// once it stands: it is known a tick late or two, with every turn that has ended meanwhile, this session's last one perhaps. A
    /// prompt that is paid anew is not worth such a guess.
    fn carries(&self, asked: &Asked, bound: Bound) -> bool {
        let field = self.field(asked, Some(bound.slot));
        let Some(best) = field.best_load() else { return true };
        self.workers.by_hash(bound.slot.worker).is_some_and(|worker| {
            // An explanation is asked by no VM, and told of what there is.
            let unsettled = asked.vm().map_or(0, |vm| self.vms.unsettled(asked.now, worker.hash, vm));
            let load = worker.load_at(asked.now).saturating_sub(unsettled);
            let busy = worker.is_overloaded(bound.slot) && !field.all_overloaded;
            worker.state() != WorkerState::Suspect
                && !busy
                && soft_stays(asked.pool.soft_margin_percent, load, best)
        })
    }
}
