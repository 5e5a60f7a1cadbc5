//! What a step wants done: headers, a call, a local reply, a page change. The filter turns each into hostcalls, in order.

use super::RouteFailure;
use crate::contract::RouteRequest;
use crate::id::{SessionId, Version};
use crate::page::Record;
use crate::time::Millis;
use std::borrow::Cow;

/// Whether the request may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Headers go on at once.
    Continue,
    /// Headers wait, and the body is wanted.
    Read,
    /// Headers wait for [`Effect::Resume`] or were answered.
    Pause,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Replace a request header.
    SetHeader(Cow<'static, str>, String),
    /// Remove a request header.
    RemoveHeader(Cow<'static, str>),
    /// Keep this text in the stream's filter state: the upstream role and the access log read it.
    Note(String),
    /// Ask the service.
    Route {
        /// The question.
        request: Box<RouteRequest>,
        /// Give up after this long.
        timeout: Millis,
    },
    /// Answer the client.
    Respond(LocalReply),
    /// Set a header of the answer.
    SetResponseHeader(&'static str, String),
    /// Change the page of cached bindings, by compare-and-swap.
    Page(PageChange),
    /// Tell the service at once what no report has told yet.
    ReportNow,
    /// Let a paused request go on.
    Resume,
    /// Count.
    Count(Counter),
}

/// A change of one cached binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageChange {
    /// [`crate::page::with`].
    Put(Record),
    /// [`crate::page::without`].
    Remove {
        /// The session.
        id: SessionId,
        /// Only if it has this version.
        version: Version,
    },
}

impl PageChange {
    /// The session it is about.
    #[must_use]
    pub fn session(&self) -> SessionId {
        match self {
            Self::Put(record) => record.id,
            Self::Remove { id, .. } => *id,
        }
    }

    /// The page after the change, or `None` when nothing is to be written.
    #[must_use]
    pub fn apply(&self, page: &[u8], page_bytes: usize) -> Option<Vec<u8>> {
        match self {
            Self::Put(record) => crate::page::with(page, record, page_bytes),
            Self::Remove { id, version } => crate::page::without(page, *id, *version),
        }
    }
}

/// An answer the filter gives itself, in OpenAI's error shape. Names neither session nor worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalReply {
    /// HTTP status.
    pub status: u32,
    /// Seconds for `Retry-After`.
    pub retry_after_s: Option<u32>,
    /// JSON body.
    pub body: String,
}

impl LocalReply {
    fn error(status: u32, retry_after_s: Option<u32>, kind: &str, code: &str, message: &str) -> Self {
        Self { status, retry_after_s, body: error(kind, None, code, message) }
    }

    pub(super) fn key_too_long() -> Self {
        let message = format!("the session id is longer than {} bytes", crate::session::KEY_BYTES_MAX);
        Self::error(400, None, "invalid_request_error", "session_id_too_long", &message)
    }

    /// The named target cannot serve now.
    pub(crate) fn target_gone(message: &str) -> Self {
        Self::error(503, Some(1), "server_error", "worker_unavailable", message)
    }

    /// No worker meets the demands.
    pub(super) fn unmet() -> Self {
        let message = "no worker of this pool meets the demands of the request";
        Self::error(503, Some(1), "server_error", "demands_unmet", message)
    }

    /// Every slot, or the bound one, is overloaded, and the pool refuses then.
    pub(super) fn overloaded(left: Option<Millis>) -> Self {
        let message = "the model workers are overloaded; try again shortly";
        let seconds = left.map_or(1, |left| left.0.div_ceil(1000).max(1));
        Self::error(429, u32::try_from(seconds).ok(), "rate_limit_error", "overloaded", message)
    }

    /// The request asks for a model that no pool serves.
    pub(super) fn model_unknown() -> Self {
        let message = "the model does not exist";
        Self {
            body: error("invalid_request_error", Some("model"), "model_not_found", message),
            ..Self::empty(404)
        }
    }

    /// The request names no model, and there is no pool for such.
    pub(super) fn model_missing() -> Self {
        let message = "you must provide a model";
        Self {
            body: error("invalid_request_error", Some("model"), "model_required", message),
            ..Self::empty(400)
        }
    }

