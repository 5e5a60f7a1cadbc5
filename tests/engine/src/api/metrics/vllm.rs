//! vLLM: one series a rank, its global number in the label `engine`.

use std::fmt::Write as _;

use super::{Shown, head};
use crate::config::Version;
use crate::ranks::RankFigures;
use crate::shared::Shared;

type Count = fn(&RankFigures) -> u64;
type Reading = fn(&Shown) -> f64;

/// The cache's gauge, and what it was called until 0.11.
const KV_USAGE: &str = "kv_cache_usage_perc";
const KV_USAGE_OLD: &str = "gpu_cache_usage_perc";

/// Name, kind, help, value.
const SERIES: [(&str, &str, &str, Reading); 9] = [
    ("num_requests_running", "gauge", "Number of requests in model execution batches.", |s| s.running),
    ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", |s| s.waiting),
    (KV_USAGE_OLD, "gauge", "GPU KV-cache usage. 1 means 100 percent usage.", |s| s.kv_usage),
    (KV_USAGE, "gauge", "KV-cache usage. 1 means 100 percent usage.", |s| s.kv_usage),
    (
        "prefix_cache_queries_total",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
        |s| s.figures.queried_tokens as f64,
    ),
    ("prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", |s| {
        s.figures.hit_tokens as f64
    }),
    ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", |s| {
        s.figures.queried_tokens as f64
    }),
    ("prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external).", |s| {
        s.figures.hit_tokens as f64
    }),
    ("generation_tokens_total", "counter", "Number of generation tokens processed.", |s| {
        s.figures.generated_tokens as f64
    }),
];

pub(super) fn write(text: &mut String, shared: &Shared, ranks: &[Shown]) {
    let (model, version) = (&shared.config.model, shared.config.version);
    for (name, kind, help, read) in SERIES {
        let told = match name {
            KV_USAGE_OLD => version < Version(0, 12, 0),
            KV_USAGE => version >= Version(0, 9, 2),
            _ => true,
        };
        if !told {
            continue;
        }
        head(text, &format!("vllm:{name}"), kind, help);
        for shown in ranks {
            let (rank, value) = (shown.figures.rank, read(shown));
            let _ = writeln!(text, "vllm:{name}{{engine=\"{rank}\",model_name=\"{model}\"}} {value:?}");
        }
    }
    successes(text, ranks, model);
    cache_config(text, shared, ranks);
}

fn successes(text: &mut String, ranks: &[Shown], model: &str) {
    head(text, "vllm:request_success_total", "counter", "Count of successfully processed requests.");
    let by_reason: [(&str, Count); 3] =
        [("stop", |f| f.stopped), ("length", |f| f.limited), ("abort", |f| f.aborted)];
    for (reason, read) in by_reason {
        for Shown { figures, .. } in ranks {
            let _ = writeln!(
                text,
                "vllm:request_success_total{{engine=\"{}\",finished_reason=\"{reason}\",model_name=\"{model}\"}} {:?}",
                figures.rank,
                read(figures) as f64
            );
        }
    }
}

fn cache_config(text: &mut String, shared: &Shared, ranks: &[Shown]) {
    head(text, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    let (size, blocks) = (shared.config.block_size, shared.config.cache_blocks);
    for shown in ranks {
        let _ = writeln!(
            text,
            "vllm:cache_config_info{{block_size=\"{size}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",\
             engine=\"{}\",kv_cache_size_tokens=\"{}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
             prefix_caching_hash_algo=\"own\"}} 1.0",
            shown.figures.rank,
            size * blocks
        );
    }
}
