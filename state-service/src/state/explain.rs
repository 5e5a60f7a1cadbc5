//! A decision laid open, and nothing done: the dry run of a route.
//!
//! Owns how a verdict and its candidates are shown. The verdict is that of `judge.rs`, the very one a route acts on; what the
//! policy compared is shown here as a score. Changes nothing: everything is `&self`.

use super::State;
use super::binding::Slot;
use super::choice::{Considered, Field};
use super::judge::{Asked, Seat};
use super::kv::{Compared, Found};
use super::verdict::{Act, Fresh, Loose, Verdict};
use routing::block::Chain;
use routing::contract::{
    Affinity, Caller, CandidateShown, Explained, Explanation, Policy, Removal, RouteReply, RouteRequest,
};
use routing::hash::{Phase, rendezvous_cost, rendezvous_draw};
use routing::id::PoolName;
use routing::policy::{Candidate, drawn_pair};
use routing::time::Timestamp;

impl State {
    /// What [`super::Command::Route`] would answer now, with the decision in [`RouteReply::explained`]. No hold is made, no
    /// binding refreshed, nothing counted or reserved; entries not yet reported are left to their report.
    #[must_use]
    pub fn dry_run(
        &self,
        now: Timestamp,
        request: &RouteRequest,
        prompt: Option<Chain>,
        draw: u64,
    ) -> RouteReply {
        let Some(pool) = self.pools.get(&request.pool).cloned() else {
            let nowhere = self.unknown_pool(now);
            let shown = empty(request.pool.clone(), &nowhere);
            return RouteReply { explained: Explained::of(&shown), ..nowhere };
        };
        let behind = self.behind(now, request);
        let seat = self.seat_of(&request.caller);
        let looked = self.look(now, &pool, prompt, Found::default());
        let session = request.session.or(behind);
        let asked = Asked::serving((now, seat, draw), pool, request, (session, looked.as_ref()));
        let (mut reply, mut shown) = self.lay_open(&asked);
        if let Some(ask) = request.prefill.as_ref().filter(|_| reply.target.is_some()) {
            let (prefill, shown_prefill) = self.lay_open(&asked.prefill(ask));
            reply.prefill = Some(Box::new(prefill));
            shown.prefill = Some(Box::new(shown_prefill));
        }
        RouteReply { session: behind, explained: Explained::of(&shown), ..reply }
    }

    fn seat_of(&self, caller: &Caller) -> Seat {
        match self.vms.id_of(caller) {
            Some(vm) => Seat::Of(vm),
            None if self.vms.len() < self.config.limits.vms_max => Seat::New,
            None => Seat::Full,
        }
    }

    fn lay_open(&self, asked: &Asked) -> (RouteReply, Explanation) {
        let verdict = self.judge(asked);
        let reply = self.answer(asked, verdict);
        let home = verdict.bound.map(|bound| bound.slot);
        let field = self.field(asked, home);
        if asked.compares_slots() {
            return (reply.clone(), self.lay_slots_open(asked, verdict, &field, &reply));
        }
        let scores = self.scores(asked, verdict, &field);
        let mut scores = scores.into_iter();
        let shown = field.all.iter().map(|one| {
            let score = if one.removed_by.is_empty() { scores.next().flatten() } else { None };
            self.shown(asked, home, one, score)
        });
        let explanation = Explanation {
            phase: asked.phase,
            choice: reply.target.clone(),
            candidates: shown.collect(),
            ..empty(asked.pool.name.clone(), &reply)
        };
        (reply, explanation)
    }

