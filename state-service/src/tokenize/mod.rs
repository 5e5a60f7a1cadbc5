//! The tokens of prompts, a pool at a time: what a prompt's blocks are called, so that they can be found among what engines cache.
//!
//! Owns the ways there (`local`, `engine`, `approximate`), their order, deadlines, threads and counters. Deliberately does not
//! know slots, choices or HTTP servers. Nothing here logs a prompt or a token.
//!
//! Order: `local`; while its model is being loaded, or cannot be, the workers' `/tokenize`; else [`Reason`], and the caller places
//! by load. `engine` has no second way: an approximate chain would be looked for among tokens in vain.

mod anthropic;
pub mod approximate;
mod body;
mod cuts;
mod encode;
mod engine;
mod generations;
mod json;
mod local;
mod messages;
mod prefix;
mod python;
mod question;
mod reason;
mod render;
mod responses;
mod rest;
mod settings;
mod template;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod trial;

pub use body::{BODY_BYTES_MAX, Surface};
pub use encode::Which;
pub use engine::{ANSWER_BYTES_MAX, ANSWER_TIMEOUT, QUESTIONS_MAX};
pub use local::PREFIX_BYTES_MAX;
pub use reason::{Counters, Reason, Source};
pub(crate) use settings::FORMS;
pub use settings::Tokens;
pub use template::{Clock, TEXT_BYTES_MAX};

use body::{Prompt, read};
use engine::Engine;
use local::{Files, Local};
use reqwest::Client;
use routing::block::{Chain, Namespace};
use settings::How;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};
use threads::Threads;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// A worker is asked for its template again after that long, in seconds.
const OFFER_S: u64 = 60;

/// One prompt to be tokenised.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Where its body goes.
    pub surface: Surface,
    /// The body, or its head.
    pub body: String,
    /// Whether it is all of it.
    pub whole: bool,
    /// The adapter it is for, as the engine calls it.
    pub lora: Option<String>,
    /// Tokens of a block, of the pool's engines.
    pub block_size: u32,
    /// Workers that may be asked, `http://host:port` each.
    pub workers: Vec<String>,
    /// The longest wait.
    pub deadline: Duration,
}

/// A prompt's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokenized {
    /// Its blocks.
    pub chain: Chain,
    /// How they were got.
    pub source: Source,
}

/// The way to one pool's tokens.
pub struct Tokenizer {
    way: Way,
    threads: Arc<Threads>,
    counters: Arc<Counters>,
}

enum Way {
    Off,
    Approximate,
    Engine(Engine),
    Local(Arc<Model>, Engine),
}

/// A model that is being loaded, or is, or cannot be.
struct Model {
    /// Whose it is, for the log.
    pool: String,
    files: Files,
    slot: Mutex<Slot>,
    client: Client,
    clock: Clock,
    /// When a worker was last asked for its template, in seconds since 1970.
    offered_s: AtomicU64,
    counters: Arc<Counters>,
}

#[derive(Clone)]
enum Slot {
    Loading,
    Ready(Arc<Local>),
    Failed(Arc<str>),
}

/// Whether a pool's tokens can be got as its config says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// They can.
    Ready,
    /// Its model is being loaded.
    Loading,
    /// Its model cannot be loaded: why.
    Failed(Arc<str>),
}

/// Seconds since 1970, by the system's clock.
#[must_use]
pub fn system_clock() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

impl Tokenizer {
    /// Starts loading, if there is something to load. `pool` is for the log, `client` speaks to workers.
    #[must_use]
    pub fn new(pool: &str, tokens: &Tokens, threads: Arc<Threads>, client: Client, clock: Clock) -> Self {
        let counters = Arc::new(Counters::default());
        let way = match &tokens.0 {
            How::Off => Way::Off,
            How::Approximate => Way::Approximate,
            How::Engine => Way::Engine(Engine::new(client)),
            How::Local(files) => {
                let model = Arc::new(Model {
                    pool: pool.to_owned(),
                    files: files.clone(),
                    slot: Mutex::new(Slot::Loading),
                    client: client.clone(),
                    clock,
                    offered_s: AtomicU64::new(0),
                    counters: Arc::clone(&counters),
                });
                model.load(None);
                Way::Local(model, Engine::new(client))
            }
        };
        Self { way, threads, counters }
    }

    /// What happened since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether prompts are compared with own placements alone.
    #[must_use]
    pub const fn is_approximate(&self) -> bool {
        matches!(self.way, Way::Approximate)
    }

