//! Declaring, removing, draining and observing workers; versions of what the fleet is told.
//!
//! Owns which declarations are taken. Sessions are left alone: they are judged when they are next routed.

use super::State;
use super::command::{Declared, Effect};
use super::error::StateError;
use super::health::Observation;
use super::slots::needed;
use super::workers::{Worker, cluster_name};
use crate::config::OtherPools;
use crate::declare::{Address, POOL_DEFAULT, Told, WorkerSpec};
use routing::contract::{PoolInfo, WorkerState, WorkerStatus};
use routing::hash::worker_hash;
use routing::id::{PoolName, WorkerId};
use routing::time::{Millis, Timestamp};
use std::net::SocketAddr;

impl State {
    pub(super) fn put_worker(
        &mut self,
        now: Timestamp,
        mut spec: WorkerSpec,
        out: &mut Vec<Effect>,
    ) -> Result<Declared, StateError> {
        if let Some(known) = self.workers.by_id(&spec.id) {
            spec.keep_told(&known.spec);
        }
        self.put_spec(now, spec, out)
    }

    /// Takes what an engine told of itself, as if it had been declared.
    pub(super) fn told(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        address: &Address,
        told: &Told,
        out: &mut Vec<Effect>,
    ) -> Result<(), StateError> {
        let mut spec = self.worker_mut(id)?.spec.clone();
        match spec.take_told(address, told) {
            true => self.put_spec(now, spec, out).map(drop),
            false => Ok(()),
        }
    }

    fn put_spec(
        &mut self,
        now: Timestamp,
        spec: WorkerSpec,
        out: &mut Vec<Effect>,
    ) -> Result<Declared, StateError> {
        if self.workers.by_id(&spec.id).is_some_and(|known| known.spec == spec) {
            return Ok(Declared::Unchanged);
        }
        self.check_declaration(&spec)?;
        self.spring_up(&spec.pool)?;
        let id = spec.id.clone();
        self.bump_xds();
        let mut worker = Worker::new(spec, self.xds);
        let known = self.workers.by_id(&id);
        match known {
            Some(known) => take_over(&mut worker, known),
            None => worker.load = self.vms.load_of(worker.hash),
        }
        let declared = if known.is_some() { Declared::Replaced } else { Declared::Created };
        worker.first_slot = self.slots.resize(worker.first_slot, needed(worker.spec.rank_count()));
        let hash = worker.hash;
        let limit_of_pool = self.pools.get(&worker.spec.pool).and_then(|pool| pool.in_flight_limit);
        worker.in_flight_limit = worker.spec.in_flight_limit.or(limit_of_pool);
        self.workers.put(worker);
        self.gone.forget(hash);
        self.settle_kv(now, hash);
        self.workers.touch_all(&id);
        if declared == Declared::Created {
            self.settling.declared(now);
        }
        self.unpark(now, hash);
        self.drop_empty_pools();
        self.fleet_stale = true;
        out.extend([Effect::PersistWorkers, Effect::WorkerUp(id)]);
        Ok(declared)
    }

    fn check_declaration(&self, spec: &WorkerSpec) -> Result<(), StateError> {
        let max = self.config.limits.workers_max;
        if self.workers.len() >= max && self.workers.by_id(&spec.id).is_none() {
            return Err(StateError::TooManyWorkers { max });
        }
        let hash = worker_hash(&spec.id);
        if let Some(other) = self.workers.by_hash(hash).filter(|other| other.spec.id != spec.id) {
            return Err(StateError::HashTaken { id: spec.id.clone(), other: other.spec.id.clone() });
        }
        for other in self.workers.iter().filter(|other| other.spec.id != spec.id) {
            check_apart(spec, other)?;
        }
        Ok(())
    }

    fn spring_up(&mut self, pool: &PoolName) -> Result<(), StateError> {
        if self.pools.contains_key(pool) {
            return Ok(());
        }
        if self.config.service.other_pools == OtherPools::Refused {
            let declared = self.pools.keys().map(PoolName::as_str).collect::<Vec<_>>().join(", ");
            return Err(StateError::UnknownPool { pool: pool.clone(), declared });
        }
        let max = self.config.limits.pools_max;
        if self.pools.len() >= max {
            return Err(StateError::TooManyPools { max });
        }
        self.pools.insert(pool.clone(), PoolInfo::with_defaults(pool.clone()));
        Ok(())
    }

    /// All pools, by name, each with the models of its workers beside its own.
    #[must_use]
    pub fn pools_with_models(&self) -> Vec<PoolInfo> {
        let mut pools = self.pools.clone();
        for worker in self.workers.iter().filter(|worker| !worker.spec.models.is_empty()) {
            if let Some(pool) = pools.get_mut(&worker.spec.pool) {
                pool.models.extend_from_slice(&worker.spec.models);
            }
        }
        pools.values_mut().for_each(|pool| {
            pool.models.sort_unstable();
            pool.models.dedup();
        });
        pools.into_values().collect()
    }

