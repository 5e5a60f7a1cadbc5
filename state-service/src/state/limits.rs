//! Every bound of the state, in one place, with what happens at it.

use crate::config::{POOLS_MAX, ServiceConfig, WORKERS_MAX};
use routing::contract::PoolInfo;
use routing::time::Millis;

/// Most owners remembered of one hold. A joiner past it goes to the same slot and may commit; its failure is not seen.
pub(super) const OWNERS_MAX: usize = 1024;
/// Most reservations of one VM. Past it the oldest no longer counts as load.
pub(super) const RESERVATIONS_MAX: usize = 4096;
/// Most requests of one VM remembered as over before their route came. Past it the oldest may leave a hold behind.
pub(super) const OVER_MAX: usize = 256;
/// Most workers that are not declared and whose names are kept. Past it the sessions of the one kept for longest are not told of.
pub(super) const GONE_MAX: usize = 4096;
/// Most bindings that wait for their slot to be declared. Past it the oldest is forgotten.
pub(super) const PARKED_MAX: usize = 65_536;
/// How long they wait.
pub(super) const PARKED_TTL: Millis = Millis::from_secs(60);
/// Gauges that an engine showed longer ago say nothing any more.
pub(super) const GAUGES_AGE_MAX: Millis = Millis::from_secs(10);
/// Most requests that wait for their slot, over all slots. Past it a turn does not wait.
pub(super) const WAITERS_MAX: usize = 1024;
/// Gauges of slots are numbered below it. A worker for which there is no run left has none.
pub(super) const SLOT_NUMBERS_MAX: u32 = 65_536;
/// Most slots in one VM's report of requests in flight. Past it the rest does not count as load.
pub(super) const IN_FLIGHT_SLOTS_MAX: usize = 16_384;
/// Most moves in one answer to a watch. The rest follows at once in the next one.
pub(super) const WATCH_MOVES_MAX: usize = 4096;
/// Other workers named in an answer to a route.
pub(super) const ALTERNATES_MAX: usize = 3;
/// Candidates looked at for alternates: a window of a large pool that starts where the session's id says.
pub(super) const ALTERNATES_WINDOW: usize = 32;
/// Most entries that one tick forgets; the rest is judged when it is read, and forgotten by the next ticks.
pub(super) const EXPIRED_PER_TICK_MAX: usize = 16_384;
/// A version above it is no version any of us gave: ignored, so that one bad number cannot end all counting.
pub(super) const SEQ_MAX: u64 = 1 << 62;

/// Probe failures in a row that make a worker [`routing::contract::WorkerState::Down`].
pub(super) const PROBE_FAILURES_DOWN: u32 = 3;
/// Probe successes in a row that bring it back.
pub(super) const PROBE_SUCCESSES_UP: u32 = 2;
/// Connection failures in a row on one slot that make its worker suspect.
pub(super) const CONNECTION_FAILURES_SUSPECT: u32 = 2;
/// Answers 5xx in a row on one slot that make its worker suspect.
pub(super) const STATUS_FAILURES_SUSPECT: u32 = 3;
/// A run of failures on a slot whose last one is older than this begins anew.
pub(super) const RUN_AGE_MAX: Millis = Millis::from_secs(10);
/// Probe successes in a row that clear a suspect to which nobody sends anything any more.
pub(super) const PROBE_SUCCESSES_CLEAR: u32 = 10;

/// What the state is built with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// Pools and what becomes of others. Its workers are put by the shell like any other.
    pub service: ServiceConfig,
    /// Sizes and times.
    pub limits: Limits,
}

impl StateConfig {
    /// A config with the limits of a real service.
    #[must_use]
    pub const fn new(service: ServiceConfig) -> Self {
        Self { service, limits: Limits::SERVICE }
    }

    /// Pools listed in the config.
    #[must_use]
    pub fn pools(&self) -> &[PoolInfo] {
        &self.service.pools
    }
}

/// Sizes and times of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions held or bound. At it the oldest idle one is evicted; when all are held, a new one goes unpinned.
    pub sessions_max: usize,
    /// Released sessions remembered. At it the oldest is forgotten.
    pub tombstones_max: usize,
    /// Response ids remembered. At it the one not used for longest is forgotten.
    pub aliases_max: usize,
    /// How long a release is remembered, at least; the pool's ttl if that is longer.
    pub tombstone_ttl: Millis,
    /// Workers. At it a new one is refused.
    pub workers_max: usize,
    /// Pools. At it a worker that would make another one is refused.
    pub pools_max: usize,
    /// VMs heard of. At it a new one's routes go unpinned and its counts are not kept.
    pub vms_max: usize,
    /// A VM that neither routed nor reported for this long is dead: its holds and its load go.
    pub vm_lease: Millis,
    /// Nodes seen on xDS. At it the one silent for longest is forgotten, and sees everything again.
    pub nodes_max: usize,
    /// A node silent on xDS for this long is forgotten.
    pub node_idle: Millis,
    /// Moves remembered for watchers. Past it a slow one is told of a gap.
    pub moves_max: usize,
    /// Sessions whose latest change replicas and hosts can follow. Past it the one that did not change for longest cannot be
    /// followed any more: who is that late reads all of them.
    pub journal_max: usize,
    /// Shortest time between two versions of the fleet that differ by load alone.
    pub load_interval: Millis,
}

impl Limits {
    /// Those of a real service.
    pub const SERVICE: Self = Self {
        sessions_max: 1_048_576,
        tombstones_max: 131_072,
        aliases_max: 1_048_576,
        tombstone_ttl: Millis::from_secs(600),
        workers_max: WORKERS_MAX,
        pools_max: POOLS_MAX,
        vms_max: 4096,
        vm_lease: Millis::from_secs(30),
        nodes_max: 1024,
        node_idle: Millis::from_secs(600),
        moves_max: 65_536,
        journal_max: 131_072,
        load_interval: Millis(100),
    };
}
