//! Keeps every wanted rank subscribed: one task an endpoint finds out where its ranks publish, and one a rank listens.
//!
//! What an engine tells is asked for again now and then, and soon after a connection to one of its ranks is lost: a restart may bring
//! other ports. An engine that tells nothing yet is asked ever less often.

use super::discover::{self, ANSWER_BYTES_MAX, Found, Told};
use super::hub::Rank;
use super::pipeline::Sink;
use super::poll;
use super::subscriber::{Shared, Source, keep};
use crate::declare::Host;
use crate::declare::kv_events::KvAt;
use crate::keepers::{self, Keepers};
use crate::probe;
use crate::service::Service;
use crate::state::kv_stream::Link;
use routing::contract::Engine;
use routing::id::{PoolName, WorkerId};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};

/// An answer that is not whole by then is none.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two questions to an engine that told.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// The same while it does not answer although it was listened to.
const ASK_GONE: Duration = Duration::from_secs(2);
/// The first and the longest pause between questions to one that did not.
const ASK_FIRST: Duration = Duration::from_millis(500);
const ASK_PAUSE_MAX: Duration = Duration::from_secs(15);

/// One endpoint whose ranks' events are wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// Its worker.
    pub worker: WorkerId,
    /// Its pool, and since when it has been declared as it is: in another one, or declared anew, nothing is known of its ranks, and what
    /// they published before must be asked for again.
    pub pool: PoolName,
    /// See [`Wanted::pool`].
    pub since: u64,
    /// The same when nothing but the way of its events changed: [`crate::state::State::kv_source_number`].
    pub source_number: u64,
    /// Its place in the worker's list.
    pub endpoint: usize,
    /// Decides what is asked.
    pub engine: Engine,
    /// What `*` stands for.
    pub host: Host,
    /// `host:port` to dial: resolved where possible.
    pub dial: String,
    /// `host:port` as declared, for the `host` header.
    pub authority: String,
    /// First global rank.
    pub first: u32,
    /// How many ranks.
    pub count: u32,
    /// Said by hand; else the engine is asked.
    pub at: Option<KvAt>,
}

struct Runner {
    service: Arc<Service>,
    shared: Arc<Shared>,
    client: reqwest::Client,
}

