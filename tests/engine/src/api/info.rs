//! The engine's GET endpoints about itself.

use crate::answer::{Answer, ok};
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
    ok(object! {
        "version": config.version.to_string(), "served_model_name": config.model, "dp_size": config.ranks,
        "tp_size": config.tp_size, "page_size": config.block_size,
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
    let card = object! {
        "id": model, "object": "model", "created": created, "owned_by": shared.config.kind.word(), "root": model, "parent": (),
        "max_model_len": shared.config.max_model_len, "permission": [permission],
    };
    ok(object! { "object": "list", "data": [card] })
}

/// One entry a rank under its global number. Nothing is published yet, and the entries say so.
pub(crate) fn kv_event_sources(shared: &Shared) -> Answer {
    let source = |rank: u32| {
        let source = object! {
            "enable_kv_cache_events": false, "publisher": "null",
            "endpoint": format!("tcp://*:{}", EVENT_PORT + rank),
            "replay_endpoint": format!("tcp://*:{}", REPLAY_PORT + rank), "buffer_steps": 10_000,
            "hwm": 100_000, "max_queue_size": 100_000, "topic": "",
        };
        format!("\"{rank}\":{}", source.0)
    };
    let first = shared.config.dp_start;
    let sources: Vec<String> = (first..first + shared.config.ranks).map(source).collect();
    ok(Raw(format!("{{{}}}", sources.join(","))))
}

pub(crate) fn reset_prefix_cache(shared: &Shared) -> Answer {
    ok(object! { "success": shared.ranks.clear_caches() })
}
