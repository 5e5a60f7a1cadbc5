//! Words of a declaration and its way back to JSON, for `GET /v1/workers` and the file of declared workers.

use super::{Device, EndpointSpec, Tls, WorkerSpec};
use routing::contract::{Engine, RankIn, RankNumbering};
use routing::hash::Phase;
use serde_json::{Value, json};

pub(super) const ENGINES: &[(&str, Engine); 4] = &[
    ("vllm", Engine::Vllm),
    ("sglang", Engine::Sglang),
    ("trtllm", Engine::Trtllm),
    ("custom", Engine::Custom),
];
pub(super) const NUMBERINGS: &[(&str, RankNumbering); 3] =
    &[("global", RankNumbering::Global), ("local", RankNumbering::Local), ("none", RankNumbering::None)];
pub(super) const RANKS_IN: &[(&str, RankIn); 2] = &[("header", RankIn::Header), ("body", RankIn::Body)];
pub(super) const DEVICES: &[(&str, Device); 2] =
    &[("accelerator", Device::Accelerator), ("cpu", Device::Cpu)];
pub(super) const PHASES: &[(&str, Phase); 3] =
    &[("aggregated", Phase::Aggregated), ("prefill", Phase::Prefill), ("decode", Phase::Decode)];

fn word<T: PartialEq>(words: &[(&'static str, T)], wanted: &T) -> &'static str {
    words.iter().find(|(_, value)| value == wanted).map_or("", |(word, _)| word)
}

pub(super) fn worker(spec: &WorkerSpec) -> Value {
    let mut value = json!({
        "id": spec.id,
        "pool": spec.pool,
        "models": spec.models,
        "engine": word(ENGINES, &spec.engine),
        "endpoints": spec.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "weight": spec.weight,
        "device": word(DEVICES, &spec.device),
        "phase": word(PHASES, &spec.phase),
        "labels": spec.labels,
        "engine_version": spec.engine_version,
        "rank_in": word(RANKS_IN, &spec.rank_in),
        "in_flight_limit": spec.in_flight_limit,
        "kv_events": super::kv_events::to_json(&spec.kv_events),
    });
    if let (true, Some(endpoint), Some(map)) = (spec.by_url, spec.endpoints.first(), value.as_object_mut()) {
        map.insert("url".to_owned(), json!(super::url::to_text(&endpoint.address)));
        map.insert("block_size".to_owned(), json!(spec.block_size));
    }
    value
}

/// Fields of later versions, with the word that says no more than their absence; others of them are null then.
const UNSAID: &[(&str, &str); 2] = &[("rank_in", "header"), ("kv_events", "auto")];

/// A version that does not know a field refuses the whole worker: those that say nothing are not written, so that a service of before
/// takes over the workers that it could have been told of itself.
pub(super) fn saved(spec: &WorkerSpec) -> Value {
    let mut value = worker(spec);
    if let Some(fields) = value.as_object_mut() {
        let unsaid =
            |name: &str, value: &Value| UNSAID.iter().any(|(own, word)| *own == name && value == word);
        fields.retain(|name, value| !value.is_null() && !unsaid(name, value));
    }
    value
}

fn endpoint(spec: &EndpointSpec) -> Value {
    let mut value = json!({
        "address": spec.address.to_string(),
        "rank_numbering": word(NUMBERINGS, &spec.rank_numbering),
        "dp_start": spec.dp_start,
        "dp_size": spec.dp_size,
    });
    if let (Some(tls), Some(map)) = (&spec.tls, value.as_object_mut()) {
        map.insert("tls".to_owned(), tls_json(tls));
    }
    value
}

fn tls_json(tls: &Tls) -> Value {
    json!({ "sni": tls.sni, "ca": tls.ca })
}
