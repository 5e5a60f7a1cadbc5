//! Wire types between filter and service, version 1: `route`, `report`, `watch`.
//!
//! Additive only: unknown fields are ignored and unknown words read as the safe one of their kind, so that old meets new. Golden files in `tests/golden/contract/v1` pin them.
//! Durations are relative milliseconds; ids travel as text; nothing here carries a session key or a prompt.

use crate::id::{Cursor, Epoch, HoldId, PoolName, Rank, RankHash, RequestId, SessionId, Version, WorkerId};
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// Version of this contract; part of every path.
pub const VERSION: u32 = 1;
/// One request asks where it goes.
pub const ROUTE_PATH: &str = "/v1/route";
/// What happened, in batches.
pub const REPORT_PATH: &str = "/v1/report";
/// Long poll for topology, states, load, moves and releases.
pub const WATCH_PATH: &str = "/v1/watch";

/// Most entries in one report; more wait for the next one.
pub const REPORT_ENTRIES_MAX: usize = 4096;
/// Largest body the service reads on the data plane, in bytes.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// How long the service holds a watch at most before it answers with nothing new.
pub const WATCH_HOLD_MS_MAX: u64 = 25_000;

/// Which VM of which Envoy speaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Caller {
    /// Envoy's `node.id`, also seen on its xDS polls; empty when the Envoy has none.
    pub node: String,
    /// One life of the VM.
    pub vm: Epoch,
}

/// A session as it travels: the id that names it and the hash that picks its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRef {
    /// Names the session everywhere.
    pub id: SessionId,
    /// Picks a rank inside a worker.
    pub rank_hash: RankHash,
}

/// A worker and, where it has more than one, the rank inside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// The worker.
    pub worker: WorkerId,
    /// Global rank; absent for single-rank workers and worker-only bindings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
}

/// What the caller's cache says of the session, although it cannot use it (expired, slot gone, generation passed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    /// xxh3_64 of the worker id.
    pub worker_hash: u64,
    /// Bound rank, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Version of the cached binding.
    pub version: Version,
}

/// Body of `POST /v1/route`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRequest {
    /// Who asks.
    pub caller: Caller,
    /// The request; owner of the hold it may get.
    pub request: RequestId,
    /// Pool the request belongs to.
    pub pool: PoolName,
    /// The session; absent for session-less requests of policies that need the fleet's knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// The caller gives up after this long; the service makes no hold later.
    pub deadline_ms: Millis,
    /// The caller's unusable cache entry, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<Cached>,
    /// This VM's unsent entries about this session: applied before the choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsent: Vec<Entry>,
}

/// What `route` decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A fresh or joined hold: commit it with an accepted answer.
    Held,
    /// The session is bound there.
    Bound,
    /// Go there without a binding (no session, affinity off, or the table is full of live sessions).
    Unpinned,
    /// No worker of the pool can serve.
    NoWorker,
    /// No such pool.
    UnknownPool,
    /// This replica cannot know yet; decide alone. Also how an outcome this build does not know is read.
    #[serde(other)]
    Unsure,
}

/// Answer of `POST /v1/route`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteReply {
    /// What was decided.
    pub outcome: Outcome,
    /// Where to go; absent for `no_worker`, `unsure` and `unknown_pool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Other workers to try, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternates: Vec<WorkerId>,
    /// Version of the binding, or the one a commit of the hold will give it.
    #[serde(default)]
    pub version: Version,
    /// The hold, for `held`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldId>,
    /// Idle time after which the binding expires.
    pub ttl_ms: Millis,
    /// Watch cursor at the time of the decision: a move after it is newer than this answer.
    pub as_of: Cursor,
    /// Life of the service that decided.
    pub epoch: Epoch,
    /// One word for logs: `least_loaded`, `joined`, `bound`, `rebound`, …
    pub reason: String,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// The engine accepted a turn that was not pinned before: commit.
    Committed {
        /// The session.
        session: SessionRef,
        /// Its pool.
        pool: PoolName,
        /// The request that owned the hold.
        request: RequestId,
        /// The hold; absent when the filter placed the turn alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
        /// The slot that truly served.
        target: Target,
        /// Version the filter cached it under.
        version: Version,
    },
    /// A held turn ended without an accepting answer: roll back.
    Failed {
        /// The session.
        session: SessionRef,
        /// Its pool.
        pool: PoolName,
        /// The request that owned the hold.
        request: RequestId,
        /// The hold; absent when the reply that named it came too late (match by caller and request then).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
    },
    /// A pinned turn ran: the binding lives on.
    Touched {
        /// The session.
        session: SessionRef,
        /// Its pool.
        pool: PoolName,
        /// The binding it belongs to.
        version: Version,
    },
    /// The client ended the session.
    Released {
        /// The session.
        session: SessionRef,
        /// Its pool.
        pool: PoolName,
        /// The binding it belongs to.
        version: Version,
    },
    /// An attempt on a slot failed, whoever asked.
    SlotFailed {
        /// The slot dialled.
        target: Target,
        /// How it failed.
        failure: SlotFailure,
        /// How often since the last report.
        count: u32,
    },
    /// A slot answered without failing: ends a run of failures.
    SlotAnswered {
        /// The slot.
        target: Target,
    },
    /// Something a newer filter tells; counted and left alone.
    #[serde(other)]
    Unknown,
}

