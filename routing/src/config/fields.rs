//! Every field of the filter's config, declared once: the parser takes defaults and limits from here, the documentation the rest.

use crate::header;
use crate::session::{SCOPE_FORMS, SOURCE_FORMS};
use std::fmt::Write as _;

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where it stands: names joined by dots.
    pub path: &'static str,
    /// What it may hold, and what it is when left out.
    pub kind: Kind,
    /// What it does; empty in the module that Envoy loads, as is the next.
    pub meaning: &'static str,
    /// What it costs; empty if nothing worth a word.
    pub cost: &'static str,
}

/// What a field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Integer {
        /// When left out.
        default: u64,
        /// Least.
        min: u64,
        /// Greatest.
        max: u64,
        /// Of what.
        unit: &'static str,
    },
    /// True or false; false when left out.
    Flag,
    /// One of a few words; the first when left out.
    Word(&'static [&'static str]),
    /// A text.
    Text {
        /// When left out.
        default: &'static str,
        /// Longest, in bytes.
        bytes_max: usize,
        /// What else it must be.
        rule: &'static str,
    },
    /// A text of one of these forms; the meaning says what it is when left out.
    Form {
        /// The forms.
        forms: &'static str,
    },
    /// The name of a header.
    Header {
        /// When left out.
        default: &'static str,
    },
    /// Names of headers.
    Headers {
        /// When left out.
        default: &'static [&'static str],
        /// Most.
        max: usize,
    },
    /// Places in a request.
    Sources {
        /// Their forms.
        forms: &'static str,
        /// Most.
        max: usize,
    },
}

/// All fields, in the order of the documentation.
#[must_use]
pub const fn fields() -> &'static [Field] {
    ALL
}

macro_rules! declare {
    ($($name:ident: $path:literal, $kind:expr, $meaning:literal, $cost:literal;)*) => {
        $(pub(super) const $name: Field = Field { path: $path, kind: $kind, meaning: said($meaning), cost: said($cost) };)*
        const ALL: &[Field] = &[$($name),*];
    };
}

