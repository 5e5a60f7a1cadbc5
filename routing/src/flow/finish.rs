//! The answer's head and the request's end: what commits, what rolls back, what is remembered of the slot.

use super::place::{Slot, blocks};
use super::prompt::Booked;
use super::{
    Binding, Counter, Effect, Env, Ignored, PageChange, Pending, Placed, RequestFlow, Routing, State,
    reference,
};
use crate::contract::{Entry, KeptSlot, Overlap, SessionRef, SlotFailure, Target};
use crate::directory::{Directory, Pool};
use crate::header;
use crate::id::{HoldId, PoolName, Rank, RequestId, Version};
use crate::page::{Certainty, Record};
use crate::session::Session;
use crate::time::{Millis, Timestamp};
use crate::vm::{Dialled, Plan, Verdict, Vm};

/// Why a slot was chosen, to clients: for what it has cached of the prompt.
const OVERLAP: &str = "overlap";
/// The same where it has nothing of it.
const KV_AWARE: &str = "kv_aware";

/// How an answer's head came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// HTTP status.
    pub status: u16,
    /// Who answered.
    pub by: By,
}

/// Who answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// An engine; with its `Retry-After`, wanted only with 429 and 503.
    Engine(Option<Vec<u8>>),
    /// Envoy, in the engine's place.
    Envoy(EnvoyReason),
}

/// Why Envoy answered itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvoyReason {
    /// The connection was refused, timed out or broke before an answer.
    Unreached,
    /// It does not know the cluster that the filter named.
    NoCluster,
    /// The engine did not answer in time.
    Timeout,
    /// Anything else: too large a body, a circuit breaker, another filter. Says nothing of the slot.
    Other,
}

impl EnvoyReason {
    /// From Envoy's `response.code_details`.
    #[must_use]
    pub fn of_details(details: &[u8]) -> Self {
        let starts = |prefix: &str| details.starts_with(prefix.as_bytes());
        // Its own limit of connections or requests, not the worker's fault.
        let own_limit = details.windows(8).any(|part| part == b"overflow");
        match () {
            () if own_limit => Self::Other,
            () if starts("upstream_reset_before_response_started") || starts("no_healthy_upstream") => {
                Self::Unreached
            }
            () if starts("cluster_not_found") => Self::NoCluster,
            () if starts("response_timeout")
                || starts("upstream_per_try_timeout")
                || starts("stream_idle_timeout") =>
            {
                Self::Timeout
            }
            () => Self::Other,
        }
    }

    /// What it says of the slot that was to answer.
    const fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Unreached | Self::NoCluster => Some(Verdict::Failed(SlotFailure::Connection)),
            Self::Timeout => Some(Verdict::Failed(SlotFailure::Status5xx)),
            Self::Other => None,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In any way that says nothing of the slot: whole, or the client left.
    Plain,
    /// The engine's answer broke off after its head.
    BrokenStream,
}

impl RequestFlow {
    /// Whether [`Self::answered`] would learn something: reading an answer's head costs hostcalls.
    ///
    /// Behind a pool's cluster the upstream role sees each engine's answer itself, so a pinned turn's is not looked at again.
    #[must_use]
    pub fn wants_answer(&self, vm: &Vm, tells_served: bool) -> bool {
        let State::Placed(placed) = &self.state else { return false };
        let plan = placed.plan.and_then(|plan| vm.plans.get(plan));
        let seen = plan.is_some_and(|plan| plan.last.is_some_and(|last| last.answered));
        !seen || placed.awaits_answer() || tells_served
    }

    /// Whether it matters who answered; if not, an answer below 400 is taken for the engine's.
    #[must_use]
    pub fn wants_origin(&self, vm: &Vm, status: u16) -> bool {
        let State::Placed(placed) = &self.state else { return false };
        let unseen = placed.plan.and_then(|plan| vm.plans.get(plan)).is_some_and(|plan| plan.last.is_none());
        status >= 400 || placed.awaits_answer() || unseen
    }

