//! Which worker and rank: candidates of a pool with their load, given to `routing::policy`, and who comes next.
//!
//! Owns who may be a candidate, and the rank of what is placed anew. The choice of a worker itself is in `routing`, where
//! the filter makes it too.

use super::State;
use super::binding::Slot;
use super::limits::{ALTERNATES_MAX, ALTERNATES_WINDOW};
use super::workers::Worker;
use routing::contract::{
    Affinity, Policy, PoolInfo, RANK_PICK_MARGIN, RankPick, Ranks, SessionRef, WorkerState,
};
use routing::id::{PoolName, Rank, RankHash, SessionId, WorkerId};
use routing::policy::{Candidate, Chance, Rules, choose, least_loaded, mix, rendezvous, uniform};
use routing::time::Timestamp;

/// For whom a worker is chosen.
#[derive(Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) now: Timestamp,
    pub(super) pool: &'a PoolInfo,
    pub(super) session: Option<SessionId>,
    /// Uniformly random.
    pub(super) draw: u64,
}

/// Tells the draw of a rank from that of its worker.
const RANK_DRAW: u64 = 0x7261_6e6b;

impl State {
    /// Hash of the worker that the pool's policy chooses; `None` when nobody may be chosen.
    pub(super) fn choose(&mut self, who: Who<'_>) -> Option<u64> {
        let candidates = self.candidates(who);
        let rules = Rules { policy: who.pool.policy, device_ratio: who.pool.device_ratio };
        let cursor = match who.pool.policy {
            Policy::RoundRobin => self.next_in_turn(&who.pool.name),
            _ => 0,
        };
        let chosen = choose(rules, &candidates, who.session, Chance { draw: who.draw, cursor })?;
        candidates.get(chosen).map(|candidate| candidate.worker_hash)
    }

    /// The slot of a new binding on a worker.
    pub(super) fn new_slot(&self, pool: &PoolInfo, worker: u64, hash: RankHash, draw: u64) -> Slot {
        match (pool.ranks(), self.workers.by_hash(worker)) {
            (Ranks::Pinned, Some(worker)) if pool.rank_pick == RankPick::LeastLoaded => {
                idle_slot(worker, hash, draw)
            }
            (Ranks::Pinned, Some(worker)) => worker.slot_for(hash),
            (Ranks::Bound | Ranks::Engine, _) | (_, None) => Slot::new(worker, None),
        }
    }

    /// The slot of a turn that binds nothing: the hashed rank where sessions pin ranks, else the engine balances.
    pub(super) fn plain_slot(&self, pool: &PoolInfo, worker: u64, session: Option<SessionRef>) -> Slot {
        let pinned = pool.affinity != Affinity::Off && pool.ranks() == Ranks::Pinned;
        let slot = |session: SessionRef| Some(self.workers.by_hash(worker)?.slot_for(session.rank_hash));
        session.filter(|_| pinned).and_then(slot).unwrap_or_else(|| Slot::new(worker, None))
    }

    /// Position of the pool's round robin. Pools are bounded, so this is.
    fn next_in_turn(&mut self, pool: &PoolName) -> u64 {
        let turn = self.turns.entry(pool.clone()).or_insert(0);
        *turn = turn.wrapping_add(1);
        *turn
    }

    /// Workers that take new sessions; suspect ones only when there is no other. By id.
    fn candidates(&self, who: Who<'_>) -> Vec<Candidate> {
        let of_pool = |wanted: fn(WorkerState) -> bool| -> Vec<Candidate> {
            let workers = self.workers.iter().filter(|w| wanted(w.state()) && w.spec.pool == who.pool.name);
            workers.map(|worker| candidate(worker, who.now)).collect()
        };
        let willing = of_pool(WorkerState::takes_new);
        if willing.is_empty() { of_pool(|state| state == WorkerState::Suspect) } else { willing }
    }

    /// Whether a session may be served there: the worker is there, of this pool, not down, and has that rank.
    pub(super) fn usable(&self, pool: &PoolName, slot: Slot) -> Option<&Worker> {
        let worker = self.workers.by_hash(slot.worker)?;
        (worker.spec.pool == *pool && worker.is_usable() && worker.has_rank(slot.rank())).then_some(worker)
    }

    /// Other workers to try, best first: by rendezvous for a session, so that every Envoy names the same; by load without.
    pub(super) fn alternates(&self, who: Who<'_>, chosen: u64) -> Vec<WorkerId> {
        let Who { session, draw, .. } = who;
        let mut left = self.candidates(who);
        left.retain(|candidate| candidate.worker_hash != chosen);
        narrow(&mut left, session);
        let mut order = Vec::with_capacity(ALTERNATES_MAX);
        while order.len() < ALTERNATES_MAX {
            let next = match session {
                Some(session) => rendezvous(&left, session),
                None => least_loaded(&left, draw),
            };
            let Some(next) = next.filter(|next| *next < left.len()) else { break };
            let next = left.remove(next);
            order.extend(self.workers.by_hash(next.worker_hash).map(|worker| worker.spec.id.clone()));
        }
        order
    }
}

/// The hashed rank, unless it has more than [`RANK_PICK_MARGIN`] requests above the least loaded: then that, ties uniform.
fn idle_slot(worker: &Worker, hash: RankHash, draw: u64) -> Slot {
    let hashed = worker.slot_for(hash);
    let start = worker.spec.rank_start();
    let slots = (start..start + worker.spec.rank_count()).map(|rank| worker.slot_of(Some(Rank(rank))));
    let loads: Vec<(Slot, u64)> = slots.map(|slot| (slot, worker.load.requests_on(slot))).collect();
    let least = loads.iter().map(|(_, load)| *load).min().unwrap_or(0);
    if worker.load.requests_on(hashed) <= least.saturating_add(RANK_PICK_MARGIN) {
        return hashed;
    }
    let mut idle = loads.iter().filter(|(_, load)| *load == least);
    let nth = uniform(idle.clone().count(), mix(draw, RANK_DRAW));
    nth.and_then(|nth| idle.nth(nth)).map_or(hashed, |(slot, _)| *slot)
}

fn candidate(worker: &Worker, now: Timestamp) -> Candidate {
    let load = worker.load_at(now);
    Candidate { worker_hash: worker.hash, weight: worker.spec.weight, load, device: worker.spec.device }
}

/// Rendezvous over a thousand workers would take longer than the whole route; any few of them do as alternates.
fn narrow(candidates: &mut Vec<Candidate>, session: Option<SessionId>) {
    let (Some(session), true) = (session, candidates.len() > ALTERNATES_WINDOW) else { return };
    let len = u128::try_from(candidates.len()).unwrap_or(1);
    candidates.rotate_left(usize::try_from(session.0 % len).unwrap_or(0));
    candidates.truncate(ALTERNATES_WINDOW);
}

/// Whether sessions of this pool are kept here.
pub(super) fn pins(pool: &PoolInfo) -> bool {
    pool.affinity != Affinity::Off && pool.policy != Policy::SessionHash
}
