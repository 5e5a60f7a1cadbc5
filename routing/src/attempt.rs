//! One attempt of a request, as the upstream role sees it: which host Envoy really dialled, and the rank that belongs to it.
//!
//! Header changes of one attempt are still there in the next one, so the rank is always set or removed, and the length of a body
//! that an attempt wrote is taken back. The body itself comes to each attempt as the client sent it. An attempt that ends
//! without an answer says nothing itself: the next one, or the answer Envoy gives in its place, tells that it failed.

use crate::contract::SlotFailure;
use crate::directory::{Directory, Endpoint, Worker};
use crate::engine::{self, OnWire};
use crate::flow::{Counter, LocalReply};
use crate::header;
use crate::id::Rank;
use crate::rewrite;
use crate::time::Timestamp;
use crate::vm::{Dialled, Plan, PlanRef, Verdict, Vm};

/// Largest body a rank is written into; a longer one goes as it is, without a rank. Envoy holds that much of a request by default.
pub const RANK_BODY_BYTES_MAX: usize = 1 << 20;

/// What the attempt's request headers need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The rank header to set; `None` removes it.
    pub rank: Option<WireRank>,
    /// The rank goes into the body: hold the head until [`Attempt::part`] says otherwise.
    pub wants_body: bool,
    /// The client's `content-length`, to be set again: an earlier attempt sent a body of its own.
    pub content_length: Option<u64>,
    /// Answer this instead of going on: the request is for one target alone, and this is another host.
    pub refuse: Option<LocalReply>,
    /// Something to count.
    pub count: Option<Counter>,
}

/// A rank header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireRank {
    /// Its name.
    pub header: &'static str,
    /// Plain ASCII digits.
    pub value: String,
}

/// What to do when a part of the body is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Hold it and wait for more.
    Wait,
    /// All of it is there: give it to [`Attempt::body`].
    Read,
    /// Let it go as it is; something to count.
    Go(Option<Counter>),
}

/// One attempt.
#[derive(Debug, Default)]
pub struct Attempt {
    plan: Option<PlanRef>,
    /// Where it went, if we know that host.
    slot: Option<(u64, Option<Rank>)>,
    /// The field and value that the body shall get.
    field: Option<(&'static str, u32)>,
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
        let mut start = Start { content_length: plan.body_bytes, ..Start::default() };
        let counts = dialled.filter(|_| !stray).map(|(worker, endpoint)| {
            let rank = rank_at(plan, worker, endpoint);
            self.slot = Some((worker.hash, rank));
            plan.last = Some(Dialled { worker: worker.hash, rank, answered: false });
            self.address(plan, worker, endpoint, &mut start);
            (worker.hash, endpoint.carried(worker, plan.surface, rank))
        });
        if let Some(last) = failed {
            let verdict = Verdict::Failed(SlotFailure::Connection);
            vm.judge(now, directory, (last.worker, last.rank), verdict);
        }
        if stray {
            let (refuse, count) = (
                Some(LocalReply::target_gone("the named worker is not available")),
                Some(Counter::ExactRefused),
            );
            return Start { refuse, count, ..Start::default() };
        }
        if let Some(counts) = counts {
            vm.recount(at, counts);
        }
        start
    }

    /// What the engine at this endpoint shall be told.
    fn address(&mut self, plan: &Plan, worker: &Worker, endpoint: &Endpoint, start: &mut Start) {
        let rank = self.slot.and_then(|(_, rank)| rank);
        match endpoint.on_wire(worker, plan.surface, rank) {
            OnWire::Nothing => {}
            OnWire::Header { name, value } => start.rank = Some(WireRank { header: name, value }),
            OnWire::Body { name, value } => self.field = Some((name, value)),
        }
        start.wants_body = self.field.is_some();
    }

    /// A part of the body came, so that `held` bytes are there, with `end` all of them. For an attempt that wants its body.
    pub fn part(&mut self, vm: &mut Vm, held: usize, end: bool) -> Part {
        match self.field {
            None => Part::Go(None),
            Some(_) if held > RANK_BODY_BYTES_MAX => {
                self.without_rank(vm);
                Part::Go(Some(Counter::RankBodyTooLong))
            }
            Some(_) if end => Part::Read,
            Some(_) => Part::Wait,
        }
    }

    /// The whole body as the client sent it (empty when there is none). What is to be sent instead: with `content-length` set to
    /// exactly its length.
    ///
    /// # Errors
    /// It cannot be rewritten and goes as it is, without a rank: what to count.
    pub fn body(&mut self, vm: &mut Vm, whole: &[u8]) -> Result<Vec<u8>, Counter> {
        let new = self
            .field
            .take()
            .and_then(|(field, rank)| rewrite::set_field(whole, field, rank, &engine::BODY_FIELDS));
        let Some(new) = new else {
            self.without_rank(vm);
            return Err(Counter::RankBodyMalformed);
        };
        if let Some(plan) = self.plan.and_then(|at| vm.plans.get_mut(at)) {
            plan.body_bytes = u64::try_from(whole.len()).ok();
        }
        Ok(new)
    }

    /// The rank is not told after all: the engine chooses.
    fn without_rank(&mut self, vm: &mut Vm) {
        self.field = None;
        if let (Some(at), Some((worker, _))) = (self.plan, self.slot) {
            vm.recount(at, (worker, None));
        }
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
