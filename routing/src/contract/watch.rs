//! `watch`: the long poll for topology, states, load, moves and releases.

use super::{SessionRef, Target, Topology, is_default};
use crate::id::{Cursor, Epoch, Rank, Version, WorkerId};
use serde::{Deserialize, Serialize};

/// How long the service holds a watch at most before it answers with nothing new.
pub const WATCH_HOLD_MS_MAX: u64 = 25_000;

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
    /// The caller remembers another life of the service: its cached bindings are wanted ([`PageUpload`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upload: bool,
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
    /// What recent failures count as, in requests: a worker that fails fast must not look idle.
    #[serde(default, skip_serializing_if = "is_default")]
    pub penalty: u32,
    /// Requests its engine has taken and not begun, as last scraped: they count as load.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting: u32,
    /// Ranks that are overloaded, ascending. Of a worker with one rank [`Self::all_overloaded`] tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overloaded: Vec<Rank>,
    /// Whether every rank is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub all_overloaded: bool,
}

impl WorkerStatus {
    /// An idle worker.
    #[must_use]
    pub const fn idle(id: WorkerId, state: WorkerState) -> Self {
        Self {
            id,
            state,
            in_flight: 0,
            penalty: 0,
            waiting: 0,
            overloaded: Vec::new(),
            all_overloaded: false,
        }
    }
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

    /// A turn that is not bound there may go there for a reason of its own: named, or hashed. Neither draining nor down.
    #[must_use]
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::Draining | Self::Down)
    }

    /// New sessions may be placed there.
    #[must_use]
    pub const fn takes_new(self) -> bool {
        matches!(self, Self::Joining | Self::Ready)
    }
}