    /// The same where each slot was a candidate.
    fn lay_slots_open(
        &self,
        asked: &Asked,
        verdict: Verdict,
        field: &Field<'_>,
        reply: &RouteReply,
    ) -> Explanation {
        let compared = compared(asked, verdict) == Some(Policy::KvAware);
        let shown = |one: Compared<'_>| {
            let mut removed_by = one.removed_by;
            removed_by.sort_unstable();
            // What a slot would have cost that carries too much is what people ask first.
            let counts = compared && removed_by.iter().all(|why| *why == Removal::Load);
            CandidateShown {
                worker: one.worker.id().clone(),
                rank: one.worker.target(one.slot).rank,
                state: one.worker.state(),
                load: one.requests,
                score: counts.then_some(one.cost),
                overlap: asked.looked.filter(|looked| looked.has_blocks()).map(|_| one.overlap),
                removed_by,
            }
        };
        Explanation {
            phase: asked.phase,
            choice: reply.target.clone(),
            candidates: self.compare_slots(asked, field).into_iter().map(shown).collect(),
            ..empty(asked.pool.name.clone(), reply)
        }
    }

    fn shown(
        &self,
        asked: &Asked,
        home: Option<Slot>,
        one: &Considered<'_>,
        score: Option<u64>,
    ) -> CandidateShown {
        let Considered { worker, load, .. } = one;
        let mut removed_by: Vec<Removal> = one.removed_by.clone();
        removed_by.sort_unstable();
        CandidateShown {
            worker: worker.id().clone(),
            rank: worker.target(self.slot_there(asked, worker, home)).rank,
            state: worker.state(),
            load: *load,
            score,
            overlap: None,
            removed_by,
        }
    }

    /// What was compared of each candidate that was left, lower is better.
    fn scores(&self, asked: &Asked, verdict: Verdict, field: &Field<'_>) -> Vec<Option<u64>> {
        let candidates = field.candidates();
        let Some(policy) = compared(asked, verdict) else { return vec![None; candidates.len()] };
        let turn = verdict.turn.unwrap_or_else(|| self.next_turn(asked));
        let pair = drawn_pair(candidates.len(), asked.draw);
        let score = |(at, one): (usize, &Candidate)| match (policy, asked.session_id()) {
            (Policy::LeastLoaded | Policy::DeviceAware | Policy::KvAware, _) => Some(one.load),
            (Policy::PowerOfTwo, _) => {
                let drawn = pair.is_some_and(|(first, second)| at == first || Some(at) == second);
                drawn.then_some(one.load)
            }
            (Policy::RoundRobin, _) => turns_until(at, candidates.len(), turn),
            (Policy::SessionHash, Some(session)) => {
                let cost = rendezvous_cost(rendezvous_draw(session, one.worker_hash));
                Some(cost / u64::from(one.weight.max(1)))
            }
            (Policy::SessionHash, None) | (Policy::Random | Policy::Direct, _) => None,
        };
        candidates.iter().enumerate().map(score).collect()
    }
}

/// The rule by which candidates were compared, if they were.
fn compared(asked: &Asked, verdict: Verdict) -> Option<Policy> {
    match verdict.act {
        Act::Hold(_, Fresh::Named) | Act::Unpinned(_, Loose::Named) => None,
        Act::Hold(..) | Act::Unpinned(..) if verdict.all_overloaded => Some(Policy::LeastLoaded),
        Act::Hold(..) | Act::Unpinned(..) => Some(asked.pool.policy),
        // It stays within its margin of the best.
        Act::GoOn(_) if asked.pool.affinity == Affinity::Soft => Some(Policy::LeastLoaded),
        Act::GoOn(_) | Act::AddRank(_) | Act::Join(_) | Act::NoWorker | Act::Refused(_) | Act::Unsure => None,
    }
}

/// How many choices later it is the turn of candidate `at` of `n`: zero now.
fn turns_until(at: usize, n: usize, turn: u64) -> Option<u64> {
    let (at, n) = (u64::try_from(at).ok()?, u64::try_from(n).ok().filter(|n| *n > 0)?);
    Some((at + n - turn % n) % n)
}

fn empty(pool: PoolName, reply: &RouteReply) -> Explanation {
    Explanation {
        key: None,
        pool,
        phase: Phase::Aggregated,
        outcome: reply.outcome,
        refusal: reply.refusal,
        reason: reply.reason.clone(),
        choice: None,
        candidates: Vec::new(),
        prefill: None,
    }
}
