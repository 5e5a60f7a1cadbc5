//! The fleet as one filter VM knows it: topology and states, indexed for look-ups by worker hash, address and pool.
//!
//! Built once per version, never per request. Does not know where the blobs come from.

use crate::contract::{
    Affinity, Device, EndpointInfo, Fleet, OnAllOverloaded, OnOverload, Policy, PoolInfo, RankNumbering,
    Ranks, Topology, WorkerInfo, WorkerState,
};
use crate::demand::{Offer, TAINT};
use crate::engine::{Dialect, OnWire, Surface, number};
use crate::hash::{Phase, hashed_rank, worker_hash};
use crate::header;
use crate::id::{PoolName, Rank, RankHash, WorkerId};
use crate::order;
use crate::policy::{Candidate, Rules};
use crate::time::Millis;
use std::collections::BTreeMap;

/// The pool of workers that name none, and of listeners that name none where there are several.
const DEFAULT_POOL: &str = "default";

/// A pool and its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// How a slot is chosen.
    pub rules: Rules,
    /// How strongly a session is pinned.
    pub affinity: Affinity,
    /// What a session's turns carry as rank.
    pub ranks: Ranks,
    /// How far a soft session's worker may be above the best one.
    pub soft_margin_percent: u32,
    /// Idle time after which a binding expires.
    pub ttl: Millis,
    /// What becomes of a bound turn whose slot is overloaded.
    pub on_overload: OnOverload,
    /// The longest wait for an overloaded slot.
    pub wait: Millis,
    /// What becomes of a turn when every slot is.
    pub on_all_overloaded: OnAllOverloaded,
    /// Requests in flight from which on a slot is overloaded, unless its worker says otherwise.
    pub in_flight_limit: Option<u32>,
    /// Models it serves; empty: whatever is asked for.
    pub models: Vec<String>,
    /// Name of its Envoy cluster under `endpoints` steering.
    pub cluster: String,
    /// The half of a request that its members do; part of a session's id.
    pub phase: Phase,
    /// Workers that answer requests: indices into [`Directory::workers`], by worker id.
    pub members: Vec<usize>,
    /// The prefill half of a split pool, like a pool of its own.
    pub prefill: Option<Box<Pool>>,
    /// Whether some member refuses requests that demand nothing.
    pub tainted: bool,
    /// Whether some member wants to be told of conversations in `x-session-id`.
    pub conversations: bool,
    /// A request that the service places should bring its prompt.
    pub reads_prompt: bool,
}

impl Pool {
    /// Whether the service places whatever is bound nowhere, requests without a session too.
    #[must_use]
    pub fn is_kv_aware(&self) -> bool {
        self.rules.policy == Policy::KvAware
    }
}

/// A worker and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its id.
    pub id: WorkerId,
    /// Names it in cached bindings.
    pub hash: u64,
    /// Index of its pool in [`Directory::pools`].
    pub pool: usize,
    /// How its engine takes a rank.
    pub dialect: Dialect,
    /// Share in weighted choices.
    pub weight: u32,
    /// What it computes on.
    pub device: Device,
    /// Its endpoints, by first rank.
    pub endpoints: Vec<Endpoint>,
    /// First global rank.
    pub dp_start: u32,
    /// All ranks of all endpoints.
    pub dp_size: u32,
    /// Whether it may be used.
    pub state: WorkerState,
    /// Number of its first slot among the gauges.
    pub first_slot: Option<u32>,
    /// Requests in flight from all Envoys, as last heard.
    pub fleet_in_flight: u32,
    /// What the service counts its recent failures as, in requests.
    pub fleet_penalty: u32,
    /// Requests its engine has taken and not begun, as last heard.
    pub waiting: u32,
    /// Ranks that are overloaded.
    pub overloaded: Vec<Rank>,
    /// Whether all of them are.
    pub all_overloaded: bool,
    /// Requests in flight from which on one of its slots is overloaded.
    pub in_flight_limit: Option<u32>,
    /// Which half of a split pool it is.
    pub phase: Phase,
    /// Models it serves; empty: whatever its pool serves.
    pub models: Vec<String>,
    /// Words of the operator.
    pub labels: BTreeMap<String, String>,
}

/// One address of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `ip:port`.
    pub address: String,
    /// Its cluster under `cluster` steering.
    pub cluster: String,
    /// How it counts ranks.
    pub numbering: RankNumbering,
    /// First global rank here.
    pub dp_start: u32,
    /// How many ranks here.
    pub dp_size: u32,
}

/// Everything indexed. Workers are sorted by id, so that all VMs and replicas choose alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// All workers, by id.
    pub workers: Vec<Worker>,
    /// All pools, by name.
    pub pools: Vec<Pool>,
    /// How many workers are suspect.
    pub suspects: usize,
    /// Declared workers that this Envoy cannot dial yet: the fleet tells of them, the topology does not.
    pub coming: Vec<WorkerId>,
    by_hash: Vec<(u64, usize)>,
    by_address: Vec<(String, usize, usize)>,
}

