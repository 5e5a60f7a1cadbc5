//! Through the service: the question of a first turn, its answer, and what happens without one.

use super::choose::{self, Nobody};
use super::decide::{found_now, joined};
use super::finish::{abandon, fail, record, touch};
use super::place::{self, Choice, Slot};
use super::{
    Counter, Effect, Env, Head, Here, Ignored, LocalReply, Next, PageChange, Pending, Placement, RequestFlow,
    RouteFailure, Routing, State, named, reference,
};
use crate::contract::{Cached, Entry, Explanation, Outcome, Policy, Refusal, RouteReply, RouteRequest};
use crate::hash;
use crate::id::RankHash;
use crate::page::{Certainty, Record};
use crate::session::Session;
use crate::time::Millis;
use std::ops::ControlFlow;

/// What is asked about a turn's own half.
#[derive(Clone, Copy)]
pub(super) struct Question {
    pub(super) session: Session,
    pub(super) cached: Option<Record>,
    /// How long the turn may wait for its overloaded slot.
    pub(super) wait: Millis,
}

/// The service's word for a bound turn that goes elsewhere this once.
const SPILLED: &str = "spilled";

impl Question {
    /// Where this session goes.
    pub(super) const fn plain(session: Session, cached: Option<Record>) -> Self {
        Self { session, cached, wait: Millis(0) }
    }
}

impl RequestFlow {
    pub(super) fn ask(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        question: Question,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let Question { session, cached, wait } = question;
        let request = env.vm.next_request();
        let seen = cached.map(|record| record.version);
        let pool = here.pool.name.clone();
        let prefill = self.prefill_wanted(env, here, head);
        let mut routing = Routing { session, pool, request, cached, seen, outcome: None, wait, prefill };
        if !env.vm.breaker.allows(env.now) {
            out.push(Effect::Count(Counter::BreakerOpen));
            // Never asked: nobody holds anything for it.
            routing.outcome = Some(Outcome::Unsure);
            routing.prefill = None;
            if let Err(why) = self.prefill_alone(env, here, head, out) {
                return self.refuse_prefill(why, out);
            }
            return match self.place_alone(env, here, routing, head, out) {
                ControlFlow::Break(next) => next,
                ControlFlow::Continue((routing, why)) => self.nowhere(env, here, routing, why, false, out),
            };
        }
        self.send(env, here, routing, out)
    }

    fn send(&mut self, env: &mut Env<'_>, here: Here<'_>, routing: Routing, out: &mut Vec<Effect>) -> Next {
        out.push(Effect::Route {
            request: Box::new(asked(env, here, &routing)),
            timeout: Millis(env.config.route_deadline.0.saturating_add(routing.wait.0)),
        });
        self.state = State::Routing(Box::new(routing));
        Next::Pause
    }

    /// A turn that hangs on an answer this Envoy does not know: the service may know whose it is.
    pub(super) fn ask_alias(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let Some(alias) = here.turn.alias.filter(|_| env.vm.breaker.allows(env.now)) else {
            return self.without_session(env, here, head, out);
        };
        // Stands in until the service says whose it is.
        let session = Session { id: alias, rank_hash: RankHash(0) };
        let routing = self.bare(env, here, session);
        self.send(env, here, routing, out)
    }

    /// A turn that belongs to no session: where its caller says, or anywhere.
    fn without_session(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        match &here.turn.named {
            Some(target) => self.named_turn(env, here, target, head, out),
            None => self.unpinned(env, here, head, Counter::SessionKeyMissing, out),
        }
    }

    /// A turn that only asks what would become of it.
    pub(super) fn ask_dry(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        if !env.vm.breaker.allows(env.now) {
            return self.refuse(LocalReply::dry_run_unanswered(), Counter::DryRun, out);
        }
        let session = here.turn.session;
        let stand_in = Session { id: hash::response_id(b"", b"", "", b""), rank_hash: RankHash(0) };
        let mut routing = self.bare(env, here, session.unwrap_or(stand_in));
        routing.cached = session.and_then(|session| found_now(env, head, session));
        routing.prefill = self.prefill_wanted(env, here, head);
        self.send(env, here, routing, out)
    }