/// Why it could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No thread could be started.
    #[error("no thread for decoding events: {0}")]
    Threads(#[from] io::Error),
    /// No HTTP client could be made.
    #[error("no client for asking engines: {0}")]
    Client(#[from] reqwest::Error),
}

/// Listens to all wanted ranks until the service stops.
///
/// # Errors
/// [`RunError`].
pub async fn run(service: Arc<Service>) -> Result<(), RunError> {
    let sink = Arc::clone(&service) as Arc<dyn Sink>;
    let shared = Shared::start(sink, Arc::clone(&service.kv_hub))?;
    let runner = Arc::new(Runner { client: probe::client()?, shared, service });
    let service = &runner.service;
    let start = |wanted| Arc::clone(&runner).listen(wanted);
    keepers::follow(service.members_changed(), || service.kv_wanted(), start).await;
    Ok(())
}

/// The subscriptions of one endpoint.
type Listening = Keepers<Source>;

fn listen_to(listening: &mut Listening, shared: &Arc<Shared>, sources: Vec<Source>) {
    listening.settle(&sources.into_iter().collect(), |source| (keep(Arc::clone(shared), source), ()));
}

impl Runner {
    async fn listen(self: Arc<Self>, wanted: Wanted) {
        let mut listening = Listening::default();
        if let Some(at) = &wanted.at {
            listen_to(&mut listening, &self.shared, declared(&wanted, at));
            return std::future::pending().await;
        }
        let mut pause = ASK_FIRST;
        let mut lost = self.shared.hub.lost();
        loop {
            pause = match self.ask(&wanted).await {
                Some(Told::Ranks(ranks)) => {
                    let (sources, missing) = told(&wanted, &ranks);
                    listen_to(&mut listening, &self.shared, sources);
                    // Once nobody listens to them any more, who would tell otherwise.
                    missing.into_iter().for_each(|(rank, link)| self.link(&wanted, rank, link));
                    ASK_AGAIN
                }
                Some(Told::Nothing) => {
                    listen_to(&mut listening, &self.shared, Vec::new());
                    self.link_all(&wanted, Link::NotPublished);
                    ASK_AGAIN
                }
                Some(Told::NotSaid) if wanted.engine == Engine::Trtllm => {
                    poll::keep(&self.client, &self.shared, &wanted).await;
                    ASK_FIRST
                }
                // What is listened to stays: an engine that is busy, or gone, tells nothing new.
                Some(Told::NotSaid) if listening.running().next().is_some() => ASK_AGAIN,
                None if listening.running().next().is_some() => ASK_GONE,
                Some(Told::NotSaid) | None => {
                    self.link_all(&wanted, Link::Undiscovered);
                    (pause * 2).min(ASK_PAUSE_MAX)
                }
            };
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            let pause = Duration::from_millis(self.service.chance.jittered(pause_ms).0);
            if timeout(pause, lost_one(&mut lost, &wanted.worker)).await.is_ok() {
                // Its other ranks are lost at the same time, most likely.
                sleep(ASK_FIRST).await;
                lost = lost.resubscribe();
            }
        }
    }

    fn link_all(&self, wanted: &Wanted, link: Link) {
        ranks(wanted).for_each(|rank| self.link(wanted, rank, link));
    }

    fn link(&self, wanted: &Wanted, rank: u32, link: Link) {
        self.shared.sink.link(&Rank { worker: wanted.worker.clone(), rank }, link);
    }

    /// `None`: no answer.
    async fn ask(&self, wanted: &Wanted) -> Option<Told> {
        let questions = match wanted.engine {
            Engine::Vllm => &[discover::VLLM][..],
            Engine::Sglang => &[discover::SGLANG, discover::SGLANG_OLD],
            Engine::Trtllm | Engine::Custom => &[discover::VLLM, discover::SGLANG],
        };
        let mut answered = None;
        for (path, read) in questions {
            let to = (wanted.dial.as_str(), wanted.authority.as_str());
            let answer = probe::get(&self.client, to, path, ANSWER_BYTES_MAX);
            let body = timeout(ASK_TIMEOUT, answer).await.ok().flatten();
            answered = body.map(|body| read(&body)).or(answered);
            if !matches!(answered, None | Some(Told::NotSaid)) {
                break;
            }
        }
        answered
    }
}

/// Until a connection to the worker is lost, or it may have been.
async fn lost_one(lost: &mut broadcast::Receiver<WorkerId>, worker: &WorkerId) {
    loop {
        match lost.recv().await {
            Ok(other) if other != *worker => {}
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            // The hub lives as long as the tasks.
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

pub(super) fn ranks(wanted: &Wanted) -> impl Iterator<Item = u32> {
    wanted.first..wanted.first.saturating_add(wanted.count)
}

/// The sources of those of its ranks that it told of, and why the others have none. Ranks of other endpoints are theirs to tell.
fn told(wanted: &Wanted, told: &BTreeMap<u32, Option<Found>>) -> (Vec<Source>, Vec<(u32, Link)>) {
    let (mut sources, mut missing) = (Vec::new(), Vec::new());
    for rank in ranks(wanted) {
        match told.get(&rank) {
            Some(Some(found)) => sources.extend(source(wanted, rank, found)),
            Some(None) => missing.push((rank, Link::NotPublished)),
            None => missing.push((rank, Link::Undiscovered)),
        }
    }
    (sources, missing)
}

fn declared(wanted: &Wanted, at: &KvAt) -> Vec<Source> {
    let source = |rank| {
        Some(Source {
            rank: Rank { worker: wanted.worker.clone(), rank },
            endpoint: at.endpoint.of_rank(rank, &wanted.host)?,
            replay: at.replay_endpoint.as_ref().and_then(|replay| replay.of_rank(rank, &wanted.host)),
            topic: at.topic.clone(),
        })
    };
    ranks(wanted).filter_map(source).collect()
}

/// Told ports are the rank's own.
fn source(wanted: &Wanted, rank: u32, found: &Found) -> Option<Source> {
    Some(Source {
        rank: Rank { worker: wanted.worker.clone(), rank },
        endpoint: found.endpoint.of_rank(0, &wanted.host)?,
        replay: found.replay_endpoint.as_ref().and_then(|replay| replay.of_rank(0, &wanted.host)),
        topic: found.topic.clone(),
    })
}
