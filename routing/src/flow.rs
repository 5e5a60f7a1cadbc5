//! One request's life in the filter, from its headers to its end.
//!
//! ```text
//!   AwaitHead ─head: session_hash, no session, cached─► Placed ─head of the answer─► Placed ─end─► Done
//!       │                                                 ▲
//!       └─head: first turn─► Routing ─reply | late | failed┘
//!       └─head: key too long─► Refused        └─head: no topology─► Passed
//! ```
//! A pinned turn goes AwaitHead → Placed at once: no call, no body. Inputs that make no sense in a state are named in
//! [`Ignored`] and counted. Time and chance come in; everything to be done goes out as [`Effect`]s, in order.

mod effect;
mod place;

pub use effect::{Counter, Effect, Ignored, LocalReply, Next, PageChange};

use crate::config::{FilterConfig, NoTopology};
use crate::contract::{
    Affinity, Cached, Entry, KeptSlot, Outcome, Policy, RouteReply, RouteRequest, SessionRef, SlotFailure, Target,
};
use crate::directory::{Directory, Pool};
use crate::id::{HoldId, PoolName, RequestId, Version};
use crate::page::{self, Certainty, Record};
use crate::session::{self, Found, RequestView, Session};
use crate::time::{Millis, Timestamp};
use crate::vm::{PlanRef, Vm};
use place::{Choice, Slot};
use std::ops::ControlFlow;

/// What a step may look at besides its input.
#[derive(Debug)]
pub struct Env<'a> {
    /// The listener's config.
    pub config: &'a FilterConfig,
    /// The VM the request runs in.
    pub vm: &'a mut Vm,
    /// Now.
    pub now: Timestamp,
}

/// A request as seen at its head: headers, and pages of cached bindings, each read only when needed.
pub trait Head: RequestView {
    /// The bytes of page `n` of cached bindings.
    fn page(&self, n: u32) -> Option<Vec<u8>>;
    /// The next number of round-robin position `n` ([`crate::header::shared::CURSORS`] of them), shared by all VMs of an Envoy.
    fn next_in_turn(&self, n: u32) -> u64;
}

/// Why `route` gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteFailure {
    /// Nothing within the deadline.
    Timeout,
    /// The call could not be made or was answered with an error.
    Failed,
    /// The answer was not contract v1.
    Malformed,
}

/// How an answer's head came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// HTTP status.
    pub status: u16,
    /// Whether an engine answered; false for Envoy's own 413, 408, 429, 503, 504.
    pub by_engine: bool,
}

#[derive(Debug)]
enum State {
    AwaitHead,
    Routing(Routing),
    Placed(Placed),
    Refused,
    Passed,
    Done,
}

/// A first turn that waits for the service.
#[derive(Debug)]
struct Routing {
    session: Session,
    pool: PoolName,
    request: RequestId,
    cached: Option<Record>,
    /// Newest version heard of: what is placed alone must be newer.
    seen: Option<Version>,
    /// What the service said, if it was heard.
    outcome: Option<Outcome>,
}

impl Routing {
    /// Unless the service said otherwise, it may hold a slot for this request, now or when the question arrives at last.
    const fn may_own_hold(&self) -> bool {
        matches!(self.outcome, None | Some(Outcome::Held))
    }
}

/// A request that has its slot.
#[derive(Debug)]
struct Placed {
    slot: Slot,
    plan: Option<PlanRef>,
    pending: Option<Pending>,
}

/// What an accepted answer will commit.
#[derive(Debug)]
struct Pending {
    session: Session,
    pool: PoolName,
    request: RequestId,
    hold: Option<HoldId>,
    version: Version,
    /// This turn's held record stands in the page and must go if the turn fails; one that joined leaves it to its owner.
    cached: bool,
}

/// The machine of one request.
#[derive(Debug)]
pub struct RequestFlow {
    state: State,
}

impl Default for RequestFlow {
    fn default() -> Self {
        Self { state: State::AwaitHead }
    }
}