/// How an attempt on a slot failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotFailure {
    /// An answer 5xx of the engine.
    Status5xx,
    /// Refused, timed out or reset before a response head. Also how a failure this build does not know is read.
    #[serde(other)]
    Connection,
}

/// Requests of this VM in flight on one slot, absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// The slot; without a rank the engine balances these.
    pub target: Target,
    /// How many.
    pub count: u32,
}

/// Body of `POST /v1/report`. Answered `204`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Who reports.
    pub caller: Caller,
    /// Grows with each report of this VM; an older one never overwrites `in_flight`.
    pub seq: u64,
    /// Every slot with requests in flight; a slot not listed has none.
    pub in_flight: Vec<InFlight>,
    /// What happened since the last report, in order.
    pub entries: Vec<Entry>,
    /// Answers since the last report that came through a pool cluster without the upstream role: their rank was not set.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub upstream_role_missing: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Query of `GET /v1/watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchQuery {
    /// Envoy's `node.id`.
    #[serde(default)]
    pub node: String,
    /// Life of the service whose numbers follow; 0 at first.
    #[serde(default)]
    pub epoch: u64,
    /// Last cursor seen.
    #[serde(default)]
    pub after: u64,
    /// Version of the topology the caller holds.
    #[serde(default)]
    pub topology: u64,
    /// Version of the fleet blob the caller holds.
    #[serde(default)]
    pub fleet: u64,
    /// Longest wait wanted; the service caps it at [`WATCH_HOLD_MS_MAX`].
    #[serde(default)]
    pub wait_ms: u64,
}

/// Answer of `GET /v1/watch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchReply {
    /// Life of the service.
    pub epoch: Epoch,
    /// Pass it as `after` next time.
    pub cursor: Cursor,
    /// Random per answer: seeds the filter, which has no randomness of its own.
    pub salt: u64,
    /// When true, moves between the caller's cursor and this answer are lost: every cached binding must be checked again.
    #[serde(default)]
    pub gap: bool,
    /// The topology, when the caller holds another version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// States and load, when the caller holds another version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<Fleet>,
    /// Bindings that moved or were released after the caller's cursor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Move>,
}

/// A binding that moved, or was released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The session.
    pub session: SessionRef,
    /// The newer version.
    pub version: Version,
    /// Where it is now; absent when released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
}

/// Pools and workers as one Envoy may use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Version of this view, inside the service's epoch.
    pub version: u64,
    /// All pools, by name.
    pub pools: Vec<PoolInfo>,
    /// All workers, by id.
    pub workers: Vec<WorkerInfo>,
}

/// How a pool chooses and pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Its name.
    pub name: PoolName,
    /// How a slot is chosen.
    #[serde(default)]
    pub policy: Policy,
    /// How strongly a session is pinned.
    #[serde(default)]
    pub affinity: Affinity,
    /// Idle time after which a binding expires.
    #[serde(default = "default_ttl")]
    pub ttl_ms: Millis,
    /// Under `device_aware`: how many times the load of a CPU worker an accelerator carries, >= 1.
    #[serde(default = "default_device_ratio", skip_serializing_if = "is_default_device_ratio")]
    pub device_ratio: u32,
}

/// An accelerator carries eight times what a CPU worker does (affinity section 10).
pub const DEVICE_RATIO_DEFAULT: u32 = 8;

