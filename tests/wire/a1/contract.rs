//! The messages of the first version as it read and wrote them: its `routing/src/contract.rs` (commit d7e9f28), comments and methods left
//! out. Never changed: what it reads is what an Envoy or a service that was not upgraded yet reads.

use routing::id::{Cursor, Epoch, HoldId, PoolName, Rank, RankHash, RequestId, SessionId, Version, WorkerId};
use routing::time::Millis;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Caller {
    pub(super) node: String,
    pub(super) vm: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionRef {
    pub(super) id: SessionId,
    pub(super) rank_hash: RankHash,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Target {
    pub(super) worker: WorkerId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rank: Option<Rank>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cached {
    pub(super) worker_hash: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rank: Option<Rank>,
    pub(super) version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RouteRequest {
    pub(super) caller: Caller,
    pub(super) request: RequestId,
    pub(super) pool: PoolName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionRef>,
    pub(super) deadline_ms: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cached: Option<Cached>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unsent: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Held,
    Bound,
    Unpinned,
    NoWorker,
    UnknownPool,
    #[serde(other)]
    Unsure,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RouteReply {
    pub(super) outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<Target>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) alternates: Vec<WorkerId>,
    #[serde(default)]
    pub(super) version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hold: Option<HoldId>,
    pub(super) ttl_ms: Millis,
    pub(super) as_of: Cursor,
    pub(super) epoch: Epoch,
    pub(super) reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Entry {
    Committed {
        session: SessionRef,
        pool: PoolName,
        request: RequestId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
        target: Target,
        version: Version,
    },
    Failed {
        session: SessionRef,
        pool: PoolName,
        request: RequestId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
    },
    Touched {
        session: SessionRef,
        pool: PoolName,
        version: Version,
    },
    Released {
        session: SessionRef,
        pool: PoolName,
        version: Version,
    },
    SlotFailed {
        target: Target,
        failure: SlotFailure,
        count: u32,
    },
    SlotAnswered {
        target: Target,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SlotFailure {
    Status5xx,
    #[serde(other)]
    Connection,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InFlight {
    pub(super) target: Target,
    pub(super) count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) caller: Caller,
    pub(super) seq: u64,
    pub(super) in_flight: Vec<InFlight>,
    pub(super) entries: Vec<Entry>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) upstream_role_missing: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WatchQuery {
    #[serde(default)]
    pub(super) node: String,
    #[serde(default)]
    pub(super) epoch: u64,
    #[serde(default)]
    pub(super) after: u64,
    #[serde(default)]
    pub(super) topology: u64,
    #[serde(default)]
    pub(super) fleet: u64,
    #[serde(default)]
    pub(super) wait_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WatchReply {
    pub(super) epoch: Epoch,
    pub(super) cursor: Cursor,
    pub(super) salt: u64,
    #[serde(default)]
    pub(super) gap: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) topology: Option<Topology>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fleet: Option<Fleet>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) moves: Vec<Move>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Move {
    pub(super) session: SessionRef,
    pub(super) version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<Target>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Topology {
    pub(super) version: u64,
    pub(super) pools: Vec<PoolInfo>,
    pub(super) workers: Vec<WorkerInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PoolInfo {
    pub(super) name: PoolName,
    #[serde(default)]
    pub(super) policy: Policy,
    #[serde(default)]
    pub(super) affinity: Affinity,
    #[serde(default = "default_ttl")]
    pub(super) ttl_ms: Millis,
    #[serde(default = "default_device_ratio", skip_serializing_if = "is_default_device_ratio")]
    pub(super) device_ratio: u32,
}

pub(super) const DEVICE_RATIO_DEFAULT: u32 = 8;

const fn default_device_ratio() -> u32 {
    DEVICE_RATIO_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
const fn is_default_device_ratio(ratio: &u32) -> bool {
    *ratio == DEVICE_RATIO_DEFAULT
}

pub(super) const TTL_DEFAULT: Millis = Millis::from_secs(1800);

const fn default_ttl() -> Millis {
    TTL_DEFAULT
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Policy {
    SessionHash,
    RoundRobin,
    Random,
    PowerOfTwo,
    DeviceAware,
    #[default]
    #[serde(other)]
    LeastLoaded,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Affinity {
    Off,
    #[default]
    #[serde(other)]
    Hard,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Engine {
    #[default]
    Vllm,
    Sglang,
    Trtllm,
    #[serde(other)]
    Custom,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Device {
    Cpu,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RankNumbering {
    #[default]
    Global,
    Local,
    #[serde(other)]
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkerInfo {
    pub(super) id: WorkerId,
    pub(super) pool: PoolName,
    #[serde(default)]
    pub(super) engine: Engine,
    #[serde(default = "one")]
    pub(super) weight: u32,
    #[serde(default, skip_serializing_if = "Device::is_default")]
    pub(super) device: Device,
    pub(super) endpoints: Vec<EndpointInfo>,
}

const fn one() -> u32 {
    1
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndpointInfo {
    pub(super) address: String,
    #[serde(default)]
    pub(super) rank_numbering: RankNumbering,
    #[serde(default)]
    pub(super) dp_start: u32,
    #[serde(default = "one")]
    pub(super) dp_size: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fleet {
    pub(super) version: u64,
    pub(super) workers: Vec<WorkerStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkerStatus {
    pub(super) id: WorkerId,
    pub(super) state: WorkerState,
    #[serde(default)]
    pub(super) in_flight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WorkerState {
    Joining,
    Ready,
    Draining,
    Down,
    #[serde(other)]
    Suspect,
}
