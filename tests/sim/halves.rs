//! Split pools: who prefills a request, as its decode worker is told, and what must be so of that half.

use crate::faults::Fault;
use crate::planted::Bug;
use crate::request::Request;
use crate::service::TTL;
use crate::world::World;
use routing::contract::{Affinity, Outcome, RankChoice, RouteReply, WorkerState};
use routing::hash::worker_hash;
use routing::header;
use routing::page::Certainty;
use std::collections::BTreeSet;

impl World {
    /// Whether the pool of this request has prefill workers.
    pub(crate) fn is_split(&self, request: &Request) -> bool {
        self.plan.extra.split && self.sessions[request.session].pool == crate::plan::POOL
    }

    /// The flow named a prefill worker: it counts there until the answer's head comes.
    pub(crate) fn prefill_begins(&mut self, request: &mut Request) {
        self.fired.count(Fault::PrefillChosen);
        request.prefilling = true;
        self.envoys[request.at.envoy].vms[request.at.vm].prefilling += 1;
    }

    pub(crate) fn prefill_ends(&mut self, request: &mut Request) {
        if std::mem::take(&mut request.prefilling) {
            self.envoys[request.at.envoy].vms[request.at.vm].prefilling -= 1;
        }
    }

    /// Before it is decided: whether its cached prefill slot cannot take it now, so that it may go elsewhere this once.
    pub(crate) fn look_at_prefill(&self, request: &mut Request) {
        let cell = &self.envoys[request.at.envoy].vms[request.at.vm];
        let troubled = !cell.vm.troubles.is_empty();
        let busy = cell.vm.directory.as_ref().is_some_and(|directory| {
            directory.workers.iter().any(|worker| {
                let own = cell.vm.loads.of_worker(worker.hash);
                let full = worker.in_flight_limit.is_some_and(|limit| own >= limit);
                worker.all_overloaded || !worker.overloaded.is_empty() || full
            })
        });
        request.prefill_loose |= troubled || busy;
    }

    pub(crate) fn prefill_told(&mut self, request: &mut Request, reply: &RouteReply) {
        let Some(prefill) = &reply.prefill else { return };
        if !matches!(prefill.outcome, Outcome::Held | Outcome::Bound) {
            self.fired.count(Fault::PrefillElsewhere);
            request.prefill_loose = true;
        }
    }

    /// What the decode worker is told: an address of a worker that prefills for its pool, and a rank that is declared there.
    pub(crate) fn check_prefill(&mut self, request: &mut Request) {
        let told = |name: &str| request.headers.get(name).cloned();
        let (address, rank) = (told(header::PREFILL_HOST_PORT), told(header::PREFILL_RANK));
        let Some(address) = address else {
            if rank.is_some() {
                self.violate("no prefill rank without its worker", &format!("{rank:?}"));
            }
            return;
        };
        let found = self.workers.iter().enumerate().find_map(|(n, worker)| {
            let endpoint = worker.endpoints.iter().find(|endpoint| endpoint.address == address)?;
            Some((n, worker.clone(), endpoint.clone()))
        });
        let pool = self.sessions[request.session].pool;
        let Some((n, worker, endpoint)) =
            found.filter(|(_, worker, _)| worker.prefills() && worker.pool() == pool)
        else {
            return self.violate("only prefill workers prefill", &format!("{address} for {pool}"));
        };
        if let Some(demand) = &request.demand
            && !demand.allows_prefill(&worker, &address)
        {
            let found = format!("{address} of {}: {demand:?}", worker.id);
            self.violate("an excluded slot is not used", &found);
        }
        match worker.understand(&endpoint, rank.as_deref()) {
            Ok(rank) => request.prefill = Some((n, rank)),
            // Chosen before this VM heard of the change.
            Err(_) if !endpoint.former.is_empty() => {}
            Err(problem) => self.violate("no undeclared rank is on the wire", &problem),
        }
    }

    /// An engine accepted the turn: so its prefill half is where it was before.
    pub(crate) fn prefill_landed(&mut self, request: &Request) {
        let Some((worker, rank)) = request.prefill else { return };
        let keyed =
            self.sessions[request.session].prefill_id.is_some() && self.plan.affinity == Affinity::Hard;
        let stores = self.plan.policy != routing::contract::Policy::SessionHash;
        if request.prefill_loose || !keyed || !stores || request.demand.is_some() {
            return;
        }
        let loose = self.plan.rank == RankChoice::Engine || self.workers[worker].regrown;
        let id = self.workers[worker].id.clone();
        let session = &mut self.sessions[request.session];
        *session.prefill_landings.entry((id, rank.filter(|_| !loose))).or_default() += 1;
        let places: BTreeSet<_> = session.prefill_landings.keys().collect();
        // A worker that was declared otherwise meanwhile has its sessions under two names.
        let workers: BTreeSet<_> = places.iter().map(|(id, _)| id).collect();
        let moved = if loose { workers.len() > 1 } else { places.len() > 1 };
        if moved && session.costs.is_empty() {
            let found = format!("session {} by {:?}", request.session, session.prefill_landings);
            self.violate("a session keeps its prefill slot", &found);
        }
    }

    /// An answer that was not accepted: what was held for its prefill half goes.
    pub(crate) fn prefill_failed(&mut self, request: &Request) {
        if request.prefill.is_some() {
            self.fired.count(Fault::PrefillFailed);
        }
    }

    /// Whether the prefill half, too, is in the cache and may be used as it is.
    pub(crate) fn is_prefill_pinned(&self, request: &Request) -> bool {
        let envoy = &self.envoys[request.at.envoy];
        let vm = &envoy.vms[request.at.vm].vm;
        let record = self.sessions[request.session].prefill_id.and_then(|id| envoy.shared.record(id));
        let (Some(record), Some(directory)) = (record, &vm.directory) else { return false };
        let worker = directory.workers.iter().find(|worker| worker_hash(&worker.id) == record.worker_hash);
        let idle = (self.envoy_now(request.at.envoy).0 / 1000).saturating_sub(record.touched_s.into()) * 1000;
        record.certainty == Certainty::Bound
            && idle <= TTL.0
            && record.generation == vm.generation
            && vm.troubles.is_empty()
            && worker.is_some_and(|worker| {
                let ranks = worker.dp_start..worker.dp_start + worker.dp_size;
                worker.state != WorkerState::Down
                    && !crate::invariants::is_full(
                        vm,
                        worker,
                        record.rank.or_else(|| worker.hashed_rank(record.rank_hash)),
                    )
                    && record.rank.is_none_or(|rank| ranks.contains(&rank.0))
            })
    }

    /// The client leaves before the service answered.
    pub(crate) fn leak_prefill(&mut self, request: &Request) {
        if !self.is_split(request) {
            return;
        }
        self.fired.count(Fault::PrefillLeft);
        if self.bug == Some(Bug::PrefillLeaksOnLeaving)
            && let Some(prefill) = self.workers.iter().find(|worker| worker.prefills())
        {
            let hash = worker_hash(&prefill.id);
            self.envoys[request.at.envoy].vms[request.at.vm].vm.loads.add(hash, None);
        }
    }
}
