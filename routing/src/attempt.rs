//! One attempt of a request, as the upstream role sees it: which host Envoy really dialled, and the rank that belongs to it.
//!
//! Header changes of one attempt are still there in the next one, so the rank is always set or removed. An attempt that ends
//! without an answer says nothing itself: the next one, or the answer Envoy gives in its place, tells that it failed.

use crate::contract::SlotFailure;
use crate::directory::{Directory, Endpoint, WireRank, Worker};
use crate::flow::{Counter, LocalReply};
use crate::header;
use crate::id::Rank;
use crate::time::Timestamp;
use crate::vm::{Dialled, Plan, PlanRef, Verdict, Vm};

/// What the attempt's request headers need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The rank header to set; `None` removes it.
    pub rank: Option<WireRank>,
    /// Answer this instead of going on: the request is for one target alone, and this is another host.
    pub refuse: Option<LocalReply>,
    /// Something to count.
    pub count: Option<Counter>,
}

/// One attempt.
#[derive(Debug, Default)]
pub struct Attempt {
    plan: Option<PlanRef>,
    /// Where it went, if we know that host.
    slot: Option<(u64, Option<Rank>)>,
}

impl Attempt {
    /// The attempt begins. `note` is what the downstream role left; `address` is the `ip:port` dialled.
    pub fn begin(&mut self, vm: &mut Vm, now: Timestamp, note: Option<&str>, address: &str) -> Start {
        let Some(note) = note else { return Start::default() };
        self.plan = note.split(';').next().and_then(PlanRef::parse);
        let Some(directory) = vm.directory.take() else { return Start::default() };
        let start = self.in_directory(vm, now, &directory, address);
        vm.directory = Some(directory);
        start
    }

    fn in_directory(&mut self, vm: &mut Vm, now: Timestamp, directory: &Directory, address: &str) -> Start {
        let Some((at, plan)) = self.plan.and_then(|at| Some((at, vm.plans.get_mut(at)?))) else {
            return Start { count: Some(Counter::PlanMissing), ..Start::default() };
        };
        plan.attempts = plan.attempts.saturating_add(1);
        let failed = plan.last.take().filter(|last| !last.answered);
        let dialled = directory.dialled(address);
        let stray =
            plan.exact && !dialled.is_some_and(|(worker, endpoint)| is_target(plan, worker, endpoint));
        let slot = dialled.filter(|_| !stray).map(|(worker, endpoint)| {
            let rank = rank_at(plan, worker, endpoint);
            self.slot = Some((worker.hash, rank));
            plan.last = Some(Dialled { worker: worker.hash, rank, answered: false });
            (worker, endpoint, rank)
        });
        if let Some(last) = failed {
            let verdict = Verdict::Failed(SlotFailure::Connection);
            vm.judge(now, directory, (last.worker, last.rank), verdict);
        }
        if stray {
            let (refuse, count) = (Some(LocalReply::target_gone()), Some(Counter::ExactRefused));
            return Start { rank: None, refuse, count };
        }
        let Some((worker, endpoint, rank)) = slot else { return Start::default() };
        vm.recount(at, (worker.hash, rank));
        Start { rank: endpoint.wire_rank(worker.engine, worker.dp_size, rank), ..Start::default() }
    }

    /// The host's own answer began. `retry_after` is wanted only with 429 and 503.
    pub fn answered(&mut self, vm: &mut Vm, now: Timestamp, status: u16, retry_after: Option<&[u8]>) {
        let (Some(at), Some(slot)) = (self.plan, self.slot) else { return };
        if let Some(last) = vm.plans.get_mut(at).and_then(|plan| plan.last.as_mut()) {
            last.answered = true;
        }
        // The usual answer of the usual fleet costs two look-ups and nothing else.
        vm.judge_own(now, slot, Verdict::of_status(status, retry_after));
    }
}

/// Whether this host is the target itself.
fn is_target(plan: &Plan, worker: &Worker, endpoint: &Endpoint) -> bool {
    worker.hash == plan.worker && plan.rank.is_none_or(|rank| endpoint.serves(rank))
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
