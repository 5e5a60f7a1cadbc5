//! Through the service: the question of a first turn, its answer, and what happens without one.

use super::finish::{fail, touch};
use super::place::{self, Choice, Slot};
use super::{
    Counter, Effect, Env, Head, Here, Ignored, LocalReply, Next, PageChange, Pending, Placement, RequestFlow,
    RouteFailure, Routing, State, found_now, joined, named, reference,
};
use crate::contract::{Cached, Entry, Outcome, Policy, Refusal, RouteReply, RouteRequest, Target};
use crate::id::Version;
use crate::page::{Certainty, Record};
use crate::session::Session;
use std::ops::ControlFlow;

impl RequestFlow {
    pub(super) fn ask(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        cached: Option<Record>,
        named: Option<Target>,
        out: &mut Vec<Effect>,
    ) -> Next {
        let request = env.vm.next_request();
        let seen = cached.map(|record| record.version);
        let pool = here.pool.name.clone();
        let mut routing = Routing { session, pool, request, cached, named, seen, outcome: None };
        if !env.vm.breaker.allows(env.now) {
            out.push(Effect::Count(Counter::BreakerOpen));
            // Never asked: nobody holds anything for it.
            routing.outcome = Some(Outcome::Unsure);
            return match self.place_alone(env, here, routing, out) {
                ControlFlow::Break(next) => next,
                ControlFlow::Continue(routing) => self.nowhere(env, here, routing, false, out),
            };
        }
        out.push(Effect::Route {
            request: Box::new(question(env, &routing)),
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
        let next = match directory.as_ref().zip(pool) {
            Some((directory, pool)) => {
                self.after_route(env, Here { directory, pool }, routing, head, answer.ok(), out)
            }
            None => self.give_up(env, routing, true, Counter::NoTopology, out),
        };
        env.vm.directory = directory;
        if next == Next::Continue {
            out.push(Effect::Resume);
        }
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
            let reply = named::refusal(refusal.unwrap_or(Refusal::WorkerUnavailable));
            return self.refuse(reply, Counter::NamedRefused, out);
        }
        let Some((reply, slot)) = reply.and_then(|reply| {
            let slot = place::from_target(here, reply.target.as_ref()?, routing.session)?;
            // A named target is served exactly or not at all, whatever is said of it.
            let wanted = routing.named.as_ref().is_none_or(|named| named.worker == slot.worker);
            wanted.then(|| (reply, named::exactly(here, slot, routing.named.as_ref())))
        }) else {
            return self.late_or_alone(env, here, routing, head, out);
        };
        // A move or another turn's placement overtook this answer: the page knows better.
        let newer = found_now(env, head, routing.session).filter(|record| record.version > reply.version);
        let routing = match self.follow(env, here, routing, newer, out) {
            ControlFlow::Break(next) => return next,
            ControlFlow::Continue(routing) => routing,
        };
        match reply.outcome {
            Outcome::Bound | Outcome::Held | Outcome::Unpinned => {
                self.as_told(env, here, routing, &reply, slot, out)
            }
            Outcome::NoWorker | Outcome::Unsure | Outcome::UnknownPool | Outcome::Refused => {
                self.late_or_alone(env, here, routing, head, out)
            }
        }
    }

    /// Goes where the service said.
    fn as_told(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        reply: &RouteReply,
        slot: Slot,
        out: &mut Vec<Effect>,
    ) -> Next {
        let exact = is_exact(here, &routing);
        let session = Some(routing.session);
        let (why, certainty) = match reply.outcome {
            Outcome::Bound => (Counter::RoutedBound, Some(Certainty::Bound)),
            Outcome::Held => (Counter::RoutedHeld, Some(Certainty::Held)),
            _ => (Counter::RoutedUnpinned, None),
        };
        if let Some(certainty) = certainty {
            let record = record(env, &routing, &slot, reply.version, certainty);
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
        self.place(env, here, Placement { session, slot, why, pending, exact }, out)
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
        let mut routing = match self.follow(env, here, routing, found, out) {
            ControlFlow::Break(next) => return next,
            ControlFlow::Continue(routing) => routing,
        };
        routing.cached = found.or(routing.cached);
        routing.seen = routing.seen.max(found.map(|record| record.version));
        match self.place_alone(env, here, routing, out) {
            ControlFlow::Break(next) => next,
            ControlFlow::Continue(routing) => self.nowhere(env, here, routing, true, out),
        }
    }

    /// Goes where a record found after asking says; gives the turn back when the record is of no use.
    fn follow(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        found: Option<Record>,
        out: &mut Vec<Effect>,
    ) -> ControlFlow<Next, Routing> {
        let session = Some(routing.session);
        let (exact, named) = (is_exact(here, &routing), routing.named.clone());
        let choice = place::from_record(here, found.as_ref(), env.vm.generation, env.now);
        let (slot, why, pending) = match choice {
            Choice::Unknown => return ControlFlow::Continue(routing),
            Choice::Bound(slot, record) => {
                if let Some(refused) = self.disagrees(env, here, &routing, &slot, &record, out) {
                    return ControlFlow::Break(refused);
                }
                disown(env, &routing);
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
        let slot = named::exactly(here, slot, named.as_ref());
        ControlFlow::Break(self.place(env, here, Placement { session, slot, why, pending, exact }, out))
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
        let target = routing.named.as_ref()?;
        if named::agrees(here, target, slot, record) {
            return None;
        }
        disown(env, routing);
        Some(self.refuse(named::refusal(Refusal::BoundElsewhere), Counter::NamedRefused, out))
    }

    /// Places a turn by its cached binding or by rendezvous; gives it back when no worker of the pool can serve.
    fn place_alone(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        out: &mut Vec<Effect>,
    ) -> ControlFlow<Next, Routing> {
        // A held one, too, however old: its first turn may still be generating there.
        let usable = routing.cached.filter(|r| r.certainty != Certainty::Gone);
        let home = usable.and_then(|record| Some((place::cached(here, routing.session, &record)?, record)));
        if let Some((slot, record)) = &home
            && let Some(refused) = self.disagrees(env, here, &routing, slot, record, out)
        {
            return ControlFlow::Break(refused);
        }
        let slot = match (&routing.named, here.pool.rules.policy) {
            (Some(target), _) => named::slot(here, target, Some(routing.session)),
            (None, Policy::Direct) => home.map(|(slot, _)| slot),
            (None, _) => home.map(|(slot, _)| slot).or_else(|| place::alone(here, routing.session)),
        };
        let Some(slot) = slot else { return ControlFlow::Continue(routing) };
        let exact = is_exact(here, &routing);
        if let Some(next) = self.at_home(env, here, &routing, &slot, exact, out) {
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
        let placement = Placement { session, slot, why, pending: Some(pending), exact };
        ControlFlow::Break(self.place(env, here, placement, out))
    }

    /// A turn placed alone where its binding is makes no new one: two Envoys that did would disagree about versions of the same.
    fn at_home(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: &Routing,
        slot: &Slot,
        exact: bool,
        out: &mut Vec<Effect>,
    ) -> Option<Next> {
        let lives = |r: &Record| r.certainty == Certainty::Bound && r.idle(env.now) <= here.pool.ttl;
        let record = routing.cached.filter(lives)?;
        if (slot.hash, slot.bound_rank) != (record.worker_hash, record.rank) {
            return None;
        }
        disown(env, routing);
        touch(env, here.pool, routing.session, &record, out);
        let (session, why) = (Some(routing.session), Counter::PlacedAlone);
        let placement = Placement { session, slot: slot.clone(), why, pending: None, exact };
        Some(self.place(env, here, placement, out))
    }

    /// No slot for a turn that wanted one.
    fn nowhere(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: Routing,
        asked: bool,
        out: &mut Vec<Effect>,
    ) -> Next {
        let reply = match (&routing.named, here.pool.rules.policy) {
            (Some(_), _) => named::refusal(Refusal::WorkerUnavailable),
            (None, Policy::Direct) => LocalReply::worker_required(),
            (None, _) => return self.give_up(env, routing, asked, Counter::NoWorker, out),
        };
        let next = self.refuse(reply, Counter::NamedRefused, out);
        forget(env, routing, asked, out);
        next
    }

    /// A turn that can be placed nowhere goes on as if the filter were not there; one for an exact target is refused.
    fn give_up(
        &mut self,
        env: &mut Env<'_>,
        routing: Routing,
        asked: bool,
        why: Counter,
        out: &mut Vec<Effect>,
    ) -> Next {
        let next = if routing.named.is_some() {
            self.refuse(LocalReply::no_topology(), why, out)
        } else {
            self.pass(why, out)
        };
        forget(env, routing, asked, out);
        next
    }
}

/// The service may have made a hold for a turn that is placed nowhere, and nobody else would end it.
fn forget(env: &mut Env<'_>, routing: Routing, asked: bool, out: &mut Vec<Effect>) {
    if asked && routing.may_own_hold() {
        fail(env.vm, reference(routing.session), routing.pool, routing.request, None, out);
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

fn is_exact(here: Here<'_>, routing: &Routing) -> bool {
    routing.named.is_some() || here.pool.rules.policy == Policy::Direct
}

fn question(env: &Env<'_>, routing: &Routing) -> RouteRequest {
    let bound = routing.cached.filter(|r| r.certainty == Certainty::Bound);
    RouteRequest {
        session: Some(reference(routing.session)),
        cached: bound.map(|r| Cached { worker_hash: r.worker_hash, rank: r.rank, version: r.version }),
        named: routing.named.clone(),
        unsent: env.vm.reports.about(routing.session.id),
        ..RouteRequest::new(
            env.vm.caller.clone(),
            routing.request,
            routing.pool.clone(),
            env.config.route_deadline,
        )
    }
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