impl RequestFlow {
    /// The request's head. Everything a pinned turn needs happens here.
    pub fn head(&mut self, env: &mut Env<'_>, head: &impl Head, out: &mut Vec<Effect>) -> Next {
        if !matches!(self.state, State::AwaitHead) {
            out.push(Effect::Count(Counter::Ignored(Ignored::SecondHead)));
            return Next::Continue;
        }
        let key = match session::find(&env.config.sources, head) {
            Found::TooLong => return self.refuse(LocalReply::key_too_long(), Counter::KeyTooLong, out),
            Found::Nothing => None,
            Found::Key(key) => Some(key),
        };
        let Some(directory) = env.vm.directory.take() else { return self.without_topology(env, out) };
        let next = match directory.pool(env.config.pool.as_ref()) {
            None => self.without_topology(env, out),
            Some(pool) => {
                let session = key.map(|key| {
                    let scope = session::scope(&env.config.scope, head);
                    key.session(&env.config.hash_secret, &scope, pool.name.as_str())
                });
                self.in_pool(env, &directory, pool, session, head, out)
            }
        };
        env.vm.directory = Some(directory);
        next
    }

    fn in_pool(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        session: Option<Session>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let session = match (session, pool.affinity) {
            (Some(session), Affinity::Hard | Affinity::Soft) => session,
            (Some(_), Affinity::Off) => {
                return self.unpinned(env, directory, pool, head, Counter::AffinityOff, out);
            }
            (None, _) => return self.unpinned(env, directory, pool, head, Counter::SessionKeyMissing, out),
        };
        if matches!(pool.rules.policy, Policy::SessionHash) {
            return match place::alone(directory, pool, session, None) {
                Some(slot) => {
                    self.place(env, directory, pool, Some(session), slot, Counter::SessionHash, None, out)
                }
                None => self.without_worker(out),
            };
        }
        self.cached_or_ask(env, directory, pool, session, head, out)
    }

    fn cached_or_ask(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        session: Session,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let record = found_now(env, head, session);
        match place::from_record(directory, pool, record.as_ref(), env.vm.generation, env.now) {
            Choice::Bound(slot, record) => {
                touch(env, pool, session, &record, out);
                self.place(env, directory, pool, Some(session), slot, Counter::Pinned, None, out)
            }
            Choice::Held(slot, record) => {
                let request = env.vm.next_request();
                let pending = Pending {
                    session,
                    pool: pool.name.clone(),
                    request,
                    hold: None,
                    version: record.version,
                    cached: false,
                };
                self.place(env, directory, pool, Some(session), slot, Counter::Joined, Some(pending), out)
            }
            Choice::Unknown => self.ask(env, directory, pool, session, record, out),
        }
    }

    fn ask(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        session: Session,
        cached: Option<Record>,
        out: &mut Vec<Effect>,
    ) -> Next {
        let request = env.vm.next_request();
        let seen = cached.map(|record| record.version);
        let routing = Routing { session, pool: pool.name.clone(), request, cached, seen, outcome: None };
        if !env.vm.breaker.allows(env.now) {
            out.push(Effect::Count(Counter::BreakerOpen));
            return match self.place_alone(env, directory, pool, routing, out) {
                ControlFlow::Break(next) => next,
                ControlFlow::Continue(_never_asked) => self.without_worker(out),
            };
        }
        out.push(Effect::Route {
            request: Box::new(RouteRequest {
                caller: env.vm.caller.clone(),
                request,
                pool: pool.name.clone(),
                session: Some(reference(session)),
                deadline_ms: env.config.route_deadline,
                cached: cached.filter(|r| r.certainty == Certainty::Bound).map(|r| Cached {
                    worker_hash: r.worker_hash,
                    rank: r.rank,
                    version: r.version,
                }),
                named: None,
                unsent: env.vm.reports.about(session.id),
            }),
            timeout: env.config.route_deadline,
        });
        self.state = State::Routing(routing);
        Next::Pause
    }

