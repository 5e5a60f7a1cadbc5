//! One attempt of a request, as the upstream role sees it: which host Envoy really dialled, and the rank that belongs to it.
//!
//! Header changes of one attempt are still there in the next one, so the rank is always set or removed.

use crate::directory::{Directory, Endpoint, WireRank, Worker};
use crate::flow::Counter;
use crate::header;
use crate::id::Rank;
use crate::vm::{Plan, PlanRef, Served, Vm};

/// What the attempt's request headers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The rank header to set; `None` removes it.
    pub rank: Option<WireRank>,
    /// Something to count.
    pub count: Option<Counter>,
}

/// One attempt.
#[derive(Debug, Default)]
pub struct Attempt {
    plan: Option<PlanRef>,
    slot: Option<(crate::id::WorkerId, Option<Rank>)>,
}

impl Attempt {
    /// The attempt begins. `note` is what the downstream role left; `address` is the `ip:port` dialled.
    pub fn begin(&mut self, vm: &mut Vm, note: Option<&str>, address: &str) -> Start {
        let Some(note) = note else { return Start { rank: None, count: None } };
        self.plan = note.split(';').next().and_then(PlanRef::parse);
        let Some(directory) = vm.directory.take() else { return Start { rank: None, count: None } };
        let start = self.in_directory(vm, &directory, address);
        vm.directory = Some(directory);
        start
    }

    fn in_directory(&mut self, vm: &mut Vm, directory: &Directory, address: &str) -> Start {
        let Some(plan) = self.plan.and_then(|plan| vm.plans.get_mut(plan)) else {
            return Start { rank: None, count: Some(Counter::PlanMissing) };
        };
        plan.attempts = plan.attempts.saturating_add(1);
        let Some((worker, endpoint)) = directory.dialled(address) else {
            return Start { rank: None, count: None };
        };
        let rank = rank_at(plan, worker, endpoint);
        self.slot = Some((worker.id.clone(), rank));
        Start { rank: endpoint.wire_rank(worker.engine, worker.dp_size, rank), count: None }
    }

    /// Whether [`Self::answered`] would learn something.
    #[must_use]
    pub fn wants_answer(&self, vm: &Vm) -> bool {
        self.plan.and_then(|plan| vm.plans.get(plan)).is_some_and(|plan| plan.pending)
    }

    /// The host's own answer began.
    pub fn answered(&mut self, vm: &mut Vm, status: u16) {
        let Some(plan) = self.plan.and_then(|plan| vm.plans.get_mut(plan)) else { return };
        if let Some((worker, rank)) = self.slot.clone() {
            plan.served = Some(Served { worker, rank, status });
        }
    }
}

/// The chosen rank on the chosen worker, the session's own hashed rank on another, none without a session.
fn rank_at(plan: &Plan, worker: &Worker, endpoint: &Endpoint) -> Option<Rank> {
    let rank = if worker.hash == plan.worker {
        plan.rank
    } else {
        plan.rank_hash.and_then(|h| worker.hashed_rank(h))
    };
    rank.filter(|rank| endpoint.serves(*rank))
}

/// What the upstream role removes from every attempt: it has done its work. ([`header::CLUSTER`] is removed by the route,
/// natively, as under `cluster` steering.)
pub const REMOVED: &[&str] = &[header::ENDPOINTS];
