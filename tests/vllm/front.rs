//! A real Envoy with the shipped `envoy/kv.yaml` before the engine, and what it says of whom it chose. Judges nothing.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use e2e::wait::wait_for;
use e2e::{Bootstrap, Envoy, Steering};
use serde_json::json;

use crate::engine::{MODEL, Vllm};
use crate::fleet::{CHAT, Fleet, WORKER};

/// Far above anything a slow machine needs.
const DEADLINE_MS: u64 = 5000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Front {
    envoy: Envoy,
}

/// `x-rankpin-served`, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) rank: Option<u32>,
    pub(crate) reason: String,
    pub(crate) overlap: Option<(u32, u32)>,
}

impl Front {
    /// Starts it and waits until it places requests.
    pub(crate) async fn start(folder: &Path, engine: &Vllm, fleet: &Fleet) -> Result<Self> {
        let mut config = Bootstrap::shipped(Steering::Kv)?;
        config.service(fleet.data())?;
        config.workers(&[(WORKER.to_owned(), engine.address())])?;
        config.served_header()?;
        config.route_deadline(DEADLINE_MS)?;
        config.plugin(|plugin| plugin["service"]["route_prompt_deadline_ms"] = json!(DEADLINE_MS))?;
        let front = Self { envoy: Envoy::start("envoy", folder, &config, 1).await? };
        front.warm().await?;
        Ok(front)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.envoy.address()
    }

    /// Asks until an answer says who gave it. Such a prompt fills no block.
    async fn warm(&self) -> Result<()> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let body =
            json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
        let url = format!("http://{}{CHAT}", self.envoy.address());
        let placed = wait_for("Envoy to place requests", async || {
            let answer = http.post(&url).json(&body).send().await.ok()?;
            answer.headers().contains_key(routing::header::SERVED).then_some(())
        });
        placed.await.context("see envoy.log")
    }
}

impl Served {
    /// Reads `w0;rank=1;reason=overlap;blocks=41/52`.
    pub(crate) fn read(text: &str) -> Self {
        let mut served = Self::default();
        for (name, value) in text.split(';').filter_map(|part| part.split_once('=')) {
            match name {
                "rank" => served.rank = value.parse().ok(),
                "reason" => value.clone_into(&mut served.reason),
                "blocks" => served.overlap = pair(value),
                _ => {}
            }
        }
        served
    }
}

fn pair(text: &str) -> Option<(u32, u32)> {
    let (blocks, of) = text.split_once('/')?;
    Some((blocks.parse().ok()?, of.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_taken_apart() {
        let overlap = Served::read("w0;rank=1;reason=overlap;blocks=41/52");
        assert_eq!(overlap, Served { rank: Some(1), reason: "overlap".to_owned(), overlap: Some((41, 52)) });
        let pinned = Served::read("w0;rank=0;reason=pinned");
        assert_eq!((pinned.rank, pinned.overlap), (Some(0), None));
    }
}
