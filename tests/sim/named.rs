//! Callers that name their target: what they ask for in a plan of their own, and what must come of it.

use crate::client::Session;
use crate::faults::Fault;
use crate::plan::Timed;
use crate::request::Request;
use crate::worker::Endpoint;
use crate::world::World;
use routing::contract::{Affinity, Policy};
use routing::header;
use routing::id::WorkerId;

impl Session {
    /// This session was sent to that very slot by its caller, so it may be bound to it.
    pub(crate) fn has_named(&self, worker: &WorkerId, rank: Option<u32>) -> bool {
        rank.is_some_and(|rank| self.named.contains(&(worker.clone(), rank)))
    }
}

impl World {
    /// Where the caller of a session sends it, if it does: a worker, and on one that keeps its ranks sometimes a rank.
    pub(crate) fn home_of(&mut self, pool: &str) -> Option<(usize, Option<u32>)> {
        let direct = self.plan.policy == Policy::Direct;
        if !self.plan.trust || !direct && self.rng.per_mille(400) {
            return None;
        }
        let worker = self.of_pool(pool)[self.rng.below(self.of_pool(pool).len())];
        let changes = |fault: &Timed| matches!(fault, Timed::RanksChange { worker: n } | Timed::RanksGrow { worker: n } | Timed::RanksShrink { worker: n } if *n == worker);
        let fixed = !self.plan.timed.iter().any(|(_, fault)| changes(fault));
        let (draw, wanted) = (self.rng.next(), self.rng.per_mille(500));
        let own = &self.workers[worker];
        let endpoint =
            own.live_endpoints().next().filter(|endpoint| fixed && wanted && own.takes_ranks(endpoint));
        let rank = endpoint.map(|Endpoint { of: (start, size), .. }| {
            start + u32::try_from(draw % u64::from(*size)).unwrap()
        });
        Some((worker, rank))
    }

    /// Workers that answer requests of a pool.
    fn of_pool(&self, pool: &str) -> Vec<usize> {
        let all = self.workers.iter().enumerate();
        all.filter(|(_, worker)| worker.pool() == pool && !worker.prefills()).map(|(n, _)| n).collect()
    }

    fn another(&self, worker: usize) -> usize {
        let all = self.of_pool(self.workers[worker].pool());
        let at = all.iter().position(|one| *one == worker).unwrap_or(0);
        all[(at + 1) % all.len()]
    }

    /// What a request of this session asks for: mostly its home, now and then another worker, or one that never was.
    pub(crate) fn name_target(&mut self, request: &mut Request) {
        let session = &self.sessions[request.session];
        let Some((home, rank)) = session.home else { return };
        let direct = self.plan.policy == Policy::Direct;
        let settled = !session.landings.is_empty() && session.costs.is_empty();
        let always = direct && (!settled || self.plan.affinity == Affinity::Off);
        if !always && (self.in_finals || self.rng.per_mille(500)) {
            return;
        }
        let odd = if self.in_finals { 999 } else { self.rng.below(1000) };
        let (worker, rank) = match odd {
            0..25 => (WorkerId::parse("nobody").unwrap(), None),
            25..60 => (self.workers[self.another(home)].id.clone(), None),
            _ => (self.workers[home].id.clone(), rank),
        };
        self.fired.count(Fault::TargetNamed);
        request.headers.insert(header::TARGET_WORKER.to_owned(), worker.to_string());
        if let Some(rank) = rank {
            request.headers.insert(header::TARGET_RANK.to_owned(), rank.to_string());
            self.sessions[request.session].named.insert((worker.clone(), rank));
        }
        request.named = Some((worker, rank));
    }

    /// Once all is quiet: a session of a direct pool that was never accepted, or lost its binding to a fault, may still be refused.
    pub(crate) fn may_be_refused(&self, session: &Session) -> bool {
        let bound = !session.landings.is_empty() && session.costs.is_empty();
        self.plan.policy == Policy::Direct && !bound
    }
}
