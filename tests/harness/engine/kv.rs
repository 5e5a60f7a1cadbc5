//! An engine's publishers of cache events: where they are, how they stand, how they shall fail. Does not read events.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Engine;
use crate::client::MODEL;

/// How the publisher of one rank stands.
#[derive(Clone, Debug, Deserialize)]
pub struct KvRank {
    /// Global number.
    pub rank: u32,
    /// Port of its events, on loopback.
    pub port: u16,
    /// Port of its replays.
    pub replay_port: Option<u16>,
    /// The number its next batch gets.
    pub next_seq: u64,
    /// Batches that wait to be sent.
    pub pending: u64,
    /// Batches it can replay, and the first of them.
    pub kept: u64,
    /// See `kept`.
    pub kept_from: Option<u64>,
    /// Nothing leaves.
    pub stalled: bool,
    /// Nothing is published.
    pub silent: bool,
}

impl Engine {
    /// Every rank's publisher, by rank; none unless [`EngineSpec::kv_events`].
    ///
    /// # Errors
    /// It does not answer.
    pub async fn kv_events(&self) -> Result<Vec<KvRank>> {
        #[derive(Deserialize)]
        struct Standing {
            ranks: Vec<KvRank>,
        }
        let standing: Standing = serde_json::from_value(self.control("GET", "kv-events", None).await?)?;
        Ok(standing.ranks)
    }

    /// The `kv_events` of a declaration that names its sockets: those of rank 0, from which the others count up. Only an engine
    /// whose ports are in a row has one: every one but vLLM from 0.31 on, which is asked (`discover`).
    ///
    /// # Errors
    /// It does not answer, publishes nothing, or its ports are not in a row.
    pub async fn kv_declared(&self) -> Result<Value> {
        let ranks = self.kv_events().await?;
        let first = ranks.first().context("publishes no cache events")?;
        let in_row = ranks.iter().zip(first.port..).all(|(rank, port)| rank.port == port);
        ensure!(in_row, "engine {}: ports are not in a row", self.spec.name);
        let base = |port: u16| -> Result<String> {
            let base = u32::from(port).checked_sub(first.rank).context("no room below the ports")?;
            Ok(format!("tcp://127.0.0.1:{base}"))
        };
        let mut declared = json!({"endpoint": base(first.port)?});
        if let Some(port) = first.replay_port {
            declared["replay_endpoint"] = json!(base(port)?);
        }
        Ok(declared)
    }

    /// Orders a fault of one rank's publisher (global number), or of all: `drop=N`, `lose=N`, `duplicate=N`, `stall`, `stall=MS`,
    /// `silent`, `close`, `open`, `restart`, `tick`; until [`Engine::heal_kv`] where it lasts.
    ///
    /// # Errors
    /// It knows no such fault, or no such rank publishes.
    pub async fn kv_fault(&self, fault: &str, rank: Option<u32>) -> Result<()> {
        self.control("POST", "kv-events", Some(json!({"fault": fault, "rank": rank}))).await.map(drop)
    }

    /// Publishes these bytes as the rank's next batch, whatever they are.
    ///
    /// # Errors
    /// No such rank publishes.
    pub async fn kv_publish(&self, payload: &[u8], rank: u32) -> Result<()> {
        let order = json!({"fault": "publish", "rank": rank, "payload": BASE64_STANDARD.encode(payload)});
        self.control("POST", "kv-events", Some(order)).await.map(drop)
    }

    /// Blocks in every rank's cache, by rank, copies counted.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn cached_blocks(&self) -> Result<Vec<u64>> {
        let state = self.control("GET", "state", None).await?;
        let ranks = state["ranks"].as_array().context("no ranks")?;
        Ok(ranks.iter().map(|rank| rank["cached_blocks"].as_u64().unwrap_or(0)).collect())
    }

    /// Empties the caches, as `POST /reset_prefix_cache` does; published with each rank's next step.
    ///
    /// # Errors
    /// It does not answer, or requests run.
    pub async fn reset_cache(&self) -> Result<()> {
        let url = format!("http://{}/reset_prefix_cache", self.address);
        let answer = self.http.post(url).send().await?;
        ensure!(
            answer.status().is_success(),
            "engine {} keeps its cache: {}",
            self.spec.name,
            answer.status()
        );
        Ok(())
    }

    /// Has a rank (global number) compute these tokens and answer one; returns how many it found in its cache.
    ///
    /// # Errors
    /// It does not answer with 200.
    pub async fn compute(&self, tokens: &[u32], rank: Option<u32>) -> Result<u64> {
        let body = json!({"model": MODEL, "prompt": tokens, "max_tokens": 1});
        let request = self.http.post(format!("http://{}/v1/completions", self.address)).json(&body);
        let request = match rank {
            Some(rank) => request.header("x-data-parallel-rank", rank),
            None => request,
        };
        let answer = request.send().await?;
        ensure!(
            answer.status().is_success(),
            "engine {} computes nothing: {}",
            self.spec.name,
            answer.status()
        );
        let answer: Value = answer.json().await?;
        Ok(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0))
    }

    /// Takes all faults of publishers back.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn heal_kv(&self) -> Result<()> {
        self.control("DELETE", "kv-events", None).await.map(drop)
    }
}
