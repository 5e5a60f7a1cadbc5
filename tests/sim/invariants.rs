//! What must never happen, checked after each event, and what must be so once faults have stopped and all is quiet.
//!
//! Oracles of its own where that is cheap: who declared which rank, which turn is pinned, which record may follow another.

use crate::client::Session;
use crate::faults::{Cost, Fault, may_last};
use crate::request::{Phase, Request};
use crate::service::TTL;
use crate::world::World;
use routing::config::Steering;
use routing::contract::{Policy, Topology, WorkerState};
use routing::flow::{Counter, PageChange};
use routing::hash::worker_hash;
use routing::header;
use routing::id::WorkerId;
use routing::page::{Certainty, Record};
use routing::vm::ENTRIES_KEPT_MAX;
use state_service::state::SessionState;
use std::collections::BTreeSet;

/// A touch falls due after an eighth of the ttl; finals and their reports take the rest.
const IDLE_MAX: u64 = TTL.0 / 8 + 20_000;

/// The first thing that was not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) invariant: &'static str,
    pub(crate) found: String,
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
            && record.certainty == Certainty::Bound
            && record.generation == vm.generation
            && (self.envoy_now(request.at.envoy).0 / 1000).saturating_sub(record.touched_s.into()) * 1000
                <= TTL.0
            && worker.is_some_and(|worker| {
                let ranks = worker.dp_start..worker.dp_start + worker.dp_size;
                worker.state != WorkerState::Down && record.rank.is_none_or(|rank| ranks.contains(&rank.0))
            })
    }

    /// Who is behind an address, and which rank the header means there.
    pub(crate) fn check_wire(
        &mut self,
        request: &Request,
        address: &str,
        header: Option<&str>,
    ) -> Option<(usize, Option<u32>)> {
        let found = self.workers.iter().enumerate().find_map(|(n, worker)| {
            let endpoint = worker.endpoints.iter().find(|endpoint| endpoint.address == address)?;
            Some((n, worker.clone(), endpoint.clone()))
        });
        let Some((n, worker, endpoint)) = found else {
            self.violate("only declared addresses are dialled", address);
            return None;
        };
        let session = &self.sessions[request.session];
        let directory = &self.envoys[request.at.envoy].vms[request.at.vm].vm.directory;
        // A host the VM has not heard of yet gets no rank: its engine balances.
        let known = directory.as_ref().is_some_and(|directory| directory.dialled(address).is_some());
        // What this VM believes of the endpoint may be what was declared before, as long as it has not heard of the change.
        let told = self.envoys[request.at.envoy].vms[request.at.vm].topologies() == request.topologies;
        let believed = directory.as_ref().and_then(|directory| directory.dialled(address));
        let believed = believed.map(|(_, e)| (e.dp_start, e.dp_size));
        let current = worker.hashed(&endpoint, session.rank_hash);
        let endpoint = endpoint.as_believed(believed);
        // A binding outlives a change of ranks that keeps its rank, so then only the range is checked.
        let exact = !worker.ranks_changed && told && (known || header.is_some());
        // Behind its list Envoy may dial an endpoint that does not serve the session's rank: it gets none.
        let here = endpoint.start..endpoint.start + endpoint.size;
        let hashed = session.id.and_then(|_| worker.hashed(&endpoint, session.rank_hash));
        let expected = hashed.filter(|rank| here.contains(rank));
        match worker.understand(&endpoint, header) {
            // Chosen before this VM heard of the change.
            Err(_) if !told && !endpoint.former.is_empty() => return Some((n, None)),
            Err(problem) => self.violate("no undeclared rank is on the wire", &problem),
            // The service has heard of the change and named the rank.
            Ok(rank) if !endpoint.former.is_empty() && header.is_some() && rank == current => {
                return Some((n, rank));
            }
            Ok(rank) if exact && rank.filter(|_| header.is_some()) != expected => {
                let found = format!("{address}: expected {expected:?}, got {header:?}");
                self.violate("a session's rank is its own on each worker", &found);
            }
            Ok(rank) => return Some((n, rank)),
        }
        None
    }

    /// What discovery has not told this Envoy must not be in its topology.
    pub(crate) fn check_dialable(&mut self, envoy: usize, topology: Option<&Topology>) {
        let discovered = &self.envoys[envoy].discovered;
        let told = discovered.epoch == self.service.state.epoch() && !self.envoys[envoy].by_files;
        let (Some(topology), true) = (topology, told) else {
            return;
        };
        let unknown = topology.workers.iter().find(|worker| {
            let current = self.service.declared.contains_key(&worker.id);
            current && worker.endpoints.iter().any(|e| !discovered.clusters.values().any(|a| *a == e.address))
        });
        // A worker that moved is shown as it was, until discovery has told the new address.
        let moved = self.workers.iter().any(|w| w.endpoints.iter().any(|e| e.retired));
        if let (Some(worker), false) = (unknown, moved) {
            let found = format!("{} on {}", worker.id, self.envoys[envoy].node);
            self.violate("topology never outruns discovery", &found);
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
        if sizes.sessions > self.plan.sessions_max {
            self.violate("the table is bounded", &format!("{sizes:?}"));
        }
        let ids: Vec<_> = self.sessions.iter().filter_map(|session| session.id).collect();
        for id in ids {
            let Some(view) = self.service.state.session(self.service_now(), id) else {
                self.bindings_seen.remove(&id);
                continue;
            };
            if matches!(view.state, SessionState::Held { .. }) {
                continue;
            }
            let now = (view.version, view.target, view.state == SessionState::Released);
            let before = self.bindings_seen.insert(id, now.clone());
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
            if cell.vm.loads.total() != cell.placed {
                found = Some((
                    "load counts each placed request once",
                    format!("{} of {}", cell.vm.loads.total(), cell.placed),
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

    /// The client learns who served after an accepting answer alone, and learns the truth.
    pub(crate) fn check_told(&mut self, request: &Request, name: &str, value: &str) {
        let landed = request.landed.as_ref().filter(|_| request.accepted);
        let worker = value.split(';').next();
        if name != header::SERVED || landed.is_none_or(|(id, _)| Some(id.as_str()) != worker) {
            self.violate("who served is told truly", &format!("{name}: {value}, {landed:?}"));
        }
        self.stats.told += 1;
    }

    /// At the end of a request that nobody cut short.
    pub(crate) fn check_over(&mut self, request: &Request) {
        let one = request.decisions.len() == 1;
        if !one && request.phase != Phase::Deciding {
            self.violate("one placement or one local reply", &format!("{:?} at the end", request.decisions));
        }
        if request.responded
            && !matches!(
                request.decisions[..],
                [Counter::KeyTooLong | Counter::NamedRefused | Counter::NoTopology]
            )
        {
            self.violate("a local reply has its reason", &format!("{:?}", request.decisions));
        }
        let routed = self.plan.policy == Policy::SessionHash && request.routes > 0;
        if routed {
            self.violate("session_hash never asks", &format!("{} calls", request.routes));
        }
    }

    /// An engine accepted a turn.
    pub(crate) fn landed(&mut self, request: &Request) {
        let Some(landed) = request.landed.clone() else { return };
        self.stats.accepted += 1;
        if request.spilled {
            // Served elsewhere this once: its binding stays, and the next turns show it.
            return self.fired.count(Fault::Spilled);
        }
        let session = &mut self.sessions[request.session];
        if session.id.is_none() {
            return;
        }
        *session.landings.entry(landed).or_default() += 1;
        // Where a worker got more ranks, its sessions get one each and stay.
        let grown = |id: &WorkerId| self.workers.iter().any(|worker| worker.id == *id && worker.regrown);
        let places = session.landings.keys().map(|(id, rank)| (id, rank.filter(|_| !grown(id))));
        if places.collect::<BTreeSet<_>>().len() > 1 && session.costs.is_empty() {
            let found = format!("session {} on {:?}", request.session, session.landings);
            self.violate("a session keeps its slot", &found);
        }
    }

    /// When no request is open and all is told.
    pub(crate) fn is_quiet(&self) -> bool {
        let told = |cell: &crate::envoy::VmCell| cell.vm.reports.is_empty();
        self.requests.is_empty()
            && self.envoys.iter().flat_map(|envoy| &envoy.vms).all(told)
            && self.sessions.iter().all(|session| session.turns_left == 0 && session.open == 0)
    }

    /// Once quiet, and every lease of the dead is over.
    pub(crate) fn check_quiet(&mut self) {
        let mut found = Vec::new();
        for worker in self.service.state.workers() {
            if worker.in_flight() != 0 || worker.reserved() != 0 {
                found.push((
                    "no load is left behind",
                    format!("{}: {} + {}", worker.id(), worker.in_flight(), worker.reserved()),
                ));
            }
        }
        let sizes = self.service.state.sizes();
        if sizes.holds > 0 {
            found.push(("no hold outlives its request", format!("{} holds: {:?}", sizes.holds, self.held())));
        }
        let alive = self.envoys.iter().map(|envoy| envoy.vms.len()).sum::<usize>();
        if sizes.vms != alive {
            found.push(("dead VMs are forgotten", format!("{} of {alive}", sizes.vms)));
        }
        if self.plan.policy == Policy::SessionHash && sizes.sessions + sizes.tombstones > 0 {
            found.push(("session_hash stores nothing", format!("{sizes:?}")));
        }
        for envoy in &self.envoys {
            let topology = self.service.state.topology_for(&envoy.node);
            let mut told = routing::directory::Directory::new(&topology);
            told.update(self.service.state.fleet());
            if envoy.vms.iter().any(|cell| cell.vm.directory.as_ref() != Some(&told)) {
                found.push(("every VM learns the fleet", envoy.node.clone()));
            }
        }
        for (invariant, found) in found {
            self.violate(invariant, &found);
        }
    }

    fn held(&self) -> Vec<usize> {
        let held = |session: &Session| {
            let view = session.id.and_then(|id| self.service.state.session(self.service_now(), id));
            view.is_some_and(|view| matches!(view.state, SessionState::Held { .. }))
        };
        (0..self.sessions.len()).filter(|n| held(&self.sessions[*n])).collect()
    }

    /// After one more turn on each Envoy, with no fault about.
    pub(crate) fn check_served(&mut self) {
        let keyed = |session: &&Session| session.id.is_some();
        let unserved = |session: &&Session| session.finals.iter().flatten().count() != self.envoys.len();
        if let Some(session) = self.sessions.iter().filter(keyed).find(unserved) {
            let found = format!("{:?}", session.finals);
            self.violate("every request is served in the end", &found);
        }
    }

    /// Whatever happened, each session has one slot in the end.
    pub(crate) fn check_agreement(&mut self) {
        let mut split = None;
        for (n, session) in self.sessions.iter().enumerate().filter(|(_, session)| session.id.is_some()) {
            let agree = session.finals.windows(2).all(|pair| pair[0] == pair[1]);
            if !agree && !may_last(&session.costs) {
                split = Some(format!("session {n}: {:?}, {:?}", session.finals, session.costs));
            }
            self.stats.sessions_without_cost += u64::from(session.costs.is_empty());
            self.stats.sessions += 1;
        }
        if let Some(found) = split {
            self.violate("Envoys agree in the end", &found);
        }
    }

    /// After touches fell due and were told: nothing in use grows old at the service, whatever clocks say elsewhere.
    pub(crate) fn check_touched(&mut self) {
        let idle = |session: &Session| {
            let view = self.service.state.session(self.service_now(), session.id?)?;
            (view.state == SessionState::Bound).then(|| TTL.0.saturating_sub(view.expires_in.0))
        };
        let old = self.sessions.iter().enumerate().filter_map(|(n, session)| Some((n, idle(session)?)));
        if let Some((n, idle)) = old.max_by_key(|(_, idle)| *idle).filter(|(_, idle)| *idle > IDLE_MAX) {
            self.violate("a session in use does not grow old", &format!("session {n}: {idle} ms"));
        }
    }

    /// One version names one slot, in every page and at the service.
    pub(crate) fn check_versions(&mut self) {
        let mut found = None;
        for (n, session) in self.sessions.iter().enumerate() {
            let Some(id) = session.id else { continue };
            let pages = self.envoys.iter().filter_map(|envoy| envoy.shared.record(id));
            let bound = pages.filter(|record| record.certainty == Certainty::Bound);
            let mut slots: Vec<_> = bound.map(|r| (r.version, (r.worker_hash, r.rank))).collect();
            let view = self.service.state.session(self.service_now(), id);
            let view = view.filter(|view| view.state == SessionState::Bound);
            slots.extend(view.and_then(|view| {
                let target = view.target?;
                Some((view.version, (worker_hash(&target.worker), target.rank)))
            }));
            let twice = |(nth, one): (usize, &(_, _))| {
                slots.iter().skip(nth).any(|other: &(_, _)| other.0 == one.0 && other.1 != one.1)
            };
            if slots.iter().enumerate().any(twice) {
                found = Some(format!("session {n}: {slots:?}, {:?}", session.costs));
            }
        }
        if let Some(found) = found {
            self.violate("no version has two slots", &found);
        }
    }

    /// A VM's whole memory is gone: sessions it had not told all about may be anywhere.
    pub(crate) fn vm_death_costs(&mut self, envoy: usize, vm: usize) {
        self.fired.count(Fault::VmDied);
        let dead = &self.envoys[envoy].vms[vm];
        let told_all = |n: usize| {
            let session = &self.sessions[n];
            let open = self.requests.values().any(|r| r.session == n && (r.at.envoy, r.at.vm) == (envoy, vm));
            !open && session.id.is_none_or(|id| dead.vm.reports.about(id).is_empty())
        };
        let untold: Vec<usize> = (0..self.sessions.len()).filter(|n| !told_all(*n)).collect();
        for session in untold {
            self.cost(session, Cost::VmDied);
        }
    }
}
