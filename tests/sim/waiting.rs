//! Requests that wait at the service for their slot: whom the shell owes an answer, and what must be so while they wait.
//!
//! Mirrors `state-service/src/service/waits.rs`.

use crate::faults::Fault;
use crate::planted::Bug;
use crate::replicas::Life;
use crate::world::{Event, World};
use routing::contract::{RouteReply, Target};
use routing::flow::RouteFailure;
use routing::time::Timestamp;
use state_service::state::{Command, Effect, Later, Ticket};

/// As `state-service` has it.
const WAITERS_MAX: usize = 1024;

/// A question that is not answered yet.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) request: u64,
    pub(crate) call: u64,
    /// On the service's clock.
    until: Timestamp,
    /// What it waits for.
    target: Option<Target>,
}

impl World {
    pub(crate) fn hold(&mut self, (request, call): (u64, u64), target: Option<Target>, later: Later) {
        self.fired.count(Fault::Waited);
        let until = self.service_now() + later.within;
        self.service.held.insert(later.ticket, Held { request, call, until, target });
        self.after(later.within.0, Event::WaitDue { life: self.service.life, ticket: later.ticket });
    }

    /// Time is up.
    pub(crate) fn wait_due(&mut self, life: Life, ticket: Ticket) {
        if life != self.service.life || !self.service.held.contains_key(&ticket) {
            return;
        }
        self.fired.count(Fault::WaitedInVain);
        self.apply(Command::Due);
        if self.service.held.contains_key(&ticket) {
            self.violate("nothing waits longer than its limit", &format!("{ticket:?}"));
        }
    }

    /// The state answers those that waited.
    pub(crate) fn answer_held(&mut self, effects: &[Effect], is_due: bool) {
        if self.bug == Some(Bug::WaitersAreNotWoken) && !is_due {
            return;
        }
        for effect in effects {
            let Effect::Answer { ticket, reply } = effect else { continue };
            let Some(held) = self.service.held.remove(ticket) else {
                self.violate("who waits is known", &format!("{ticket:?} is answered"));
                continue;
            };
            self.fired.count(Fault::WaitEnded);
            self.tell_route((held.request, held.call), reply);
        }
    }

    /// After each command: none is overdue, and none waits for a slot that has room.
    pub(crate) fn check_waiting(&mut self) {
        let (now, waiting) = (self.service_now(), self.service.state.sizes().waiting);
        let held = &self.service.held;
        let mut found = None;
        if waiting != held.len() || waiting > WAITERS_MAX {
            found = Some(("who waits is known", format!("{waiting} wait, {} are held", held.len())));
        }
        for (ticket, one) in held {
            let overloaded = |target: &Target| self.service.state.slot(target).overloaded;
            if one.until < now {
                found = Some(("nothing waits longer than its limit", format!("{ticket:?} {one:?}")));
            } else if one.target.as_ref().is_some_and(|target| !overloaded(target)) {
                found = Some(("nobody waits for a slot with room", format!("{ticket:?} {one:?}")));
            }
        }
        if let Some((invariant, found)) = found {
            self.violate(invariant, &found);
        }
    }

    /// The request ended, or its call did: a stream's own calls die with it. Now and then nobody hears of it.
    pub(crate) fn stops_waiting(&mut self, request: u64) {
        for replica in 0..self.plan.replicas {
            self.turn_to(replica);
            self.stops_waiting_here(request);
        }
    }

    fn stops_waiting_here(&mut self, request: u64) {
        self.service.link.asking.retain(|asker, _| asker.0 != request);
        let waits = |(ticket, held): (&Ticket, &Held)| (held.request == request).then_some(*ticket);
        let Some(ticket) = self.service.held.iter().find_map(waits) else { return };
        self.fired.count(Fault::WaiterLeft);
        if !self.faults_on || !self.rng.per_mille(250) {
            let (delay, life) = (self.rng.within(0, 4), self.service.life);
            self.after(delay, Event::WaiterGone { life, ticket });
        }
    }

    pub(crate) fn waiter_gone(&mut self, life: Life, ticket: Ticket) {
        // Answered just now: nobody is there to take it.
        if life == self.service.life && self.service.held.remove(&ticket).is_some() {
            self.apply(Command::Leave { ticket });
        }
    }

    /// The service died under those that waited.
    pub(crate) fn cut_waiting(&mut self, silent: bool) {
        for held in std::mem::take(&mut self.service.held).into_values() {
            self.fired.count(Fault::WaitCut);
            if !silent {
                let answer = Err(RouteFailure::Failed);
                let (request, call) = (held.request, held.call);
                self.after(1, Event::RouteAnswered { request, call, life: None, answer });
            }
        }
    }

    /// An answer goes back to the Envoy that asked.
    pub(crate) fn tell_route(&mut self, asker: (u64, u64), reply: &RouteReply) {
        self.check_route(reply);
        if !self.settles(asker, reply) {
            self.send_reply(asker, reply);
        }
    }

    pub(crate) fn send_reply(&mut self, (request, call): (u64, u64), reply: &RouteReply) {
        let lost = self.net().route_reply_lost;
        if self.rng.per_mille(lost) {
            return self.fired.count(Fault::RouteReplyLost);
        }
        let twice = self.net().reply_twice;
        let copies = if self.rng.per_mille(twice) { 2 } else { 1 };
        for copy in 0..copies {
            let (delay, life) = (self.rng.within(1, 6) + copy * 3, Some(self.service.life));
            let answer = Ok(Box::new(reply.clone()));
            self.after(delay, Event::RouteAnswered { request, call, life, answer });
        }
    }
}