    /// Head of the answer that goes to the client.
    pub fn answered(&mut self, env: &mut Env<'_>, head: &AnswerHead, out: &mut Vec<Effect>) {
        let State::Placed(placed) = &mut self.state else {
            out.push(Effect::Count(Counter::Ignored(Ignored::UnplacedAnswer)));
            return;
        };
        let Some(directory) = env.vm.directory.take() else { return };
        answered(env, &directory, placed, self.booked.as_deref_mut(), head, out);
        env.vm.directory = Some(directory);
    }

    /// The request is over, however it ended.
    pub fn ended(&mut self, vm: &mut Vm, now: Timestamp, ending: Ending, out: &mut Vec<Effect>) {
        if let Some(booked) = self.booked.take() {
            booked.ended(vm);
        }
        let placed = match std::mem::replace(&mut self.state, State::Done) {
            State::Placed(placed) => *placed,
            // The client left before the service answered: whatever hold it got must go.
            State::Routing(routing) => {
                if let Some(half) = self.prefill.take() {
                    half.ended_unplaced(vm, out);
                }
                if !self.turn.dry_run {
                    abandon(vm, *routing, out);
                }
                return;
            }
            State::Reading(reading) => return reading.abandoned(vm),
            State::AwaitHead | State::Refused | State::Passed | State::Done => return,
        };
        let plan = placed.plan.and_then(|plan| vm.plans.remove(plan));
        let counted = plan.as_ref().map_or((placed.slot.hash, placed.carried), |plan| plan.counted);
        vm.loads.remove(counted.0, counted.1);
        let kept = placed.running.and_then(|run| vm.stop_running(now, run));
        out.extend(kept.map(Effect::Page));
        if ending == Ending::BrokenStream {
            out.push(Effect::Count(Counter::StreamBroken));
            let slot = plan.and_then(|plan| plan.last).map_or(counted, |last| (last.worker, last.rank));
            vm.judge_own(now, slot, Verdict::Failed(SlotFailure::Status5xx));
        }
        let prefill_ends = placed.prefill.and_then(|half| half.ended(vm, out)).or(placed.prefill_ends);
        if let Some(pending) = placed.pending {
            roll_back(vm, pending, out);
        } else if let Some(binding) = placed.binding.filter(|_| placed.last) {
            release(vm, now, binding, &placed.slot, out);
        }
        if let Some((binding, slot)) = prefill_ends.filter(|_| placed.last) {
            release(vm, now, binding, &slot, out);
        }
    }
}

impl Placed {
    /// Something hangs on the answer's head.
    const fn awaits_answer(&self) -> bool {
        self.pending.is_some() || self.prefill.is_some() || self.response.is_some()
    }
}

/// A question whose answer nobody waits for: whatever hold it got, or gets, in either half is nobody's.
pub(super) fn abandon(vm: &mut Vm, routing: Routing, out: &mut Vec<Effect>) {
    let Routing { session, pool, request, prefill, loose, .. } = routing;
    if let Some((session, request)) = prefill.and_then(|wanted| Some((wanted.session?, wanted.request))) {
        fail(vm, reference(session), pool.clone(), request, None, out);
    }
    if loose.is_none() {
        fail(vm, reference(session), pool, request, None, out);
    }
}

/// What a first turn held, and nobody accepted.
pub(super) fn roll_back(vm: &mut Vm, pending: Pending, out: &mut Vec<Effect>) {
    if pending.cached {
        out.push(Effect::Page(PageChange::Remove { id: pending.session.id, version: pending.version }));
    }
    fail(vm, reference(pending.session), pending.pool, pending.request, pending.hold, out);
}

/// The client said that this was the session's last turn. A binding that moved meanwhile is another one, and stays.
fn release(vm: &mut Vm, now: Timestamp, binding: Binding, slot: &Slot, out: &mut Vec<Effect>) {
    let Binding { session, pool, version } = binding;
    out.push(Effect::Page(PageChange::Put(Record {
        id: session.id,
        rank_hash: session.rank_hash,
        version,
        worker_hash: slot.hash,
        rank: slot.bound_rank,
        touched_s: Record::seconds(now),
        generation: vm.generation,
        certainty: Certainty::Gone,
    })));
    out.push(Effect::Count(Counter::Released));
    vm.reports.push(Entry::Released { session: reference(session), pool, version });
    out.push(Effect::ReportNow);
}

