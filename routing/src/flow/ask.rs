//! Through the service: the question of a first turn, and its answer. What happens without one is in `alone`.

use super::alone::{disown, is_exact};
use super::decide::found_now;
use super::finish::{fail, record};
use super::place::{self, Slot};
use super::prompt::deadline;
use super::spilled::{self, is_spilled};
use super::spread::nobody_in_particular;
use super::{
    Counter, Effect, Env, Head, Here, Ignored, LocalReply, Next, PageChange, Pending, Placement, RequestFlow,
    RouteFailure, Routing, State, named, reference,
};
use crate::contract::{Cached, Explained, Outcome, Refusal, RouteReply, RouteRequest};
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
        let mut routing =
            Routing { session, pool, request, cached, seen, outcome: None, wait, prefill, loose: None };
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
        self.send(env, here, routing, head, out)
    }

    pub(super) fn send(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let prompt = self.take_prompt(here, head, out);
        let request = Box::new(RouteRequest { prompt, ..asked(env, here, &routing) });
        let timeout = Millis(request.deadline_ms.0.saturating_add(routing.wait.0));
        out.push(Effect::Route { request, timeout });
        self.book(here, routing.request, routing.prefill.as_ref().map(|wanted| wanted.request));
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
        if self.must_read_prompt(env, here, head, out) {
            return Next::Read;
        }
        // Stands in until the service says whose it is.
        let session = Session { id: alias, rank_hash: RankHash(0) };
        let routing = self.bare(env, here, session);
        self.send(env, here, routing, head, out)
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
        if self.must_read_prompt(env, here, head, out) {
            return Next::Read;
        }
        let session = here.turn.session;
        let mut routing = self.bare(env, here, session.unwrap_or_else(nobody_in_particular));
        routing.cached = session.and_then(|session| found_now(env, head, session));
        routing.prefill = self.prefill_wanted(env, here, head);
        self.send(env, here, routing, head, out)
    }

    pub(super) fn bare(&self, env: &mut Env<'_>, here: Here<'_>, session: Session) -> Routing {
        Routing {
            session,
            pool: here.pool.name.clone(),
            request: env.vm.next_request(),
            cached: None,
            seen: None,
            outcome: None,
            wait: Millis(0),
            prefill: None,
            loose: None,
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
        if let Some(why) = routing.loose {
            return self.spread_told(env, here, &routing, (why, reply), head, out);
        }
        if let Some(alias) = here.turn.alias {
            let Some(session) = reply.as_ref().and_then(|reply| reply.session) else {
                if here.pool.is_kv_aware() && here.turn.named.is_none() {
                    // Nobody's, and placed as such by the same answer.
                    let told = (Counter::SessionKeyMissing, reply);
                    return self.spread_told(env, here, &routing, told, head, out);
                }
                if reply.is_none() {
                    disown(env, &routing);
                }
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
            self.prefill_alone(env, here, head, out)?;
            // The service was not asked where this half is bound, so that nothing is bound anew: the next turn asks.
            if let Some(half) = &mut self.prefill {
                half.pending = None;
            }
            return Ok(());
        }
        self.prefill_told(env, here, wanted, (reply, head), out)
    }

    /// The answer to a dry run.
    fn dry(&mut self, here: Here<'_>, explained: Option<Explained>, out: &mut Vec<Effect>) -> Next {
        let reply = explained.map_or_else(LocalReply::dry_run_unanswered, |explained| {
            LocalReply::ok(explained.text(here.turn.key.as_ref()))
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
            return self.refuse_by(here.pool.phase, refusal, out);
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
        let found = found_now(env, head, routing.session);
        spilled::forget_older(found, &reply, out);
        let newer = found.filter(|record| record.version > reply.version);
        // A turn that is to go elsewhere this once does so, whatever the page says: it says the overloaded slot.
        let waited = reply.outcome == Outcome::Unpinned && routing.wait > Millis(0);
        let spilled = waited || is_spilled(&reply);
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
        self.note_overlap(reply.overlap);
        let (why, certainty) = match reply.outcome {
            Outcome::Bound => (Counter::RoutedBound, Some(Certainty::Bound)),
            Outcome::Held => (Counter::RoutedHeld, Some(Certainty::Held)),
            _ if is_spilled(reply) => (Counter::Spilled, None),
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
        let cached = routing.cached.filter(|_| why == Counter::Spilled).map(|record| record.version);
        let spilled = cached.max(spilled::version(reply));
        let version = if reply.outcome == Outcome::Bound { Some(reply.version) } else { spilled };
        self.place(env, here, Placement { session, slot, why, pending, version, exact }, head, out)
    }
}

/// The prefill half is refused, so what the other half was given is nobody's.
fn drop_hold(env: &mut Env<'_>, routing: Routing, reply: Option<&RouteReply>, out: &mut Vec<Effect>) {
    if reply.is_none_or(|reply| reply.outcome == Outcome::Held) {
        let hold = reply.and_then(|reply| reply.hold);
        fail(env.vm, reference(routing.session), routing.pool, routing.request, hold, out);
    }
}

fn asked(env: &Env<'_>, here: Here<'_>, routing: &Routing) -> RouteRequest {
    let bound = routing.cached.filter(|r| r.certainty == Certainty::Bound);
    let session = here.turn.session.filter(|_| here.turn.alias.is_none() && routing.loose.is_none());
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
        ..RouteRequest::new(env.vm.caller.clone(), request, pool, deadline(env, here))
    }
}
