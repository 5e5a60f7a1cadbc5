//! Every field of a pool, declared once: the parser takes words, defaults and limits from here, the documentation the rest.

use super::kv::PREFILL_SCALE_DEFAULT;
use super::{POOLS_MAX, TTL_S_MAX, WORKERS_MAX};
use crate::declare::{IN_FLIGHT_LIMIT_MAX, NAME_ALLOWED, TEXT_BYTES_MAX, TEXTS_MAX, integer, words};
use routing::config::{Field, Kind};
use routing::contract::{
    Affinity, DEVICE_RATIO_DEFAULT, OnAllOverloaded, OnOverload, Policy, RankChoice, RankPick,
    SOFT_MARGIN_PERCENT_DEFAULT, TTL_DEFAULT, WAIT_MAX,
};

pub(super) const POLICIES: &[(&str, Policy); 8] = &[
    ("least_loaded", Policy::LeastLoaded),
    ("session_hash", Policy::SessionHash),
    ("round_robin", Policy::RoundRobin),
    ("random", Policy::Random),
    ("power_of_two", Policy::PowerOfTwo),
    ("device_aware", Policy::DeviceAware),
    ("direct", Policy::Direct),
    ("kv_aware", Policy::KvAware),
];
pub(super) const AFFINITIES: &[(&str, Affinity); 3] =
    &[("hard", Affinity::Hard), ("soft", Affinity::Soft), ("off", Affinity::Off)];
pub(super) const RANKS: &[(&str, RankChoice); 3] =
    &[("auto", RankChoice::Auto), ("pinned", RankChoice::Pinned), ("engine", RankChoice::Engine)];
pub(super) const RANK_PICKS: &[(&str, RankPick); 2] =
    &[("hash", RankPick::Hash), ("least_loaded", RankPick::LeastLoaded)];
pub(super) const ON_OVERLOADS: &[(&str, OnOverload); 3] =
    &[("spill", OnOverload::Spill), ("wait", OnOverload::Wait), ("refuse", OnOverload::Refuse)];
pub(super) const ON_ALL_OVERLOADEDS: &[(&str, OnAllOverloaded); 2] =
    &[("least_loaded", OnAllOverloaded::LeastLoaded), ("refuse", OnAllOverloaded::Refuse)];

/// Largest device ratio: an accelerator that carries a thousand CPU workers' load.
const DEVICE_RATIO_MAX: u32 = 1000;
/// Largest share or weight.
const PERCENT_MAX: u32 = 10_000;
/// Least soft margin: a worker is left for one that carries less, never for one that carries more.
const SOFT_MARGIN_PERCENT_MIN: u32 = 100;
/// Largest soft margin: a hundred times the least load is as good as `hard`.
const SOFT_MARGIN_PERCENT_MAX: u32 = 10_000;

/// All fields of the config file, in the order of the documentation.
#[must_use]
pub const fn fields() -> &'static [Field] {
    ALL
}

macro_rules! declare {
    ($($name:ident: $path:literal, $kind:expr, $meaning:literal, $cost:literal;)*) => {
        $(pub(super) const $name: Field = Field { path: $path, kind: $kind, meaning: $meaning, cost: $cost };)*
        const ALL: &[Field] = &[$($name),*];
    };
}

