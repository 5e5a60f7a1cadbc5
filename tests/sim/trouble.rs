//! Faults with a time of their own, as they begin and end, and which conversations each may cost their place.

use crate::answer::by_envoy;
use crate::client::Final;
use crate::envoy::VmCell;
use crate::faults::{Cost, Fault};
use crate::plan::Timed;
use crate::request::{Phase, Request};
use crate::service::{Service, Standing};
use crate::watcher::BURIED_WITHIN;
use crate::worker::{Mode, Worker};
use crate::world::{Event, VmAt, World};
use routing::config::Steering;
use routing::contract::{Policy, WorkerState};
use routing::directory::Directory;
use routing::flow::EnvoyReason;
use std::collections::BTreeSet;

impl World {
    pub(crate) fn probe_due(&mut self, worker: usize) {
        let healthy = matches!(self.workers[worker].mode, Mode::Accepts | Mode::Answers(_) | Mode::Busy(_));
        self.probe(worker, healthy);
        let next = self.rng.within(900, 1100);
        self.after(next, Event::Probe { worker });
    }

    pub(crate) fn fault(&mut self, fault: Timed) {
        match fault {
            Timed::VmDies { envoy, vm } => self.kill_vm(envoy, vm),
            Timed::ServiceRestarts { silent, down, keeps_file } => {
                self.crash_service(silent, down, keeps_file)
            }
            Timed::WorkerRefuses { worker, lasts } => self.set_mode(worker, Mode::Refuses, lasts),
            Timed::WorkerHangs { worker, lasts } => self.set_mode(worker, Mode::Hangs, lasts),
            Timed::WorkerAnswers { worker, status, lasts } => {
                self.set_mode(worker, Mode::Answers(status), lasts)
            }
            Timed::WorkerBusy { worker, status, lasts } => self.set_mode(worker, Mode::Busy(status), lasts),
            Timed::WorkerRemoved { worker, lasts, moves } => self.remove_worker(worker, lasts, moves),
            Timed::RanksChange { worker } => self.change_ranks(worker),
            Timed::RanksGrow { worker } => self.regrow(worker, 1, 8),
            Timed::RanksShrink { worker } => self.regrow(worker, 8, 4),
            Timed::WorkerRestarts { worker, lasts } => self.restart_worker(worker, lasts),
            Timed::WorkerJoins { worker } => self.join(worker),
            Timed::HostsVanish { envoy, worker, lasts } => self.hosts_vanish(envoy, worker, lasts),
            Timed::WorkerDrains { worker, deadline, lasts } => self.drain(worker, deadline, lasts),
            Timed::CacheFills { worker, lasts } => self.cache_fills(worker, lasts),
            Timed::GaugesStop { worker } => self.gauges_stop(worker),
            Timed::EnvoyClockJumps { envoy, by_ms } => self.envoy_clock_jumps(envoy, by_ms),
            Timed::ServiceClockLeaps { by } => self.service_clock_leaps(by),
            Timed::ReplicaDies { replica, silent, down } => self.replica_dies(replica, silent, down),
            Timed::ReplicaCut { replica, silent, lasts } => self.cut_replica(replica, silent, lasts),
            Timed::StoreDies { silent, forgets, lasts } => self.store_dies(silent, forgets, lasts),
            Timed::StoreFlushed => self.store_is_flushed(),
            Timed::StoreFailsOver { lag } => self.store_fails_over(lag),
            Timed::EnvoyShuns { envoy, replica, lasts } => self.envoy_shuns(envoy, replica, lasts),
        }
    }

    fn crash_service(&mut self, silent: bool, down: u64, keeps_file: bool) {
        if self.service.standing != Standing::Up {
            return;
        }
        self.fired.count(Fault::ServiceRestarted);
        if down > 0 {
            self.fired.count(Fault::ServiceRefused);
        }
        self.service.keeps_file = keeps_file;
        self.stop_service(if silent { Standing::Silent } else { Standing::Refusing });
        let life = self.service.life;
        self.after(down, Event::ServiceIsBack { life });
    }

    fn set_mode(&mut self, worker: usize, mode: Mode, lasts: u64) {
        self.workers[worker].mode = mode;
        self.after(lasts, Event::Heal { worker });
    }

    fn remove_worker(&mut self, worker: usize, lasts: u64, moves: bool) {
        if !self.workers[worker].declared {
            return;
        }
        self.fired.count(Fault::WorkerRemoved);
        self.cost_all(Cost::WorkerChanged);
        self.undeclare(worker);
        if moves {
            self.fired.count(Fault::WorkerMoved);
            self.workers[worker].move_away();
        }
        self.after(lasts, Event::Heal { worker });
    }

    /// Under cluster steering an Envoy learns the new address before the new ranks, so there the worker is removed first.
    fn change_ranks(&mut self, worker: usize) {
        if self.plan.steering == Steering::Cluster || !self.workers[worker].declared {
            return;
        }
        self.fired.count(Fault::WorkerRanksChanged);
        self.cost_all(Cost::WorkerChanged);
        self.workers[worker].change_ranks();
        self.declare(worker);
    }

    /// A session keeps its worker when that gets more ranks, and its rank unless that one went.
    fn regrow(&mut self, worker: usize, from: u32, to: u32) {
        if !self.workers[worker].declared || !self.workers[worker].regrow(from, to) {
            return;
        }
        self.fired.count(if to > from { Fault::RanksGrew } else { Fault::RanksShrank });
        let id = self.workers[worker].id.clone();
        let end = self.workers[worker].live_endpoints().map(|e| e.start + e.size).max().unwrap_or(0);
        for session in &mut self.sessions {
            let all = session.landings.keys().chain(session.prefill_landings.keys());
            let gone = all.into_iter().any(|(on, rank)| *on == id && rank.is_some_and(|r| r >= end));
            if to < from && (gone || session.open > 0) {
                session.costs.insert(Cost::WorkerChanged);
            }
        }
        self.declare(worker);
    }