    /// Pools that sprang up go with their last worker, so that names do not pile up.
    fn drop_empty_pools(&mut self) {
        if self.config.service.other_pools == OtherPools::Refused {
            return;
        }
        let workers = &self.workers;
        let used = |name: &PoolName| workers.iter().any(|worker| worker.spec.pool == *name);
        self.pools.retain(|name, _| name.as_str() == POOL_DEFAULT || used(name));
    }

    pub(super) fn remove_worker(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        out: &mut Vec<Effect>,
    ) -> Result<(), StateError> {
        let removed = self.workers.remove(id).ok_or_else(|| StateError::UnknownWorker { id: id.clone() })?;
        self.slots.give_back(removed.first_slot);
        self.gone.remember(id, removed.generation);
        self.settle_kv(now, removed.hash);
        self.bump_xds();
        self.drop_empty_pools();
        self.fleet_stale = true;
        out.extend([Effect::PersistWorkers, Effect::WorkerGone(id.clone())]);
        Ok(())
    }

    pub(super) fn drain_worker(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        deadline: Option<Millis>,
    ) -> Result<(), StateError> {
        let worker = self.worker_mut(id)?;
        worker.health.start_drain(deadline.map(|after| now + after));
        worker.health.expire_drain(now);
        self.fleet_stale = true;
        self.note_drains();
        Ok(())
    }

    pub(super) fn resume_worker(&mut self, id: &WorkerId) -> Result<(), StateError> {
        self.worker_mut(id)?.health.resume();
        self.fleet_stale = true;
        self.note_drains();
        Ok(())
    }

    /// An address that another endpoint has is refused, and this endpoint then counts as unresolved.
    pub(super) fn resolved(
        &mut self,
        id: &WorkerId,
        endpoint: usize,
        address: Option<SocketAddr>,
    ) -> Result<(), StateError> {
        // A resolver may spell an IPv4 address as IPv6.
        let address = address.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
        let taken = address.and_then(|address| self.owner_of(address, id, endpoint));
        let before = self.worker_mut(id)?.as_before();
        let place = self.worker_mut(id)?.endpoints.get_mut(endpoint);
        let place = place.ok_or_else(|| StateError::UnknownEndpoint { worker: id.clone(), endpoint })?;
        let address_now = if taken.is_some() { None } else { address };
        if place.resolved != address_now {
            place.resolved = address_now;
            self.bump_xds();
            let since = self.xds;
            let worker = self.worker_mut(id)?;
            worker.since = since;
            worker.before = Some(before);
        }
        match (taken, address) {
            (Some(worker), Some(address)) => {
                Err(StateError::AddressTaken { address: address.to_string(), worker })
            }
            _ => Ok(()),
        }
    }

    /// Which worker dials `address` already, apart from this very endpoint.
    fn owner_of(&self, address: SocketAddr, id: &WorkerId, endpoint: usize) -> Option<WorkerId> {
        let dials = |worker: &Worker| {
            let mut endpoints = worker.endpoints.iter().enumerate();
            endpoints.any(|(i, e)| e.resolved == Some(address) && !(worker.spec.id == *id && i == endpoint))
        };
        self.workers.iter().find(|worker| dials(worker)).map(|worker| worker.spec.id.clone())
    }

    pub(super) fn probe(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        endpoint: usize,
        healthy: bool,
    ) -> Result<(), StateError> {
        let worker = self.worker_mut(id)?;
        if endpoint >= worker.endpoints.len() {
            return Err(StateError::UnknownEndpoint { worker: id.clone(), endpoint });
        }
        self.observe(now, id, Observation::Probe { endpoint, healthy });
        Ok(())
    }

    /// Tells a worker's health something; false when there is no such worker.
    pub(super) fn observe(&mut self, now: Timestamp, id: &WorkerId, observation: Observation) -> bool {
        let Some(worker) = self.workers.by_id_mut(id) else { return false };
        let before = worker.state();
        worker.health.observe(now, observation);
        let after = worker.state();
        self.load_changed |= worker.health.penalty(now) > 0;
        if observation.is_refusal() && after != WorkerState::Down {
            self.doubted.insert(id.clone());
        }
        if before != after {
            self.fleet_stale = true;
            self.counters.workers_down += u64::from(after == WorkerState::Down);
            self.counters.workers_suspect += u64::from(after == WorkerState::Suspect);
        }
        true
    }

    pub(super) fn worker_mut(&mut self, id: &WorkerId) -> Result<&mut Worker, StateError> {
        self.workers.by_id_mut(id).ok_or_else(|| StateError::UnknownWorker { id: id.clone() })
    }

    fn bump_xds(&mut self) {
        self.xds += 1;
        self.views += 1;
        self.topology = self.views;
        self.news = true;
    }