fn answered(
    env: &mut Env<'_>,
    directory: &Directory,
    placed: &mut Placed,
    mut booked: Option<&mut Booked>,
    head: &AnswerHead,
    out: &mut Vec<Effect>,
) {
    let plan = placed.plan.and_then(|plan| env.vm.plans.get(plan));
    let by_engine = matches!(head.by, By::Engine(_));
    let role_missing = by_engine && plan.is_some_and(|plan| plan.attempts == 0);
    let server = server(placed, plan);
    let told_rank = plan.map_or(placed.carried, |plan| plan.counted.1);
    if let Some((slot, verdict)) = verdict(placed, plan, head) {
        env.vm.judge(env.now, directory, slot, verdict);
    }
    if role_missing {
        env.vm.reports.note_role_missing();
        out.push(Effect::Count(Counter::UpstreamRoleMissing));
    }
    if head.by == By::Envoy(EnvoyReason::NoCluster) {
        out.push(Effect::Count(Counter::ClusterMissing));
    }
    let accepted = by_engine && head.status < 500;
    if let Some(half) = placed.prefill.take() {
        placed.prefill_ends = half.answered(env, accepted, out);
        if let Some(booked) = &mut booked {
            booked.half_over(env.vm);
        }
    }
    if !accepted {
        return;
    }
    placed.accepted = true;
    let target = server.and_then(|slot| target(directory, slot));
    if env.config.served_header
        && head.status < 400
        && let Some(target) = &target
    {
        // As it was told on the wire: no rank where the engine chose.
        let shown = Target { rank: told_rank, ..target.clone() };
        // What was said of a slot says nothing of the one that a retry went to.
        let as_chosen = server == Some((placed.slot.hash, placed.slot.rank));
        let overlap = booked.and_then(|booked| booked.overlap).filter(|_| as_chosen);
        out.push(Effect::SetResponseHeader(header::SERVED, told(&shown, placed.why, overlap)));
    }
    // An answer of a host that is none of ours binds nothing: the end of the request rolls back.
    let Some(target) = target else { return };
    if let Some(pending) = placed.pending.take() {
        let binding = Binding::of(&pending);
        let as_chosen = commit(env, &placed.slot, pending, target, out);
        if as_chosen {
            let held = record(env, binding.session, &placed.slot, binding.version, Certainty::Bound);
            placed.running = env.vm.running.begin(held);
        }
        placed.binding = (as_chosen && placed.last).then_some(binding);
    }
}

/// The slot that answered; `None` when it is a host that no worker declares.
fn server(placed: &Placed, plan: Option<&Plan>) -> Option<(u64, Option<Rank>)> {
    match plan {
        // The upstream role is missing, or this is the cluster of the worker itself.
        None => Some((placed.slot.hash, placed.slot.rank)),
        Some(plan) if plan.attempts == 0 => Some((placed.slot.hash, placed.slot.rank)),
        Some(plan) => plan.last.map(|last| (last.worker, last.rank)),
    }
}

/// What the answer says of a slot, unless the upstream role saw it already.
fn verdict(
    placed: &Placed,
    plan: Option<&Plan>,
    head: &AnswerHead,
) -> Option<((u64, Option<Rank>), Verdict)> {
    let slot = match plan.filter(|plan| plan.attempts > 0) {
        None => (placed.slot.hash, placed.slot.rank),
        Some(plan) => {
            let Dialled { worker, rank, answered: false } = plan.last? else { return None };
            (worker, rank)
        }
    };
    let verdict = match &head.by {
        By::Engine(retry_after) => Some(Verdict::of_status(head.status, retry_after.as_deref())),
        By::Envoy(reason) => reason.verdict(),
    };
    verdict.map(|verdict| (slot, verdict))
}

