//! Before a first answer goes out all replicas agree on its slot, if the store says so in time.
//!
//! Mirrors `Service::{route, settle}` of `state-service`.

use crate::faults::{Cost, Fault};
use crate::planted::Bug;
use crate::replicas::Life;
use crate::replicas::link::{Answer, Ask, Failure, Wants};
use crate::replicas::model::Claim;
use crate::world::{Event, World};
use routing::block::Chain;
use routing::contract::{RouteReply, RouteRequest, SessionRef};
use routing::id::{HoldId, SessionId, Version};
use state_service::state::{Claiming, Command, Outcome, Reply};

/// So often an answer is asked for again.
const ANSWERS_MAX: u32 = 3;

/// An answer that may have to wait for its claims.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) body: RouteRequest,
    pub(crate) prompt: Option<Box<Chain>>,
    reply: Option<RouteReply>,
    tries: u32,
    half: u32,
    changed: bool,
    /// The claim that is waited for.
    waits: Option<u64>,
}

type Asker = (u64, u64);

impl World {
    pub(crate) fn ask_claims_for(&mut self, asker: Asker, body: &RouteRequest, prompt: Option<&Chain>) {
        if !self.is_shared() || body.dry_run || self.bug == Some(Bug::NothingIsClaimed) {
            return;
        }
        let asking = Asking {
            body: body.clone(),
            prompt: prompt.map(|chain| Box::new(chain.clone())),
            reply: None,
            tries: 0,
            half: 0,
            changed: false,
            waits: None,
        };
        self.service.link.asking.insert(asker, asking);
    }

    /// True when the answer waits for its claims.
    pub(crate) fn settles(&mut self, asker: Asker, reply: &RouteReply) -> bool {
        let Some(asking) = self.service.link.asking.get_mut(&asker) else { return false };
        if asking.tries >= ANSWERS_MAX {
            self.service.link.asking.remove(&asker);
            return false;
        }
        (asking.reply, asking.half, asking.changed) = (Some(reply.clone()), 0, false);
        self.settle_on(asker);
        true
    }

    fn settle_on(&mut self, asker: Asker) {
        while let Some((session, reply)) = self.next_half(asker) {
            match self.service.state.claiming(session, &reply) {
                Claiming::Nothing => {}
                Claiming::Outdated => self.changed(asker, true),
                Claiming::Propose(proposal) => {
                    self.fired.count(Fault::Claimed);
                    let (hold, version) = (proposal.hold, proposal.binding.version);
                    let wants = Wants::Claim { asker, session, hold, version };
                    let call = self.ask_store(wants, Ask::Claim(proposal.binding, proposal.leaves));
                    let life = self.service.life;
                    let Some(asking) = self.service.link.asking.get_mut(&asker) else { return };
                    asking.waits = Some(call);
                    let patience = Self::patience_of_claim(asking.body.deadline_ms);
                    return self.after(patience, Event::ClaimPatience { life, asker, call });
                }
            }
        }
        self.settled(asker);
    }

    /// The next half of an answer that has a session.
    fn next_half(&mut self, asker: Asker) -> Option<(SessionRef, RouteReply)> {
        let asking = self.service.link.asking.get_mut(&asker)?;
        let reply = asking.reply.clone()?;
        loop {
            asking.half += 1;
            let of_half = match asking.half {
                1 => asking.body.session.or(reply.session).zip(Some(reply.clone())),
                2 => {
                    let session = asking.body.prefill.as_ref().and_then(|half| half.session);
                    session.zip(reply.prefill.as_deref().cloned())
                }
                _ => return None,
            };
            if of_half.is_some() {
                return of_half;
            }
        }
    }

    fn changed(&mut self, asker: Asker, changed: bool) {
        if let Some(asking) = self.service.link.asking.get_mut(&asker) {
            asking.changed |= changed;
        }
    }

    /// Both halves are as all replicas know them, or what changed is asked for again.
    fn settled(&mut self, asker: Asker) {
        let Some(asking) = self.service.link.asking.get_mut(&asker) else { return };
        if !asking.changed {
            let reply = asking.reply.take();
            self.service.link.asking.remove(&asker);
            return reply.into_iter().for_each(|reply| self.send_reply(asker, &reply));
        }
        asking.tries += 1;
        self.fired.count(Fault::AnsweredAnew);
        let asking = &self.service.link.asking[&asker];
        let (request, prompt) = (asking.body.clone(), asking.prompt.clone());
        let draw = self.rng.next();
        match self.apply_for(Some(asker), Command::Route { request, prompt, draw }) {
            Reply::Route(reply) => self.tell_route(asker, &reply),
            Reply::Later(_) => {}
            other => self.violate("a route is answered", &format!("{other:?}")),
        }
    }

    pub(crate) fn claim_answered(
        &mut self,
        (asker, call): (Asker, u64),
        session: SessionRef,
        hold: HoldId,
        version: Version,
        answer: Result<Answer, Failure>,
    ) {
        let changed = match answer {
            Ok(Answer::Claim(claim)) => self.take_claim(session, hold, version, claim),
            Ok(other) => return self.violate("the store answers what is asked", &format!("{other:?}")),
            Err(_) => {
                self.unclaimed(session.id);
                false
            }
        };
        self.claim_over(asker, call, changed);
    }

    fn take_claim(&mut self, session: SessionRef, hold: HoldId, version: Version, claim: Claim) -> bool {
        let (claim, changed) = match claim {
            Claim::Claimed(claim) => {
                let changed = claim.version != version;
                (claim, changed)
            }
            Claim::Held(claim) => {
                self.fired.count(Fault::HeldByAnother);
                (claim, true)
            }
            Claim::Bound(binding) => {
                self.fired.count(Fault::BoundByAnother);
                let parked = self.take_bindings(vec![binding]) == [Outcome::Parked];
                return parked || !self.service.state.is_held(session.id, hold);
            }
        };
        self.apply(Command::Claimed { session, hold, claim: Box::new(claim) });
        changed
    }

    fn claim_over(&mut self, asker: Asker, call: u64, changed: bool) {
        let Some(asking) = self.service.link.asking.get_mut(&asker) else { return };
        if asking.waits.take_if(|waits| *waits == call).is_none() {
            return;
        }
        asking.changed |= changed;
        self.settle_on(asker);
    }

    /// It goes out unclaimed; a claim that comes late counts all the same.
    pub(crate) fn claim_patience(&mut self, life: Life, asker: Asker, call: u64) {
        let Some(asking) = self.service.link.asking.get(&asker).filter(|_| life == self.service.life) else {
            return;
        };
        if asking.waits == Some(call) {
            self.fired.count(Fault::ClaimTimedOut);
            let (own, half) = (asking.body.session, asking.body.prefill.as_ref());
            let behind = asking.reply.as_ref().and_then(|reply| reply.session);
            let half = half.and_then(|half| half.session);
            for session in [own, behind, half].into_iter().flatten() {
                self.unclaimed(session.id);
            }
            self.claim_over(asker, call, false);
        }
    }

    /// Two replicas may give this session two slots.
    fn unclaimed(&mut self, id: SessionId) {
        let session = self.sessions.iter().position(|session| session.ids().any(|one| one == id));
        session.into_iter().for_each(|session| self.cost(session, Cost::Unclaimed));
    }
}
