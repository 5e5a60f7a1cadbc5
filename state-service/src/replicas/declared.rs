//! Declared workers as all replicas know them: each declaration has a number, and what the store did not take yet is told again.

use super::Replicas;
use crate::lock::lock;
use crate::service::Service;
use crate::store::{SharedWorker, StoreError};
use routing::id::WorkerId;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of the store's workers.
#[derive(Debug, Default)]
pub(super) struct Declared {
    /// Their numbers, as they were read or given.
    known: BTreeMap<WorkerId, u64>,
    /// The highest number seen.
    last: u64,
    /// The store's memory that they are of.
    life: Option<(u64, u64)>,
    /// Declared or removed here, and not in the store yet. Bounded by what may be declared.
    untold: BTreeSet<WorkerId>,
    /// The store's are to be read again.
    reload: bool,
}

impl Replicas {
    /// A worker was declared or removed here.
    pub(crate) fn declared(&self, id: WorkerId) {
        lock(&self.declared).untold.insert(id);
    }

    /// The store's workers are to be read again.
    pub(super) fn reload(&self) {
        lock(&self.declared).reload = true;
        self.wake();
    }

    /// Tells what is not in the store yet.
    ///
    /// # Errors
    /// Any of [`StoreError`]; what was not told stays.
    pub(crate) async fn settle_declared(&self, service: &Service) -> Result<(), StoreError> {
        let reload = std::mem::take(&mut lock(&self.declared).reload);
        if reload && let Err(error) = self.load_declared(service).await {
            lock(&self.declared).reload = true;
            return Err(error);
        }
        loop {
            let next = lock(&self.declared).untold.first().cloned();
            let Some(id) = next else { return Ok(()) };
            self.tell_declared(service, &id).await?;
        }
    }

    async fn tell_declared(&self, service: &Service, id: &WorkerId) -> Result<(), StoreError> {
        let _alone = self.declaring.lock().await;
        let last = lock(&self.declared).last;
        let generation = match service.shared_declaration(id) {
            Some(json) => {
                let generation = self.store.put_worker(id, &json, last).await?;
                service.number_declaration(id, generation);
                lock(&self.declared).known.insert(id.clone(), generation);
                Some(generation)
            }
            None => {
                let generation = self.store.remove_worker(id, last).await?;
                lock(&self.declared).known.remove(id);
                generation
            }
        };
        let mut declared = lock(&self.declared);
        declared.last = declared.last.max(generation.unwrap_or(0));
        declared.untold.remove(id);
        Ok(())
    }

    /// What another memory of the store knew is not gone: it is to be told again.
    fn notice_life(&self) {
        let now = self.store.status().memory();
        let mut declared = lock(&self.declared);
        if declared.life.is_some() && declared.life != now {
            let known: Vec<WorkerId> = std::mem::take(&mut declared.known).into_keys().collect();
            declared.untold.extend(known);
            self.wake();
        }
        declared.life = now.or(declared.life);
    }

    /// Reads what other replicas declared and removed.
    ///
    /// # Errors
    /// Any of [`StoreError`].
    pub(super) async fn load_declared(&self, service: &Service) -> Result<(), StoreError> {
        // Nothing is told between the reading and what is made of it: what is not listed yet would be taken for removed.
        let _alone = self.declaring.lock().await;
        let shared = self.store.workers().await?;
        self.notice_life();
        let names: BTreeSet<&WorkerId> = shared.workers.iter().map(|worker| &worker.id).collect();
        let gone: Vec<WorkerId> = {
            let declared = lock(&self.declared);
            declared.known.keys().filter(|id| !names.contains(id)).cloned().collect()
        };
        let is_told = |id: &WorkerId| !lock(&self.declared).untold.contains(id);
        for id in gone.into_iter().filter(|id| is_told(id)) {
            service.forget_shared(&id);
            lock(&self.declared).known.remove(&id);
        }
        for SharedWorker { id, generation, declaration } in &shared.workers {
            let known = lock(&self.declared).known.get(id).copied();
            if known.is_some_and(|known| known >= *generation) || !is_told(id) {
                continue;
            }
            service.take_shared(id, declaration, *generation);
            lock(&self.declared).known.insert(id.clone(), *generation);
        }
        service.declared_up_to(shared.generation);
        let mut declared = lock(&self.declared);
        declared.last = declared.last.max(shared.generation);
        Ok(())
    }
}
