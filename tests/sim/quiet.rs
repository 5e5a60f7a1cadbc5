//! What must be so once faults have stopped and all is quiet.

use crate::client::{Final, Landing, Session};
use crate::faults::{Fault, may_last};
use crate::service::TTL;
use crate::world::World;
use routing::contract::{Affinity, Policy, RankChoice};
use routing::hash::worker_hash;
use routing::id::SessionId;
use routing::page::Certainty;
use state_service::state::SessionState;

/// A touch falls due after an eighth of the ttl; finals and their reports take the rest.
const IDLE_MAX: u64 = TTL.0 / 8 + 20_000;

impl World {
    /// When no request is open and all is told.
    pub(crate) fn is_quiet(&self) -> bool {
        let told = |cell: &crate::envoy::VmCell| cell.vm.reports.is_empty();
        self.requests.is_empty()
            && self.envoys.iter().flat_map(|envoy| &envoy.vms).all(told)
            && self.sessions.iter().all(|session| session.turns_left == 0 && session.open == 0)
    }

    /// Once quiet, and every lease of the dead is over.
    pub(crate) fn check_quiet(&mut self) {
        let at = self.service.life.replica;
        for replica in 0..self.plan.replicas {
            self.turn_to(replica);
            self.check_quiet_here();
        }
        self.turn_to(at);
        self.check_endings();
    }

    fn check_quiet_here(&mut self) {
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
        // A leap of the service's clock ends the memory of who is over; the next touch ends such a hold.
        let leapt = !self.in_finals && self.fired.of(Fault::ServiceClockLeapt) > 0;
        if sizes.holds > 0 && !leapt {
            found.push(("no hold outlives its request", format!("{} holds: {:?}", sizes.holds, self.held())));
        }
        let alive = self.envoys.iter().map(|envoy| envoy.vms.len()).sum::<usize>();
        if sizes.vms != alive {
            found.push(("dead VMs are forgotten", format!("{} of {alive}", sizes.vms)));
        }
        let stores = self.plan.policy != Policy::SessionHash && self.plan.affinity != Affinity::Off;
        if !stores && sizes.sessions + sizes.tombstones > 0 {
            found.push(("session_hash and no affinity store nothing", format!("{sizes:?}")));
        }
        found.extend(self.untold().map(|node| ("every VM learns the fleet", node)));
        let shown = self.envoys.iter().map(|envoy| envoy.shared.seats.shown()).sum::<u64>();
        if shown != 0 {
            found.push(("gauges return to 0", shown.to_string()));
        }
        for (invariant, found) in found {
            self.violate(invariant, &found);
        }
    }

    /// An Envoy with a VM that does not know the present fleet.
    pub(crate) fn untold(&self) -> Option<String> {
        self.envoys.iter().find_map(|envoy| {
            let service = self.replica(envoy.replica);
            let topology = service.state.topology_for(&envoy.node);
            let mut told = routing::directory::Directory::new(&topology);
            told.update(service.state.fleet());
            let differs = envoy.vms.iter().any(|cell| cell.vm.directory.as_ref() != Some(&told));
            differs.then(|| envoy.node.clone())
        })
    }

    /// Soon after all is quiet: the service forgot dead VMs at the word of the living, long before their lease ended.
    pub(crate) fn check_graves(&mut self) {
        let alive = self.envoys.iter().map(|envoy| envoy.vms.len()).sum::<usize>();
        // A late report of the dead raises them until their lease ends; a watcher that dies takes its word along.
        let sure = self.plan.net.report_late == 0 && self.envoys.iter().all(|envoy| envoy.deaths < 2);
        let known = self.service.state.sizes().vms;
        // What replicas tell each other may come late, too.
        if sure && known > alive && !self.is_shared() {
            self.violate("the service hears of dead VMs", &format!("{known} of {alive}"));
        }
    }

