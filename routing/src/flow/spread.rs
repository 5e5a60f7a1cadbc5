//! Turns that belong to no session: spread over the pool by its policy, here, or by the service where only it knows enough.
//!
//! Nothing is remembered of them.

use super::alone::disown;
use super::place::{self, Slot};
use super::{Counter, Effect, Env, Head, Here, Next, Placement, RequestFlow, Routing, choose};
use crate::contract::{Outcome, Policy, Ranks, Refusal, RouteReply, Target};
use crate::hash::{self, Phase};
use crate::id::RankHash;
use crate::session::Session;

/// Stands in where a question is about no session.
pub(super) fn nobody_in_particular() -> Session {
    Session { id: hash::response_id(b"", b"", b""), rank_hash: RankHash(0) }
}

impl RequestFlow {
    /// A turn without a session of its own.
    pub(super) fn unpinned(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        why: Counter,
        out: &mut Vec<Effect>,
    ) -> Next {
        if here.pool.rules.policy == Policy::Direct {
            return self.refuse_by(here.pool.phase, Refusal::WorkerRequired, out);
        }
        // What has no body has nothing that an engine could cache.
        if here.pool.is_kv_aware() && self.has_prompt(head) {
            return self.ask_loose(env, here, head, why, out);
        }
        self.spread(env, here, head, why, out)
    }

    /// By what this VM knows.
    fn spread(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        why: Counter,
        out: &mut Vec<Effect>,
    ) -> Next {
        match choose::spread(env, here, head) {
            Ok(slot) => {
                if let Err(why) = self.prefill_alone(env, here, head, out) {
                    return self.refuse_prefill(why, out);
                }
                self.place(env, here, Placement::loose(slot, why), head, out)
            }
            Err(nobody) => self.nobody(here, nobody, out),
        }
    }

    /// By what the service knows.
    fn ask_loose(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        why: Counter,
        out: &mut Vec<Effect>,
    ) -> Next {
        if self.must_read_prompt(env, here, head, out) {
            return Next::Read;
        }
        if !env.vm.breaker.allows(env.now) {
            out.push(Effect::Count(Counter::BreakerOpen));
            return self.spread(env, here, head, why, out);
        }
        if here.turn.named_prefill.is_some()
            && let Err(why) = self.prefill_alone(env, here, head, out)
        {
            return self.refuse_prefill(why, out);
        }
        let mut routing = self.bare(env, here, nobody_in_particular());
        routing.loose = Some(why);
        routing.prefill = self.prefill_wanted(env, here, head);
        self.send(env, here, routing, head, out)
    }

    /// What the service said of such a turn, or its silence; `why` it has no session.
    pub(super) fn spread_told(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        routing: &Routing,
        (why, reply): (Counter, Option<RouteReply>),
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let Some(reply) = reply else {
            if routing.loose.is_none() {
                disown(env, routing);
            }
            return self.spread(env, here, head, why, out);
        };
        if reply.outcome == Outcome::Refused {
            let why = reply.refusal.unwrap_or(Refusal::WorkerUnavailable);
            return self.refuse_by(here.pool.phase, why, out);
        }
        let Some(slot) = reply.target.as_ref().and_then(|target| slot(here, target)) else {
            return self.spread(env, here, head, why, out);
        };
        if let Err(why) = self.prefill_spread(env, here, reply.prefill.as_deref(), head, out) {
            return self.refuse_by(Phase::Prefill, why, out);
        }
        self.note_overlap(reply.overlap);
        self.place(env, here, Placement::loose(slot, Counter::RoutedUnpinned), head, out)
    }
}

/// The slot that the service named, if this VM knows it. No rank is added: without a session nothing picks one but the service.
pub(super) fn slot(here: Here<'_>, target: &Target) -> Option<Slot> {
    let (at, worker) = here.directory.worker_by_id(&target.worker)?;
    let declared = target.rank.is_none_or(|rank| worker.declares(rank));
    let rank = target.rank.filter(|_| here.pool.ranks != Ranks::Engine);
    (place::is_here(here, worker) && declared).then(|| Slot {
        worker: worker.id.clone(),
        hash: worker.hash,
        at,
        rank,
        bound_rank: None,
    })
}