    /// The body that names the model does not come.
    pub(super) fn body_late() -> Self {
        let message = "the request body did not come in time to tell which model it asks for";
        Self::error(408, None, "invalid_request_error", "request_timeout", message)
    }

    /// Only the service knows what would become of a request.
    pub(super) fn dry_run_unanswered() -> Self {
        let message = "the state service did not answer, and a dry run asks it";
        Self::error(503, Some(1), "server_error", "dry_run_unanswered", message)
    }

    /// A header of a trusted caller that cannot be read.
    pub(super) fn malformed(code: &str, message: &str) -> Self {
        Self::error(400, None, "invalid_request_error", code, message)
    }

    /// An answer that is no error.
    pub(super) fn ok(body: String) -> Self {
        Self { body, ..Self::empty(200) }
    }

    const fn empty(status: u32) -> Self {
        Self { status, retry_after_s: None, body: String::new() }
    }

    /// A named target that is refused for good.
    pub(super) fn target(status: u32, code: &str, message: &str) -> Self {
        Self::error(status, None, "invalid_request_error", code, message)
    }

    pub(super) fn no_topology() -> Self {
        let message = "no model worker is known yet; try again shortly";
        Self::error(503, Some(1), "server_error", "no_workers_known", message)
    }
}

/// An error in OpenAI's shape.
fn error(kind: &str, param: Option<&str>, code: &str, message: &str) -> String {
    let param = param.map_or_else(|| "null".to_owned(), |param| format!("\"{param}\""));
    format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":{param},"code":"{code}"}}}}"#)
}

/// Inputs that make no sense in a state: named and counted, never an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ignored {
    /// A second request head.
    SecondHead,
    /// A route answer nobody waits for.
    LateRoute,
    /// An answer to a request that was not placed.
    UnplacedAnswer,
}

/// What is counted. One of the first group counts each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Sent to its bound slot from the cache alone.
    Pinned,
    /// Joined the hold of a concurrent first turn, from the cache alone.
    Joined,
    /// The service said: bound there.
    RoutedBound,
    /// The service said: held there.
    RoutedHeld,
    /// The service said: go there, unpinned.
    RoutedUnpinned,
    /// Placed by rendezvous, without the service.
    PlacedAlone,
    /// Placed by the session's hash, as its pool wants.
    SessionHash,
    /// Served exactly where a trusted caller said.
    Named,
    /// Bound to a slot that was just unreachable or said it is busy: served elsewhere this once.
    Spilled,
    /// No session key: spread over the pool.
    SessionKeyMissing,
    /// The pool pins nothing.
    AffinityOff,
    /// The bound slot, or every slot, was overloaded, and the pool refuses then: 429.
    OverloadRefused,
    /// No pool serves the model asked for: 404, or 400 when none was.
    ModelUnknown,
    /// Answered with the list of models.
    ModelsListed,
    /// Answered with what would have become of it.
    DryRun,
    /// A key over the limit: 400.
    KeyTooLong,
    /// A named target, or the want of one, could not be served: 400, 404 or 503.
    NamedRefused,
    /// No topology or pool known.
    NoTopology,
    /// No worker of the pool may serve.
    NoWorker,
    /// A body was to be read and did not come: decided without it.
    BodyMissing,
    /// A body was longer than what is read of it: decided by what came before.
    BodyTooLong,
    /// A body was no JSON: decided without it.
    BodyMalformed,
    /// A pool that looks for prompts was asked without this one's: its body is no JSON text, or this module sees none.
    PromptUnread,
    /// A session ended because its client said so.
    Released,
    /// A first turn was accepted.
    Committed,
    /// A first turn failed: no binding.
    RolledBack,
    /// `route` was not called: too many failures in a row.
    BreakerOpen,
    /// `route` gave no answer.
    RouteFailed(RouteFailure),
    /// An answer came through a pool cluster without the upstream role: its rank was not set.
    UpstreamRoleMissing,
    /// An attempt of a request whose plan is not in this VM: no rank was sent.
    PlanMissing,
    /// A body too large to be rewritten for an engine that reads the rank there: sent as it is, without a rank.
    RankBodyTooLong,
    /// The same for a body that is no JSON object.
    RankBodyMalformed,
    /// Envoy dialled another host than the one target allowed: 503, and that host saw nothing.
    ExactRefused,
    /// Envoy does not know a worker's cluster: it is declared at the service, and not in this Envoy's config.
    ClusterMissing,
    /// An engine's answer broke off after its head.
    StreamBroken,
    /// A client sent a rank or a cluster; it was stripped before anything read it.
    Spoofed,
    /// A page changed under each of several tries.
    PageContended,
    /// Something that the service was to hear was given up: too much waits for it ([`crate::vm::ENTRIES_KEPT_MAX`]). Counted with each tick.
    EntryDropped,
    /// An input that made no sense.
    Ignored(Ignored),
}

