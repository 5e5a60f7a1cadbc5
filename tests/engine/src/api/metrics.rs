//! What each engine tells of its load: paths and dialects. Figures are the ranks' own unless a test set others.

mod sglang;
mod trtllm;
mod vllm;

use std::fmt::Write as _;

use hyper::StatusCode;

use crate::answer::{Answer, typed};
use crate::body::Body;
use crate::config::Kind;
use crate::ranks::RankFigures;
use crate::shared::Shared;

const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// A rank as its metrics show it.
struct Shown {
    figures: RankFigures,
    running: f64,
    waiting: f64,
    /// Share of the cache in use, 0..=1.
    kv_usage: f64,
}

/// Whether the engine tells of its load there.
pub(crate) fn is_path(shared: &Shared, path: &str) -> bool {
    path == "/metrics" || (path == "/prometheus/metrics" && shared.config.kind == Kind::Trtllm)
}

pub(crate) fn answer(shared: &Shared, path: &str) -> Answer {
    let (mut text, ranks) = (String::with_capacity(8192), shown(shared));
    match shared.config.kind {
        Kind::Vllm => vllm::write(&mut text, shared, &ranks),
        Kind::Sglang => sglang::write(&mut text, shared, &ranks),
        Kind::Trtllm if path == "/metrics" => return trtllm::iterations(shared, &ranks),
        Kind::Trtllm => trtllm::write(&mut text, shared, &ranks),
    }
    typed(StatusCode::OK, CONTENT_TYPE, Body::whole(text))
}

fn shown(shared: &Shared) -> Vec<Shown> {
    let blocks = shared.config.cache_blocks.max(1) as f64;
    let rank = |figures: RankFigures| {
        let set = shared.gauges.of(figures.rank);
        let count = |set: Option<u64>, own: usize| set.map_or(own as f64, |set| set as f64);
        (!set.absent).then(|| Shown {
            running: count(set.running, figures.running),
            waiting: count(set.waiting, figures.waiting),
            kv_usage: set.kv_usage.unwrap_or(figures.used_blocks as f64 / blocks),
            figures,
        })
    };
    shared.ranks.figures().into_iter().filter_map(rank).collect()
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