declare! {
    POOLS: "pools", Kind::Form { forms: "1..=256 pools" },
        "pools, each a list of the fields below; workers may name only these", "";
    NAME: "pools[].name", Kind::Form { forms: NAME_ALLOWED },
        "the pool's Envoy cluster is `rankpin-pool-NAME`; must be given", "";
    POLICY: "pools[].policy", Kind::Word(&words(POLICIES)),
        "how a new session, or a request without one, is placed; `direct`: only where its caller says", "";
    AFFINITY: "pools[].affinity", Kind::Word(&words(AFFINITIES)),
        "whether sessions are pinned; `soft`: until their worker carries too much", "";
    TTL: "pools[].ttl_s", integer(TTL_DEFAULT.0 / 1000, 1, TTL_S_MAX, "s"),
        "idle time after which a binding ends", "a session in the table for so long";
    DEVICE_RATIO: "pools[].device_ratio", integer(DEVICE_RATIO_DEFAULT as u64, 1, DEVICE_RATIO_MAX, ""),
        "`device_aware`: how many times a CPU worker's load an accelerator carries", "";
    RANK: "pools[].rank", Kind::Word(&words(RANKS)),
        "who chooses the rank of a session's turns: the binding, else its hash (`pinned`), or the engine (`engine`). `auto`: `hard` \
         pins; `soft` leaves it to the engine unless the binding has a rank",
        "";
    RANK_PICK: "pools[].rank_pick", Kind::Word(&words(RANK_PICKS)),
        "rank of a new binding where ranks are pinned. `least_loaded`: the hashed one unless it has more than 2 requests above the \
         least loaded, while the service answers",
        "";
    SOFT_MARGIN: "pools[].soft_margin_percent",
        integer(SOFT_MARGIN_PERCENT_DEFAULT as u64, SOFT_MARGIN_PERCENT_MIN, SOFT_MARGIN_PERCENT_MAX, "%"),
        "`soft`: a session stays while the load of its worker is at most this many percent of the least load, plus 2 requests", "";
    ON_OVERLOAD: "pools[].on_overload", Kind::Word(&words(ON_OVERLOADS)),
        "a bound turn whose slot is overloaded: served elsewhere this once (`spill`), held back until the slot clears (`wait`), or \
         answered 429 with `Retry-After` (`refuse`). The binding stays",
        "`wait`: a call to the service, and the client waits";
    WAIT: "pools[].wait_ms", integer(WAIT_MAX.0, 0, WAIT_MAX.0 as u32, "ms"),
        "`wait`: the longest wait; then the turn is spilled. At most 1024 turns wait, others are spilled at once", "";
    ON_ALL_OVERLOADED: "pools[].on_all_overloaded", Kind::Word(&words(ON_ALL_OVERLOADEDS)),
        "when every slot is overloaded: the least loaded one anyhow, or 429 with `Retry-After`", "";
    IN_FLIGHT_LIMIT: "pools[].in_flight_limit", integer(0, 0, IN_FLIGHT_LIMIT_MAX, "requests"),
        "requests in flight from which on one slot counts as overloaded, until they are a tenth fewer; 0: no limit. A KV cache 95 % \
         full counts as overloaded in any case",
        "";
    MODELS: "pools[].models", Kind::Form { forms: "a list of at most 64 names of 1..=256 bytes" },
        "model names it serves, besides those of its workers; none of either: whatever is asked for", "";
    TOKENS: "pools[].tokens", Kind::Form { forms: crate::tokenize::FORMS },
        "how the tokens of prompts are got: `local`, here, by the model's files; `engine`, by a worker's `/tokenize`; `approximate`, \
         not at all: by hashes of text. Left out: `off`",
        "`local`: up to 64 MiB for what is known of earlier prompts, and what the tokenizer takes; `engine`: a call to a worker";
    KV: "pools[].kv", Kind::Form { forms: "an object of the fields below" },
        "`kv_aware`: how slots are compared", "";
    KV_PREFILL: "pools[].kv.prefill_scale_percent", integer(PREFILL_SCALE_DEFAULT as u64, 0, PERCENT_MAX, "%"),
        "what a block that must be prefilled costs, beside one that is decoded", "";
    KV_GPU: "pools[].kv.gpu_percent", integer(100, 0, 100, "%"),
        "how much of its prefill a block saves that the slot's device caches", "";
    KV_HOST: "pools[].kv.host_percent", integer(75, 0, 100, "%"), "the same of one in the host's memory", "";
    KV_DISK: "pools[].kv.disk_percent", integer(25, 0, 100, "%"), "the same of one on disk", "";
    KV_TEMPERATURE: "pools[].kv.temperature_percent", integer(0, 0, PERCENT_MAX, "%"),
        "0: the cheapest slot, equals at random; more: any, the likelier the cheaper, so that replicas do not all choose alike", "";
    KV_LOAD_CAP: "pools[].kv.load_cap_percent", integer(125, 100, PERCENT_MAX, "%"),
        "a slot with more requests than this many percent of the mean and 4 more than the mean takes no new ones, whatever it caches, unless all have", "";
    KV_PREDICTION_TTL: "pools[].kv.prediction_ttl_ms", integer(2000, 0, 60_000, "ms"),
        "for so long a prompt that was just sent to a slot counts as cached there, until its engine tells", "";
    KV_PREDICTION: "pools[].kv.prediction_percent", integer(80, 0, 100, "%"),
        "how much of its prefill such a block saves", "";
    KV_PLACEMENT_TTL: "pools[].kv.placement_ttl_s", integer(600, 1, 86_400, "s"),
        "the same for `approximate` tokens, where nothing else is known of the engines' caches",
        "at most 262144 chunks of text, 25 MiB a pool";
    KV_BLOCK_SIZE: "pools[].kv.block_size", integer(0, 0, 1024, "tokens"),
        "tokens of a block of its engines' caches; 0: as their first event has it, 16 before one came", "";
    WORKERS: "workers", Kind::Form { forms: "0..=4096 workers, as `PUT /v1/workers/ID` takes them" },
        "workers that are always there", "";
}

// What the forms above say in words.
const _: () = assert!(POOLS_MAX == 256 && WORKERS_MAX == 4096 && TEXTS_MAX == 64 && TEXT_BYTES_MAX == 256);
