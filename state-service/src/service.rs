//! The state under its shell: one lock, one clock, one source of chance, and what the state's effects set in motion.
//!
//! Every handler and task comes through here. Nothing is decided: a command goes in, a reply comes out, effects are done.

mod bindings;
mod discovery;
mod hosts;
mod index;
mod kv;
mod reservations;
mod response_ids;
mod sharing;
mod start;
mod states;
mod tokens;
mod views;
mod waits;

pub use bindings::{Became, Following, Reading, SNAPSHOT_PATH};
pub use discovery::DiscoveryView;
pub use hosts::{Cursor, Ended, Hosts, SNAPSHOTS_MAX, STREAMS_MAX};
pub use reservations::Wish;
pub use start::{Followers, Setup};
pub use tokens::Tokenizers;

use crate::auth::Token;
use crate::chance::{Chance, Clock};
use crate::declare::WorkerSpec;
use crate::http::problem::Problem;
use crate::kv_events::hub::Hub;
use crate::metrics::HttpMetrics;
use crate::persist::Store;
use crate::replicas::{Replicas, Settled};
use crate::scrape;
use crate::state::{Command, Declared, Effect, Reply, State};
use routing::block::Chain;
use routing::contract::{PageUpload, Report, RouteReply, RouteRequest, WatchQuery, WatchReply};
use routing::id::{Epoch, SessionId, WorkerId};
use routing::time::Millis;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::{Semaphore, broadcast, watch};
use waits::{Waiting, Waits};

/// Most answers to one question that others overtake; whose binding is the newer one is seen later then.
const ANSWERS_MAX: usize = 3;

/// The running service, shared by all handlers and tasks.
pub struct Service {
    /// This life.
    pub epoch: Epoch,
    /// For ties, salts and jitter.
    pub chance: Chance,
    /// What every request must bring, if anything.
    pub token: Option<Token>,
    /// HTTP counts.
    pub http: HttpMetrics,
    /// What became of scrapes.
    pub scrapes: scrape::Counts,
    /// Finds the tasks that listen to engines' events.
    pub kv_hub: Arc<Hub>,
    /// Places for long polls.
    pub watchers: Semaphore,
    /// Hosts that follow the bindings.
    pub hosts: Hosts,
    tokenizers: Tokenizers,
    clock: Clock,
    state: Mutex<State>,
    waits: Waits,
    store: Store,
    /// What it shares with other replicas; none of the only one.
    replicas: OnceLock<Arc<Replicas>>,
    /// Declared in the config file: not saved, so that taking them out of the file takes them out.
    config_workers: BTreeSet<WorkerId>,
    changes: watch::Sender<u64>,
    members: watch::Sender<u64>,
    /// Workers to be probed at once. Nobody need listen.
    alarms: broadcast::Sender<WorkerId>,
    stopping: watch::Sender<bool>,
    warnings: Mutex<Vec<Warning>>,
    /// Workers' states as the log has told them.
    states: Mutex<states::States>,
    upstream_role_missing: AtomicU64,
    xds_rejections: AtomicU64,
}

/// Something `/readyz` should tell although the service runs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Warning {
    /// Stable word.
    pub code: &'static str,
    /// For people.
    pub detail: String,
}

impl Service {
    /// Wakes with every change that watchers may care for.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Wakes when workers or their endpoints change.
    pub fn members_changed(&self) -> watch::Receiver<u64> {
        self.members.subscribe()
    }

    /// Tells each worker whose connections fail; a listener that lags misses some.
    pub fn alarms(&self) -> broadcast::Receiver<WorkerId> {
        self.alarms.subscribe()
    }

    /// Becomes true once, at the end.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Whether the end has begun.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Begins the end: not ready, long polls answered.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Compares deadlines with the clock.
    pub fn expire(&self) {
        self.apply(Command::Expire);
        let changes = {
            let state = self.lock();
            self.states.lock().unwrap_or_else(PoisonError::into_inner).changes(state.fleet())
        };
        changes.iter().for_each(|(worker, from, to)| states::say(worker, *from, *to));
    }