impl Directory {
    /// Indexes a topology; a worker whose pool is not listed is left out, as is one without endpoints.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let pools = order::by_text(topology.pools.iter().map(pool).collect(), |pool| pool.name.as_str());
        let workers = topology.workers.iter().filter_map(|info| worker(info, &pools)).collect();
        let workers = order::by_text(workers, |worker: &Worker| worker.id.as_str());
        let mut directory = Self {
            workers,
            pools,
            suspects: 0,
            coming: Vec::new(),
            by_hash: Vec::new(),
            by_address: Vec::new(),
        };
        directory.index();
        directory
    }

    fn index(&mut self) {
        for (at, worker) in self.workers.iter().enumerate() {
            self.by_hash.push((worker.hash, at));
            if let Some(pool) = self.pools.get_mut(worker.pool) {
                join(pool, at, worker);
            }
            for (nth, endpoint) in worker.endpoints.iter().enumerate() {
                self.by_address.push((endpoint.address.clone(), at, nth));
            }
        }
        self.by_hash.sort_unstable();
        let addresses = std::mem::take(&mut self.by_address);
        self.by_address = order::by_text(addresses, |(address, _, _)| address);
    }

    /// Takes over states and loads; a worker not listed keeps what it had.
    pub fn update(&mut self, fleet: &Fleet) {
        self.coming.clear();
        for status in &fleet.workers {
            let found = self.workers.binary_search_by(|w| w.id.cmp(&status.id)).ok();
            let Some(worker) = found.and_then(|at| self.workers.get_mut(at)) else {
                self.coming.push(status.id.clone());
                continue;
            };
            worker.state = status.state;
            worker.fleet_in_flight = status.in_flight;
            worker.fleet_penalty = status.penalty;
            worker.waiting = status.waiting;
            worker.overloaded.clone_from(&status.overloaded);
            worker.all_overloaded = status.all_overloaded;
        }
        self.suspects = self.workers.iter().filter(|w| w.state == WorkerState::Suspect).count();
    }

    /// The configured pool; without one the only pool there is, or of several the one named `default`.
    #[must_use]
    pub fn pool(&self, name: Option<&PoolName>) -> Option<&Pool> {
        match name {
            Some(name) => {
                self.pools.binary_search_by(|p| p.name.cmp(name)).ok().and_then(|at| self.pools.get(at))
            }
            None if self.pools.len() == 1 => self.pools.first(),
            // A worker declared in a second pool, by a slip perhaps, must not unpin everybody.
            None => self.pools.iter().find(|pool| pool.name.as_str() == DEFAULT_POOL),
        }
    }

    /// The worker of a cached binding.
    #[must_use]
    pub fn worker_by_hash(&self, hash: u64) -> Option<(usize, &Worker)> {
        let at = self.by_hash.binary_search_by_key(&hash, |(h, _)| *h).ok()?;
        let (_, index) = self.by_hash.get(at)?;
        self.workers.get(*index).map(|worker| (*index, worker))
    }

    /// The worker with this id.
    #[must_use]
    pub fn worker_by_id(&self, id: &WorkerId) -> Option<(usize, &Worker)> {
        let at = self.workers.binary_search_by(|w| w.id.cmp(id)).ok()?;
        self.workers.get(at).map(|worker| (at, worker))
    }

    /// Worker and endpoint behind an `ip:port` that Envoy dialled.
    #[must_use]
    pub fn dialled(&self, address: &str) -> Option<(&Worker, &Endpoint)> {
        let at = self.by_address.binary_search_by(|(a, _, _)| a.as_str().cmp(address)).ok()?;
        let (_, worker, endpoint) = self.by_address.get(at)?;
        let worker = self.workers.get(*worker)?;
        worker.endpoints.get(*endpoint).map(|endpoint| (worker, endpoint))
    }

    /// The pool that serves a model: the one that lists it, itself or as the base of `base:adapter`; else the only pool
    /// that lists none.
    #[must_use]
    pub fn pool_of_model(&self, model: &str) -> Option<&Pool> {
        let lists =
            |name: &str| self.pools.iter().find(|pool| pool.models.iter().any(|served| served == name));
        let base = || model.split_once(':').and_then(|(base, _)| lists(base));
        let open = || {
            // A pool without workers claims nothing: `default` is always there.
            let claims = |pool: &&Pool| pool.models.is_empty() && !pool.members.is_empty();
            let mut open = self.pools.iter().filter(claims);
            open.next().filter(|_| open.next().is_none())
        };
        lists(model).or_else(base).or_else(open)
    }

    /// Workers of a pool that may take new sessions, of those `allowed`; suspects only when there is nothing better.
    #[must_use]
    pub fn open_workers(&self, pool: &Pool, allowed: impl Fn(&Worker) -> bool) -> Vec<usize> {
        let open = self.members(pool, |worker| worker.state.takes_new() && allowed(worker));
        if open.is_empty() {
            self.members(pool, |worker| worker.state == WorkerState::Suspect && allowed(worker))
        } else {
            open
        }
    }

    /// Members of a pool that are kept.
    #[must_use]
    pub fn members(&self, pool: &Pool, keep: impl Fn(&Worker) -> bool) -> Vec<usize> {
        let kept = |at: &usize| self.workers.get(*at).is_some_and(&keep);
        pool.members.iter().copied().filter(kept).collect()
    }

    /// How many workers may serve bound sessions.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.workers.iter().filter(|worker| worker.state.serves_bound()).count()
    }

    /// The candidates behind worker indices; `local` adds what this VM knows beyond the fleet's figure.
    #[must_use]
    pub fn candidates(&self, workers: &[usize], load: impl Fn(&Worker) -> u64) -> Vec<Candidate> {
        let candidate = |worker: &Worker| Candidate {
            worker_hash: worker.hash,
            weight: worker.weight,
            load: load(worker),
            device: worker.device,
        };
        workers.iter().filter_map(|at| self.workers.get(*at)).map(candidate).collect()
    }
}

