//! Workers as declared, with their addresses, health and load; sorted by id, found by hash.
//!
//! Owns what one worker is. Whether a declaration is taken, and who is told, is decided in `fleet.rs`.

use super::binding::Slot;
use super::gauges::Gauges;
use super::health::Health;
use super::load::WorkerLoad;
use super::overload::Overload;
use crate::declare::{EndpointSpec, WorkerSpec};
use routing::contract::{EndpointInfo, Target, WorkerInfo, WorkerState};
use routing::hash::{hashed_rank, worker_hash};
use routing::header::cluster::WORKER_PREFIX;
use routing::id::{Rank, RankHash, WorkerId};
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Name of the Envoy cluster of endpoint `index` of a worker: `rankpin-worker-W`, `rankpin-worker-W.1`, …
#[must_use]
pub fn cluster_name(worker: &WorkerId, index: usize) -> String {
    match index {
        0 => format!("{WORKER_PREFIX}{worker}"),
        _ => format!("{WORKER_PREFIX}{worker}.{index}"),
    }
}

/// A declared worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    pub(super) spec: WorkerSpec,
    pub(super) hash: u64,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) health: Health,
    pub(super) load: WorkerLoad,
    /// What its engine says.
    pub(super) gauges: Gauges,
    /// Which of its slots are overloaded.
    pub(super) overload: Overload,
    /// Requests in flight that one slot takes, its own word or its pool's; no limit when absent.
    pub(super) in_flight_limit: Option<u32>,
    /// Number of the first of its gauges.
    pub(super) first_slot: Option<u32>,
    /// xDS version that first had the worker as it is now.
    pub(super) since: u64,
    /// How it looked before, for nodes that have not acknowledged the change.
    pub(super) before: Option<Box<Before>>,
    /// Number of its declaration among all it ever had; 0: they have none.
    pub(super) generation: u64,
}

/// An endpoint and where its name leads now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// As declared.
    pub spec: EndpointSpec,
    /// Where Envoy dials it under endpoints steering; `None` while the name does not resolve.
    pub resolved: Option<SocketAddr>,
}

/// A worker's look under an older xDS version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) info: WorkerInfo,
    pub(super) since: u64,
}

impl Worker {
    pub(super) fn new(spec: WorkerSpec, since: u64) -> Self {
        let endpoints = spec.endpoints.iter().map(Endpoint::new).collect::<Vec<_>>();
        let health = Health::new(endpoints.len());
        let hash = worker_hash(&spec.id);
        let in_flight_limit = spec.in_flight_limit;
        Self {
            spec,
            hash,
            endpoints,
            health,
            load: WorkerLoad::default(),
            gauges: Gauges::default(),
            overload: Overload::default(),
            in_flight_limit,
            first_slot: None,
            since,
            before: None,
            generation: 0,
        }
    }

    /// As declared.
    #[must_use]
    pub const fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> &WorkerId {
        &self.spec.id
    }

    /// Its endpoints, in the order of the declaration.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// What the fleet is told of it.
    #[must_use]
    pub const fn state(&self) -> WorkerState {
        self.health.state()
    }

    /// Whether an operator drains it, a drain that is over included.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.health.is_draining()
    }

    /// Whether it drains, and how long yet, if its drain has an end; 0: it is over.
    #[must_use]
    pub fn drain_left(&self, now: Timestamp) -> Option<Option<Millis>> {
        self.health.drain_left(now)
    }

    /// Requests in flight as last reported by all VMs.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.load.reported()).unwrap_or(u32::MAX)
    }

    /// Choices made that no report covers yet.
    #[must_use]
    pub const fn reserved(&self) -> u64 {
        self.load.reserved()
    }

    /// Its slots, in the order of their gauges, with the number of each: the ranks, then requests without a rank where there
    /// are several ranks.
    pub fn slots(&self) -> impl Iterator<Item = (Target, Option<u32>)> {
        let (start, count) = (self.spec.rank_start(), self.spec.rank_count());
        let ranks = (0..count).map(move |nth| (count > 1).then_some(Rank(start.saturating_add(nth))));
        let all = ranks.chain((count > 1).then_some(None));
        let target = |rank| Target { worker: self.spec.id.clone(), rank };
        (0..).zip(all).map(move |(nth, rank)| (target(rank), self.first_slot.map(|first| first + nth)))
    }

    /// xDS version that first had it as it is now.
    #[must_use]
    pub const fn xds_since(&self) -> u64 {
        self.since
    }

    pub(super) const fn is_usable(&self) -> bool {
        self.state().serves_bound()
    }

    /// The slot a new session takes here.
    pub(super) fn slot_for(&self, hash: RankHash) -> Slot {
        Slot::new(self.hash, hashed_rank(hash, self.spec.rank_start(), self.spec.rank_count()))
    }

    /// Whether a binding's rank is still one of ours.
    pub(super) fn has_rank(&self, rank: Option<Rank>) -> bool {
        let start = self.spec.rank_start();
        rank.is_none_or(|rank| (start..start + self.spec.rank_count()).contains(&rank.0))
    }

    /// A rank as it is kept: none where there is only one.
    pub(super) fn slot_of(&self, rank: Option<Rank>) -> Slot {
        Slot::new(self.hash, rank.filter(|_| self.spec.rank_count() > 1))
    }

    /// How a binding to this worker travels.
    pub(super) fn target(&self, slot: Slot) -> Target {
        Target { worker: self.spec.id.clone(), rank: slot.rank().filter(|_| self.spec.rank_count() > 1) }
    }

    /// How it looks now, to be kept when that changes.
    pub(super) fn as_before(&self) -> Box<Before> {
        Box::new(Before { info: self.info(), since: self.since })
    }

    pub(super) fn info(&self) -> WorkerInfo {
        let endpoints = self.endpoints.iter().map(Endpoint::info).collect();
        WorkerInfo {
            engine: self.spec.engine,
            weight: self.spec.weight,
            device: self.spec.device,
            first_slot: self.first_slot,
            phase: self.spec.phase,
            models: self.spec.models.clone(),
            labels: self.spec.labels.clone(),
            engine_version: self.spec.engine_version.clone(),
            rank_in: self.spec.rank_in,
            in_flight_limit: self.spec.in_flight_limit,
            ..WorkerInfo::with_defaults(self.spec.id.clone(), self.spec.pool.clone(), endpoints)
        }
    }
}

