//! Every header, cluster, root id, gauge and shared-data name that rankpin reads or writes; the only such strings.

/// Names the Envoy cluster of a placed request (`cluster_header` of the route). Stripped before the worker.
pub const CLUSTER: &str = "x-rankpin-cluster";
/// Ordered `ip:port` list that the pool cluster's `override_host` policy follows. Stripped before the worker.
pub const ENDPOINTS: &str = "x-rankpin-endpoints";
/// The rank header of vLLM (>= 0.11.1) and SGLang (>= 0.5.10).
pub const VLLM_RANK: &str = "x-data-parallel-rank";
/// Names the worker that must serve, on trusted listeners.
pub const TARGET_WORKER: &str = "x-rankpin-worker";
/// Names its rank.
pub const TARGET_RANK: &str = "x-rankpin-rank";
/// Tells the client who served (opt-in).
pub const SERVED: &str = "x-rankpin-served";
/// Kills the VM of the filter that is built for tests of just that (`tests/trap`); nothing to the shipped one.
pub const TEST_TRAP: &str = "x-rankpin-test-trap";
/// Steering by trusted callers; stripped on untrusted listeners.
pub const TRUSTED: &[&str] = &[
    TARGET_WORKER,
    TARGET_RANK,
    PHASE_TARGETS[0].0,
    PHASE_TARGETS[0].1,
    PHASE_TARGETS[1].0,
    PHASE_TARGETS[1].1,
    DRY_RUN,
    SUBSET,
    REQUIRE,
    PREFER,
];
/// The same by half of a split pool: worker and rank that prefill, worker and rank that decode.
pub const PHASE_TARGETS: [(&str, &str); 2] = [
    ("x-rankpin-prefill-worker", "x-rankpin-prefill-rank"),
    ("x-rankpin-decode-worker", "x-rankpin-decode-rank"),
];
/// Asks only what would become of the request.
pub const DRY_RUN: &str = "x-rankpin-dry-run";
/// `ip:port` of the endpoints that may serve, parted by commas.
pub const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Labels that the worker must have: `gpu=h100,spot`.
pub const REQUIRE: &str = "x-rankpin-require";
/// Labels that the worker should have.
pub const PREFER: &str = "x-rankpin-prefer";
/// The mark that the native strip list leaves when a client sent a rank or a cluster: the filter counts and removes it.
pub const SPOOFED: &str = "x-rankpin-spoofed";
/// Headers a client may never bring along: they steer us, or the engines (SGLang's overrides, llm-d's sidecar).
pub const STRIPPED: &[&str] = &[
    CLUSTER,
    ENDPOINTS,
    VLLM_RANK,
    PREFILL_HOST_PORT,
    PREFILL_RANK,
    "x-override-routed-dp-rank",
    "x-override-disagg-prefill-dp-rank",
    "x-data-parallel-host-port",
];

/// Default key sources, first hit wins (affinity section 2).
pub const SESSION_DEFAULT: &[&str] = &[
    "x-session-id",
    "x-session-affinity",
    "x-dynamo-session-id",
    "x-smg-routing-key",
    CLAUDE_SESSION,
    "thread-id",
    "session-id",
    "session_id",
    "conversation_id",
    "x-litellm-session-id",
    "x-aibrix-session-key",
];
/// Claude Code's session header, narrowed by [`CLAUDE_AGENT`] when a sub-agent sends it.
pub const CLAUDE_SESSION: &str = "x-claude-code-session-id";
/// Names a sub-agent inside a Claude Code session.
pub const CLAUDE_AGENT: &str = "x-claude-code-agent-id";
/// Name the parent of a sub-agent's session (OpenCode, Dynamo, Codex); read where siblings share a binding.
pub const PARENTS: &[&str] =
    &["x-parent-session-id", "x-dynamo-parent-session-id", "x-codex-parent-thread-id"];
/// Default key sources in a JSON body, as pointers, in order; only where body reading is on.
pub const SESSION_BODY_DEFAULT: &[&str] = &[
    "/session_id",
    "/prompt_cache_key",
    "/conversation",
    "/conversation_params/conversation_id",
    "/metadata/session_id",
    "/metadata/user_id",
];
/// Say that a session ends with this turn; the default of `session.final_headers`.
pub const FINAL_DEFAULT: &[&str] = &["x-session-final", "x-dynamo-session-final"];
/// Tells a decode engine which worker prefilled; the default of `prefill_headers.host_port`.
pub const PREFILL_HOST_PORT: &str = "x-prefiller-host-port";
/// Tells it the rank there; the default of `prefill_headers.rank`.
pub const PREFILL_RANK: &str = "x-prefill-dp-rank";
/// Never a session key, whatever the config says: they change with each turn.
pub const NEVER_A_KEY: &[&str] = &["x-request-id", "traceparent", "x-correlation-id"];