    fn bare(&self, env: &mut Env<'_>, here: Here<'_>, session: Session) -> Routing {
        Routing {
            session,
            pool: here.pool.name.clone(),
            request: env.vm.next_request(),
            cached: None,
            seen: None,
            outcome: None,
            wait: Millis(0),
            prefill: None,
        }
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
        let next = match directory.as_ref().zip(pool) {
            Some((directory, pool)) => {
                let turn = std::mem::take(&mut self.turn).behind(pool, answer.as_ref().ok());
                let here = Here { directory, pool, turn: &turn };
                let next = self.answered_by_service(env, here, *routing, head, answer.ok(), out);
                self.turn = turn;
                next
            }
            None => self.pool_gone(env, *routing, out),
        };
        env.vm.directory = directory;
        if next == Next::Continue {
            out.push(Effect::Resume);
        }
    }

    fn answered_by_service(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        mut routing: Routing,
        head: &impl Head,
        reply: Option<RouteReply>,
        out: &mut Vec<Effect>,
    ) -> Next {
        if here.turn.dry_run {
            return self.dry(here, reply.and_then(|reply| reply.explained), out);
        }
        if let Some(alias) = here.turn.alias {
            let Some(session) = reply.as_ref().and_then(|reply| reply.session) else {
                return self.without_session(env, here, head, out);
            };
            routing.session = Session { id: session.id, rank_hash: session.rank_hash };
            let known = Record::alias(alias, routing.session, Record::seconds(env.now));
            out.push(Effect::Page(PageChange::Put(known)));
        }
        if let Err(why) = self.prefill_after_route(env, here, &mut routing, reply.as_ref(), head, out) {
            drop_hold(env, routing, reply.as_ref(), out);
            return self.refuse_prefill(why, out);
        }
        let next = self.after_route(env, here, routing, head, reply, out);
        if let Some(unused) = self.prefill.take() {
            unused.ended_unplaced(env.vm, out);
        }
        next
    }

    /// The prefill half, before the other is placed; not where that one is refused.
    fn prefill_after_route(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: &mut Routing,
        reply: Option<&RouteReply>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let wanted = routing.prefill.take();
        if reply.is_some_and(|reply| reply.outcome == Outcome::Refused) {
            return Ok(());
        }
        if here.turn.alias.is_some() {
            return self.prefill_alone(env, here, head, out);
        }
        self.prefill_told(env, here, wanted, (reply, head), out)
    }

    /// The answer to a dry run.
    fn dry(&mut self, here: Here<'_>, explained: Option<Box<Explanation>>, out: &mut Vec<Effect>) -> Next {
        let reply = explained.map_or_else(LocalReply::dry_run_unanswered, |explained| {
            LocalReply::json(200, &Explanation { key: here.turn.key.clone(), ..*explained })
        });
        self.refuse(reply, Counter::DryRun, out)
    }

