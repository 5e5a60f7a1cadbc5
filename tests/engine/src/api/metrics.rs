//! `GET /metrics`: Prometheus text under vLLM's names, one series a rank.

use std::fmt::Write as _;

use hyper::StatusCode;

use crate::answer::{Answer, typed};
use crate::body::Body;
use crate::ranks::RankFigures;
use crate::shared::Shared;

const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

type Count = fn(&RankFigures) -> u64;
type Reading = fn(&Shared, &RankFigures) -> f64;

/// Name, kind, help, value.
const SERIES: [(&str, &str, &str, Reading); 8] = [
    ("num_requests_running", "gauge", "Number of requests in model execution batches.", |_, f| {
        f.running as f64
    }),
    ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", |_, f| f.waiting as f64),
    ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", |shared, f| {
        f.used_blocks as f64 / shared.config.cache_blocks.max(1) as f64
    }),
    (
        "prefix_cache_queries_total",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
        |_, f| f.queried_tokens as f64,
    ),
    (
        "prefix_cache_hits_total",
        "counter",
        "Prefix cache hits, in terms of number of cached tokens.",
        |_, f| f.hit_tokens as f64,
    ),
    ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", |_, f| f.queried_tokens as f64),
    (
        "prompt_tokens_cached_total",
        "counter",
        "Number of cached prompt tokens (local + external).",
        |_, f| f.hit_tokens as f64,
    ),
    ("generation_tokens_total", "counter", "Number of generation tokens processed.", |_, f| {
        f.generated_tokens as f64
    }),
];

pub(crate) fn answer(shared: &Shared) -> Answer {
    let (figures, model) = (shared.ranks.figures(), &shared.config.model);
    let mut text = String::with_capacity(8192);
    for (name, kind, help, read) in SERIES {
        head(&mut text, name, kind, help);
        for rank in &figures {
            let _ = writeln!(
                text,
                "vllm:{name}{{engine=\"{}\",model_name=\"{model}\"}} {:?}",
                rank.rank,
                read(shared, rank)
            );
        }
    }
    successes(&mut text, &figures, model);
    cache_config(&mut text, shared, &figures);
    typed(StatusCode::OK, CONTENT_TYPE, Body::whole(text))
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
}

fn successes(text: &mut String, figures: &[RankFigures], model: &str) {
    head(text, "request_success_total", "counter", "Count of successfully processed requests.");
    let by_reason: [(&str, Count); 3] =
        [("stop", |f| f.stopped), ("length", |f| f.limited), ("abort", |f| f.aborted)];
    for (reason, read) in by_reason {
        for rank in figures {
            let _ = writeln!(
                text,
                "vllm:request_success_total{{engine=\"{}\",finished_reason=\"{reason}\",model_name=\"{model}\"}} {:?}",
                rank.rank,
                read(rank) as f64
            );
        }
    }
}

fn cache_config(text: &mut String, shared: &Shared, figures: &[RankFigures]) {
    head(text, "cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    let (size, blocks) = (shared.config.block_size, shared.config.cache_blocks);
    for rank in figures {
        let _ = writeln!(
            text,
            "vllm:cache_config_info{{block_size=\"{size}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",\
             engine=\"{}\",kv_cache_size_tokens=\"{}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
             prefix_caching_hash_algo=\"own\"}} 1.0",
            rank.rank,
            size * blocks
        );
    }
}