    /// Its streams break, what waits for an answer is reset, and it is back at the same address with nothing cached.
    fn restart_worker(&mut self, worker: usize, lasts: u64) {
        self.fired.count(Fault::WorkerRestarted);
        self.set_mode(worker, Mode::Refuses, lasts);
        let here = |request: &&Request| request.dial.as_ref().is_some_and(|dial| dial.worker == worker);
        let cut: Vec<_> = self.requests.values().filter(here).map(|r| (r.id, r.dials, r.phase)).collect();
        for (request, dial, phase) in cut {
            let head = by_envoy(503, EnvoyReason::Unreached);
            self.after(
                0,
                match phase {
                    Phase::Deciding => continue,
                    Phase::Waiting => Event::Answered { request, dial, head },
                    Phase::Streaming => Event::StreamEnds { request, broken: true },
                },
            );
        }
    }

    /// One Envoy drops the hosts of a worker and finds them again; what it is told of workers does not change.
    fn hosts_vanish(&mut self, envoy: usize, worker: usize, lasts: u64) {
        self.fired.count(Fault::HostsVanished);
        let addresses: Vec<String> =
            self.workers[worker].live_endpoints().map(|e| e.address.clone()).collect();
        self.envoys[envoy].hidden.extend(addresses.clone());
        self.after(lasts, Event::HostsBack { envoy, addresses });
    }

    fn join(&mut self, worker: usize) {
        if !self.workers[worker].declared {
            self.fired.count(Fault::WorkerJoined);
            self.declare(worker);
        }
    }

    pub(crate) fn heal(&mut self, worker: usize) {
        self.workers[worker].mode = Mode::Accepts;
        if !self.workers[worker].declared {
            self.cost_all(Cost::WorkerChanged);
            self.declare(worker);
        }
    }

    pub(crate) fn some_worker_is_off(&self) -> bool {
        // Under `session_hash` every turn is a new one: a worker that drains loses its sessions at once.
        let serves = |state: WorkerState| match self.plan.policy {
            Policy::SessionHash => state != WorkerState::Draining && state.serves_bound(),
            _ => state.serves_bound(),
        };
        let down = |worker: &&Worker| {
            let asked = |service: &&Service| service.standing == Standing::Up || !self.is_shared();
            let mut states = self
                .replicas()
                .filter(asked)
                .map(|service| service.state.worker(&worker.id).map(state_service::state::Worker::state));
            !matches!(worker.mode, Mode::Accepts | Mode::Busy(429))
                || !worker.newcomer && !worker.declared
                || !worker.newcomer && states.any(|state| state.is_none_or(|state| !serves(state)))
        };
        self.workers.iter().any(|worker| down(&worker)) || self.some_vm_is_behind()
    }

    /// A worker that moved is dialled where the VM believes it is; Envoy goes on to the next one when that is gone.
    fn some_vm_is_behind(&self) -> bool {
        let addresses =
            |worker: &Worker| worker.live_endpoints().map(|e| e.address.clone()).collect::<BTreeSet<_>>();
        let known = |directory: &Directory, worker: &Worker| {
            let found = directory.workers.iter().find(|w| w.id == worker.id);
            let takes = |w: &&routing::directory::Worker| {
                self.plan.policy != Policy::SessionHash
                    || w.state != WorkerState::Draining && w.state.serves_bound()
            };
            found.map_or(worker.newcomer, |w| {
                takes(&w) && {
                    w.endpoints.iter().map(|e| e.address.clone()).collect::<BTreeSet<_>>()
                        == addresses(worker)
                }
            })
        };
        let behind = |directory: &Directory| self.workers.iter().any(|worker| !known(directory, worker));
        self.envoys
            .iter()
            .flat_map(|envoy| &envoy.vms)
            .any(|cell| cell.vm.directory.as_ref().is_none_or(behind))
    }

    /// Streams of a dead VM are cut; its successor starts with nothing but shared data.
    fn kill_vm(&mut self, envoy: usize, vm: usize) {
        self.vm_death_costs(envoy, vm);
        let dead: Vec<u64> = self
            .requests
            .values()
            .filter(|request| (request.at.envoy, request.at.vm) == (envoy, vm))
            .map(|request| request.id)
            .collect();
        let life = self.envoys[envoy].vms[vm].life + 1;
        let node = self.envoys[envoy].node.clone();
        let gone = self.envoys[envoy].vms[vm].vm.caller.vm;
        let knew = self.envoys[envoy].vms[vm].vm.directory.is_some();
        self.envoys[envoy].vms[vm] = VmCell::new(&node, life, self.rng.next());
        // One that knew no topology had no seat that would be missed.
        self.envoys[envoy].deaths += if knew { 1 } else { 2 };
        self.disturb(envoy);
        self.after(BURIED_WITHIN, Event::CheckBuried { envoy, dead: gone });
        self.after(100, Event::Tick(VmAt { envoy, vm, life }));
        for id in dead {
            self.stops_waiting(id);
            if let Some(request) = self.requests.remove(&id) {
                self.request_over(request.session, Final::Unserved);
            }
        }
    }

    pub(crate) fn stop_faults(&mut self) {
        self.faults_on = false;
        self.at_each(|world| {
            if world.service.standing != Standing::Up {
                world.restart_service();
            }
        });
        if self.is_shared() {
            self.heal_shared();
        }
        for worker in 0..self.workers.len() {
            self.heal(worker);
        }
        self.stop_drains();
    }
}