    fn note_drains(&mut self) {
        self.next_drain = self.workers.iter().filter_map(|w| w.health.drain_deadline()).min();
    }

    /// Drains end by themselves; looked at before every command, so that no command sees one that is over.
    pub(super) fn end_drains(&mut self, now: Timestamp) {
        if self.next_drain.is_some_and(|deadline| deadline <= now) {
            self.fleet_stale |= self.workers.expire_drains(now);
            self.note_drains();
        }
    }

    /// Publishes a new fleet when a state changed, or when load did and the last one is old enough.
    pub(super) fn settle_fleet(&mut self, now: Timestamp) {
        let load_due = self.load_changed && now.since(self.fleet_at) >= self.config.limits.load_interval;
        if !self.fleet_stale && !load_due {
            return;
        }
        self.fleet_stale = false;
        let workers: Vec<WorkerStatus> = self.workers.iter().map(|worker| status(worker, now)).collect();
        // A penalty fades by itself: it is told until nothing is left of it.
        self.load_changed = workers.iter().any(|status| status.penalty > 0);
        if workers != self.fleet.workers {
            self.fleet.workers = workers;
            self.fleet.version += 1;
            self.fleet_at = now;
            self.news = true;
        }
    }
}

fn status(worker: &Worker, now: Timestamp) -> WorkerStatus {
    WorkerStatus {
        in_flight: worker.in_flight(),
        penalty: worker.health.penalty(now),
        waiting: worker.waiting(),
        overloaded: worker.overloaded_ranks(),
        all_overloaded: worker.all_overloaded(),
        ..WorkerStatus::idle(worker.spec.id.clone(), worker.state())
    }
}

/// What a new declaration keeps of the old one: load and drain always, findings when the addresses are the same.
fn take_over(worker: &mut Worker, known: &Worker) {
    worker.load = known.load.clone();
    worker.generation = known.generation;
    let ranks = |spec: &WorkerSpec| (spec.rank_start(), spec.rank_count());
    if addresses(&worker.spec) == addresses(&known.spec) && ranks(&worker.spec) == ranks(&known.spec) {
        worker.gauges = known.gauges.clone();
        worker.overload = known.overload.clone();
    }
    if dials_alike(&worker.spec, &known.spec) {
        // What Envoy dials is the same: nothing to wait for, and a rank that is gone must be gone everywhere at once.
        worker.since = known.since;
        worker.before.clone_from(&known.before);
    } else {
        worker.before = Some(known.as_before());
    }
    worker.first_slot = known.first_slot;
    for endpoint in &mut worker.endpoints {
        let same = known.endpoints.iter().find(|e| e.spec.address == endpoint.spec.address);
        endpoint.resolved = endpoint.resolved.or_else(|| same.and_then(|e| e.resolved));
    }
    if addresses(&worker.spec) == addresses(&known.spec) {
        worker.health = known.health.clone();
    } else {
        worker.health.keep_drain(&known.health);
    }
}

fn addresses(spec: &WorkerSpec) -> Vec<&Address> {
    spec.endpoints.iter().map(|endpoint| &endpoint.address).collect()
}

/// Whether Envoy reaches both by the same clusters and addresses.
fn dials_alike(a: &WorkerSpec, b: &WorkerSpec) -> bool {
    let dialled = |spec: &WorkerSpec| {
        spec.endpoints.iter().map(|e| (e.address.clone(), e.tls.clone())).collect::<Vec<_>>()
    };
    a.pool == b.pool && dialled(a) == dialled(b)
}

fn check_apart(spec: &WorkerSpec, other: &Worker) -> Result<(), StateError> {
    for endpoint in &spec.endpoints {
        let same = |e: &super::Endpoint| {
            e.spec.address == endpoint.address
                || endpoint.address.socket().is_some_and(|socket| e.resolved == Some(socket))
        };
        if other.endpoints.iter().any(same) {
            let address = endpoint.address.to_string();
            return Err(StateError::AddressTaken { address, worker: other.spec.id.clone() });
        }
    }
    check_clusters(spec, other)
}

/// `w.1` may be a worker of its own or the second endpoint of `w`, not both.
fn check_clusters(spec: &WorkerSpec, other: &Worker) -> Result<(), StateError> {
    let (ours, theirs) = (spec.id.as_str(), other.spec.id.as_str());
    if !ours.starts_with(theirs) && !theirs.starts_with(ours) {
        return Ok(());
    }
    let names: Vec<String> = (0..other.endpoints.len()).map(|i| cluster_name(&other.spec.id, i)).collect();
    let clash =
        (0..spec.endpoints.len()).map(|i| cluster_name(&spec.id, i)).find(|name| names.contains(name));
    clash.map_or(Ok(()), |cluster| Err(StateError::ClusterTaken { cluster, worker: other.spec.id.clone() }))
}
