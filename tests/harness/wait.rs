//! Waiting for a condition with a deadline; the only place that sleeps.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Generous: only a machine that is stuck reaches it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks until `look` sees something, for [`PATIENCE`] at most.
///
/// # Errors
/// Nothing was seen in time; the sentence says what was waited for.
pub async fn wait_for<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    wait_within(PATIENCE, what, look).await
}

/// As [`wait_for`] with a deadline of its own.
///
/// # Errors
/// As [`wait_for`].
pub async fn wait_within<T>(
    deadline: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        if Instant::now() >= end {
            bail!("waited {} s in vain for {what}", deadline.as_secs_f64());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
