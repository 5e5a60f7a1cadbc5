//! Where sessions go, as a hash: the same sessions over the same workers give the same one on any machine. Uses policy `session_hash`,
//! whose choice depends on nothing else, and an Envoy that echoes the rank it sent.

use anyhow::{Context, Result, ensure};
use e2e::Client;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::stage::Stage;
use crate::variant::Front;

const SESSIONS: u32 = 64;
const ECHO: &str = "x-bench-rank";

/// Plays each session twice and hashes the (worker, rank) sequence.
///
/// # Errors
/// A session changed its slot, or a turn went without a rank.
pub(crate) async fn hash(stage: &Stage) -> Result<String> {
    let envoy = stage.edited_envoy(Front::SessionHash, 1, "witness", echo_rank).await?;
    let client = Client::new(envoy.address())?;
    let slots = play(&client).await?;
    ensure!(slots == play(&client).await?, "a session changed its slot");
    let digest = Sha256::digest(slots.join("\n"));
    Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn echo_rank(manager: &mut Value) -> Result<()> {
    let host =
        manager.pointer_mut("/route_config/virtual_hosts/0").context("no virtual host in the config")?;
    let value = format!("%REQ({})%", routing::header::VLLM_RANK);
    host["response_headers_to_add"] = json!([{"header": {"key": ECHO, "value": value}}]);
    Ok(())
}

async fn play(client: &Client) -> Result<Vec<String>> {
    let mut slots = Vec::new();
    for n in 0..SESSIONS {
        let turn = client.chat(Some(&format!("session-{n}")), "where").await?;
        let worker = turn.header("x-engine-name").context("no worker answered")?;
        let rank: u32 = turn.header(ECHO).and_then(|rank| rank.parse().ok()).context("no rank was sent")?;
        slots.push(format!("session-{n} {worker} {rank}"));
    }
    Ok(slots)
}