    /// The service's answer, or its absence.
    pub fn routed(
        &mut self,
        env: &mut Env<'_>,
        head: &impl Head,
        answer: Result<RouteReply, RouteFailure>,
        out: &mut Vec<Effect>,
    ) {
        if !matches!(self.state, State::Routing(_)) {
            out.push(Effect::Count(Counter::Ignored(Ignored::LateRoute)));
            return;
        }
        let State::Routing(routing) = std::mem::replace(&mut self.state, State::Passed) else { return };
        match &answer {
            Ok(_) => env.vm.breaker.succeeded(),
            Err(failure) => {
                env.vm.breaker.failed(env.now);
                out.push(Effect::Count(Counter::RouteFailed(*failure)));
            }
        }
        let directory = env.vm.directory.take();
        let pool = directory.as_ref().and_then(|directory| directory.pool(Some(&routing.pool)));
        match directory.as_ref().zip(pool) {
            Some((directory, pool)) => {
                self.after_route(env, directory, pool, routing, head, answer.ok(), out);
            }
            None => self.give_up(env, routing, Counter::NoTopology, out),
        }
        env.vm.directory = directory;
        out.push(Effect::Resume);
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of one machine; each argument is a different room's value"
    )]
    fn after_route(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        mut routing: Routing,
        head: &impl Head,
        reply: Option<RouteReply>,
        out: &mut Vec<Effect>,
    ) {
        routing.seen = routing.seen.max(reply.as_ref().map(|reply| reply.version));
        routing.outcome = reply.as_ref().map(|reply| reply.outcome);
        let Some((reply, slot)) = reply.and_then(|reply| {
            let slot = place::from_target(directory, pool, reply.target.as_ref()?, routing.session)?;
            Some((reply, slot))
        }) else {
            self.late_or_alone(env, directory, pool, routing, head, out);
            return;
        };
        let session = routing.session;
        // A move or another turn's placement overtook this answer: the page knows better.
        let newer = found_now(env, head, session).filter(|record| record.version > reply.version);
        let ControlFlow::Continue(routing) = self.follow(env, directory, pool, routing, newer, out) else {
            return;
        };
        match reply.outcome {
            Outcome::Bound => {
                out.push(Effect::Page(PageChange::Put(record(
                    env,
                    &routing,
                    &slot,
                    reply.version,
                    Certainty::Bound,
                ))));
                self.place(env, directory, pool, Some(session), slot, Counter::RoutedBound, None, out);
            }
            Outcome::Held => {
                out.push(Effect::Page(PageChange::Put(record(
                    env,
                    &routing,
                    &slot,
                    reply.version,
                    Certainty::Held,
                ))));
                let pending = Pending {
                    session,
                    pool: routing.pool,
                    request: routing.request,
                    hold: reply.hold,
                    version: reply.version,
                    cached: true,
                };
                self.place(
                    env,
                    directory,
                    pool,
                    Some(session),
                    slot,
                    Counter::RoutedHeld,
                    Some(pending),
                    out,
                );
            }
            Outcome::Unpinned => {
                self.place(env, directory, pool, Some(session), slot, Counter::RoutedUnpinned, None, out);
            }
            Outcome::NoWorker | Outcome::Unsure | Outcome::UnknownPool | Outcome::Refused => {
                self.late_or_alone(env, directory, pool, routing, head, out);
            }
        }
    }

    /// Without an answer: another request of this session may have got one meanwhile; else rendezvous.
    fn late_or_alone(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        routing: Routing,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) {
        let found = found_now(env, head, routing.session);
        let ControlFlow::Continue(mut routing) = self.follow(env, directory, pool, routing, found, out)
        else {
            return;
        };
        routing.cached = found.or(routing.cached);
        routing.seen = routing.seen.max(found.map(|record| record.version));
        if let ControlFlow::Continue(routing) = self.place_alone(env, directory, pool, routing, out) {
            self.give_up(env, routing, Counter::NoWorker, out);
        }
    }

    /// Goes where a record found after asking says; gives the turn back when the record is of no use.
    fn follow(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        routing: Routing,
        found: Option<Record>,
        out: &mut Vec<Effect>,
    ) -> ControlFlow<Next, Routing> {
        let session = Some(routing.session);
        match place::from_record(directory, pool, found.as_ref(), env.vm.generation, env.now) {
            Choice::Bound(slot, _) => {
                // Whatever hold the question got, or gets when it arrives at last, is nobody's: this turn decides nothing.
                if routing.may_own_hold() {
                    let session = reference(routing.session);
                    let (pool, request) = (routing.pool, routing.request);
                    env.vm.reports.push(Entry::Failed { session, pool, request, hold: None });
                }
                ControlFlow::Break(self.place(
                    env,
                    directory,
                    pool,
                    session,
                    slot,
                    Counter::Pinned,
                    None,
                    out,
                ))
            }
            Choice::Held(slot, record) => {
                let pending = Pending {
                    session: routing.session,
                    pool: routing.pool,
                    request: routing.request,
                    hold: None,
                    version: record.version,
                    cached: false,
                };
                ControlFlow::Break(self.place(
                    env,
                    directory,
                    pool,
                    session,
                    slot,
                    Counter::Joined,
                    Some(pending),
                    out,
                ))
            }
            Choice::Unknown => ControlFlow::Continue(routing),
        }
    }

    /// Places a turn by its cached binding or by rendezvous; gives it back when no worker of the pool can serve.
    fn place_alone(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        routing: Routing,
        out: &mut Vec<Effect>,
    ) -> ControlFlow<Next, Routing> {
        let usable = routing.cached.filter(|r| r.certainty == Certainty::Bound);
        let Some(slot) = place::alone(directory, pool, routing.session, usable.as_ref()) else {
            return ControlFlow::Continue(routing);
        };
        let pending = Pending {
            session: routing.session,
            version: env.vm.version_after(routing.seen),
            pool: routing.pool,
            request: routing.request,
            hold: None,
            cached: false,
        };
        ControlFlow::Break(self.place(
            env,
            directory,
            pool,
            Some(routing.session),
            slot,
            Counter::PlacedAlone,
            Some(pending),
            out,
        ))
    }

    /// A turn that asked and can be placed nowhere: the service may have made a hold for it, which nobody else would end.
    fn give_up(&mut self, env: &mut Env<'_>, routing: Routing, why: Counter, out: &mut Vec<Effect>) {
        self.pass(why, out);
        if !routing.may_own_hold() {
            return;
        }
        fail(env.vm, reference(routing.session), routing.pool, routing.request, None, out);
    }

    fn unpinned(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        head: &impl Head,
        why: Counter,
        out: &mut Vec<Effect>,
    ) -> Next {
        match place::spread(directory, pool, head, env.vm) {
            Some(slot) => self.place(env, directory, pool, None, slot, why, None, out),
            None => self.without_worker(out),
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of one machine; each argument is a different room's value"
    )]
    fn place(
        &mut self,
        env: &mut Env<'_>,
        directory: &Directory,
        pool: &Pool,
        session: Option<Session>,
        slot: Slot,
        why: Counter,
        pending: Option<Pending>,
        out: &mut Vec<Effect>,
    ) -> Next {
        let plan = place::steer(env, directory, pool, session, &slot, why, pending.is_some(), out);
        env.vm.loads.add(slot.hash, slot.rank);
        out.push(Effect::Count(why));
        self.state = State::Placed(Placed { slot, plan, pending });
        Next::Continue
    }

    fn refuse(&mut self, reply: LocalReply, why: Counter, out: &mut Vec<Effect>) -> Next {
        self.state = State::Refused;
        out.push(Effect::Count(why));
        out.push(Effect::Respond(reply));
        Next::Pause
    }

    fn without_topology(&mut self, env: &Env<'_>, out: &mut Vec<Effect>) -> Next {
        match env.config.on_no_topology {
            NoTopology::Unavailable => self.refuse(LocalReply::no_topology(), Counter::NoTopology, out),
            NoTopology::PassThrough => self.pass(Counter::NoTopology, out),
        }
    }

    /// No worker of the pool can serve: the default route may still know one.
    fn without_worker(&mut self, out: &mut Vec<Effect>) -> Next {
        self.pass(Counter::NoWorker, out)
    }

    fn pass(&mut self, why: Counter, out: &mut Vec<Effect>) -> Next {
        self.state = State::Passed;
        out.push(Effect::Count(why));
        place::strip(out);
        Next::Continue
    }

    /// Whether [`Self::answered`] would learn something: reading an answer's head costs hostcalls that a pinned turn saves.
    #[must_use]
    pub fn wants_answer(&self, vm: &Vm) -> bool {
        let State::Placed(placed) = &self.state else { return false };
        placed.pending.is_some()
            || placed.plan.and_then(|plan| vm.plans.get(plan)).is_some_and(|plan| plan.attempts == 0)
    }

    /// Head of the answer that goes to the client.
    pub fn answered(&mut self, env: &mut Env<'_>, head: AnswerHead, out: &mut Vec<Effect>) {
        let State::Placed(placed) = &mut self.state else {
            out.push(Effect::Count(Counter::Ignored(Ignored::UnplacedAnswer)));
            return;
        };
        let plan = placed.plan.and_then(|plan| env.vm.plans.get(plan));
        if head.by_engine && plan.is_some_and(|plan| plan.attempts == 0) {
            env.vm.reports.note_role_missing();
            out.push(Effect::Count(Counter::UpstreamRoleMissing));
        }
        if !head.by_engine || head.status >= 500 {
            return;
        }
        let served = plan.and_then(|plan| plan.served.clone());
        let Some(pending) = placed.pending.take() else { return };
        let target = match served {
            Some(served) => Target { worker: served.worker, rank: served.rank },
            None => Target { worker: placed.slot.worker.clone(), rank: placed.slot.rank },
        };
        commit(env, &placed.slot, pending, target, out);
    }

    /// The request is over, however it ended.
    pub fn ended(&mut self, vm: &mut Vm, answer: Option<AnswerHead>, out: &mut Vec<Effect>) {
        let placed = match std::mem::replace(&mut self.state, State::Done) {
            State::Placed(placed) => placed,
            // The client left before the service answered: whatever hold it got must go.
            State::Routing(routing) => {
                fail(vm, reference(routing.session), routing.pool, routing.request, None, out);
                return;
            }
            State::AwaitHead | State::Refused | State::Passed | State::Done => return,
        };
        vm.loads.remove(placed.slot.hash, placed.slot.rank);
        let plan = placed.plan.and_then(|plan| vm.plans.remove(plan));
        let Some(pending) = placed.pending else { return };
        let slot_failed = plan.is_none().then(|| answer.and_then(failure_of)).flatten();
        if let Some(failure) = slot_failed {
            let target = Target { worker: placed.slot.worker.clone(), rank: placed.slot.rank };
            vm.reports.push(Entry::SlotFailed { target, failure, count: 1 });
        }
        if pending.cached {
            out.push(Effect::Page(PageChange::Remove { id: pending.session.id, version: pending.version }));
        }
        fail(vm, reference(pending.session), pending.pool, pending.request, pending.hold, out);
    }
}

