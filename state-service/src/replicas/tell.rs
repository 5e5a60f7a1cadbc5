//! What goes out: changed bindings, each session once and newest, with what else the others should hear; and claims that ended.
//!
//! Nothing is kept here but a position: what the store did not take is told again from the state's journal, or, when that does not
//! reach back so far, all of it.

use super::{Replicas, STORE};
use crate::lock::lock;
use crate::service::Service;
use crate::state::{Binding, Note, Position};
use crate::store::{BATCH_MAX, KeptAlias, NOTE_BYTES_MAX, StoreError};
use routing::id::{SessionId, Version};
use routing::time::Millis;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Changes are gathered for so long.
const GATHER: Duration = Duration::from_millis(5);
/// Loads and other notes go out this often.
const NOTES: Duration = Duration::from_millis(100);
/// Without reports they are looked for this often: a load is told again after a while.
const IDLE: Duration = Duration::from_secs(1);
/// Pause after a call that failed.
const RETRY: Duration = Duration::from_millis(50);

/// Tells for ever.
pub(super) async fn run(service: &Service, replicas: &Replicas) {
    let (notes, aliases, noted) = (Vec::new(), Vec::new(), Instant::now());
    let mut teller = Teller { service, replicas, position: Position(0), notes, aliases, noted };
    loop {
        // Either there is something, or it is time for notes.
        let _ = timeout(teller.until_notes(), replicas.wake.notified()).await;
        sleep(GATHER).await;
        replicas.store.until_up().await;
        if let Err(error) = teller.tell_all().await {
            tracing::debug!(%error, "not told yet");
            sleep(RETRY).await;
            replicas.wake();
        }
    }
}

struct Teller<'a> {
    service: &'a Service,
    replicas: &'a Replicas,
    position: Position,
    notes: Vec<String>,
    /// Bounded by what is taken at a time: nothing is taken before these are kept.
    aliases: Vec<(KeptAlias, Millis)>,
    noted: Instant,
}

impl Teller<'_> {
    fn until_notes(&self) -> Duration {
        let every = if self.replicas.reported.load(Ordering::Relaxed) { NOTES } else { IDLE };
        every.saturating_sub(self.noted.elapsed())
    }

    async fn tell_all(&mut self) -> Result<(), StoreError> {
        self.give_up_claims().await?;
        self.replicas.settle_declared(self.service).await?;
        if self.replicas.retell.swap(false, Ordering::SeqCst) {
            self.retell().await?;
        }
        self.gather_notes();
        self.keep_aliases().await?;
        loop {
            let changes = self.service.changed_bindings(self.position, STORE, BATCH_MAX);
            if changes.gap {
                self.retell().await?;
                continue;
            }
            if !changes.bindings.is_empty() || !self.notes.is_empty() {
                self.merge(&changes.bindings).await?;
            }
            if changes.position == self.position {
                return Ok(());
            }
            self.position = changes.position;
        }
    }

    async fn merge(&mut self, bindings: &[Binding]) -> Result<(), StoreError> {
        let notes: Vec<String> = self.notes.iter().take(crate::store::NOTES_MAX).cloned().collect();
        self.replicas.store.merge(bindings, &notes).await?;
        self.notes.drain(..notes.len());
        Ok(())
    }

    /// Everything known, from the position before it was begun to be read.
    async fn retell(&mut self) -> Result<(), StoreError> {
        let position = self.service.position();
        let mut from = Some(SessionId(0));
        while let Some(session) = from {
            let (bindings, next) = self.service.bindings_from(session, BATCH_MAX);
            if let Err(error) = self.replicas.store.merge(&bindings, &[]).await {
                self.replicas.retell.store(true, Ordering::SeqCst);
                return Err(error);
            }
            from = next;
        }
        self.position = position;
        Ok(())
    }

    /// Response ids, for replicas that will not have heard of them.
    async fn keep_aliases(&mut self) -> Result<(), StoreError> {
        while !self.aliases.is_empty() {
            let count = self.aliases.len().min(BATCH_MAX);
            self.replicas.store.keep_aliases(self.aliases.get(..count).unwrap_or_default()).await?;
            self.aliases.drain(..count);
        }
        Ok(())
    }

    async fn give_up_claims(&self) -> Result<(), StoreError> {
        loop {
            let batch: Vec<(SessionId, Version)> = {
                let mut over = lock(&self.replicas.over);
                let count = over.len().min(BATCH_MAX);
                over.drain(..count).collect()
            };
            if batch.is_empty() {
                return Ok(());
            }
            // Not asked again: what is not given up ends by its time.
            self.replicas.store.unclaim(&batch).await?;
        }
    }

    fn gather_notes(&mut self) {
        let own: Vec<Note> = lock(&self.replicas.notes).drain(..).collect();
        let due = self.noted.elapsed() >= NOTES && self.aliases.is_empty();
        if due {
            self.replicas.reported.store(false, Ordering::Relaxed);
        }
        let told = if due { self.service.take_notes() } else { Vec::new() };
        if told.len() >= crate::state::NOTES_MAX {
            // There may be more.
            self.replicas.reported.store(true, Ordering::Relaxed);
        }
        if due {
            self.noted = Instant::now();
            self.aliases = self.service.aliases_kept(&told);
        }
        let lines = own.into_iter().chain(told).filter_map(|note| serde_json::to_string(&note).ok());
        self.notes.extend(lines.filter(|line| line.len() <= NOTE_BYTES_MAX));
    }
}
