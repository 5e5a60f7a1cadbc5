//! Declared workers in the store, so that all replicas have the same ones and a restart forgets none. Knows their declarations as
//! JSON and numbers them; which ones are good is for others to say.

use super::{Store, StoreError, at_most, reply, scripts};
use crate::config::WORKERS_MAX;
use routing::id::WorkerId;
use serde_json::Value as Json;
use std::sync::atomic::Ordering::Relaxed;

/// Longest declaration, in bytes of JSON.
const DECLARATION_BYTES_MAX: usize = 64 * 1024;

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

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedWorkers {
    /// By name.
    pub workers: Vec<SharedWorker>,
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
        call.key(&config.keys.epoch).key(&config.keys.workers).arg(config.clock.argument()).arg(WORKERS_MAX);
        let (_, answers) = self.ask("workers", &call).await?;
        let mut all = SharedWorkers::default();
        for pair in answers.chunks_exact(2) {
            let [name, value] = pair else { continue };
            match (reply::text(name), reply::text(value)) {
                (Some("#"), Some(text)) => all.generation = text.parse().unwrap_or(0),
                (Some(name), Some(text)) if let Some(worker) = worker(name, text) => all.workers.push(worker),
                _ => _ = self.inner.counters.unreadable.fetch_add(1, Relaxed),
            }
        }
        all.workers.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
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
        call.key(&config.keys.epoch).key(&config.keys.log).key(&config.keys.workers);
        call.arg(config.clock.argument()).arg(verb).arg(id.as_str()).arg(declaration).arg(above);
        call.arg(WORKERS_MAX);
        self.log_arguments(&mut call);
        let (_, answers) = self.ask(name, &call).await?;
        match answers.as_slice() {
            [redis::Value::Int(generation)] => Ok(u64::try_from(*generation).ok().filter(|given| *given > 0)),
            _ => Err(StoreError::answer(name)),
        }
    }
}

fn worker(name: &str, text: &str) -> Option<SharedWorker> {
    let (generation, declaration) = text.split_once(' ')?;
    Some(SharedWorker {
        id: WorkerId::parse(name).ok()?,
        generation: generation.parse().ok()?,
        declaration: serde_json::from_str(declaration).ok()?,
    })
}
