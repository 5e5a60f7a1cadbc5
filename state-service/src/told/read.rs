//! What an engine tells of itself, out of its answers. Pure; an answer that is none of what is looked for tells nothing.
//!
//! vLLM: the keys of `/kv_event_sources` (from 0.31) are the global ranks behind this frontend, published or not; so is the label
//! `engine` of its metrics, in every version. `SGLang`: `/server_info` has all its arguments.

use crate::declare::{BLOCK_SIZE_MAX, RANKS_MAX, Told, VERSION_BYTES_MAX};
use crate::scrape::text::Sample;
use routing::contract::Engine;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};

/// Answers, by path; empty: it has none there.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// `/kv_event_sources`.
    pub(super) sources: Vec<u8>,
    /// `/metrics`.
    pub(super) metrics: Vec<u8>,
    /// `/version`.
    pub(super) version: Vec<u8>,
    /// `/server_info`.
    pub(super) info: Vec<u8>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct SglangInfo {
    dp_size: u32,
    page_size: u32,
    #[serde(default)]
    version: Option<String>,
}

/// What vLLM's metrics tell.
#[derive(Debug, Default, PartialEq, Eq)]
struct Metrics {
    ranks: BTreeSet<u32>,
    block_size: Option<u32>,
}

impl Answers {
    /// Whether nothing else need be asked.
    pub(super) fn are_of_vllm(&self) -> bool {
        !sources(&self.sources).is_empty() || !metrics(&self.metrics).ranks.is_empty()
    }

    /// All together. `None`: neither engine is known in them.
    pub(super) fn told(&self) -> Option<Told> {
        if self.are_of_vllm() { Some(self.vllm()) } else { self.sglang() }
    }

    fn vllm(&self) -> Told {
        let (sources, metrics) = (sources(&self.sources), metrics(&self.metrics));
        let version = serde_json::from_slice::<Version>(&self.version).ok();
        Told {
            engine: Some(Engine::Vllm),
            version: version.and_then(|told| short(told.version)),
            ranks: range(if sources.is_empty() { &metrics.ranks } else { &sources }),
            block_size: metrics.block_size,
        }
    }

    fn sglang(&self) -> Option<Told> {
        let info: SglangInfo = serde_json::from_slice(&self.info).ok()?;
        Some(Told {
            engine: Some(Engine::Sglang),
            version: info.version.and_then(short),
            ranks: Some((0, info.dp_size.clamp(1, RANKS_MAX))),
            block_size: Some(info.page_size).filter(|size| (1..=BLOCK_SIZE_MAX).contains(size)),
        })
    }
}

fn short(version: String) -> Option<String> {
    Some(version).filter(|text| (1..=VERSION_BYTES_MAX).contains(&text.len()))
}

fn sources(body: &[u8]) -> BTreeSet<u32> {
    let keys = serde_json::from_slice::<BTreeMap<u32, IgnoredAny>>(body).unwrap_or_default();
    keys.into_keys().collect()
}

fn metrics(body: &[u8]) -> Metrics {
    let mut metrics = Metrics::default();
    let text = std::str::from_utf8(body).unwrap_or("");
    for sample in text.lines().filter(|line| line.starts_with("vllm:")).filter_map(Sample::parse) {
        metrics.ranks.extend(sample.label("engine").and_then(|rank| rank.parse::<u32>().ok()));
        if sample.name == "vllm:cache_config_info" {
            let size = sample.label("block_size").and_then(|size| size.parse().ok());
            metrics.block_size =
                size.filter(|size| (1..=BLOCK_SIZE_MAX).contains(size)).or(metrics.block_size);
        }
    }
    metrics
}

/// First and number of ranks that join without a gap.
fn range(ranks: &BTreeSet<u32>) -> Option<(u32, u32)> {
    let (first, last) = (*ranks.first()?, *ranks.last()?);
    let count = u32::try_from(ranks.len()).ok().filter(|count| *count <= RANKS_MAX)?;
    let joined = first <= crate::declare::DP_START_MAX && last.checked_sub(first)?.checked_add(1)? == count;
    joined.then_some((first, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a vLLM 0.32.0 with two ranks, as it wrote them.
    const METRICS: &str = concat!(
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n",
        "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0\n",
        "vllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 0.0\n",
        "vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",cache_dtype=\"auto\",",
        "effective_attention_block_size=\"32\",engine=\"0\",hash_block_size=\"None\",mamba_block_size=\"None\"} 1.0\n",
        "vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",cache_dtype=\"auto\",",
        "effective_attention_block_size=\"32\",engine=\"1\",hash_block_size=\"None\",mamba_block_size=\"None\"} 1.0\n",
    );
    /// What the second node of a hybrid deployment of 2 + 2 ranks answered, as it wrote it.
    const SOURCES: &str = concat!(
        r#"{"3":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:16560","replay_endpoint":"tcp://*:16660","#,
        r#""buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"},"2":{"enable_kv_cache_events":true,"#,
        r#""publisher":"zmq","endpoint":"tcp://*:16559","replay_endpoint":"tcp://*:16659","buffer_steps":10000,"hwm":100000,"#,
        r#""max_queue_size":100000,"topic":"kv-events"}}"#,
    );

    fn told(sources: &str, metrics: &str, version: &str, info: &str) -> Option<Told> {
        let [sources, metrics, version, info] =
            [sources, metrics, version, info].map(|text| text.as_bytes().to_vec());
        Answers { sources, metrics, version, info }.told()
    }

    #[test]
    fn vllm_tells_ranks_version_and_block_size() {
        let expected = Told {
            engine: Some(Engine::Vllm),
            version: Some("0.32.0".to_owned()),
            ranks: Some((2, 2)),
            block_size: Some(32),
        };
        assert_eq!(told(SOURCES, METRICS, r#"{"version":"0.32.0"}"#, ""), Some(expected));
    }

    #[test]
    fn an_older_vllm_tells_them_by_its_metrics() {
        let found = told("", METRICS, "<html>", "").unwrap();
        assert_eq!((found.ranks, found.block_size, found.version), (Some((0, 2)), Some(32), None));
        assert_eq!(told(r#"{"detail":"Not Found"}"#, METRICS, "", "").unwrap().ranks, Some((0, 2)));
    }

    #[test]
    fn sglang_tells_them_by_its_arguments() {
        let info =
            r#"{"model_path":"m","dp_size":4,"page_size":64,"version":"0.5.23","internal_states":[{}]}"#;
        let found = told("", "sglang:num_running_reqs 0.0\n", "", info).unwrap();
        assert_eq!(
            (found.engine, found.ranks, found.block_size),
            (Some(Engine::Sglang), Some((0, 4)), Some(64))
        );
        assert_eq!(found.version.as_deref(), Some("0.5.23"));
    }

    #[test]
    fn what_is_neither_tells_nothing_and_ranks_with_a_hole_are_not_taken() {
        for body in ["", "{}", "[]", "<html>", r#"{"detail":"Not Found"}"#, r#"{"-1":{}}"#] {
            assert_eq!(told(body, body, body, body), None, "{body}");
        }
        assert_eq!(told(r#"{"0":{},"2":{}}"#, "", "", "").unwrap().ranks, None);
        assert_eq!(told(r#"{"4294967295":{}}"#, "", "", "").unwrap().ranks, None);
    }
}