impl Worker {
    fn is_tainted(&self) -> bool {
        self.labels.keys().any(|key| key.starts_with(TAINT))
    }

    /// Whether the slot is overloaded; without a rank: whether every one is.
    #[must_use]
    pub fn is_overloaded(&self, rank: Option<Rank>) -> bool {
        self.all_overloaded || rank.is_some_and(|rank| self.overloaded.contains(&rank))
    }

    /// What it offers a request that would go to this rank.
    #[must_use]
    pub fn offer(&self, rank: Option<Rank>) -> Offer<'_> {
        let only = || self.endpoints.first().filter(|_| self.endpoints.len() == 1);
        let endpoint = match rank {
            Some(rank) => self.endpoints.iter().find(|endpoint| endpoint.serves(rank)),
            None => only(),
        };
        let address = endpoint.map(|endpoint| endpoint.address.as_str()).filter(|a| !a.is_empty());
        Offer { models: &self.models, labels: &self.labels, address }
    }

    /// The rank a session without a bound rank gets here; `None` on a single rank.
    #[must_use]
    pub fn hashed_rank(&self, hash: RankHash) -> Option<Rank> {
        hashed_rank(hash, 0, self.dp_size).and_then(|Rank(nth)| self.nth_rank(nth))
    }

    /// Whether the worker declares this rank.
    #[must_use]
    pub fn declares(&self, rank: Rank) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.serves(rank))
    }

    /// Its ranks counted through its endpoints: `dp_start + nth`, unless the endpoints leave a gap.
    fn nth_rank(&self, mut nth: u32) -> Option<Rank> {
        for endpoint in &self.endpoints {
            if nth < endpoint.dp_size {
                return endpoint.dp_start.checked_add(nth).map(Rank);
            }
            nth -= endpoint.dp_size;
        }
        None
    }

    /// Number of a slot's gauge: ranks in order, then requests without a rank.
    #[must_use]
    pub fn gauge(&self, rank: Option<Rank>) -> Option<u32> {
        let nth = match rank {
            _ if self.dp_size <= 1 => 0,
            None => self.dp_size,
            Some(rank) => self.nth_of(rank)?,
        };
        self.first_slot?.checked_add(nth)
    }

    fn nth_of(&self, rank: Rank) -> Option<u32> {
        let mut before = 0u32;
        for endpoint in &self.endpoints {
            if endpoint.serves(rank) {
                return before.checked_add(rank.0 - endpoint.dp_start);
            }
            before = before.saturating_add(endpoint.dp_size);
        }
        None
    }

    /// The endpoint that serves a rank; without a rank, one by `draw`, weighted by its ranks.
    #[must_use]
    pub fn endpoint(&self, rank: Option<Rank>, draw: u64) -> Option<&Endpoint> {
        let rank = match rank {
            Some(rank) => rank,
            None => self.nth_rank(u32::try_from(draw % u64::from(self.dp_size.max(1))).ok()?)?,
        };
        self.endpoints.iter().find(|endpoint| endpoint.serves(rank))
    }
}

impl Endpoint {
    /// Whether this endpoint serves the global rank.
    #[must_use]
    pub fn serves(&self, rank: Rank) -> bool {
        rank.0 >= self.dp_start && rank.0 - self.dp_start < self.dp_size
    }