impl Counter {
    /// Every counter, in the order of its metric.
    pub const ALL: &'static [Self] = &[
        Self::Pinned,
        Self::Joined,
        Self::RoutedBound,
        Self::RoutedHeld,
        Self::RoutedUnpinned,
        Self::PlacedAlone,
        Self::SessionHash,
        Self::Named,
        Self::Spilled,
        Self::SessionKeyMissing,
        Self::AffinityOff,
        Self::OverloadRefused,
        Self::ModelUnknown,
        Self::ModelsListed,
        Self::DryRun,
        Self::KeyTooLong,
        Self::NamedRefused,
        Self::NoTopology,
        Self::NoWorker,
        Self::BodyMissing,
        Self::BodyTooLong,
        Self::BodyMalformed,
        Self::PromptUnread,
        Self::Released,
        Self::Committed,
        Self::RolledBack,
        Self::BreakerOpen,
        Self::RouteFailed(RouteFailure::Timeout),
        Self::RouteFailed(RouteFailure::Failed),
        Self::RouteFailed(RouteFailure::Malformed),
        Self::UpstreamRoleMissing,
        Self::PlanMissing,
        Self::RankBodyTooLong,
        Self::RankBodyMalformed,
        Self::ExactRefused,
        Self::ClusterMissing,
        Self::StreamBroken,
        Self::Spoofed,
        Self::PageContended,
        Self::EntryDropped,
        Self::Ignored(Ignored::SecondHead),
        Self::Ignored(Ignored::LateRoute),
        Self::Ignored(Ignored::UnplacedAnswer),
    ];

    /// Its word in metrics (`rankpin.requests.WORD`) and, for placements, in access logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Joined => "joined",
            Self::RoutedBound => "routed_bound",
            Self::RoutedHeld => "routed_held",
            Self::RoutedUnpinned => "routed_unpinned",
            Self::PlacedAlone => "placed_alone",
            Self::SessionHash => "session_hash",
            Self::Named => "named",
            Self::Spilled => "spilled",
            Self::SessionKeyMissing => "session_key_missing",
            Self::AffinityOff => "affinity_off",
            Self::OverloadRefused => "overload_refused",
            Self::ModelUnknown => "model_unknown",
            Self::ModelsListed => "models_listed",
            Self::DryRun => "dry_run",
            Self::KeyTooLong => "key_too_long",
            Self::NamedRefused => "named_refused",
            Self::NoTopology => "no_topology",
            Self::NoWorker => "no_worker",
            Self::BodyMissing => "body_missing",
            Self::BodyTooLong => "body_too_long",
            Self::BodyMalformed => "body_malformed",
            Self::PromptUnread => "prompt_unread",
            Self::Released => "released",
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::BreakerOpen => "breaker_open",
            Self::RouteFailed(RouteFailure::Timeout) => "route_timeout",
            Self::RouteFailed(RouteFailure::Failed) => "route_failed",
            Self::RouteFailed(RouteFailure::Malformed) => "route_malformed",
            Self::UpstreamRoleMissing => "upstream_role_missing",
            Self::PlanMissing => "plan_missing",
            Self::RankBodyTooLong => "rank_body_too_long",
            Self::RankBodyMalformed => "rank_body_malformed",
            Self::ExactRefused => "exact_refused",
            Self::ClusterMissing => "cluster_missing",
            Self::StreamBroken => "stream_broken",
            Self::Spoofed => "spoofed",
            Self::PageContended => "page_contended",
            Self::EntryDropped => "entry_dropped",
            Self::Ignored(Ignored::SecondHead) => "ignored_second_head",
            Self::Ignored(Ignored::LateRoute) => "ignored_late_route",
            Self::Ignored(Ignored::UnplacedAnswer) => "ignored_unplaced_answer",
        }
    }
}
