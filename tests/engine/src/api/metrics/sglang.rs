//! SGLang: one series a rank and tensor-parallel rank; the label `dp_rank` only where there are several ranks.

use std::fmt::Write as _;

use super::{Shown, head};
use crate::shared::Shared;

type Reading = fn(&Shared, &Shown) -> f64;

/// Name, help, value; all gauges.
const SERIES: [(&str, &str, Reading); 6] = [
    ("num_running_reqs", "The number of running requests.", |_, s| s.running),
    ("num_queue_reqs", "The number of requests in the waiting queue.", |_, s| s.waiting),
    ("token_usage", "The token usage.", |_, s| s.kv_usage),
    ("num_used_tokens", "The number of used tokens.", |shared, s| (s.kv_usage * tokens(shared)).round()),
    ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", |shared, _| {
        tokens(shared)
    }),
    ("cache_hit_rate", "The prefix cache hit rate.", |_, s| {
        s.figures.hit_tokens as f64 / s.figures.queried_tokens.max(1) as f64
    }),
];

fn tokens(shared: &Shared) -> f64 {
    (shared.config.cache_blocks * shared.config.block_size) as f64
}

pub(super) fn write(text: &mut String, shared: &Shared, ranks: &[Shown]) {
    let (model, first) = (&shared.config.model, shared.config.dp_start);
    for (name, help, read) in SERIES {
        head(text, &format!("sglang:{name}"), "gauge", help);
        for shown in ranks {
            // A server counts its own ranks from 0.
            let dp = match shared.config.ranks {
                1 => String::new(),
                _ => format!("dp_rank=\"{}\",", shown.figures.rank - first),
            };
            for tp in 0..shared.config.tp_size {
                let _ = writeln!(
                    text,
                    "sglang:{name}{{{dp}engine_type=\"unified\",model_name=\"{model}\",moe_ep_rank=\"0\",\
                     pp_rank=\"0\",tp_rank=\"{tp}\"}} {:?}",
                    read(shared, shown)
                );
            }
        }
    }
}
