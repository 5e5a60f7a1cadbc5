//! Declared workers in the store, and which of them drain, so that all replicas have the same ones and a restart forgets none. Knows
//! their declarations as JSON and numbers them; which ones are good is for others to say.

use super::{Store, StoreError, at_most, reply, scripts};
use crate::config::WORKERS_MAX;
use redis::Value;
use routing::id::WorkerId;
use routing::time::Millis;
use serde_json::Value as Json;
use std::sync::atomic::Ordering::Relaxed;

/// Longest declaration, in bytes of JSON.
pub const DECLARATION_BYTES_MAX: usize = 64 * 1024;

/// A worker as it was declared to some replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedWorker {
    /// Its name.
    pub id: WorkerId,
    /// Grows with every declaration of any worker: the higher, the newer.
    pub generation: u64,
    /// What was declared.
    pub declaration: Json,
}

/// A worker that drains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDrain {
    /// Its name.
    pub id: WorkerId,
    /// When its drain is over by the store's clock, if ever: another drain has another end.
    pub end: Option<u64>,
    /// And from now; 0: it is over.
    pub left: Option<Millis>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedWorkers {
    /// By name.
    pub workers: Vec<SharedWorker>,
    /// Those that drain, by name; a replica's config file may declare one of these.
    pub drains: Vec<SharedDrain>,
    /// The last generation given, to a declaration or a removal.
    pub generation: u64,
}

impl Store {
    /// All declared workers.
    ///
    /// # Errors
    /// Any of [`StoreError`].
    pub async fn workers(&self) -> Result<SharedWorkers, StoreError> {
        let config = &self.inner.config;
        let mut call = scripts::WORKERS.prepare_invoke();
        call.key(&config.keys.epoch).key(&config.keys.workers).key(&config.keys.drains);
        call.arg(config.clock.argument()).arg(WORKERS_MAX);
        let (now, answers) = self.ask("workers", &call).await?;
        let both = <[Value; 2]>::try_from(answers).ok();
        let both = both.and_then(|[workers, drains]| Some((reply::list(workers)?, reply::list(drains)?)));
        let (workers, drains) = both.ok_or_else(|| StoreError::answer("workers"))?;
        let (mut all, mut unreadable) = (SharedWorkers::default(), 0);
        for (name, text) in pairs(&workers) {
            match (name, text) {
                (Some("#"), Some(text)) => all.generation = text.parse().unwrap_or(0),
                (Some(name), Some(text)) if let Some(worker) = worker(name, text) => all.workers.push(worker),
                _ => unreadable += 1,
            }
        }
        for (name, text) in pairs(&drains) {
            match name.zip(text).and_then(|(name, text)| drain(name, text, now)) {
                Some(drain) => all.drains.push(drain),
                None => unreadable += 1,
            }
        }
        self.inner.counters.unreadable.fetch_add(unreadable, Relaxed);
        all.workers.sort_by(|a, b| a.id.cmp(&b.id));
        all.drains.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// Drains a worker for all, from now until so long; what is then known of its drain.
    ///
    /// # Errors
    /// Any of [`StoreError`]; it may drain all the same.
    pub async fn put_drain(&self, id: &WorkerId, left: Option<Millis>) -> Result<SharedDrain, StoreError> {
        let left_ms = left.map(|left| left.0.to_string()).unwrap_or_default();
        let (now, answer) = self.change_drain("put_drain", "drain", id, &left_ms).await?;
        if reply::number(&answer) == Some(0) {
            return Err(StoreError::TooMany { what: "drains", count: WORKERS_MAX + 1, max: WORKERS_MAX });
        }
        let drain = reply::text(&answer).and_then(|text| drain(id.as_str(), text, now));
        drain.ok_or_else(|| StoreError::answer("put_drain"))
    }

    /// Ends a worker's drain for all.
    ///
    /// # Errors
    /// Any of [`StoreError`]; it may be ended all the same.
    pub async fn end_drain(&self, id: &WorkerId) -> Result<(), StoreError> {
        self.change_drain("end_drain", "resume", id, "").await.map(drop)
    }

    async fn change_drain(
        &self,
        name: &'static str,
        verb: &str,
        id: &WorkerId,
        left_ms: &str,
    ) -> Result<(u64, Value), StoreError> {
        let config = &self.inner.config;
        let mut call = scripts::DRAIN.prepare_invoke();
        call.key(&config.keys.epoch).key(&config.keys.log).key(&config.keys.drains);
        call.arg(config.clock.argument()).arg(verb).arg(id.as_str()).arg(left_ms).arg(WORKERS_MAX);
        self.log_arguments(&mut call);
        let (now, mut answers) = self.ask(name, &call).await?;
        let answer = answers.pop().filter(|_| answers.is_empty());
        answer.map(|answer| (now, answer)).ok_or_else(|| StoreError::answer(name))
    }

    /// Declares a worker for all; gives its generation, which is above `above`: the last one that the caller has seen.
    ///
    /// # Errors
    /// Any of [`StoreError`]; it may be declared all the same.
    pub async fn put_worker(&self, id: &WorkerId, declaration: &Json, above: u64) -> Result<u64, StoreError> {
        let text = declaration.to_string();
        at_most("bytes of a declaration", text.len(), DECLARATION_BYTES_MAX)?;
        let generation = self.change_worker("put_worker", "put", id, &text, above).await?;
        generation.ok_or(StoreError::TooMany { what: "workers", count: WORKERS_MAX + 1, max: WORKERS_MAX })
    }

    /// Removes a worker for all; gives the removal's generation, or nothing when there was none of that name.
    ///
    /// # Errors
    /// Any of [`StoreError`]; it may be removed all the same.
    pub async fn remove_worker(&self, id: &WorkerId, above: u64) -> Result<Option<u64>, StoreError> {
        self.change_worker("remove_worker", "remove", id, "", above).await
    }

    async fn change_worker(
        &self,
        name: &'static str,
        verb: &str,
        id: &WorkerId,
        declaration: &str,
        above: u64,
    ) -> Result<Option<u64>, StoreError> {
        let config = &self.inner.config;
        let mut call = scripts::WORKER.prepare_invoke();
        call.key(&config.keys.epoch).key(&config.keys.log).key(&config.keys.workers).key(&config.keys.drains);
        call.arg(config.clock.argument()).arg(verb).arg(id.as_str()).arg(declaration).arg(above);
        call.arg(WORKERS_MAX);
        self.log_arguments(&mut call);
        let (_, answers) = self.ask(name, &call).await?;
        match answers.as_slice() {
            [Value::Int(generation)] => Ok(u64::try_from(*generation).ok().filter(|given| *given > 0)),
            _ => Err(StoreError::answer(name)),
        }
    }
}

/// Names and values in turn.
fn pairs(list: &[Value]) -> impl Iterator<Item = (Option<&str>, Option<&str>)> {
    list.chunks_exact(2).map(|pair| (pair.first().and_then(reply::text), pair.get(1).and_then(reply::text)))
}

fn drain(name: &str, text: &str, now: u64) -> Option<SharedDrain> {
    let id = WorkerId::parse(name).ok()?;
    let end = if text == "-" { None } else { Some(text.parse().ok()?) };
    Some(SharedDrain { id, end, left: end.map(|end| Millis(end.saturating_sub(now))) })
}

fn worker(name: &str, text: &str) -> Option<SharedWorker> {
    let (generation, declaration) = text.split_once(' ')?;
    Some(SharedWorker {
        id: WorkerId::parse(name).ok()?,
        generation: generation.parse().ok()?,
        declaration: serde_json::from_str(declaration).ok()?,
    })
}
