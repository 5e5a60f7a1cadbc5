//! TensorRT-LLM: Prometheus under `/prometheus/metrics` without ranks, and `/metrics` as a list of iterations.

use std::fmt::Write as _;

use super::{Shown, head};
use crate::answer::{Answer, ok};
use crate::json::object;
use crate::shared::Shared;

pub(super) fn write(text: &mut String, shared: &Shared, ranks: &[Shown]) {
    let model = &shared.config.model;
    let (running, waiting, usage) = sums(ranks);
    for (name, help, value) in [
        ("num_requests_running", "Number of requests that run.", running),
        ("num_requests_waiting", "Number of requests that wait.", waiting),
        ("kv_cache_utilization", "Share of the KV cache in use.", usage),
        ("kv_cache_tokens_per_block", "Tokens a block.", shared.config.block_size as f64),
    ] {
        head(text, &format!("trtllm_{name}"), "gauge", help);
        let _ = writeln!(text, "trtllm_{name}{{engine_type=\"unified\",model_name=\"{model}\"}} {value:?}");
    }
}

/// The last iteration's statistics.
pub(super) fn iterations(shared: &Shared, ranks: &[Shown]) -> Answer {
    let (running, waiting, usage) = sums(ranks);
    let blocks = shared.config.cache_blocks * ranks.len().max(1);
    let used = (usage * blocks as f64).round() as usize;
    let cache = object! {
        "maxNumBlocks": blocks, "freeNumBlocks": blocks.saturating_sub(used), "usedNumBlocks": used,
        "tokensPerBlock": shared.config.block_size,
    };
    ok(crate::json::Raw(format!(
        "[{}]",
        object! {
            "iter": 1, "numActiveRequests": running as u64, "numQueuedRequests": waiting as u64, "kvCacheStats": cache,
        }
        .0
    )))
}

/// Running, waiting, mean use of the caches.
fn sums(ranks: &[Shown]) -> (f64, f64, f64) {
    let sum = |read: fn(&Shown) -> f64| ranks.iter().map(read).sum::<f64>();
    (sum(|s| s.running), sum(|s| s.waiting), sum(|s| s.kv_usage) / ranks.len().max(1) as f64)
}
