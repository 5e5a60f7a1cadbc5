//! What must never happen, checked after each event. What must be so in the end is in `quiet.rs`, what is on the wire in `wire.rs`.
//!
//! Oracles of its own where that is cheap: who declared which rank, which turn is pinned, which record may follow another.

use crate::client::Session;
use crate::faults::{Cost, Fault};
use crate::planted::Bug;
use crate::request::{Phase, Request};
use crate::service::{ALIASES_MAX, TTL};
use crate::world::World;
use routing::config::Steering;
use routing::contract::{Affinity, OnOverload, Policy, RankChoice, WorkerState};
use routing::directory::Worker;
use routing::flow::{Counter, PageChange};
use routing::hash::worker_hash;
use routing::id::{Rank, WorkerId};
use routing::page::{Certainty, Record};
use routing::vm::{ENTRIES_KEPT_MAX, Vm};
use state_service::state::SessionState;
use std::collections::BTreeSet;

/// The first thing that was not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) invariant: &'static str,
    pub(crate) found: String,
}

/// Whether a slot is overloaded as one VM sees it: the service says so, or its own requests reach the limit.
pub(crate) fn is_full(vm: &Vm, worker: &Worker, rank: Option<Rank>) -> bool {
    let ranks = if rank.is_some() { 1 } else { worker.dp_size.max(1) };
    let own = match rank {
        Some(_) => vm.loads.of_slot(worker.hash, rank),
        None => vm.loads.of_worker(worker.hash),
    };
    worker.is_overloaded(rank)
        || worker.in_flight_limit.is_some_and(|limit| own >= limit.saturating_mul(ranks))
}

impl World {
    pub(crate) fn violate(&mut self, invariant: &'static str, found: &str) {
        if self.violation.is_none() {
            self.note(|| format!("VIOLATED {invariant}: {found}"));
            self.violation = Some(Violation { invariant, found: found.to_owned() });
        }
    }

    /// Whether the cache alone must place this request, judged without `routing::flow`.
    pub(crate) fn is_pinned(&self, request: &Request) -> bool {
        let envoy = &self.envoys[request.at.envoy];
        let vm = &envoy.vms[request.at.vm].vm;
        let record = self.sessions[request.session].id.and_then(|id| envoy.shared.record(id));
        let (Some(record), Some(directory)) = (record, &vm.directory) else { return false };
        let worker = directory.workers.iter().find(|worker| worker_hash(&worker.id) == record.worker_hash);
        self.plan.policy != Policy::SessionHash
            && self.plan.affinity == Affinity::Hard
            && request.named.is_none()
            && request.alias.is_none()
            && !request.dry
            && (!self.is_split(request) || self.is_prefill_pinned(request))
            && record.certainty == Certainty::Bound
            && record.generation == vm.generation
            && (self.envoy_now(request.at.envoy).0 / 1000).saturating_sub(record.touched_s.into()) * 1000
                <= TTL.0
            && worker.is_some_and(|worker| {
                let ranks = worker.dp_start..worker.dp_start + worker.dp_size;
                let waits = self.plan.extra.overload.is_some_and(|overload| overload.on == OnOverload::Wait);
                let hashed = || worker.hashed_rank(record.rank_hash);
                let rank = record.rank.or_else(hashed).filter(|_| self.plan.rank != RankChoice::Engine);
                worker.state != WorkerState::Down
                    && record.rank.is_none_or(|rank| ranks.contains(&rank.0))
                    && !(waits && is_full(vm, worker, rank))
            })
    }

    /// What the cache alone must place is placed by it alone, or refused by it.
    pub(crate) fn check_pinned(&mut self, request: &Request, pinned: bool) {
        use Counter as C;
        let alone = matches!(
            request.decisions[..],
            [C::Pinned | C::Spilled | C::OverloadRefused | C::NamedRefused | C::ModelUnknown]
        );
        if pinned && (request.routes > 0 || !alone) {
            let made = format!("{} calls, {:?}", request.routes, request.decisions);
            self.violate("a pinned turn makes no call", &made);
        }
    }

    pub(crate) fn check_page(&mut self, envoy: usize, change: &PageChange, before: Option<Record>) {
        let after = self.envoys[envoy].shared.record(change.session());
        let room = self.envoys[envoy].config.page_bytes;
        if self.envoys[envoy].shared.pages.iter().any(|page| page.len() > room) {
            self.violate("pages do not grow", "one did");
        }
        if let (Some(before), Some(after)) = (before, after)
            && after.version < before.version
        {
            let found = format!("{:?} after {:?}", after.version, before.version);
            self.violate("a cached binding never goes back", &found);
        }
    }