fn target(directory: &Directory, (worker, rank): (u64, Option<Rank>)) -> Option<Target> {
    directory.worker_by_hash(worker).map(|(_, worker)| Target { worker: worker.id.clone(), rank })
}

/// Text of the header that tells the client who served: `w0;rank=3;reason=pinned`, or `w0;rank=3;reason=overlap;blocks=41/52`.
fn told(target: &Target, why: Counter, overlap: Option<Overlap>) -> String {
    let rank = target.rank.map_or_else(String::new, |rank| format!(";rank={rank}"));
    let reason = match overlap {
        Some(Overlap { blocks: 0, .. }) => KV_AWARE,
        Some(_) => OVERLAP,
        None => why.word(),
    };
    let blocks = overlap.map_or_else(String::new, blocks);
    format!("{}{rank};reason={reason}{blocks}", target.worker)
}

pub(super) fn fail(
    vm: &mut Vm,
    session: SessionRef,
    pool: PoolName,
    request: RequestId,
    hold: Option<HoldId>,
    out: &mut Vec<Effect>,
) {
    out.push(Effect::Count(Counter::RolledBack));
    vm.reports.push(Entry::Failed { session, pool, request, hold });
    out.push(Effect::ReportNow);
}

/// Commits what a turn held, at the slot that served it; says whether that is the one chosen.
pub(super) fn commit(
    env: &mut Env<'_>,
    chosen: &Slot,
    pending: Pending,
    target: Target,
    out: &mut Vec<Effect>,
) -> bool {
    let as_chosen = target.worker == chosen.worker && target.rank == chosen.rank;
    // A worker-only binding stays worker-only: its rank is the hash, whatever the worker declares later.
    let target = if as_chosen { Target { rank: chosen.bound_rank, ..target } } else { target };
    let held = record(env, pending.session, chosen, pending.version, Certainty::Bound);
    // Served elsewhere (a retry): only the service knows who wins, so the next turn asks it.
    out.push(Effect::Page(if as_chosen {
        PageChange::Put(held)
    } else {
        PageChange::Remove { id: pending.session.id, version: pending.version }
    }));
    env.vm.reports.push(Entry::Committed {
        session: reference(pending.session),
        pool: pending.pool,
        request: pending.request,
        hold: pending.hold,
        target,
        version: pending.version,
    });
    out.push(Effect::Count(Counter::Committed));
    // In place of another binding: Envoys that have that one send turns to a cache that grows no more. Placed alone, nobody listens.
    if pending.version.seq > 1 && pending.hold.is_some() {
        out.push(Effect::ReportNow);
    }
    as_chosen
}

/// A record of a session at a slot.
pub(super) fn record(
    env: &Env<'_>,
    session: Session,
    slot: &Slot,
    version: Version,
    certainty: Certainty,
) -> Record {
    Record {
        id: session.id,
        rank_hash: session.rank_hash,
        version,
        worker_hash: slot.hash,
        rank: slot.bound_rank,
        touched_s: Record::seconds(env.now),
        generation: env.vm.generation,
        certainty,
    }
}

/// Keeps a binding alive: page and service hear of it once in an eighth of its ttl, not on every turn.
pub(super) fn touch(env: &mut Env<'_>, pool: &Pool, session: Session, old: &Record, out: &mut Vec<Effect>) {
    // A clock that went back makes a record look touched in the future: the service must hear of the session all the same.
    let ahead = old.touched_s > Record::seconds(env.now);
    let fresh = !ahead && old.idle(env.now) < Millis(pool.ttl.0 / 8);
    if old.certainty != Certainty::Bound || fresh {
        return;
    }
    let touched_s = Record::seconds(env.now);
    out.push(Effect::Page(PageChange::Put(Record { touched_s, ..*old })));
    env.vm.reports.push(Entry::Touched {
        session: reference(session),
        pool: pool.name.clone(),
        version: old.version,
        slot: Some(KeptSlot { worker_hash: old.worker_hash, rank: old.rank }),
    });
}