    /// How `rank` of its `worker` is told here; nothing where none may be: one rank, a request on which the engine reads none, or
    /// a rank that is not here.
    #[must_use]
    pub fn on_wire(&self, worker: &Worker, surface: Surface, rank: Option<Rank>) -> OnWire {
        let told = self.number(worker, rank);
        told.map_or(OnWire::Nothing, |number| worker.dialect.on_wire(surface, number))
    }

    /// The rank that a request for `rank` is served by here: that one if it is told, or the only one; else the engine chooses.
    #[must_use]
    pub fn carried(&self, worker: &Worker, surface: Surface, rank: Option<Rank>) -> Option<Rank> {
        let told = || self.number(worker, rank).is_some() && worker.dialect.honours_rank(surface);
        rank.filter(|rank| self.serves(*rank) && (self.dp_size == 1 || told()))
    }

    /// The rank as it is counted here, of a worker that has several.
    #[must_use]
    pub fn number(&self, worker: &Worker, rank: Option<Rank>) -> Option<u32> {
        let rank = rank.filter(|rank| worker.dp_size > 1 && self.serves(*rank))?;
        number(self.numbering, self.dp_start, rank.0)
    }
}

fn pool(info: &PoolInfo) -> Pool {
    Pool {
        name: info.name.clone(),
        rules: Rules { policy: info.policy, device_ratio: info.device_ratio },
        affinity: info.affinity,
        ranks: info.ranks(),
        soft_margin_percent: info.soft_margin_percent,
        ttl: info.ttl_ms,
        on_overload: info.on_overload,
        wait: info.wait_ms,
        on_all_overloaded: info.on_all_overloaded,
        in_flight_limit: info.in_flight_limit,
        models: info.models.clone(),
        cluster: format!("{}{}", header::cluster::POOL_PREFIX, info.name),
        phase: Phase::Aggregated,
        members: Vec::new(),
        prefill: None,
        tainted: false,
        conversations: false,
        reads_prompt: info.reads_prompt,
    }
}

/// Adds a worker to its pool, or to the prefill half. One worker that does half a request makes the pool a split one, whose
/// sessions have an id for each half.
fn join(pool: &mut Pool, at: usize, worker: &Worker) {
    if worker.phase != Phase::Aggregated {
        pool.phase = Phase::Decode;
    }
    if worker.phase == Phase::Prefill {
        let half = pool.prefill.take().unwrap_or_else(|| {
            let (members, tainted, conversations) = (Vec::new(), false, false);
            Box::new(Pool { phase: Phase::Prefill, members, tainted, conversations, ..pool.clone() })
        });
        let half = pool.prefill.insert(half);
        half.members.push(at);
        half.tainted |= worker.is_tainted();
    } else {
        pool.members.push(at);
        pool.tainted |= worker.is_tainted();
        pool.conversations |= worker.dialect.wants_conversation();
    }
}

fn worker(info: &WorkerInfo, pools: &[Pool]) -> Option<Worker> {
    let pool = pools.binary_search_by(|p| p.name.cmp(&info.pool)).ok()?;
    let endpoints = info.endpoints.iter().enumerate().map(|(n, e)| endpoint(&info.id, n, e)).collect();
    let endpoints = order::by_number(endpoints, |e: &Endpoint| u64::from(e.dp_start));
    let dp_start = endpoints.first()?.dp_start;
    let dp_size = endpoints.iter().fold(0u32, |sum, e| sum.saturating_add(e.dp_size));
    Some(Worker {
        id: info.id.clone(),
        hash: worker_hash(&info.id),
        pool,
        dialect: Dialect::new(info.engine, info.engine_version.as_deref(), info.rank_in),
        weight: info.weight.max(1),
        device: info.device,
        endpoints,
        dp_start,
        dp_size,
        state: WorkerState::Joining,
        first_slot: info.first_slot,
        fleet_in_flight: 0,
        fleet_penalty: 0,
        waiting: 0,
        overloaded: Vec::new(),
        all_overloaded: false,
        in_flight_limit: info.in_flight_limit.or_else(|| pools.get(pool)?.in_flight_limit),
        phase: info.phase,
        models: info.models.clone(),
        labels: info.labels.clone(),
    })
}

/// Cluster of endpoint `n` of a worker: `rankpin-worker-ID`, further endpoints `rankpin-worker-ID.n`.
#[must_use]
pub fn worker_cluster(id: &WorkerId, n: usize) -> String {
    if n == 0 {
        format!("{}{id}", header::cluster::WORKER_PREFIX)
    } else {
        format!("{}{id}.{n}", header::cluster::WORKER_PREFIX)
    }
}

fn endpoint(id: &WorkerId, n: usize, info: &EndpointInfo) -> Endpoint {
    Endpoint {
        address: info.address.clone(),
        cluster: worker_cluster(id, n),
        numbering: info.rank_numbering,
        dp_start: info.dp_start,
        dp_size: info.dp_size.max(1),
    }
}
