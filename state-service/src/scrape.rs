//! Reads each engine's own gauges, regularly and boundedly, and tells the state. What they mean for a choice is the state's.
//!
//! One task an endpoint beside its probe, so one scrape of it at a time. An endpoint without gauges, or one that does not
//! answer, is asked ever less often. TLS endpoints are not scraped: only Envoy can check their certificates.

mod read;
pub(crate) mod text;

#[cfg(test)]
mod tests;

pub use read::{Gauges, Ranks, Reader};

use crate::keepers;
use crate::probe;
use crate::service::Service;
use routing::contract::Engine;
use routing::id::WorkerId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// An answer that is not whole by then is none.
pub const SCRAPE_TIMEOUT: Duration = Duration::from_secs(1);
/// Scrapes under way at once; more wait their turn.
const SCRAPES_MAX: usize = 64;
/// Between two scrapes of an endpoint that has no gauges, and the longest pause of one that does not answer.
const BACK_OFF: Duration = Duration::from_secs(10);
/// Doublings of the pause of an endpoint that does not answer; more would pass any [`BACK_OFF`].
const DOUBLINGS_MAX: u32 = 14;

/// One endpoint to scrape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its worker.
    pub worker: WorkerId,
    /// Its place in the worker's list.
    pub endpoint: usize,
    /// `host:port` to dial: resolved where possible.
    pub dial: String,
    /// `host:port` as declared, for the `host` header.
    pub authority: String,
    /// Where the gauges are.
    pub path: &'static str,
    /// The ranks behind it.
    pub ranks: Ranks,
}

/// Where an engine shows its gauges. `TensorRT-LLM`'s `/metrics` is something else, which reading would take away.
#[must_use]
pub const fn path(engine: Engine) -> &'static str {
    match engine {
        Engine::Trtllm => "/prometheus/metrics",
        Engine::Vllm | Engine::Sglang | Engine::Custom => "/metrics",
    }
}

/// What became of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Gauges were found.
    Read,
    /// The endpoint answers, but has no gauges of ours there.
    Absent,
    /// No answer, or not in time.
    Failed,
    /// More than an engine can have to say.
    TooLong,
}

/// How often each [`Finding`] came about.
#[derive(Debug, Default)]
pub struct Counts([AtomicU64; 4]);

impl Counts {
    fn add(&self, finding: Finding) {
        if let Some(count) = self.0.get(finding as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each finding's word and count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["read", "absent", "failed", "too_long"]
            .into_iter()
            .zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

struct Scraper {
    service: Arc<Service>,
    client: reqwest::Client,
    places: Semaphore,
    interval_ms: u64,
}

/// Scrapes all declared endpoints until the service stops.
///
/// # Errors
/// When no HTTP client can be made.
pub async fn run(service: Arc<Service>, interval_ms: u64) -> Result<(), reqwest::Error> {
    let scraper =
        Scraper { client: probe::client()?, places: Semaphore::new(SCRAPES_MAX), interval_ms, service };
    let scraper = Arc::new(scraper);
    let service = &scraper.service;
    let start = |target| Arc::clone(&scraper).keep_scraping(target);
    keepers::follow(service.members_changed(), || service.scrape_targets(), start).await;
    Ok(())
}

impl Scraper {
    async fn keep_scraping(self: Arc<Self>, target: Target) {
        let mut failures = 0;
        loop {
            let finding = self.scrape_in_turn(&target).await;
            self.service.scrapes.add(finding);
            failures = if finding == Finding::Failed { failures + 1 } else { 0 };
            let pause = pause(self.interval_ms, finding, failures);
            sleep(Duration::from_millis(self.service.chance.jittered(pause).0)).await;
        }
    }

    async fn scrape_in_turn(&self, target: &Target) -> Finding {
        // The semaphore is never closed.
        let _place = self.places.acquire().await;
        match timeout(SCRAPE_TIMEOUT, self.scrape(target)).await {
            Ok(Ok(gauges)) if gauges.slots.is_empty() && gauges.strays == 0 => Finding::Absent,
            Ok(Ok(gauges)) => {
                self.service.scraped(target, gauges);
                Finding::Read
            }
            Ok(Err(finding)) => finding,
            Err(_) => Finding::Failed,
        }
    }

    async fn scrape(&self, target: &Target) -> Result<Gauges, Finding> {
        let url = format!("http://{}{}", target.dial, target.path);
        let request = self.client.get(url).header(reqwest::header::HOST, &target.authority);
        let mut response = request.send().await.map_err(|_| Finding::Failed)?;
        if !response.status().is_success() {
            return Err(Finding::Absent);
        }
        let mut reader = Reader::default();
        while let Some(chunk) = response.chunk().await.map_err(|_| Finding::Failed)? {
            if !reader.feed(&chunk) {
                return Err(Finding::TooLong);
            }
        }
        Ok(reader.finish(target.ranks))
    }
}

/// Milliseconds until the next scrape.
fn pause(interval_ms: u64, finding: Finding, failures: u32) -> u64 {
    let back_off = u64::try_from(BACK_OFF.as_millis()).unwrap_or(interval_ms).max(interval_ms);
    match finding {
        Finding::Read => interval_ms,
        Finding::Absent | Finding::TooLong => back_off,
        Finding::Failed => (interval_ms << failures.min(DOUBLINGS_MAX)).min(back_off),
    }
}
