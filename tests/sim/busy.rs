//! Drains, full caches and the gauges that show them; what must be so of slots that are overloaded.

use crate::faults::{Cost, Fault};
use crate::planted::Bug;
use crate::replicas::Life;
use crate::world::{Event, World};
use routing::contract::{Outcome, Policy, RouteReply, WorkerState};
use routing::id::Rank;
use routing::time::Millis;
use state_service::state::{Command, Reply, SlotGauges};

/// Between two scrapes of a worker, in ms.
const SCRAPES: u64 = 1000;
/// What a full cache shows, in thousandths.
const FULL: u32 = 970;
/// What any other shows.
const ROOMY: u32 = 100;

impl World {
    /// Its sessions stay, but nobody comes; from the deadline on they have to go.
    pub(crate) fn drain(&mut self, worker: usize, deadline: Option<u64>, lasts: u64) {
        if !self.workers[worker].declared || !self.is_service_up() || self.workers[worker].drains {
            return;
        }
        let (id, life) = (self.workers[worker].id.clone(), self.service.life);
        let spoilt = self.bug == Some(Bug::DrainsAreForgotten);
        let drain = Command::DrainWorker { id, deadline: deadline.map(Millis) };
        // Declared a moment ago, but not to this life of the service.
        if !spoilt && matches!(self.apply(drain), Reply::Refused(_)) {
            return;
        }
        self.fired.count(Fault::WorkerDrained);
        self.workers[worker].drains = true;
        if self.plan.policy == Policy::SessionHash {
            self.cost_all(Cost::WorkerChanged);
        }
        if let Some(deadline) = deadline {
            self.after(deadline.saturating_sub(1), Event::DrainOver { worker, life });
        }
        self.after(lasts, Event::Resume { worker, life });
    }

    /// A service that died forgot its drains.
    fn still_drains(&self, worker: usize, life: Life) -> bool {
        self.workers[worker].drains && life == self.service.life && self.is_service_up()
    }

    pub(crate) fn drain_over(&mut self, worker: usize, life: Life) {
        if self.still_drains(worker, life) {
            self.fired.count(Fault::DrainOver);
            self.cost_all(Cost::WorkerChanged);
        }
    }

    pub(crate) fn resume(&mut self, worker: usize, life: Life) {
        if !self.still_drains(worker, life) {
            return;
        }
        let id = self.workers[worker].id.clone();
        let state = self.service.state.worker(&id).map(state_service::state::Worker::state);
        if state == Some(WorkerState::Down) || self.plan.policy == Policy::SessionHash {
            self.cost_all(Cost::WorkerChanged);
        }
        self.workers[worker].drains = false;
        self.apply(Command::ResumeWorker { id });
    }

    /// Faults are over: whoever drains takes sessions again.
    pub(crate) fn stop_drains(&mut self) {
        for worker in 0..self.workers.len() {
            self.resume(worker, self.service.life);
            self.workers[worker].drains = false;
            self.workers[worker].kv_permille = ROOMY;
        }
    }

    pub(crate) fn cache_fills(&mut self, worker: usize, lasts: u64) {
        self.workers[worker].kv_permille = FULL;
        self.after(lasts, Event::CacheClears { worker });
    }

    pub(crate) fn cache_clears(&mut self, worker: usize) {
        self.workers[worker].kv_permille = ROOMY;
    }

    pub(crate) fn gauges_stop(&mut self, worker: usize) {
        self.fired.count(Fault::GaugesStopped);
        self.workers[worker].silent = true;
    }

    /// What its engine shows, told now or a little later.
    pub(crate) fn scrape(&mut self, worker: usize) {
        self.after(SCRAPES, Event::Scrape { worker });
        if self.workers[worker].silent || !self.workers[worker].declared {
            return;
        }
        let late = self.plan.extra.gauges_late;
        let late = self.faults_on && self.rng.per_mille(late);
        let delay = if late { self.rng.within(300, 900) } else { self.rng.within(1, 20) };
        if late {
            self.fired.count(Fault::GaugesLate);
        }
        let full = self.workers[worker].kv_permille >= FULL;
        let most = if self.faults_on { 3 } else { 1 };
        let waiting = u32::try_from(self.rng.below(most)).unwrap();
        let shown = |rank| SlotGauges {
            rank,
            running: 1,
            waiting,
            kv_permille: Some(if full { FULL } else { ROOMY }),
        };
        let ranks = |(start, size, of): (u32, u32, u32)| -> Vec<SlotGauges> {
            if of > 1 {
                (start..start + size).map(|rank| shown(Some(Rank(rank)))).collect()
            } else {
                vec![shown(None)]
            }
        };
        let endpoints: Vec<_> =
            self.workers[worker].live_endpoints().map(|e| (e.start, e.size, e.of.1)).collect();
        for (endpoint, one) in endpoints.into_iter().enumerate() {
            let slots = ranks(one);
            self.after(delay, Event::Scraped { worker, endpoint, slots });
        }
    }

    pub(crate) fn scraped(&mut self, worker: usize, endpoint: usize, slots: &[SlotGauges]) {
        if self.workers[worker].declared {
            let worker = self.workers[worker].id.clone();
            self.at_each_up(|world| {
                let (worker, slots) = (worker.clone(), slots.to_vec());
                world.apply(Command::Gauges { worker, endpoint, slots, strays: 0 });
            });
        }
    }

    /// Nobody new is sent to a worker that drains.
    pub(crate) fn check_newcomer(&mut self, reply: &RouteReply) {
        let new = match reply.outcome {
            Outcome::Held => reply.reason != "joined",
            // Who asks for a request that is over is nobody.
            Outcome::Unpinned => reply.reason != "over",
            _ => false,
        };
        let Some(target) = reply.target.as_ref().filter(|_| new) else { return };
        if self.workers.iter().any(|worker| worker.id == target.worker && worker.drains) {
            self.violate("a draining worker takes nobody new", &format!("{target:?}: {}", reply.reason));
        }
    }

    /// Once all is quiet: what was overloaded is so no more, whether its gauges said so or are long silent.
    pub(crate) fn check_overload(&mut self) {
        self.at_each(|world| {
            let busy = world.service.state.workers().find(|worker| worker.overloaded_slots() > 0);
            let waiting = world.service.state.workers().find(|worker| worker.waiting() > 0);
            if let Some(id) = busy.or(waiting).map(|worker| worker.id().to_string()) {
                world.violate("no overload is left behind", &id);
            }
        });
    }
}
