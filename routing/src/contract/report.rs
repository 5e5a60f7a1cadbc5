//! `report` and `pages`: what happened, and what an Envoy still knows.

use super::{Caller, KeptSlot, SessionRef, Target};
use crate::id::{Epoch, HoldId, PoolName, RequestId, SessionId, Version};
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// Most entries in one report; more wait for the next one.
pub const REPORT_ENTRIES_MAX: usize = 4096;

/// Most bindings in one [`PageUpload`]; more wait for the next one.
pub const UPLOAD_BINDINGS_MAX: usize = 4096;

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
        /// Where that binding is: heals a service that never heard of it, or of two of one version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<KeptSlot>,
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
    /// An engine named an answer of this session: later requests that name it belong to the session.
    Alias {
        /// The response id, hashed as a session of its own ([`crate::hash::response_id`]).
        alias: SessionId,
        /// The session.
        session: SessionRef,
        /// Its pool.
        pool: PoolName,
    },
    /// A request whose prompt was sent with `route` has its first byte: its prefill is over.
    Prefilled {
        /// The request that asked.
        request: RequestId,
    },
    /// A request whose prompt was sent with `route` is over, however it ended: nothing of it loads its slot any more.
    Ended {
        /// The request that asked.
        request: RequestId,
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
    /// Another VM of the caller's Envoy is dead: its share of load and its holds are nobody's any more.
    VmGone {
        /// The dead VM's life.
        vm: Epoch,
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

/// Body of `POST /v1/pages`, several in a row for one Envoy. Answered `204`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageUpload {
    /// Who uploads.
    pub caller: Caller,
    /// Whether this Envoy has told everything it knows.
    pub last: bool,
    /// Bindings, in no order; at most [`UPLOAD_BINDINGS_MAX`].
    pub bindings: Vec<KeptBinding>,
}

/// A committed binding as an Envoy cached it. Its pool is that of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptBinding {
    /// The session.
    pub session: SessionRef,
    /// Where it is.
    pub slot: KeptSlot,
    /// Its version.
    pub version: Version,
    /// Time since its last turn.
    pub idle_ms: Millis,
}