/// Pseudo-headers and plain HTTP names the filter touches.
pub mod http {
    /// Request path with query.
    pub const PATH: &str = ":path";
    /// Request method.
    pub const METHOD: &str = ":method";
    /// Authority, required by Envoy on calls.
    pub const AUTHORITY: &str = ":authority";
    /// Response status.
    pub const STATUS: &str = ":status";
    /// Cookies.
    pub const COOKIE: &str = "cookie";
    /// Body type.
    pub const CONTENT_TYPE: &str = "content-type";
    /// How a body is packed.
    pub const CONTENT_ENCODING: &str = "content-encoding";
    /// Bytes of a body.
    pub const CONTENT_LENGTH: &str = "content-length";
    /// Seconds or date after which a client may come again.
    pub const RETRY_AFTER: &str = "retry-after";
    /// Bearer token towards the service.
    pub const AUTHORIZATION: &str = "authorization";
}

/// Envoy cluster names.
pub mod cluster {
    /// The state service's data plane.
    pub const SERVICE: &str = "rankpin-service";
    /// Serves when everything else is away: maglev on the session header.
    pub const DEFAULT: &str = "rankpin-default";
    /// Prefix of a pool's cluster (`endpoints` steering).
    pub const POOL_PREFIX: &str = "rankpin-pool-";
    /// Prefix of a worker's cluster (`cluster` steering).
    pub const WORKER_PREFIX: &str = "rankpin-worker-";
}

/// Root ids of the wasm plugin.
pub mod root {
    /// Decides; in the listener's filter chain.
    pub const DOWNSTREAM: &str = "rankpin";
    /// Once per attempt; in the pool cluster's upstream filter chain.
    pub const UPSTREAM: &str = "rankpin-upstream";
    /// Singleton wasm service that watches for the whole Envoy.
    pub const WATCH: &str = "rankpin-watch";
}

/// Gauges shared by all VMs of one Envoy (process-wide atomics).
pub mod gauge {
    /// Number of the newest snapshot in shared data.
    pub const SNAPSHOT: &str = "rankpin.snapshot";
    /// Workers this Envoy may use, as last heard.
    pub const WORKERS: &str = "rankpin.workers";
    /// Requests of this Envoy in flight on the fleet's slot `n`. Numbers are given by the service and given again.
    #[must_use]
    pub fn slot_in_flight(n: u32) -> String {
        format!("rankpin.slot.{n}.in_flight")
    }
}

/// Keys of Envoy's shared data; a fixed set, since nothing there can be deleted.
pub mod shared {
    /// Topology blob.
    pub const TOPOLOGY: &str = "rankpin.topology";
    /// Slot states and fleet load blob.
    pub const FLEET: &str = "rankpin.fleet";
    /// Lease of the elected watcher.
    pub const LEASE: &str = "rankpin.watch.lease";
    /// Where the watch stands.
    pub const POSITION: &str = "rankpin.watch.position";
    /// Page geometry; its first writer sets it.
    pub const PAGES: &str = "rankpin.pages";
    /// Counter that gives each VM its epoch and seed.
    pub const LIVES: &str = "rankpin.lives";
    /// Round-robin positions, one for all pools whose names hash alike: pools come and go, keys never do.
    pub const CURSORS: u32 = 64;
    /// Round-robin position `n`.
    #[must_use]
    pub fn cursor(n: u32) -> String {
        format!("rankpin.cursor.{n}")
    }
    /// Gauges of slots that this Envoy has shown so far are below this number.
    pub const GAUGES: &str = "rankpin.gauges";
    /// Seats of VMs: more than threads of any Envoy.
    pub const SEATS: u32 = 128;
    /// Seat `n`: what one VM has in flight.
    #[must_use]
    pub fn seat(n: u32) -> String {
        format!("rankpin.seat.{n}")
    }
    /// Page `n` of cached bindings.
    #[must_use]
    pub fn page(n: u32) -> String {
        format!("rankpin.page.{n}")
    }
}

/// Filter state written by the downstream role: `wasm.rankpin` in access logs.
pub const PROPERTY: &str = "rankpin";
