//! Wire types between filter and service, version 1: `route`, `report`, `watch`.
//!
//! Additive only: unknown fields are ignored and unknown words read as the safe one of their kind, so that old meets new. Golden files in `tests/golden/contract/v1` pin them.
//! Durations are relative milliseconds; ids travel as text; nothing here carries a session key, and nothing but [`Prompt`] what a client wrote.

mod explain;
mod pool;
mod prompt;
mod report;
mod route;
mod topology;
mod watch;

pub use explain::{CandidateShown, Explained, Explanation, KeyShown, Removal};
pub use pool::{
    Affinity, DEVICE_RATIO_DEFAULT, LOAD_REPORTS_APART, LOAD_STANDS_AFTER, OnAllOverloaded, OnOverload,
    Policy, PoolInfo, RANK_PICK_MARGIN, RankChoice, RankPick, Ranks, SOFT_MARGIN_PERCENT_DEFAULT, SOFT_SLACK,
    TTL_DEFAULT, WAIT_MAX, soft_stays,
};
pub use prompt::{Overlap, PROMPT_TOKENS_MAX, Prompt};
pub use report::{
    Entry, InFlight, KeptBinding, PageUpload, REPORT_ENTRIES_MAX, Report, SlotFailure, UPLOAD_BINDINGS_MAX,
};
pub use route::{Cached, Outcome, PrefillAsk, Refusal, RouteReply, RouteRequest};
pub use topology::{Device, EndpointInfo, Engine, RankIn, RankNumbering, Topology, WorkerInfo};
pub use watch::{Fleet, Move, WATCH_HOLD_MS_MAX, WatchQuery, WatchReply, WorkerState, WorkerStatus};

use crate::id::{Epoch, Rank, RankHash, SessionId, WorkerId};
use serde::{Deserialize, Serialize};

/// Version of this contract; part of every path.
pub const VERSION: u32 = 1;

/// One request asks where it goes.
pub const ROUTE_PATH: &str = "/v1/route";

/// What happened, in batches.
pub const REPORT_PATH: &str = "/v1/report";

/// Long poll for topology, states, load, moves and releases.
pub const WATCH_PATH: &str = "/v1/watch";

/// Cached bindings of one Envoy, for a service that lost its memory.
pub const PAGES_PATH: &str = "/v1/pages";

/// Largest body the service reads on the data plane, in bytes.
pub const BODY_BYTES_MAX: usize = 4 << 20;

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

/// A slot as pages keep it: the worker by hash, so that it keeps its meaning when workers come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSlot {
    /// xxh3_64 of the worker id.
    pub worker_hash: u64,
    /// Bound rank, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