/// What is written for people alone is no part of the module that Envoy loads: `docs/CONFIG.md` has it.
const fn said(text: &'static str) -> &'static str {
    if cfg!(target_arch = "wasm32") { "" } else { text }
}

const fn integer(default: u64, min: u64, max: u64, unit: &'static str) -> Kind {
    Kind::Integer { default, min, max, unit }
}

const fn text(default: &'static str, bytes_max: usize, rule: &'static str) -> Kind {
    Kind::Text { default, bytes_max, rule }
}

/// Most key or scope sources: each costs up to a hostcall a request.
const SOURCES_MAX: usize = 64;
/// Most headers that may end a session.
const FINAL_HEADERS_MAX: usize = 8;
/// What `pool_by` may be.
pub(super) const POOL_BY_FORMS: &str =
    "\"fixed NAME\", \"header NAME\", \"body\", or leave the field out where there is one pool";

declare! {
    SERVICE_CLUSTER: "service.cluster", text(header::cluster::SERVICE, 255, "the name of an Envoy cluster"),
        "Envoy cluster of the service's data plane", "";
    SERVICE_TOKEN: "service.token", text("", 4096, "visible ASCII"),
        "bearer token, if the service runs with `--token-file`", "";
    ROUTE_DEADLINE: "service.route_deadline_ms", integer(30, 1, 10_000, "ms"),
        "longest wait of a first turn; then the filter places it by itself",
        "what a first turn waits at most when the service is slow";
    ROUTE_PROMPT_DEADLINE: "service.route_prompt_deadline_ms", integer(250, 1, 10_000, "ms"),
        "the same in a pool that looks for prompts in its engines' caches (`kv_aware`): there the prompt is made tokens first",
        "as above, for requests without a session, too";
    SOURCES: "session.sources", Kind::Sources { forms: SOURCE_FORMS, max: SOURCES_MAX },
        "where a session key may stand, first hit wins; left out: the list below. `body:/metadata/user_id` reads only the two forms of \
         Claude Code, `body:/conversation` a string or an object's `id`; a `jwt` claim is read, not verified",
        "0.2 µs each miss; a body source that is reached costs the reading of the body";
    SCOPE: "session.scope", Kind::Sources { forms: SCOPE_FORMS, max: SOURCES_MAX },
        "part of the key: tenants whose values differ never meet; left out: nothing", "0.2 µs each";
    BODY: "session.body", Kind::Flag,
        "put the body sources of the list below behind the headers; needs `allow_on_headers_stop_iteration: true` in Envoy's config, and \
         `rankpin-body.wasm` or `rankpin-full.wasm`",
        "a request without a key in its head waits for its whole body, and Envoy buffers it";
    PROMPT_BYTES_MAX: "session.prompt_bytes_max", integer(1 << 20, 1 << 10, 1 << 24, "bytes"),
        "most of a body that is read; a key behind it is none, and a `kv_aware` pool looks for no more of a prompt (counted `body_too_long`). Under `pool_by: body` the model is looked for in the \
         first 16 MiB",
        "memory of Envoy for each request that waits";
    BODY_WAIT: "session.body_wait_ms", integer(1000, 10, 60_000, "ms"),
        "longest stand-still of a body that is waited for, and a thirtieth of the longest wait; then the request goes on without a key from it \
         (counted `body_missing`)",
        "";
    SUBAGENTS: "session.subagents", Kind::Word(&["own", "parent"]),
        "each agent of a session is a session (`own`), or the sub-agents of one share a binding (`parent`): those of a Claude Code session, \
         and those that name their parent in `x-parent-session-id`, `x-dynamo-parent-session-id` or `x-codex-parent-thread-id`",
        "`parent`: 1 µs a request";
    FINAL_HEADERS: "session.final_headers", Kind::Headers { default: header::FINAL_DEFAULT, max: FINAL_HEADERS_MAX },
        "a turn with one of these at `true` or `1` is its session's last: the binding is released when it ends", "0.2 µs each";
    FALLBACK: "session.fallback", Kind::Flag,
        "last of all sources, a hash of how the conversation begins (model, system, everything up to the first user turn). Conversations \
         that begin alike share a binding",
        "as `session.body`, and a hash over those bytes";
    HASH_SECRET: "hash_secret", text("", 1024, ""),
        "shared by all filters of an installation, so that ids cannot be computed from keys", "";
    POOL_BY: "pool_by", Kind::Form { forms: POOL_BY_FORMS },
        "which pool serves: this one, the one (or the one with the model) that a header names, or the one with the body's `model`; left \
         out: the only pool, of several the one named `default`",
        "`body`: as `session.body`, for every request";
    RESPONSE_IDS: "response_ids", Kind::Flag,
        "keep a chain of `previous_response_id` on one slot, and send `/v1/responses/ID` there; needs `rankpin-full.wasm`",
        "a call into the VM for each chunk of an answer";
    STEERING: "steering", Kind::Word(&["cluster", "endpoints"]),
        "one Envoy cluster a worker, or one a pool with the upstream role (fail-over within the request)",
        "`endpoints`: about a fifth dearer";
    TRUST: "trust", Kind::Word(&["nobody", "callers"]),
        "`callers`: who reaches this listener may name its target (`x-rankpin-worker`, `x-rankpin-rank` and the like), say what it demands \
         and ask for a dry run; let the listener's native strip list leave out `x-rankpin-worker` to `x-rankpin-prefer`",
        "";
    SERVED_HEADER: "served_header", Kind::Flag,
        "tell the client in `x-rankpin-served: WORKER;rank=N;reason=WORD` who answered, after an answer below 400 only", "";
    PREFILL_HOST_PORT: "prefill_headers.host_port", Kind::Header { default: header::PREFILL_HOST_PORT },
        "in a pool of phases: tells the decode engine the prefill endpoint", "";
    PREFILL_RANK: "prefill_headers.rank", Kind::Header { default: header::PREFILL_RANK },
        "in a pool of phases: tells it the rank there", "";
    ON_NO_TOPOLOGY: "on_no_topology", Kind::Word(&["pass_through", "503"]),
        "before the first topology: the default route, or 503 with `Retry-After`", "";
    PAGE_COUNT: "pages.count", integer(4096, 16, 65_536, "pages"),
        "cached bindings per Envoy: count × (bytes − 4) ÷ 64; the first VM's numbers hold for all", "count × bytes of memory";
    PAGE_BYTES: "pages.bytes", integer(2048, 256, 65_536, "bytes"),
        "size of one page: what a turn reads, and rewrites when its binding changes", "a copy of one page a turn";
    WATCH: "watch", Kind::Word(&["elected", "singleton"]),
        "who polls the service: a worker thread by lease, or a wasm service in the bootstrap", "";
    TICK: "tick_ms", integer(100, 10, 10_000, "ms"),
        "how often reports go out and leases are renewed", "a callback per thread each time";
}

impl Field {
    /// Name of the object it stands in; empty at the top.
    #[must_use]
    pub fn parent(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(parent, _)| parent)
    }

    /// Its name there.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// What it is when left out, as JSON; empty where no JSON says it.
    #[must_use]
    pub fn default_text(&self) -> String {
        match self.kind {
            Kind::Integer { default, .. } => default.to_string(),
            Kind::Flag => "false".to_owned(),
            Kind::Word(words) => words.first().map_or_else(String::new, |word| format!("{word:?}")),
            Kind::Text { default, .. } | Kind::Header { default } => format!("{default:?}"),
            Kind::Headers { default, .. } => format!("{default:?}"),
            Kind::Form { .. } | Kind::Sources { .. } => String::new(),
        }
    }

    /// What is allowed, as a fault says it.
    #[must_use]
    pub fn allowed(&self) -> String {
        match self.kind {
            Kind::Integer { min, max, .. } => format!("a whole number in {min}..={max}"),
            Kind::Flag => "true or false".to_owned(),
            Kind::Word(words) => alternatives(words),
            Kind::Text { bytes_max, .. } => format!("a text of at most {bytes_max} bytes"),
            Kind::Form { forms } => forms.to_owned(),
            Kind::Header { .. } => HEADER_RULE.to_owned(),
            Kind::Headers { max, .. } => format!("a list of at most {max} header names"),
            Kind::Sources { max, .. } => format!("a list of at most {max} sources"),
        }
    }
}

/// What a header may be called here.
pub(super) const HEADER_RULE: &str = "a header name of letters, digits, '-', '_' or '.'";

fn alternatives(words: &[&str]) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        let between = if index == 0 { "" } else { " or " };
        // Writing to a text cannot fail.
        let _ = write!(text, "{between}{word:?}");
    }
    text
}
