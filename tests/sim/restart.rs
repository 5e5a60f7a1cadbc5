//! The service's death and its next life: a new `State` with a new epoch, with its workers from a file or declared again one by one.
//! Polls and calls that were there are cut.

use crate::envoy::{Envoy, VmCell};
use crate::faults::{Cost, Fault};
use crate::replicas::Life;
use crate::service::Standing;
use crate::worker::Worker;
use crate::world::{Event, World};
use routing::id::{Epoch, SessionId};
use routing::page::Certainty;
use state_service::declare::WorkerSpec;
use state_service::state::{Command, State};

impl World {
    pub(crate) fn restart_service(&mut self) {
        self.stop_service(Standing::Up);
        let epoch = Epoch(self.rng.next() >> 12 | 1);
        self.service.state = State::new(epoch, self.state_config());
        self.service.bindings_seen.clear();
        if self.is_shared() {
            self.join_store();
        } else {
            self.restart_costs();
        }
        if self.workers.iter().any(|worker| worker.drains) {
            // Drains are forgotten with the rest.
            self.workers.iter_mut().for_each(|worker| worker.drains = false);
            self.cost_all(Cost::WorkerChanged);
        }
        if self.is_shared() {
            let declared = self.workers.iter().filter(|worker| worker.declared).map(Worker::spec);
            self.service.declared = declared.map(|spec| (spec.id.clone(), spec)).collect();
        }
        let keeps_file = self.service.keeps_file || !self.faults_on || self.is_shared();
        for spec in self.service.declared.clone().into_values() {
            if keeps_file {
                self.put(spec);
            } else {
                // Whoever runs them declares them again, one after the other.
                let delay = self.rng.within(50, 700);
                let life = self.service.life;
                self.after(delay, Event::DeclaredAgain { life, spec: Box::new(spec) });
            }
        }
        if keeps_file {
            self.apply(Command::EarlierLife { all_told: true });
            self.tell_all_declared();
        } else {
            self.fired.count(Fault::ServiceLostItsFile);
        }
    }

    /// A binding survives the service: some Envoy has it in its pages, and nothing about it is under way. All others may move.
    fn restart_costs(&mut self) {
        for n in 0..self.sessions.len() {
            let ids: Vec<SessionId> = self.sessions[n].ids().collect();
            let told = |envoy: &Envoy| {
                let all = |cell: &VmCell| ids.iter().all(|id| cell.vm.reports.about(*id).is_empty());
                envoy.vms.iter().all(all)
            };
            let under_way = self.sessions[n].open > 0 || !self.envoys.iter().all(told);
            // A release dies with the service: an Envoy that had not heard of it tells the next one of the old binding.
            let comes_back = self.sessions[n].ended && ids.iter().any(|id| self.is_kept(*id));
            if self.sessions[n].begun && (comes_back || under_way || !ids.iter().all(|id| self.is_kept(*id)))
            {
                self.cost(n, Cost::Restarted);
            }
        }
    }

    /// Whether an Envoy will tell a new service of this binding. To one whose clock leaps ahead it looks expired.
    fn is_kept(&self, id: SessionId) -> bool {
        let evicts = self.plan.pages.0 <= 2;
        let bound = |envoy: &Envoy| envoy.shared.record(id).is_some_and(|r| r.certainty == Certainty::Bound);
        let kept = |(n, envoy): (usize, &Envoy)| bound(envoy) && !self.plan.leaps_ahead(n);
        !evicts && self.envoys.iter().enumerate().any(kept)
    }

    pub(crate) fn declared_again(&mut self, life: Life, spec: WorkerSpec) {
        let current = self.service.declared.get(&spec.id) == Some(&spec);
        if life == self.service.life && current && self.is_service_up() {
            self.put(spec);
        }
    }

    pub(crate) fn is_service_up(&self) -> bool {
        self.service.standing == Standing::Up
    }
}
