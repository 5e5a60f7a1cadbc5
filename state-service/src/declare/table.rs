//! Every field of a worker's declaration, declared once: the parser takes words, defaults and limits from here, the
//! documentation the rest.

use super::{
    ADDRESS_ALLOWED, BLOCK_SIZE_MAX, DP_START_MAX, ENDPOINTS_MAX, IN_FLIGHT_LIMIT_MAX, NAME_ALLOWED,
    RANKS_MAX, TEXT_BYTES_MAX, TEXTS_MAX, VERSION_BYTES_MAX, WEIGHT_MAX, json,
};
use routing::config::{Field, Kind};

/// All fields of a worker, in the order of the documentation.
#[must_use]
pub const fn fields() -> &'static [Field] {
    ALL
}

/// A whole number.
pub(crate) const fn integer(default: u64, min: u32, max: u32, unit: &'static str) -> Kind {
    Kind::Integer { default, min: min as u64, max: max as u64, unit }
}

/// The words of a table; the first is the default.
#[expect(clippy::indexing_slicing, reason = "within the length both have; and it runs at compile time")]
pub(crate) const fn words<T, const N: usize>(pairs: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut at = 0;
    while at < N {
        words[at] = pairs[at].0;
        at += 1;
    }
    words
}

macro_rules! declare {
    ($($name:ident: $path:literal, $kind:expr, $meaning:literal, $cost:literal;)*) => {
        $(pub(super) const $name: Field = Field { path: $path, kind: $kind, meaning: $meaning, cost: $cost };)*
        const ALL: &[Field] = &[$($name),*];
    };
}

declare! {
    ID: "id", Kind::Form { forms: NAME_ALLOWED }, "stable across restarts of the engine; in `PUT` the path says it", "";
    POOL: "pool", Kind::Form { forms: NAME_ALLOWED }, "the pool it belongs to; left out: `default`", "";
    URL: "url", Kind::Form { forms: super::url::URL_ALLOWED },
        "instead of `endpoints` (beside it only the one a `GET` shows), of a vLLM or SGLang that serves without TLS: ranks, engine version and block size are read from it \
         (`/kv_event_sources`, `/metrics`, `/server_info`, `/version`), again every 10 s; until it answers it is one rank",
        "three small requests to the worker every 10 s";
    BLOCK_SIZE: "block_size", Kind::Form { forms: "a whole number in 1..=1048576" },
        "tokens a block, as the engine behind `url` told; said by you it counts until it tells, without `url` not at all", "";
    ADDRESS: "endpoints[].address", Kind::Form { forms: ADDRESS_ALLOWED },
        "where Envoy dials it, and probes and scrapes go; must be given, for 1..=64 endpoints, unless `url` is", "";
    DP_SIZE: "endpoints[].dp_size", integer(1, 1, RANKS_MAX, "ranks"),
        "ranks behind it: the engine's data-parallel size on this endpoint", "";
    DP_START: "endpoints[].dp_start", integer(0, 0, DP_START_MAX, "rank"),
        "first global rank; for the second node of a hybrid deployment of 4 + 4 ranks: 4", "";
    RANK_NUMBERING: "endpoints[].rank_numbering",
        Kind::Form { forms: "\"global\" (default of vllm and sglang), \"local\", \"none\" (default of the others)" },
        "how the endpoint counts ranks where it reads one: as declared, from 0, or not at all. A vLLM node of a hybrid deployment \
         counts from 0 (`local`), though its metrics do not",
        "";
    TLS: "endpoints[].tls", Kind::Form { forms: "{\"sni\": NAME, \"ca\": PATH}, both optional" },
        "TLS towards it, as Envoy does it; such an endpoint is probed by connecting, and not scraped", "";
    ENGINE: "engine", Kind::Word(&words(json::ENGINES)), "how a rank travels, and where the engine's gauges are", "";
    ENGINE_VERSION: "engine_version", Kind::Text { default: "", bytes_max: VERSION_BYTES_MAX, rule: "as the engine writes it" },
        "decides which paths take a rank; left out: as new as we know", "";
    RANK_IN: "rank_in", Kind::Word(&words(json::RANKS_IN)),
        "where the engine reads a rank; `body`: SGLang before 0.5.10, the body is rewritten", "`body`: the whole body is buffered";
    IN_FLIGHT_LIMIT: "in_flight_limit", Kind::Form { forms: "a whole number in 1..=1000000" },
        "requests in flight from which on one of its slots counts as overloaded; left out: as its pool says", "";
    KV_EVENTS: "kv_events", Kind::Form { forms: super::kv_events::FORMS },
        "where its ranks publish what they cache (ZeroMQ). Rank r has both ports plus r; `*` is the host of its endpoint. `discover`: \
         vLLM from 0.31 and SGLang from 0.5.13 tell it themselves; left out (`auto`): the same, where the pool places by it",
        "two sockets a rank while it is subscribed to";
    WEIGHT: "weight", integer(1, 1, WEIGHT_MAX, ""), "share under `session_hash` and rendezvous", "";
    DEVICE: "device", Kind::Word(&words(json::DEVICES)), "for `device_aware`", "";
    PHASE: "phase", Kind::Word(&words(json::PHASES)), "which half of a split pool it is", "";
    MODELS: "models", Kind::Form { forms: "a list of at most 64 names of 1..=256 bytes" },
        "model names it serves; none: whatever its pool serves", "";
    LABELS: "labels", Kind::Form { forms: "an object of at most 64 texts of 1..=256 bytes" },
        "words that requests may ask for; one whose name begins with `!` repels those that do not", "";
}

// What the forms above say in words.
const _: () = assert!(
    BLOCK_SIZE_MAX == 1_048_576
        && ENDPOINTS_MAX == 64
        && TEXTS_MAX == 64
        && TEXT_BYTES_MAX == 256
        && IN_FLIGHT_LIMIT_MAX == 1_000_000
);