const fn default_device_ratio() -> u32 {
    DEVICE_RATIO_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
const fn is_default_device_ratio(ratio: &u32) -> bool {
    *ratio == DEVICE_RATIO_DEFAULT
}

/// Idle ttl of a binding: 1800 s (affinity section 3).
pub const TTL_DEFAULT: Millis = Millis::from_secs(1800);

const fn default_ttl() -> Millis {
    TTL_DEFAULT
}

/// How a slot is chosen among candidates (affinity section 10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Weighted rendezvous on the session alone; never asks the service.
    SessionHash,
    /// Workers by id, one after the other.
    RoundRobin,
    /// Uniform.
    Random,
    /// Of two distinct uniform draws the one with fewer in flight; the first drawn on a tie.
    PowerOfTwo,
    /// Keeps CPU workers at a share of what the accelerators carry; see [`PoolInfo::device_ratio`].
    DeviceAware,
    /// Fewest in flight, ties uniform. Also how a policy this build does not know is read.
    #[default]
    #[serde(other)]
    LeastLoaded,
}

/// How strongly a session is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Affinity {
    /// No session state.
    Off,
    /// Every turn goes to the bound slot. Also how a strength this build does not know is read.
    #[default]
    #[serde(other)]
    Hard,
}

/// Which engine a worker runs: decides how a rank travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM: `x-data-parallel-rank`.
    #[default]
    Vllm,
    /// SGLang (>= 0.5.10): the same header.
    Sglang,
    /// TensorRT-LLM: no rank over HTTP.
    Trtllm,
    /// Anything else: no rank unless an endpoint states its numbering.
    #[serde(other)]
    Custom,
}

/// What a worker computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// Plain processors.
    Cpu,
    /// GPU or the like. Also how a device this build does not know is read.
    #[default]
    #[serde(other)]
    Accelerator,
}

impl Device {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How an endpoint counts ranks in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankNumbering {
    /// As declared: `dp_start .. dp_start + dp_size`.
    #[default]
    Global,
    /// From zero inside the endpoint: global minus `dp_start`.
    Local,
    /// No header: the endpoint is one rank. Also how a numbering this build does not know is read.
    #[serde(other)]
    None,
}

/// A worker as one Envoy may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its id.
    pub id: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// Its engine.
    #[serde(default)]
    pub engine: Engine,
    /// Share in weighted choices, 1..=1000.
    #[serde(default = "one")]
    pub weight: u32,
    /// What it computes on.
    #[serde(default, skip_serializing_if = "Device::is_default")]
    pub device: Device,
    /// Where Envoy dials it; each serves a range of ranks.
    pub endpoints: Vec<EndpointInfo>,
}

const fn one() -> u32 {
    1
}

/// One address of a worker and the ranks behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointInfo {
    /// `ip:port` as Envoy dials it (host names already resolved); IPv6 in brackets.
    pub address: String,
    /// How this endpoint counts ranks.
    #[serde(default)]
    pub rank_numbering: RankNumbering,
    /// First global rank here.
    #[serde(default)]
    pub dp_start: u32,
    /// How many ranks, >= 1.
    #[serde(default = "one")]
    pub dp_size: u32,
}

/// States and load of the fleet: changes often, so it travels apart from the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fleet {
    /// Version of this view, inside the service's epoch.
    pub version: u64,
    /// One entry a worker, by id.
    pub workers: Vec<WorkerStatus>,
}

/// A worker's state and load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The worker.
    pub id: WorkerId,
    /// Whether it may be used.
    pub state: WorkerState,
    /// Requests in flight from all Envoys, as last reported.
    #[serde(default)]
    pub in_flight: u32,
}

/// Whether a worker may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// Declared, not probed yet: usable, so that a fleet without `/health` works.
    Joining,
    /// Probes and requests succeed.
    Ready,
    /// Keeps its sessions, takes no new ones.
    Draining,
    /// Probes fail: nothing is sent there.
    Down,
    /// Recent failures: bound sessions stay, new ones go elsewhere while others are ready. Also how a state this build does
    /// not know is read.
    #[serde(other)]
    Suspect,
}

impl WorkerState {
    /// A bound session may go on there.
    #[must_use]
    pub const fn serves_bound(self) -> bool {
        !matches!(self, Self::Down)
    }

    /// New sessions may be placed there.
    #[must_use]
    pub const fn takes_new(self) -> bool {
        matches!(self, Self::Joining | Self::Ready)
    }
}
