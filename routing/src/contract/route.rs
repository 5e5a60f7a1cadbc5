//! `route`: one request asks where it goes.

use super::{Caller, Entry, Explained, Overlap, Prompt, SessionRef, Target, is_default};
use crate::demand::Demands;
use crate::id::{Cursor, Epoch, HoldId, PoolName, Rank, RequestId, SessionId, Version, WorkerId};
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
    /// What a worker must have to serve this request.
    #[serde(default, skip_serializing_if = "Demands::is_empty")]
    pub demands: Demands,
    /// The bound slot is overloaded, and the turn may wait so long for it; 0: it does not wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wait_ms: Millis,
    /// The session is unknown to the caller, but not what it hangs on: an engine's response id, hashed. Answered with
    /// [`RouteReply::session`], and routed as that session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<SessionId>,
    /// The prefill half of the request, in a pool that is split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Box<PrefillAsk>>,
    /// What is to be looked for in the engines' caches, in a pool whose [`super::PoolInfo::reads_prompt`] says so. Its load is
    /// booked where it goes until [`Entry::Ended`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Box<Prompt>>,
    /// Nothing is created, refreshed or counted: only the decision is wanted, in [`RouteReply::explained`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub dry_run: bool,
}

impl RouteRequest {
    /// A question of which only this is known.
    #[must_use]
    pub fn new(caller: Caller, request: RequestId, pool: PoolName, deadline_ms: Millis) -> Self {
        Self {
            caller,
            request,
            pool,
            session: None,
            deadline_ms,
            cached: None,
            named: None,
            unsent: Vec::new(),
            demands: Demands::default(),
            wait_ms: Millis(0),
            alias: None,
            prefill: None,
            prompt: None,
            dry_run: false,
        }
    }
}

/// The prefill half of a question: the same pool and caller, a request and a session of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillAsk {
    /// Owner of the hold it may get.
    pub request: RequestId,
    /// The session of this phase; absent without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// As [`RouteRequest::cached`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<Cached>,
    /// As [`RouteRequest::named`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<Target>,
    /// As [`RouteRequest::unsent`].
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
    /// The session is bound to a slot that this request's demands exclude, and its affinity is hard: 403.
    Excluded,
    /// No worker of the pool meets this request's demands: 503.
    Unmet,
    /// The bound slot, or every slot, is overloaded, and the pool refuses then: 429.
    Overloaded,
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
    /// Version of the binding, or the one a commit of the hold will give it; of a spilled turn, that of the binding it leaves
    /// for once.
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
    /// The session behind [`RouteRequest::alias`], if the service knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// The prefill half, if one was asked for; itself without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Box<RouteReply>>,
    /// How much of the prompt is cached at the target, where that was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// How it came about, for [`RouteRequest::dry_run`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained: Option<Explained>,
}

impl RouteReply {
    /// An answer that names no target.
    #[must_use]
    pub fn nowhere(outcome: Outcome, as_of: Cursor, epoch: Epoch, reason: &str) -> Self {
        Self {
            outcome,
            refusal: None,
            target: None,
            alternates: Vec::new(),
            version: Version::default(),
            hold: None,
            ttl_ms: Millis(0),
            as_of,
            epoch,
            reason: reason.to_owned(),
            session: None,
            prefill: None,
            overlap: None,
            explained: None,
        }
    }
}
