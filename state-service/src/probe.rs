//! Asks each worker endpoint for its health, regularly and boundedly, and tells the state. What failures mean is the state's.
//!
//! One task an endpoint, so one probe of it at a time. When the state says that connections to a worker fail, its endpoints
//! are asked at once and often, each until it answers well or its worker is down.

use crate::keepers::{self, Keepers};
use crate::service::Service;
use routing::id::WorkerId;
use rustix::io::Errno;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

/// A worker that has not answered by then counts as failed: a hung one accepts and says nothing.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Probes under way at once; more wait their turn.
const PROBES_MAX: usize = 256;
/// Of a health answer no more is read; then its connection is not reused.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Between two probes of an endpoint in doubt; no endpoint is asked more often than this.
const HURRY: Duration = Duration::from_millis(100);

/// One endpoint to ask.
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
    /// How it is asked.
    pub question: Question,
}

/// How an endpoint is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// `GET /health` must answer 2xx.
    Health,
    /// A connection must be accepted: all that is asked of TLS endpoints, whose certificates only Envoy can check.
    Connect,
}

/// The tasks that ask; beside each what remembers one alarm until it is ready for it.
type Asking = Keepers<Target, Arc<Notify>>;

struct Prober {
    service: Arc<Service>,
    client: reqwest::Client,
    places: Semaphore,
    interval_ms: u64,
}

/// Probes all declared endpoints until the service stops.
///
/// # Errors
/// When no HTTP client can be made.
pub async fn run(service: Arc<Service>, interval_ms: u64) -> Result<(), reqwest::Error> {
    let prober = Prober { client: client()?, places: Semaphore::new(PROBES_MAX), interval_ms, service };
    let prober = Arc::new(prober);
    let mut members = prober.service.members_changed();
    let mut asking = Asking::default();
    let mut alarms = prober.service.alarms();
    let mut regularly = keepers::regularly();
    loop {
        tokio::select! {
            _ = regularly.tick() => reconcile(&prober, &mut asking),
            // The senders live as long as `prober`.
            _ = members.changed() => reconcile(&prober, &mut asking),
            alarm = alarms.recv() => hurry(&asking, alarm.ok().as_ref()),
        }
    }
}

/// Those of one worker; all of them when some alarms were missed.
fn hurry(asking: &Asking, worker: Option<&WorkerId>) {
    let doubted = asking.running().filter(|(target, _)| worker.is_none_or(|worker| target.worker == *worker));
    doubted.for_each(|(_, doubt)| doubt.notify_one());
}

/// An HTTP client for questions to workers: plain, direct, and patient for no longer than a probe.
///
/// # Errors
/// When there can be none.
pub(crate) fn client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(PROBE_TIMEOUT)
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(Duration::from_secs(4))
        .user_agent(concat!("rankpin/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// A whole answer of a worker. `None`: there is none; empty: it says no, or more than `bytes_max`.
pub(crate) async fn get(
    client: &reqwest::Client,
    (dial, authority): (&str, &str),
    path: &str,
    bytes_max: usize,
) -> Option<Vec<u8>> {
    let url = format!("http://{dial}{path}");
    let mut response = client.get(url).header(reqwest::header::HOST, authority).send().await.ok()?;
    if !response.status().is_success() {
        return Some(Vec::new());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > bytes_max {
            return Some(Vec::new());
        }
        body.extend_from_slice(&chunk);
    }
    Some(body)
}

fn reconcile(prober: &Arc<Prober>, asking: &mut Asking) {
    asking.settle(&prober.service.probe_targets(), |target| {
        let doubt = Arc::new(Notify::new());
        (Arc::clone(prober).keep_asking(target, Arc::clone(&doubt)), doubt)
    });
}

impl Prober {
    async fn keep_asking(self: Arc<Self>, target: Target, doubt: Arc<Notify>) {
        let mut doubted = false;
        loop {
            let finding = self.ask_in_turn(&target).await;
            if let Some(healthy) = finding {
                self.service.probed(&target, healthy);
            }
            doubted = doubted && finding != Some(true) && !self.service.is_out(&target.worker);
            let pause = Duration::from_millis(self.service.chance.jittered(self.interval_ms).0);
            sleep(pause.min(HURRY)).await;
            if !doubted {
                doubted = timeout(pause.saturating_sub(HURRY), doubt.notified()).await.is_ok();
            }
        }
    }

    /// `None` is no verdict: the worker was never asked, because this process could not open a socket.
    async fn ask_in_turn(&self, target: &Target) -> Option<bool> {
        // The semaphore is never closed; waiting for a place is not held against the worker.
        let _place = self.places.acquire().await;
        timeout(PROBE_TIMEOUT, self.ask(target)).await.unwrap_or(Some(false))
    }

    async fn ask(&self, target: &Target) -> Option<bool> {
        match target.question {
            Question::Connect => {
                TcpStream::connect(&target.dial).await.map_or_else(|e| verdict(&e), |_| Some(true))
            }
            Question::Health => self.ask_health(target).await,
        }
    }

    async fn ask_health(&self, target: &Target) -> Option<bool> {
        let url = format!("http://{}/health", target.dial);
        let request = self.client.get(url).header(reqwest::header::HOST, &target.authority);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return verdict(&error),
        };
        let healthy = response.status().is_success();
        // The head decides; a body that hangs may cost the connection, not the verdict.
        let _ = timeout(PROBE_TIMEOUT / 4, drain(response)).await;
        Some(healthy)
    }
}

/// What a failed attempt says of the worker: nothing, if it was our own want of descriptors.
fn verdict(error: &(dyn Error + 'static)) -> Option<bool> {
    let ours = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    let is_ours = |error: &(dyn Error + 'static)| {
        error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
            .is_some_and(|code| ours.contains(&code))
    };
    let mut cause = Some(error);
    while let Some(error) = cause {
        if is_ours(error) {
            return None;
        }
        cause = error.source();
    }
    Some(false)
}

async fn drain(mut response: reqwest::Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        read += chunk.len();
        if read > BODY_BYTES_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_want_of_descriptors_is_no_verdict() {
        #[derive(Debug, thiserror::Error)]
        #[error("connect")]
        struct Wrapped(#[source] io::Error);
        let error = |errno: Errno| Wrapped(io::Error::from_raw_os_error(errno.raw_os_error()));
        assert_eq!(verdict(&error(Errno::MFILE)), None);
        assert_eq!(verdict(&error(Errno::NFILE)), None);
        assert_eq!(verdict(&error(Errno::CONNREFUSED)), Some(false));
        assert_eq!(verdict(&io::Error::other("no answer")), Some(false));
    }
}
