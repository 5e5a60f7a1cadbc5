//! What comes in: first all that the store knows, then what changes. After a gap all of it again; a store that lost its memory is told
//! everything, and so is one that lost its last writes.

use super::{Replicas, STORE};
use crate::lock::lock;
use crate::service::Service;
use crate::state::{Binding, Note};
use crate::store::{BATCH_MAX, Entry, FOLLOW_WAIT_MAX, StoreError, StreamId};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

/// What comes is gathered for so long: others tell every few milliseconds, and hearing each of them by itself would cost every replica
/// as much as there are others.
const GATHER: Duration = Duration::from_millis(20);
/// Pause after a call that failed,
const RETRY: Duration = Duration::from_millis(50);
/// and at most, when it fails time after time.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Hears for ever.
pub(super) async fn run(service: &Service, replicas: &Replicas) {
    let (mut life, mut pause) = (None, RETRY);
    loop {
        replicas.store.until_up().await;
        // Before it is read: what is lost meanwhile is told with the next reading.
        let now = replicas.store.status().memory();
        match load(service, replicas).await {
            Ok(cursor) => {
                if life.is_some_and(|before| now != Some(before)) {
                    tracing::warn!("the store lost its memory or its last writes: telling it everything");
                    replicas.retell.store(true, Ordering::SeqCst);
                    replicas.wake();
                }
                (life, pause) = (now.or(life), RETRY);
                *lock(&replicas.unread) = None;
                if !replicas.loaded.swap(true, Ordering::SeqCst) {
                    tracing::info!("what other replicas know is loaded");
                }
                follow(service, replicas, cursor, now).await;
            }
            Err(error) => {
                let reason = error.to_string();
                let before = lock(&replicas.unread).replace(reason.clone());
                if before.as_ref() != Some(&reason) {
                    tracing::warn!(%error, "what other replicas know could not be loaded; trying again");
                }
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

async fn load(service: &Service, replicas: &Replicas) -> Result<StreamId, StoreError> {
    let mut snapshot = replicas.store.snapshot().await?;
    // Workers first: a binding whose worker is not known waits for it.
    replicas.load_declared(service).await?;
    while let Some(page) = snapshot.next().await? {
        service.apply_bindings(STORE, page);
    }
    Ok(snapshot.cursor)
}

/// Until something is lost.
async fn follow(service: &Service, replicas: &Replicas, mut cursor: StreamId, life: Option<(u64, u64)>) {
    loop {
        match replicas.store.follow(cursor, FOLLOW_WAIT_MAX).await {
            Ok(followed) if followed.gap => return,
            Ok(followed) => {
                cursor = followed.cursor;
                let came = !followed.entries.is_empty();
                take(service, replicas, followed.entries).await;
                if came {
                    sleep(GATHER).await;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "not heard");
                sleep(RETRY).await;
                replicas.store.until_up().await;
            }
        }
        if replicas.store.status().memory() != life {
            return;
        }
    }
}

async fn take(service: &Service, replicas: &Replicas, entries: Vec<Entry>) {
    let own = replicas.store.config().writer;
    let (mut declared, mut bindings) = (false, Vec::new());
    for entry in entries.into_iter().filter(|entry| entry.writer != own) {
        let notes: Vec<Note> =
            entry.notes.iter().filter_map(|note| serde_json::from_str(note).ok()).collect();
        declared |=
            entry.notes.iter().any(|note| note.starts_with("worker ") || note.starts_with("removed "));
        bindings.extend(entry.bindings);
        // Many small entries are one command; none is so long that requests would wait for it.
        if bindings.len() >= BATCH_MAX || !notes.is_empty() {
            apply(service, &mut bindings);
        }
        notes.into_iter().for_each(|note| replicas.heard(service, note));
    }
    apply(service, &mut bindings);
    if declared && let Err(error) = replicas.load_declared(service).await {
        tracing::warn!(%error, "declared workers could not be read; trying again");
        replicas.reload();
    }
}

fn apply(service: &Service, bindings: &mut Vec<Binding>) {
    if !bindings.is_empty() {
        service.apply_bindings(STORE, std::mem::take(bindings));
    }
}
