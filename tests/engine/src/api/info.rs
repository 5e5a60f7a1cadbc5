//! The engine's GET endpoints about itself.

use crate::answer::{Answer, ok};
use crate::json::{Raw, object};
use crate::shared::{Shared, unix_seconds};

/// The engine version whose wire this is.
pub(crate) const VERSION: &str = "0.32.0";
const EVENT_PORT: u32 = 5557;
const REPLAY_PORT: u32 = 5657;

pub(crate) fn version() -> Answer {
    ok(object! { "version": VERSION })
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
        "id": model, "object": "model", "created": created, "owned_by": "vllm", "root": model, "parent": (),
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