impl Endpoint {
    fn new(spec: &EndpointSpec) -> Self {
        Self { spec: spec.clone(), resolved: spec.address.socket() }
    }

    /// An endpoint whose name does not resolve travels with an empty address: it exists for cluster steering alone.
    fn info(&self) -> EndpointInfo {
        EndpointInfo {
            address: self.resolved.map(|a| a.to_string()).unwrap_or_default(),
            rank_numbering: self.spec.rank_numbering,
            dp_start: self.spec.dp_start,
            dp_size: self.spec.dp_size,
        }
    }
}

/// All workers.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// By id.
    sorted: Vec<Worker>,
    by_hash: BTreeMap<u64, usize>,
    /// Slots whose load or gauges changed since they were judged.
    touched: Vec<Slot>,
}

impl Workers {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Worker> {
        self.sorted.iter()
    }

    pub(super) const fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(super) fn by_id(&self, id: &WorkerId) -> Option<&Worker> {
        self.index(id).ok().and_then(|i| self.sorted.get(i))
    }

    pub(super) fn by_id_mut(&mut self, id: &WorkerId) -> Option<&mut Worker> {
        self.index(id).ok().and_then(|i| self.sorted.get_mut(i))
    }

    pub(super) fn by_hash(&self, hash: u64) -> Option<&Worker> {
        self.by_hash.get(&hash).and_then(|i| self.sorted.get(*i))
    }

    pub(super) fn by_hash_mut(&mut self, hash: u64) -> Option<&mut Worker> {
        self.by_hash.get(&hash).and_then(|i| self.sorted.get_mut(*i))
    }

    pub(super) fn put(&mut self, worker: Worker) {
        match self.index(&worker.spec.id) {
            Ok(i) => {
                if let Some(place) = self.sorted.get_mut(i) {
                    *place = worker;
                }
            }
            Err(i) => {
                self.sorted.insert(i, worker);
                self.index_hashes();
            }
        }
    }

    pub(super) fn remove(&mut self, id: &WorkerId) -> Option<Worker> {
        let removed = self.index(id).ok().map(|i| self.sorted.remove(i));
        self.index_hashes();
        removed
    }

    /// Marks drains that are over; true when one ended just now.
    pub(super) fn expire_drains(&mut self, now: Timestamp) -> bool {
        let mut ended = false;
        for worker in &mut self.sorted {
            let before = worker.state();
            worker.health.expire_drain(now);
            ended |= worker.state() != before;
        }
        ended
    }

    /// A slot is to be judged anew, once the command under way has said all it has to say of it.
    pub(super) fn touch(&mut self, slot: Slot) {
        if self.touched.last() != Some(&slot) {
            self.touched.push(slot);
        }
    }

    /// All slots of a worker of which there is anything to judge, and the one that stands for the whole.
    pub(super) fn touch_all(&mut self, id: &WorkerId) {
        let Some(worker) = self.by_id(id) else { return };
        let ranks = worker.gauges.ranks().chain(worker.overload.slots()).chain([None]);
        let hash = worker.hash;
        let slots: Vec<Slot> = ranks.map(|rank| Slot::new(hash, rank)).chain(worker.load.slots()).collect();
        self.touched.extend(slots);
    }

    /// Slots whose gauges were forgotten for their age.
    pub(super) fn forget_gauges(&mut self, now: Timestamp) -> Vec<Slot> {
        let forget = |worker: &mut Worker| {
            let hash = worker.hash;
            worker.gauges.forget(now).into_iter().map(move |rank| Slot::new(hash, rank))
        };
        self.sorted.iter_mut().flat_map(forget).collect()
    }

    /// Slots to be judged, each once.
    pub(super) fn touched(&mut self) -> Vec<Slot> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    fn index(&self, id: &WorkerId) -> Result<usize, usize> {
        self.sorted.binary_search_by(|worker| worker.spec.id.cmp(id))
    }

    fn index_hashes(&mut self) {
        self.by_hash = self.sorted.iter().enumerate().map(|(i, w)| (w.hash, i)).collect();
    }
}