    /// After each command: bounds, and bindings that move by newer versions alone.
    pub(crate) fn check_state(&mut self) {
        let sizes = self.service.state.sizes();
        if sizes.sessions > self.plan.sessions_max || sizes.aliases > ALIASES_MAX {
            self.violate("the table is bounded", &format!("{sizes:?}"));
        }
        let ids: Vec<_> = self.sessions.iter().flat_map(Session::ids).collect();
        for id in ids {
            let Some(view) = self.service.state.session(self.service_now(), id) else {
                self.service.bindings_seen.remove(&id);
                continue;
            };
            if matches!(view.state, SessionState::Held { .. }) {
                continue;
            }
            let now = (view.version, view.target, view.state == SessionState::Released);
            let before = self.service.bindings_seen.insert(id, now.clone());
            let Some(before) = before else { continue };
            // A target is unknown while its worker is not declared.
            let moved = before.1 != now.1 && before.1.is_some() && now.1.is_some() || before.2 != now.2;
            if now.0 < before.0 || moved && now.0 == before.0 {
                self.violate("a binding moves only to a newer version", &format!("{before:?} then {now:?}"));
            }
        }
    }

    /// After each event.
    pub(crate) fn check_vms(&mut self) {
        let mut found = None;
        for cell in self.envoys.iter().flat_map(|envoy| &envoy.vms) {
            if cell.vm.loads.total() != cell.placed + cell.prefilling {
                found = Some((
                    "load counts each placed request once",
                    format!("{} of {} and {} halves", cell.vm.loads.total(), cell.placed, cell.prefilling),
                ));
            }
            let plans = u64::try_from(cell.vm.plans.len()).unwrap();
            let expected = if self.plan.steering == Steering::Endpoints { cell.placed } else { 0 };
            if plans != expected {
                found = Some(("a plan lives as long as its request", format!("{plans} of {expected}")));
            }
            if cell.vm.reports.len() > ENTRIES_KEPT_MAX {
                found = Some(("reports are bounded", cell.vm.reports.len().to_string()));
            }
        }
        if let Some((invariant, found)) = found {
            self.violate(invariant, &found);
        }
    }

    /// At the end of a request that nobody cut short.
    pub(crate) fn check_over(&mut self, request: &Request) {
        let one = request.decisions.len() == 1;
        if !one && request.phase != Phase::Deciding {
            self.violate("one placement or one local reply", &format!("{:?} at the end", request.decisions));
        }
        if request.responded {
            self.check_refusal(request);
        }
        let routed = self.plan.policy == Policy::SessionHash
            && request.routes > 0
            && request.alias.is_none()
            && !request.dry;
        if routed {
            self.violate("session_hash never asks", &format!("{} calls", request.routes));
        }
    }

    /// An engine accepted a turn.
    pub(crate) fn landed(&mut self, request: &Request) {
        let Some(landed) = request.landed.clone() else { return };
        self.stats.accepted += 1;
        if request.spilled && self.bug != Some(Bug::SpillsMove) {
            // Served elsewhere this once: its binding stays, and the next turns show it.
            return self.fired.count(Fault::Spilled);
        }
        let session = &mut self.sessions[request.session];
        let hashed = self.plan.policy == Policy::SessionHash;
        if session.id.is_none() || hashed && (request.named.is_some() || request.demand.is_some()) {
            return;
        }
        session.ended = false;
        // Behind its list Envoy dials anybody.
        session.tolerated |= self.workers.iter().any(|worker| worker.id == landed.0 && worker.tainted);
        if request.fetches || request.is_keyless() {
            return;
        }
        *session.landings.entry(landed).or_default() += 1;
        // Where a worker got more ranks, its sessions get one each and stay.
        let grown = |id: &WorkerId| self.workers.iter().any(|worker| worker.id == *id && worker.regrown);
        // Where the engine chooses ranks, a rank goes along only when its caller names it.
        let loose = |id: &WorkerId| self.plan.rank == RankChoice::Engine || grown(id);
        let places = session.landings.keys().map(|(id, rank)| (id, rank.filter(|_| !loose(id))));
        let pinned = self.plan.affinity == Affinity::Hard;
        if pinned && places.collect::<BTreeSet<_>>().len() > 1 && session.costs.is_empty() {
            let found = format!("session {} on {:?}", request.session, session.landings);
            self.violate("a session keeps its slot", &found);
        }
    }

    /// A VM's whole memory is gone: sessions it had not told all about may be anywhere.
    pub(crate) fn vm_death_costs(&mut self, envoy: usize, vm: usize) {
        self.fired.count(Fault::VmDied);
        let dead = &self.envoys[envoy].vms[vm];
        let told_all = |n: usize| {
            let session = &self.sessions[n];
            let open = self.requests.values().any(|r| r.session == n && (r.at.envoy, r.at.vm) == (envoy, vm));
            !open && session.ids().all(|id| dead.vm.reports.about(id).is_empty())
        };
        let untold: Vec<usize> = (0..self.sessions.len()).filter(|n| !told_all(*n)).collect();
        for session in untold {
            self.cost(session, Cost::VmDied);
        }
    }
}