    fn after_route(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        mut routing: Routing,
        head: &impl Head,
        reply: Option<RouteReply>,
        out: &mut Vec<Effect>,
    ) -> Next {
        routing.seen = routing.seen.max(reply.as_ref().map(|reply| reply.version));
        routing.outcome = reply.as_ref().map(|reply| reply.outcome);
        if let Some(refusal) = reply.as_ref().filter(|r| r.outcome == Outcome::Refused).map(|r| r.refusal) {
            let refusal = refusal.unwrap_or(Refusal::WorkerUnavailable);
            let overloaded = refusal == Refusal::Overloaded;
            let why = if overloaded { Counter::OverloadRefused } else { Counter::NamedRefused };
            return self.refuse(named::refusal(here.pool.phase, refusal), why, out);
        }
        let Some((reply, slot)) = reply.and_then(|reply| {
            let slot = place::from_target(here, reply.target.as_ref()?, routing.session)?;
            // A named target is served exactly or not at all, whatever is said of it.
            let named = here.turn.named.as_ref();
            let wanted = named.is_none_or(|named| named.worker == slot.worker);
            wanted.then(|| (reply, named::exactly(here, slot, named)))
        }) else {
            return self.late_or_alone(env, here, routing, head, out);
        };
        // A move or another turn's placement overtook this answer: the page knows better.
        let newer = found_now(env, head, routing.session).filter(|record| record.version > reply.version);
        // A turn that is to go elsewhere this once does so, whatever the page says: it says the overloaded slot.
        let spilled =
            reply.outcome == Outcome::Unpinned && (routing.wait > Millis(0) || reply.reason == SPILLED);
        let newer = newer.filter(|_| !spilled);
        let routing = match self.follow(env, here, routing, newer, head, out) {
            ControlFlow::Break(next) => return next,
            ControlFlow::Continue(routing) => routing,
        };
        match reply.outcome {
            Outcome::Bound | Outcome::Held | Outcome::Unpinned => {
                self.as_told(env, here, routing, &reply, slot, head, out)
            }
            Outcome::NoWorker | Outcome::Unsure | Outcome::UnknownPool | Outcome::Refused => {
                self.late_or_alone(env, here, routing, head, out)
            }
        }
    }

    /// Goes where the service said.
    #[expect(clippy::too_many_arguments, reason = "one step of one machine")]
    fn as_told(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        reply: &RouteReply,
        slot: Slot,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let exact = is_exact(here);
        let session = Some(routing.session);
        let (why, certainty) = match reply.outcome {
            Outcome::Bound => (Counter::RoutedBound, Some(Certainty::Bound)),
            Outcome::Held => (Counter::RoutedHeld, Some(Certainty::Held)),
            _ if reply.reason == SPILLED => (Counter::Spilled, None),
            _ => (Counter::RoutedUnpinned, None),
        };
        if let Some(certainty) = certainty {
            let record = record(env, routing.session, &slot, reply.version, certainty);
            out.push(Effect::Page(PageChange::Put(record)));
        }
        let pending = (reply.outcome == Outcome::Held).then_some(Pending {
            session: routing.session,
            pool: routing.pool,
            request: routing.request,
            hold: reply.hold,
            version: reply.version,
            cached: true,
        });
        let spilled = routing.cached.filter(|_| why == Counter::Spilled).map(|record| record.version);
        let version = if reply.outcome == Outcome::Bound { Some(reply.version) } else { spilled };
        self.place(env, here, Placement { session, slot, why, pending, version, exact }, head, out)
    }

    /// Without an answer: another request of this session may have got one meanwhile; else rendezvous.
    fn late_or_alone(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let found = found_now(env, head, routing.session);
        // A turn that waits for its slot has been at its record already.
        let newer = found.filter(|_| routing.wait == Millis(0));
        let mut routing = match self.follow(env, here, routing, newer, head, out) {
            ControlFlow::Break(next) => return next,
            ControlFlow::Continue(routing) => routing,
        };
        routing.cached = found.or(routing.cached);
        routing.seen = routing.seen.max(found.map(|record| record.version));
        match self.place_alone(env, here, routing, head, out) {
            ControlFlow::Break(next) => next,
            ControlFlow::Continue((routing, why)) => self.nowhere(env, here, routing, why, true, out),
        }
    }

