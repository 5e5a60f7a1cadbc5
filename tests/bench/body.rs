//! Whether a pinned turn waits for its body: half of one is sent, and the other half only once the first half has left for the worker.

use anyhow::{Context, Result, ensure};
use e2e::Envoy;
use e2e::raw::Raw;
use e2e::wait::wait_within;
use routing::header::cluster;
use std::time::Duration;

use crate::load;

/// Bytes of each half.
const HALF: u64 = 32 << 10;
/// Whatever is still here after this long is held.
const GRACE: Duration = Duration::from_secs(5);

/// Bytes of the first half that Envoy still held when nothing more came; 0 when it streams.
///
/// # Errors
/// The turn is not answered with a 200.
pub(crate) async fn held_bytes(envoy: &Envoy, key: &str) -> Result<u64> {
    let before = sent_to_workers(envoy).await?;
    let half = vec![b'x'; usize::try_from(HALF)?];
    let mut raw = Raw::connect(envoy.address()).await?;
    let head = format!("{}content-length: {}\r\nconnection: close\r\n\r\n", load::head(key), 2 * HALF);
    raw.send(head).await?;
    raw.send(&half).await?;
    let passed = wait_within(GRACE, "half a body at the worker", async || {
        sent_to_workers(envoy).await.ok().filter(|now| now - before >= HALF)
    });
    let now = match passed.await {
        Ok(now) => now,
        // Not an error: what did not leave is the figure.
        Err(_) => sent_to_workers(envoy).await?,
    };
    raw.send(&half).await?;
    let answer = raw.answer().await.context("the turn was not answered")?;
    ensure!(answer.status() == 200, "the turn was answered with {}", answer.status());
    Ok(HALF.saturating_sub(now - before))
}

/// Bytes that left for workers so far, heads included.
async fn sent_to_workers(envoy: &Envoy) -> Result<u64> {
    let stats = envoy.stats(".upstream_cx_tx_bytes_total").await?;
    let service = format!("cluster.{}.", cluster::SERVICE);
    Ok(stats.iter().filter(|(name, _)| !name.starts_with(&service)).map(|(_, value)| value).sum())
}
