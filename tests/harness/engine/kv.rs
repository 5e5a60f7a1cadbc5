//! An engine's publishers of cache events: where they are, how they stand, how they shall fail. Does not read events.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Engine;

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

    /// Takes all faults of publishers back.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn heal_kv(&self) -> Result<()> {
        self.control("DELETE", "kv-events", None).await.map(drop)
    }
}