    /// Its word in configs.
    #[must_use]
    pub const fn mode(&self) -> &'static str {
        match self.way {
            Way::Off => "off",
            Way::Approximate => "approximate",
            Way::Engine(_) => "engine",
            Way::Local(..) => "local",
        }
    }

    /// Whether it works as its config says.
    #[must_use]
    pub fn state(&self) -> State {
        let Way::Local(model, _) = &self.way else { return State::Ready };
        match model.slot() {
            Slot::Loading => State::Loading,
            Slot::Ready(_) => State::Ready,
            Slot::Failed(why) => State::Failed(why),
        }
    }

    /// Bytes of what is known of earlier prompts.
    #[must_use]
    pub fn known_bytes(&self) -> usize {
        match &self.way {
            Way::Off | Way::Approximate => 0,
            Way::Engine(engine) => engine.known_bytes(),
            Way::Local(model, engine) => {
                let local = if let Slot::Ready(local) = model.slot() { local.known_bytes() } else { 0 };
                local + engine.known_bytes()
            }
        }
    }

    /// Whether a model is loaded, where one is to be: `None` while it is being loaded, with the code that tokenises.
    #[must_use]
    pub fn loaded(&self) -> Option<Result<Which, Reason>> {
        let Way::Local(model, _) = &self.way else { return Some(Err(Reason::Off)) };
        match model.slot() {
            Slot::Loading => None,
            Slot::Failed(_) => Some(Err(Reason::NotLoaded)),
            Slot::Ready(local) => Some(Ok(if local.is_fast() { Which::Fast } else { Which::Reference })),
        }
    }

    /// The blocks of a prompt.
    ///
    /// # Errors
    /// Why there are none; the request is placed without.
    pub async fn chain(&self, ask: Ask) -> Result<Tokenized, Reason> {
        let deadline = ask.deadline;
        let result = timeout(deadline, self.find(ask)).await.unwrap_or(Err(Reason::Late));
        match &result {
            Ok(tokenized) => self.counters.hit(tokenized.source),
            Err(reason) => self.counters.miss(*reason),
        }
        result
    }

    async fn find(&self, ask: Ask) -> Result<Tokenized, Reason> {
        let (chain, source) = match &self.way {
            Way::Off => Err(Reason::Off),
            Way::Approximate => self.run(move || approximated(&ask)).await,
            Way::Engine(engine) => self.engine(engine, ask).await,
            Way::Local(model, engine) => match model.slot() {
                Slot::Ready(local) => {
                    model.want_template(&local, &ask);
                    self.run(move || locally(&local, &ask)).await
                }
                Slot::Loading if ask.workers.is_empty() => Err(Reason::Loading),
                Slot::Failed(_) if ask.workers.is_empty() => Err(Reason::NotLoaded),
                Slot::Loading | Slot::Failed(_) => self.engine(engine, ask).await,
            },
        }?;
        Ok(Tokenized { chain, source })
    }

    async fn engine(&self, engine: &Engine, ask: Ask) -> Result<(Chain, Source), Reason> {
        let until = Instant::now() + ask.deadline;
        let (surface, body, whole) = (ask.surface, ask.body, ask.whole);
        let prompt: Prompt = self.run(move || read(surface, &body, whole)).await?;
        engine.chain(prompt, ask.lora, ask.block_size, &ask.workers, until).await
    }

    /// On a thread of its own. A job nobody waits for any more is not begun.
    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Reason> + Send + 'static,
    ) -> Result<T, Reason> {
        let (reply, answer) = oneshot::channel();
        let job = move || {
            if !reply.is_closed() {
                // Nobody waits any more: nothing to tell.
                let _ = reply.send(job());
            }
        };
        self.threads.submit(job).map_err(|_| Reason::Queue)?;
        answer.await.unwrap_or(Err(Reason::Panicked))
    }
}

fn approximated(ask: &Ask) -> Result<(Chain, Source), Reason> {
    let prompt = read(ask.surface, &ask.body, ask.whole)?;
    let namespace = Namespace { lora: ask.lora.as_deref(), salt: prompt.salt.as_deref() };
    let chain = approximate::chain(&render::plain(&prompt)?, namespace, ask.block_size);
    Ok((chain, Source::Approximate))
}

fn locally(local: &Local, ask: &Ask) -> Result<(Chain, Source), Reason> {
    let prompt = read(ask.surface, &ask.body, ask.whole)?;
    let given = matches!(prompt.asked, body::Asked::Tokens(_));
    let chain = local.chain(prompt, ask.lora.as_deref(), ask.block_size)?;
    Ok((chain, if given { Source::Given } else { Source::Local }))
}

impl Model {
    fn slot(&self) -> Slot {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// On a thread of its own: it takes up to a second.
    fn load(self: &Arc<Self>, offered: Option<String>) {
        let model = Arc::clone(self);
        let load = move || {
            let counters = Arc::clone(&model.counters);
            let slot = match Local::load(&model.files, offered.as_deref(), model.clock, counters) {
                Ok(local) => Slot::Ready(Arc::new(local)),
                // What a worker offered does not help; what was loaded before still serves.
                Err(error) if offered.is_some() => {
                    return tracing::warn!(pool = model.pool, %error, "a worker's chat template cannot be used");
                }
                Err(error) => {
                    tracing::error!(
                        pool = model.pool, %error,
                        "the tokenizer of a pool cannot be loaded: its prompts are tokenised by its workers' /tokenize, or placed by load"
                    );
                    Slot::Failed(error.to_string().into())
                }
            };
            *model.slot.lock().unwrap_or_else(PoisonError::into_inner) = slot;
        };
        if thread::Builder::new().name("tokens-load".to_owned()).spawn(load).is_err() {
            let why = Slot::Failed("the system gives no thread".into());
            *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = why;
        }
    }

    /// A folder without a template: perhaps a worker has one.
    fn want_template(self: &Arc<Self>, local: &Local, ask: &Ask) {
        let Some(worker) = ask.workers.first().filter(|_| !local.has_template()).cloned() else { return };
        let (now, last) = ((self.clock)(), self.offered_s.load(Ordering::Relaxed));
        let due = now.saturating_sub(last) >= OFFER_S;
        if !due || self.offered_s.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let model = Arc::clone(self);
        tokio::spawn(async move {
            if let Some(config) = question::offered_config(&model.client, &worker).await {
                model.load(Some(config));
            }
        });
    }
}
