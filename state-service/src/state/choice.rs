//! Which worker: candidates of a pool with their load, given to `routing::policy`, and who comes next.
//!
//! Owns who may be a candidate. The choice itself is in `routing`, where the filter makes it too.

use super::State;
use super::binding::Slot;
use super::limits::{ALTERNATES_MAX, ALTERNATES_WINDOW};
use super::workers::Worker;
use routing::contract::{Policy, PoolInfo, WorkerState};
use routing::id::{PoolName, SessionId, WorkerId};
use routing::policy::{Candidate, Chance, Rules, choose, least_loaded, rendezvous};

impl State {
    /// Hash of the worker that the pool's policy chooses; `None` when nobody may be chosen.
    pub(super) fn choose(&mut self, pool: &PoolInfo, session: Option<SessionId>, draw: u64) -> Option<u64> {
        let candidates = self.candidates(&pool.name);
        let rules = Rules { policy: pool.policy, device_ratio: pool.device_ratio };
        let cursor = match pool.policy {
            Policy::RoundRobin => self.next_in_turn(&pool.name),
            _ => 0,
        };
        let chosen = choose(rules, &candidates, session, Chance { draw, cursor })?;
        candidates.get(chosen).map(|candidate| candidate.worker_hash)
    }

    /// Position of the pool's round robin. Pools are bounded, so this is.
    fn next_in_turn(&mut self, pool: &PoolName) -> u64 {
        let turn = self.turns.entry(pool.clone()).or_insert(0);
        *turn = turn.wrapping_add(1);
        *turn
    }

    /// Workers that take new sessions; suspect ones only when there is no other. By id.
    fn candidates(&self, pool: &PoolName) -> Vec<Candidate> {
        let of_pool = |wanted: fn(WorkerState) -> bool| -> Vec<Candidate> {
            let workers = self.workers.iter().filter(|w| wanted(w.state()) && w.spec.pool == *pool);
            workers.map(candidate).collect()
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
    pub(super) fn alternates(
        &self,
        pool: &PoolInfo,
        chosen: u64,
        session: Option<SessionId>,
        draw: u64,
    ) -> Vec<WorkerId> {
        let mut left = self.candidates(&pool.name);
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

fn candidate(worker: &Worker) -> Candidate {
    let load = worker.load.reported.saturating_add(worker.load.reserved);
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
    use routing::contract::Affinity;
    pool.affinity != Affinity::Off && pool.policy != Policy::SessionHash
}