    /// Places one request, its prompt made into blocks first; one that waits for its slot is answered later.
    ///
    /// # Errors
    /// [`Problem`] as the state refuses it.
    pub async fn route(self: &Arc<Self>, mut request: RouteRequest) -> Result<RouteReply, Problem> {
        let prompt = self.blocks_of(&mut request).await?;
        if self.replicas().is_none() || request.dry_run {
            return self.answer(request, prompt).await;
        }
        self.find_alias(&request).await;
        let (session, prefill) = (request.session, request.prefill.as_ref().and_then(|ask| ask.session));
        let mut reply = self.answer(request.clone(), prompt.clone()).await?;
        self.tell_loads();
        // What another replica did meanwhile is asked for again; at last an answer goes out as it is.
        for _ in 0..ANSWERS_MAX {
            let sessions = [session.or(reply.session), prefill];
            if self.settle(sessions, &reply, request.deadline_ms).await == Settled::AsAnswered {
                break;
            }
            reply = self.answer(request.clone(), prompt.clone()).await?;
        }
        Ok(reply)
    }

    async fn answer(&self, request: RouteRequest, prompt: Option<Box<Chain>>) -> Result<RouteReply, Problem> {
        let waiting = match self.ask(request, prompt) {
            (Reply::Route(reply), _) => return Ok(reply),
            (Reply::Later(_), Some(waiting)) => waiting,
            (other, _) => return Err(not_an_answer(other)),
        };
        let gone = || not_an_answer(Reply::Done);
        waiting.answered().await.map(|reply| *reply).ok_or_else(gone)
    }

    fn ask(&self, request: RouteRequest, prompt: Option<Box<Chain>>) -> (Reply, Option<Waiting<'_>>) {
        let mut effects = Vec::new();
        let (reply, waiting) = {
            let mut state = self.lock();
            let command = Command::Route { request, prompt, draw: self.chance.draw() };
            let reply = state.apply(self.clock.now(), command, &mut effects);
            self.hosts.changed(state.position());
            let waiting = match &reply {
                Reply::Later(later) => {
                    Some(Waiting { service: self, later: *later, answer: self.waits.open(later.ticket) })
                }
                _ => None,
            };
            (reply, waiting)
        };
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        (reply, waiting)
    }

    /// Takes a report.
    ///
    /// # Errors
    /// [`Problem`] as the state refuses it.
    pub fn report(&self, report: Report) -> Result<(), Problem> {
        let taken = done(self.apply(Command::Report(report)));
        // In flight, response ids, VMs that are gone: only reports tell of them.
        self.tell_loads();
        taken
    }

    /// Takes bindings that an Envoy has cached.
    ///
    /// # Errors
    /// [`Problem`] as the state refuses it.
    pub fn pages(&self, upload: PageUpload) -> Result<(), Problem> {
        done(self.apply(Command::Pages(upload)))
    }

    /// What is new for a watcher, if anything.
    pub fn watch(&self, query: &WatchQuery) -> Option<WatchReply> {
        match self.apply(Command::Watch { query: query.clone(), salt: self.chance.draw() }) {
            Reply::Watch(news) => news.map(|news| *news),
            Reply::Done
            | Reply::Refused(_)
            | Reply::Declared(_)
            | Reply::Route(_)
            | Reply::Reserved(_)
            | Reply::Applied(_)
            | Reply::Notes(_)
            | Reply::Later(_) => None,
        }
    }

    /// Declares a worker; it is on disk when this returns.
    ///
    /// # Errors
    /// [`Problem`]: refused, or declared but not saved.
    pub async fn declare(&self, spec: WorkerSpec) -> Result<Declared, Problem> {
        let id = spec.id.clone();
        self.fits_store(&spec)?;
        match self.apply(Command::PutWorker { spec }) {
            Reply::Declared(what) => {
                tracing::info!(worker = %id, ?what, "worker declared");
                self.save_before_answering().await?;
                self.share_declaration(&id).await.map(|()| what)
            }
            other => Err(not_an_answer(other)),
        }
    }

    /// Forgets a worker; so does the disk when this returns.
    ///
    /// # Errors
    /// [`Problem`]: unknown, or forgotten but not saved.
    pub async fn remove(&self, id: WorkerId) -> Result<(), Problem> {
        done(self.apply(Command::RemoveWorker { id: id.clone() }))?;
        tracing::info!(worker = %id, "worker removed");
        self.save_before_answering().await?;
        self.share_declaration(&id).await
    }