    fn held(&self) -> Vec<(usize, SessionId)> {
        let held = |id: &SessionId| {
            let view = self.service.state.session(self.service_now(), *id);
            view.is_some_and(|view| matches!(view.state, SessionState::Held { .. }))
        };
        let all = self.sessions.iter().enumerate();
        all.flat_map(|(n, session)| session.ids().filter(held).map(move |id| (n, id))).collect()
    }

    /// After one more turn on each Envoy, with no fault about.
    pub(crate) fn check_served(&mut self) {
        let keyed = |session: &&Session| session.id.is_some() && !self.may_be_refused(session);
        let unserved = |session: &&Session| session.finals_served() != self.envoys.len();
        if let Some(session) = self.sessions.iter().filter(keyed).find(unserved) {
            let found = format!("{:?}", session.finals);
            self.violate("every request is served in the end", &found);
        }
    }

    /// Whatever happened, each session has one slot in the end.
    pub(crate) fn check_agreement(&mut self) {
        let mut split = None;
        for (n, session) in self.sessions.iter().enumerate().filter(|(_, session)| session.id.is_some()) {
            // A soft session may move with the load of the finals themselves; then pages say whether Envoys agree.
            let at = |one: &Final| if let Final::Served(at) = one { Some(at.clone()) } else { None };
            let served: Vec<Landing> = session.finals.iter().filter_map(at).collect();
            let pinned = self.plan.affinity == Affinity::Hard;
            let loose = self.plan.rank == RankChoice::Engine;
            let served: Vec<_> = served.into_iter().map(|(id, rank)| (id, rank.filter(|_| !loose))).collect();
            let agree = !pinned || served.windows(2).all(|pair| pair[0] == pair[1]);
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
        let envoys = self.envoys.len();
        let idle = |session: &Session| {
            // One that is refused at every Envoy is not in use, nor is one that nobody finds any more.
            if session.finals_served() < envoys || session.is_lost() {
                return None;
            }
            // The Envoy that was asked last touched it; all others were told.
            let view = self.service.state.session(self.service_now(), session.id?)?;
            (view.state == SessionState::Bound).then(|| TTL.0.saturating_sub(view.expires_in.0))
        };
        let old = self.sessions.iter().enumerate().filter_map(|(n, session)| Some((n, idle(session)?)));
        if let Some((n, idle)) = old.max_by_key(|(_, idle)| *idle).filter(|(_, idle)| *idle > IDLE_MAX) {
            self.violate("a session in use does not grow old", &format!("session {n}: {idle} ms"));
        }
    }

    /// Every Envoy that pins a session pins it where the service has it.
    pub(crate) fn check_pages(&mut self) {
        let mut found = None;
        // What an Envoy refuses it does not touch, so its record may be as old as it likes.
        let served = |s: &Session| s.finals_served() == self.envoys.len();
        let judged = |s: &Session| served(s) && !s.is_lost() && !may_last(&s.costs);
        for (n, session) in self.sessions.iter().enumerate().filter(|(_, session)| judged(session)) {
            let view = session.id.and_then(|id| self.service.state.session(self.service_now(), id));
            let Some(view) = view.filter(|view| view.state == SessionState::Bound) else { continue };
            let stale = self.envoys.iter().find_map(|envoy| {
                let record = envoy.shared.record(view.id)?;
                let pinned = record.certainty == Certainty::Bound
                    && envoy.vms.iter().any(|cell| cell.vm.generation == record.generation);
                (pinned && record.version != view.version).then_some(record)
            });
            found = stale.map(|record| format!("session {n}: {record:?}, {view:?}")).or(found);
        }
        if let Some(found) = found {
            self.violate("pages are where the service is", &found);
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
            if slots.iter().enumerate().any(twice) && !may_last(&session.costs) {
                found = Some(format!("session {n}: {slots:?}, {:?}", session.costs));
            }
        }
        if let Some(found) = found {
            self.violate("no version has two slots", &found);
        }
    }
}
