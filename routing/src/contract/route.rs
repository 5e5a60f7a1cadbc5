//! `route`: one request asks where it goes.

use super::{Caller, Entry, SessionRef, Target};
use crate::id::{Cursor, Epoch, HoldId, PoolName, Rank, RequestId, Version, WorkerId};
use crate::time::Millis;
use serde::{Deserialize, Serialize};

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
    /// The target that a trusted caller named: this one or none. Its rank, when absent, is the bound one or the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<Target>,
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
    /// The caller's target, or the want of one, cannot be served: [`RouteReply::refusal`] says why.
    Refused,
    /// This replica cannot know yet; decide alone. Also how an outcome this build does not know is read.
    #[serde(other)]
    Unsure,
}

/// Why a target that a caller named, or did not name, is refused (affinity section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The pool is `direct`, the session is bound nowhere, and no worker was named: 400.
    WorkerRequired,
    /// No such worker in the pool: 404.
    WorkerUnknown,
    /// The worker does not declare that rank: 400.
    RankUndeclared,
    /// The session is bound elsewhere: 400, the binding is unchanged.
    BoundElsewhere,
    /// The worker drains or is down: 503. Also how a refusal this build does not know is read.
    #[serde(other)]
    WorkerUnavailable,
}

/// Answer of `POST /v1/route`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteReply {
    /// What was decided.
    pub outcome: Outcome,
    /// Why, for `refused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
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
