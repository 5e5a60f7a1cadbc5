//! Declared workers as all replicas know them, and which of them drain: each declaration has a number, and what the store did not take
//! yet is told again.

use super::Replicas;
use crate::lock::lock;
use crate::service::Service;
use crate::store::{SharedDrain, SharedWorker, StoreError};
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
    untold: Untold,
    /// When their drains end by the store's clock, as they were read or given.
    drains: BTreeMap<WorkerId, Option<u64>>,
    /// Told to drain or to resume here, and not in the store yet.
    drains_untold: Untold,
    /// The store's are to be read again.
    reload: bool,
}

/// What the store is to be told of; what changes again while it is told stays.
#[derive(Debug, Default)]
struct Untold {
    ids: BTreeMap<WorkerId, u64>,
    last: u64,
}

impl Untold {
    fn add(&mut self, id: WorkerId) {
        self.last += 1;
        self.ids.insert(id, self.last);
    }

    /// One of them, and the number of its change.
    fn first(&self) -> Option<(WorkerId, u64)> {
        self.ids.first_key_value().map(|(id, number)| (id.clone(), *number))
    }

    fn has(&self, id: &WorkerId) -> bool {
        self.ids.contains_key(id)
    }

    /// It was told as it was after that change.
    fn told(&mut self, id: &WorkerId, number: u64) {
        if self.ids.get(id) == Some(&number) {
            self.ids.remove(id);
        }
    }
}

impl Replicas {
    /// A worker was declared or removed here.
    pub(crate) fn declared(&self, id: WorkerId) {
        lock(&self.declared).untold.add(id);
    }

    /// A worker was told to drain here, or to resume.
    pub(crate) fn drained(&self, id: WorkerId) {
        lock(&self.declared).drains_untold.add(id);
        self.wake();
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
            let next = lock(&self.declared).untold.first();
            let Some((id, change)) = next else { break };
            self.tell_declared(service, &id, change).await?;
        }
        loop {
            let next = lock(&self.declared).drains_untold.first();
            let Some((id, change)) = next else { return Ok(()) };
            self.tell_drain(service, &id, change).await?;
        }
    }

    async fn tell_drain(&self, service: &Service, id: &WorkerId, change: u64) -> Result<(), StoreError> {
        let _alone = self.declaring.lock().await;
        let told = match service.drain_left(id) {
            Some(left) => self.store.put_drain(id, left).await.map(|drain| Some(drain.end)),
            None => self.store.end_drain(id).await.map(|()| None),
        };
        let mut declared = lock(&self.declared);
        match told {
            Ok(Some(end)) => _ = declared.drains.insert(id.clone(), end),
            Ok(None) => _ = declared.drains.remove(id),
            // Nothing else is to wait for that.
            Err(error @ StoreError::TooMany { .. }) => {
                tracing::error!(worker = %id, %error, "a drain could not be shared: it counts here alone");
            }
            Err(error) => return Err(error),
        }
        declared.drains_untold.told(id, change);
        Ok(())
    }

    async fn tell_declared(&self, service: &Service, id: &WorkerId, change: u64) -> Result<(), StoreError> {
        let _alone = self.declaring.lock().await;
        let last = lock(&self.declared).last;
        let generation = match service.shared_declaration(id) {
            Some(json) => {
                let generation = match self.store.put_worker(id, &json, last).await {
                    // Nothing else is to wait for that.
                    Err(error @ StoreError::TooMany { .. }) => {
                        tracing::error!(worker = %id, %error, "a worker could not be shared: it is declared here alone");
                        None
                    }
                    told => Some(told?),
                };
                if let Some(generation) = generation {
                    service.number_declaration(id, generation);
                    lock(&self.declared).known.insert(id.clone(), generation);
                }
                generation
            }
            None => {
                let generation = self.store.remove_worker(id, last).await?;
                let mut declared = lock(&self.declared);
                declared.known.remove(id);
                declared.drains.remove(id);
                generation
            }
        };
        let mut declared = lock(&self.declared);
        declared.last = declared.last.max(generation.unwrap_or(0));
        declared.untold.told(id, change);
        Ok(())
    }

    /// What another memory of the store knew is not gone: it is to be told again.
    fn notice_life(&self) {
        let now = self.store.status().memory();
        let mut declared = lock(&self.declared);
        if declared.life.is_some() && declared.life != now {
            let known: Vec<WorkerId> = std::mem::take(&mut declared.known).into_keys().collect();
            known.into_iter().for_each(|id| declared.untold.add(id));
            let drains: Vec<WorkerId> = std::mem::take(&mut declared.drains).into_keys().collect();
            drains.into_iter().for_each(|id| declared.drains_untold.add(id));
            self.wake();
        }
        declared.life = now.or(declared.life);
    }

    /// Drains that began and ended elsewhere.
    fn take_drains(&self, service: &Service, drains: &[SharedDrain]) {
        let mut declared = lock(&self.declared);
        let Declared { drains: known, drains_untold: untold, .. } = &mut *declared;
        let drain = |id: &WorkerId| drains.iter().find(|drain| drain.id == *id);
        let ended: Vec<WorkerId> = known.keys().filter(|id| drain(id).is_none()).cloned().collect();
        for id in ended.into_iter().filter(|id| !untold.has(id)) {
            service.take_drain(&id, None);
            known.remove(&id);
        }
        for SharedDrain { id, end, left } in drains.iter().filter(|drain| !untold.has(&drain.id)) {
            // One that is not declared here is looked at again when something else is.
            if known.get(id) != Some(end) && service.take_drain(id, Some(*left)) {
                known.insert(id.clone(), *end);
            }
        }
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
        let is_told = |id: &WorkerId| !lock(&self.declared).untold.has(id);
        for id in gone.into_iter().filter(|id| is_told(id)) {
            service.forget_shared(&id);
            let mut declared = lock(&self.declared);
            declared.known.remove(&id);
            declared.drains.remove(&id);
        }
        for SharedWorker { id, generation, declaration } in &shared.workers {
            let known = lock(&self.declared).known.get(id).copied();
            if known.is_some_and(|known| known >= *generation) || !is_told(id) {
                continue;
            }
            service.take_shared(id, declaration, *generation);
            lock(&self.declared).known.insert(id.clone(), *generation);
        }
        self.take_drains(service, &shared.drains);
        service.declared_up_to(shared.generation);
        let mut declared = lock(&self.declared);
        declared.last = declared.last.max(shared.generation);
        Ok(())
    }
}
