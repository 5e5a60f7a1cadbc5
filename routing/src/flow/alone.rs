//! A turn with a session that the service does not place: where a record found meanwhile says, at its binding, by rendezvous, or
//! nowhere.
//!
//! What is placed here is told to the service when its answer is accepted. The question and its answer are `ask`'s.

use super::choose::{self, Nobody};
use super::decide::{found_now, joined};
use super::finish::{abandon, fail, touch};
use super::place::{self, Choice, Slot};
use super::{
    Counter, Effect, Env, Head, Here, LocalReply, Next, Pending, Placement, RequestFlow, Routing, named,
    reference,
};
use crate::contract::{Affinity, Entry, Policy, Refusal};
use crate::page::{Certainty, Record};
use crate::time::Millis;
use std::ops::ControlFlow;

impl RequestFlow {
    /// Without an answer: another request of this session may have got one meanwhile; else rendezvous.
    pub(super) fn late_or_alone(
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
    pub(super) fn follow(
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
            Choice::Bound(slot, _) if here.pool.affinity == Affinity::Hard && !choose::keeps(here, &slot) => {
                disown(env, &routing);
                let excluded = named::refusal(here.pool.phase, Refusal::Excluded);
                return ControlFlow::Break(self.refuse(excluded, Counter::NamedRefused, out));
            }
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
        Some(self.refuse_by(here.pool.phase, Refusal::BoundElsewhere, out))
    }

    /// Places a turn by its cached binding or by rendezvous; gives it back when no worker of the pool can serve.
    pub(super) fn place_alone(
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
    pub(super) fn nowhere(
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
    pub(super) fn pool_gone(&mut self, env: &mut Env<'_>, routing: Routing, out: &mut Vec<Effect>) -> Next {
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

/// Whatever hold the question got, or gets when it arrives at last, is nobody's: this turn decides nothing.
pub(super) fn disown(env: &mut Env<'_>, routing: &Routing) {
    if routing.may_own_hold() {
        let session = reference(routing.session);
        let (pool, request) = (routing.pool.clone(), routing.request);
        env.vm.reports.push(Entry::Failed { session, pool, request, hold: None });
    }
}

/// This target or none.
pub(super) fn is_exact(here: Here<'_>) -> bool {
    here.turn.named.is_some() || here.pool.rules.policy == Policy::Direct
}