    /// Goes where a record found after asking says; gives the turn back when the record is of no use.
    fn follow(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        found: Option<Record>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> ControlFlow<Next, Routing> {
        let session = Some(routing.session);
        let (exact, named) = (is_exact(here), here.turn.named.as_ref());
        let choice = place::from_record(here, found.as_ref(), env.vm.generation, env.now);
        let mut version = None;
        let (slot, why, pending) = match choice {
            Choice::Bound(slot, _) | Choice::Held(slot, _) if !choose::keeps(here, &slot) => {
                return ControlFlow::Continue(routing);
            }
            Choice::Unknown => return ControlFlow::Continue(routing),
            Choice::Bound(slot, record) => {
                if let Some(refused) = self.disagrees(env, here, &routing, &slot, &record, out) {
                    return ControlFlow::Break(refused);
                }
                disown(env, &routing);
                version = Some(record.version);
                (slot, Counter::Pinned, None)
            }
            Choice::Held(slot, record) => {
                if let Some(refused) = self.disagrees(env, here, &routing, &slot, &record, out) {
                    return ControlFlow::Break(refused);
                }
                let pending = joined(routing.session, routing.pool, routing.request, &record);
                (slot, Counter::Joined, Some(pending))
            }
        };
        let slot = named::exactly(here, slot, named);
        let bound = pending.is_none();
        let placement = Placement { session, slot, why, pending, version, exact };
        ControlFlow::Break(if bound {
            self.go_home(env, here, placement, head, out)
        } else {
            self.place(env, here, placement, head, out)
        })
    }

    /// Refuses a named target that is not where the session is by now.
    fn disagrees(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: &Routing,
        slot: &Slot,
        record: &Record,
        out: &mut Vec<Effect>,
    ) -> Option<Next> {
        let target = here.turn.named.as_ref()?;
        if named::agrees(here, target, slot, record) {
            return None;
        }
        disown(env, routing);
        Some(self.refuse(
            named::refusal(here.pool.phase, Refusal::BoundElsewhere),
            Counter::NamedRefused,
            out,
        ))
    }

    /// Places a turn by its cached binding or by rendezvous; gives it back when no worker of the pool can serve.
    fn place_alone(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> ControlFlow<Next, (Routing, Nobody)> {
        let home = place::home(here, routing.session, routing.cached);
        if let Some((slot, record)) = &home
            && let Some(refused) = self.disagrees(env, here, &routing, slot, record, out)
        {
            return ControlFlow::Break(refused);
        }
        let slot = match (&here.turn.named, home, here.pool.rules.policy) {
            (Some(target), _, _) => named::slot(here, target, Some(routing.session)).ok_or(Nobody::NoWorker),
            (None, Some((home, _)), _) => Ok(home),
            (None, None, Policy::Direct) => Err(Nobody::NoWorker),
            (None, None, _) => choose::alone(here, routing.session),
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(why) => return ControlFlow::Continue((routing, why)),
        };
        let exact = is_exact(here);
        if let Some(next) = self.stay(env, here, &routing, &slot, exact, head, out) {
            return ControlFlow::Break(next);
        }
        let pending = Pending {
            session: routing.session,
            version: env.vm.version_after(routing.seen),
            pool: routing.pool,
            request: routing.request,
            hold: None,
            cached: false,
        };
        let (session, why) = (Some(routing.session), Counter::PlacedAlone);
        let placement = Placement { session, slot, why, pending: Some(pending), version: None, exact };
        ControlFlow::Break(self.place(env, here, placement, head, out))
    }

    /// A turn placed alone where its binding is makes no new one: two Envoys that did would disagree about versions of the same.
    #[expect(clippy::too_many_arguments, reason = "one step of one machine")]
    fn stay(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: &Routing,
        slot: &Slot,
        exact: bool,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Option<Next> {
        let lives = |r: &Record| r.certainty == Certainty::Bound && r.idle(env.now) <= here.pool.ttl;
        let record = routing.cached.filter(lives)?;
        if (slot.hash, slot.bound_rank) != (record.worker_hash, record.rank) {
            return None;
        }
        disown(env, routing);
        touch(env, here.pool, routing.session, &record, out);
        let (session, version) = (Some(routing.session), Some(record.version));
        let (slot, why) = (slot.clone(), Counter::PlacedAlone);
        let placement = Placement { session, slot, why, pending: None, version, exact };
        Some(self.go_home(env, here, placement, head, out))
    }

    /// No slot for a turn that wanted one.
    fn nowhere(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        why: Nobody,
        asked: bool,
        out: &mut Vec<Effect>,
    ) -> Next {
        let reply = match (&here.turn.named, here.pool.rules.policy, why) {
            (Some(_), _, _) => named::refusal(here.pool.phase, Refusal::WorkerUnavailable),
            (None, Policy::Direct, _) => named::refusal(here.pool.phase, Refusal::WorkerRequired),
            (None, _, Nobody::NoWorker) => {
                let next = self.pass(Counter::NoWorker, out);
                forget(env, routing, asked, out);
                return next;
            }
            (None, _, nobody) => {
                forget(env, routing, asked, out);
                return self.nobody(here, nobody, out);
            }
        };
        let next = self.refuse(reply, Counter::NamedRefused, out);
        forget(env, routing, asked, out);
        next
    }

    /// The pool went while the service was asked: the turn goes on as if the filter were not there, if it may.
    fn pool_gone(&mut self, env: &mut Env<'_>, routing: Routing, out: &mut Vec<Effect>) -> Next {
        if let Some(half) = self.prefill.take() {
            half.ended_unplaced(env.vm, out);
        }
        let next = if self.may_pass() {
            self.pass(Counter::NoTopology, out)
        } else {
            self.refuse(LocalReply::no_topology(), Counter::NoTopology, out)
        };
        if !self.turn.dry_run && routing.may_own_hold() {
            abandon(env.vm, routing, out);
        }
        next
    }
}

/// The service may have made a hold for a turn that is placed nowhere, and nobody else would end it.
fn forget(env: &mut Env<'_>, routing: Routing, asked: bool, out: &mut Vec<Effect>) {
    if asked && routing.may_own_hold() {
        fail(env.vm, reference(routing.session), routing.pool, routing.request, None, out);
    }
}

/// The prefill half is refused, so what the other half was given is nobody's.
fn drop_hold(env: &mut Env<'_>, routing: Routing, reply: Option<&RouteReply>, out: &mut Vec<Effect>) {
    if reply.is_none_or(|reply| reply.outcome == Outcome::Held) {
        let hold = reply.and_then(|reply| reply.hold);
        fail(env.vm, reference(routing.session), routing.pool, routing.request, hold, out);
    }
}

/// Whatever hold the question got, or gets when it arrives at last, is nobody's: this turn decides nothing.
fn disown(env: &mut Env<'_>, routing: &Routing) {
    if routing.may_own_hold() {
        let session = reference(routing.session);
        let (pool, request) = (routing.pool.clone(), routing.request);
        env.vm.reports.push(Entry::Failed { session, pool, request, hold: None });
    }
}

fn is_exact(here: Here<'_>) -> bool {
    here.turn.named.is_some() || here.pool.rules.policy == Policy::Direct
}

fn asked(env: &Env<'_>, here: Here<'_>, routing: &Routing) -> RouteRequest {
    let bound = routing.cached.filter(|r| r.certainty == Certainty::Bound);
    let session = here.turn.session.filter(|_| here.turn.alias.is_none());
    let (request, pool) = (routing.request, routing.pool.clone());
    RouteRequest {
        session: session.map(reference),
        cached: bound.map(|r| Cached { worker_hash: r.worker_hash, rank: r.rank, version: r.version }),
        named: here.turn.named.clone(),
        unsent: env.vm.reports.about(routing.session.id),
        demands: here.turn.demands.clone(),
        wait_ms: routing.wait,
        alias: here.turn.alias,
        prefill: routing.prefill.as_ref().map(|wanted| Box::new(wanted.question(here, env.vm))),
        dry_run: here.turn.dry_run,
        ..RouteRequest::new(env.vm.caller.clone(), request, pool, env.config.route_deadline)
    }
}
