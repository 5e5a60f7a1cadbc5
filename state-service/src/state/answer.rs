//! How a verdict is told to whoever asked.
//!
//! Owns the words, the alternates and the overlap of an answer. What was decided is `judge.rs`'s, what was done about it `route.rs`'.

use super::State;
use super::binding::Slot;
use super::judge::Asked;
use super::verdict::{Act, Verdict};
use super::workers::Worker;
use routing::contract::{Outcome, Overlap, RouteReply};
use routing::id::Version;
use routing::time::Timestamp;

/// Why a slot was chosen that holds some of the prompt.
const OVERLAP: &str = "overlap";

impl State {
    /// A verdict as it is told, but for the version of what it made.
    pub(super) fn answer(&self, asked: &Asked, verdict: Verdict) -> RouteReply {
        let answer = self.answer_alone(asked, verdict);
        let Some(slot) = verdict.act.slot().filter(|_| !asked.is_exact()) else { return answer };
        let home = verdict.bound.map(|bound| bound.slot);
        RouteReply { alternates: self.alternates(asked, home, slot.worker), ..answer }
    }

    /// The same without others to try: who dispatches himself asks again.
    pub(super) fn answer_alone(&self, asked: &Asked, verdict: Verdict) -> RouteReply {
        let Verdict { act, .. } = verdict;
        let nowhere = RouteReply {
            refusal: act.refusal(),
            version: if let Act::GoOn(bound) = act { bound.version } else { Version::default() },
            ..self.answer_nowhere(act.outcome(), act.reason())
        };
        let Some(slot) = act.slot() else { return nowhere };
        let worker = self.workers.by_hash(slot.worker);
        let target = worker.map(|worker| worker.target(slot));
        let overlap = worker.and_then(|worker| self.told_overlap(asked, worker, slot));
        let reason = match overlap {
            Some(overlap) if overlap.blocks > 0 && act.is_by_prompt() => OVERLAP.to_owned(),
            _ => nowhere.reason.clone(),
        };
        RouteReply { target, ttl_ms: asked.pool.ttl_ms, overlap, reason, ..nowhere }
    }

    /// Nothing where no prompt was looked for.
    fn told_overlap(&self, asked: &Asked, worker: &Worker, slot: Slot) -> Option<Overlap> {
        let looked = asked.looked.filter(|looked| looked.has_blocks())?;
        Some(self.kv.overlap(looked, worker, worker.slot_of(slot.rank())))
    }

    /// What is said of a pool that is not there, or not yet.
    pub(super) fn unknown_pool(&self, now: Timestamp) -> RouteReply {
        if self.is_unsure(now, true) {
            self.answer_nowhere(Outcome::Unsure, Act::Unsure.reason())
        } else {
            self.answer_nowhere(Outcome::UnknownPool, "unknown_pool")
        }
    }

    fn answer_nowhere(&self, outcome: Outcome, reason: &'static str) -> RouteReply {
        RouteReply::nowhere(outcome, self.moves.cursor(), self.epoch, reason)
    }
}
