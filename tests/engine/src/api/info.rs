//! The engine's GET endpoints about itself.

use hyper::StatusCode;

use crate::answer::{Answer, ok, typed};
use crate::body::Body;
use crate::config::{KvEndpoint, Version};
use crate::json::{Raw, object};
use crate::shared::{Shared, unix_seconds};

const EVENT_PORT: u32 = 5557;
const REPLAY_PORT: u32 = 5657;

pub(crate) fn version(shared: &Shared) -> Answer {
    ok(object! { "version": shared.config.version.to_string() })
}

/// SGLang's `/server_info`, as far as anybody here reads it.
pub(crate) fn server_info(shared: &Shared) -> Answer {
    let config = &shared.config;
    let info = object! {
        "version": config.version.to_string(), "served_model_name": config.model, "dp_size": config.ranks,
        "tp_size": config.tp_size, "page_size": config.block_size,
    };
    match event_base(shared) {
        Some(events) if config.version >= Version(0, 5, 13) => ok(info.with("kv_events", events)),
        _ => ok(info),
    }
}

/// Where SGLang's events are: rank 0's ports, from which the others count up.
fn event_base(shared: &Shared) -> Option<Raw> {
    let config = &shared.config;
    let (events, first) = (config.kv_events.as_ref()?, shared.sources().first()?);
    let base = object! {
        "publisher": "zmq", "endpoint_host": events.endpoint.host, "endpoint_port_base": first.live,
        "topic": events.topic, "block_size": config.block_size, "dp_size": config.ranks,
    };
    Some(match first.replay {
        Some(replay) => base.with("replay_endpoint_port_base", replay),
        None => base,
    })
}

pub(crate) fn load(shared: &Shared) -> Answer {
    ok(object! { "server_load": shared.in_flight() })
}

pub(crate) fn models(shared: &Shared) -> Answer {
    let (model, created) = (&shared.config.model, unix_seconds());
    let permission = object! {
        "id": shared.fresh_id("modelperm-"), "object": "model_permission", "created": created,
        "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
        "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
        "group": (), "is_blocking": false,
    };
    let card = |id: &str, parent: Option<&str>| {
        object! {
            "id": id, "object": "model", "created": created, "owned_by": shared.config.kind.word(), "root": id,
            "parent": parent, "max_model_len": shared.config.max_model_len, "permission": [&permission],
        }
    };
    let adapters = shared.config.loras.iter().map(|lora| card(lora, Some(model)));
    let cards: Vec<Raw> = std::iter::once(card(model, None)).chain(adapters).collect();
    ok(object! { "object": "list", "data": cards })
}

/// One entry a rank under its global number, with its own ports.
pub(crate) fn kv_event_sources(shared: &Shared) -> Answer {
    let first = shared.config.dp_start;
    let source = |rank: u32| format!("\"{rank}\":{}", source(shared, rank, (rank - first) as usize).0);
    let sources: Vec<String> = (first..first + shared.config.ranks).map(source).collect();
    ok(Raw(format!("{{{}}}", sources.join(","))))
}

fn source(shared: &Shared, rank: u32, index: usize) -> Raw {
    let (Some(events), Some(source)) = (&shared.config.kv_events, shared.sources().get(index)) else {
        return object! {
            "enable_kv_cache_events": false, "publisher": "null",
            "endpoint": format!("tcp://*:{}", EVENT_PORT + rank),
            "replay_endpoint": format!("tcp://*:{}", REPLAY_PORT + rank), "buffer_steps": 10_000,
            "hwm": 100_000, "max_queue_size": 100_000, "topic": "",
        };
    };
    let endpoint = |endpoint: &KvEndpoint, port: u16| format!("tcp://{}:{port}", endpoint.host);
    let replay = events.replay.as_ref().zip(source.replay).map(|(at, port)| endpoint(at, port));
    object! {
        "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint(&events.endpoint, source.live),
        "replay_endpoint": replay, "buffer_steps": events.buffer_steps, "hwm": 100_000,
        "max_queue_size": 100_000, "topic": events.topic,
    }
}

/// TensorRT-LLM's events since it was last asked.
pub(crate) fn kv_cache_events(shared: &Shared) -> Answer {
    let events: Vec<Raw> = shared.ranks.feeds().iter().flat_map(|feed| feed.drain()).collect();
    let texts: Vec<&str> = events.iter().map(|event| event.0.as_str()).collect();
    ok(Raw(format!("[{}]", texts.join(","))))
}

/// SGLang's name for the same.
pub(crate) fn flush_cache(shared: &Shared) -> Answer {
    let (status, text) = match shared.ranks.clear_caches() {
        true => (StatusCode::OK, "Cache flushed.\n"),
        false => (StatusCode::BAD_REQUEST, "Cache not flushed: requests are running.\n"),
    };
    typed(status, "text/plain; charset=utf-8", Body::whole(text.to_owned()))
}

pub(crate) fn reset_prefix_cache(shared: &Shared) -> Answer {
    ok(object! { "success": shared.ranks.clear_caches() })
}