    /// Drains a worker, or ends its drain.
    ///
    /// # Errors
    /// [`Problem`]: unknown, or done but not saved.
    pub async fn drain(&self, id: WorkerId, deadline: Option<Millis>) -> Result<(), Problem> {
        done(self.apply(Command::DrainWorker { id: id.clone(), deadline }))?;
        tracing::info!(worker = %id, deadline_ms = deadline.map(|d| d.0), "worker drains");
        self.share_drain(id);
        self.save_before_answering().await
    }

    /// Ends a drain.
    ///
    /// # Errors
    /// [`Problem`]: unknown, or done but not saved.
    pub async fn resume(&self, id: WorkerId) -> Result<(), Problem> {
        done(self.apply(Command::ResumeWorker { id: id.clone() }))?;
        tracing::info!(worker = %id, "worker resumes");
        self.share_drain(id);
        self.save_before_answering().await
    }

    /// Ends a session by hand.
    ///
    /// # Errors
    /// [`Problem`]: not bound.
    pub fn release(&self, id: SessionId) -> Result<(), Problem> {
        done(self.apply(Command::ReleaseSession { id }))?;
        tracing::info!(session = id.prefix(), "session released by hand");
        Ok(())
    }

    /// Notes that a node's Envoy config lacks the upstream role.
    pub fn upstream_role_missing(&self, node: &str, count: u64) {
        if self.upstream_role_missing.fetch_add(count, Ordering::Relaxed) == 0 {
            tracing::warn!(
                node,
                "an Envoy answers without the upstream role of the filter: no rank is set there; see README"
            );
        }
    }

    /// Saves what is not saved yet.
    ///
    /// # Errors
    /// What the system said.
    pub async fn save(&self) -> io::Result<()> {
        self.store.flush(|| self.declared_workers()).await
    }

    async fn save_before_answering(&self) -> Result<(), Problem> {
        self.save().await.map_err(|error| {
            tracing::error!(%error, "declared workers could not be saved");
            Problem::internal("the change is in effect, but could not be saved and may not survive a restart")
        })
    }

    fn declared_workers(&self) -> Vec<Value> {
        let state = self.lock();
        let own = state.workers().filter(|worker| !self.config_workers.contains(worker.id()));
        own.map(|worker| worker.spec().to_saved()).collect()
    }

    fn apply(&self, command: Command) -> Reply {
        let mut effects = Vec::new();
        // The lock comes first: time must not run backwards between two commands.
        let reply = {
            let mut state = self.lock();
            let reply = state.apply(self.clock.now(), command, &mut effects);
            self.hosts.changed(state.position());
            reply
        };
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        reply
    }

    fn carry_out(&self, effect: Effect) {
        match effect {
            Effect::Changed => self.changes.send_modify(|n| *n += 1),
            Effect::PersistWorkers => self.store.mark_changed(),
            Effect::WorkerUp(_) | Effect::WorkerGone(_) => self.members.send_modify(|n| *n += 1),
            // Without probes nobody listens, and that is no fault.
            Effect::ProbeNow(worker) => drop(self.alarms.send(worker)),
            Effect::Replay { worker, rank, attempt, from } => self.replay(worker, rank, attempt, from),
            Effect::Recorded => self.replicas().into_iter().for_each(|replicas| replicas.wake()),
            Effect::ClaimsOver(claims) => {
                if let Some(replicas) = self.replicas() {
                    replicas.give_up(claims);
                }
            }
            Effect::Answer { ticket, reply } => self.waits.answer(ticket, reply),
        }
    }

    /// A panic under the lock leaves a state that still serves: better an odd number than no service.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn done(reply: Reply) -> Result<(), Problem> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(not_an_answer(other)),
    }
}

/// A refusal, or an answer to another question, which would be our fault.
fn not_an_answer(reply: Reply) -> Problem {
    match reply {
        Reply::Refused(error) => Problem::from(&error),
        Reply::Done
        | Reply::Declared(_)
        | Reply::Route(_)
        | Reply::Reserved(_)
        | Reply::Later(_)
        | Reply::Applied(_)
        | Reply::Notes(_)
        | Reply::Watch(_) => {
            tracing::error!("the state gave the answer to another question");
            Problem::internal("an unexpected condition; see the service's log")
        }
    }
}