fn fail(
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

/// A failed answer as the slot's failure: Envoy's own 503 means the connection failed, the engine's 5xx is its own.
fn failure_of(answer: AnswerHead) -> Option<SlotFailure> {
    match (answer.by_engine, answer.status) {
        (true, 500..) => Some(SlotFailure::Status5xx),
        (false, 503 | 504) => Some(SlotFailure::Connection),
        _ => None,
    }
}

fn commit(env: &mut Env<'_>, chosen: &Slot, pending: Pending, target: Target, out: &mut Vec<Effect>) {
    let as_chosen = target.worker == chosen.worker && target.rank == chosen.rank;
    // A worker-only binding stays worker-only: its rank is the hash, whatever the worker declares later.
    let target = if as_chosen { Target { rank: chosen.bound_rank, ..target } } else { target };
    let held = Record {
        id: pending.session.id,
        rank_hash: pending.session.rank_hash,
        version: pending.version,
        worker_hash: chosen.hash,
        rank: chosen.bound_rank,
        touched_s: Record::seconds(env.now),
        generation: env.vm.generation,
        certainty: Certainty::Bound,
    };
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
}

/// Keeps a binding alive: page and service hear of it once in an eighth of its ttl, not on every turn.
fn touch(env: &mut Env<'_>, pool: &Pool, session: Session, old: &Record, out: &mut Vec<Effect>) {
    if old.idle(env.now) < Millis(pool.ttl.0 / 8) {
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

fn record(env: &Env<'_>, routing: &Routing, slot: &Slot, version: Version, certainty: Certainty) -> Record {
    Record {
        id: routing.session.id,
        rank_hash: routing.session.rank_hash,
        version,
        worker_hash: slot.hash,
        rank: slot.bound_rank,
        touched_s: Record::seconds(env.now),
        generation: env.vm.generation,
        certainty,
    }
}

/// The session's record as the page has it now.
fn found_now(env: &Env<'_>, head: &impl Head, session: Session) -> Option<Record> {
    let page = head.page(page::page_of(session.id, env.config.page_count))?;
    page::find(&page, session.id)
}

fn reference(session: Session) -> SessionRef {
    SessionRef { id: session.id, rank_hash: session.rank_hash }
}
