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
use std::cmp::Reverse;
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
        let merged = self.replicas.store.merge(bindings, &notes).await;
        self.replicas.wrote(&merged);
        merged?;
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
        self.notes.extend(own.into_iter().chain(told).filter_map(line));
    }
}

/// A note as it is told; of a load that is too long, the slots that have most.
fn line(mut note: Note) -> Option<String> {
    loop {
        let line = serde_json::to_string(&note).ok()?;
        if line.len() <= NOTE_BYTES_MAX {
            return Some(line);
        }
        let Note::Load { in_flight, .. } = &mut note else {
            tracing::warn!(bytes = line.len(), "a note is too long for other replicas");
            return None;
        };
        let fit = in_flight.len() * NOTE_BYTES_MAX / line.len();
        in_flight.sort_by_key(|one| Reverse(one.count));
        in_flight.truncate(fit.min(in_flight.len().saturating_sub(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use routing::contract::{Caller, InFlight, Target};
    use routing::id::{Epoch, Rank, WorkerId};

    #[test]
    fn of_a_load_that_is_too_long_the_busiest_slots_are_told() {
        let slot = |n: u32| InFlight {
            target: Target { worker: WorkerId::parse(&format!("{n:060}")).unwrap(), rank: Some(Rank(n % 8)) },
            count: 1 + n % 97,
        };
        for slots in [1, 50, 80, 512, 4096] {
            let caller = Caller { node: "n".to_owned(), vm: Epoch(1) };
            let note = Note::Load { caller, seq: 7, in_flight: (0..slots).map(slot).collect() };
            let line = line(note).unwrap();
            assert!(line.len() <= NOTE_BYTES_MAX, "{slots}: {}", line.len());
            let Note::Load { in_flight, .. } = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
            let least = in_flight.iter().map(|one| one.count).min().unwrap();
            let busier = (0..slots).map(slot).filter(|one| one.count > least).count();
            assert!(busier <= in_flight.len(), "{slots}: one that has more was left out");
            assert!(
                in_flight.len() == slots as usize || line.len() > NOTE_BYTES_MAX * 3 / 4,
                "{slots}: {}",
                line.len()
            );
        }
    }
}
