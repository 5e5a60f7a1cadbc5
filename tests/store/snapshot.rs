//! A snapshot and what follows from its place lose nothing that is written meanwhile.

use std::collections::BTreeMap;

use anyhow::Result;
use e2e::Redis;
use routing::id::{SessionId, Version};
use routing::time::Millis;
use state_service::state::Binding;
use state_service::store::{BATCH_MAX, Store, StoreError};

use crate::support::{bound, released, store, store_at};

type Known = BTreeMap<SessionId, Version>;

fn take(known: &mut Known, bindings: &[Binding]) {
    for binding in bindings {
        let newest = known.entry(binding.session.id).or_default();
        *newest = binding.version.max(*newest);
    }
}

/// Everything, by a snapshot and by following until an entry has this note.
async fn all(store: &Store, last_note: &str) -> Result<Known> {
    let (mut known, mut snapshot) = (Known::new(), store.snapshot().await?);
    while let Some(page) = snapshot.next().await? {
        anyhow::ensure!(page.len() <= BATCH_MAX);
        take(&mut known, &page);
    }
    let mut cursor = snapshot.cursor;
    loop {
        let followed = store.follow(cursor, Millis(1000)).await?;
        anyhow::ensure!(!followed.gap);
        cursor = followed.cursor;
        for entry in &followed.entries {
            take(&mut known, &entry.bindings);
            if entry.notes.iter().any(|note| note == last_note) {
                return Ok(known);
            }
        }
    }
}

#[tokio::test]
async fn what_is_written_meanwhile_is_in_the_pages_or_in_the_log() -> Result<()> {
    const OLD: u64 = 3000;
    let redis = Redis::start().await?;
    let (reader, writer) = (store(&redis, 9).await?, store(&redis, 1).await?);
    for from in (0..OLD).step_by(BATCH_MAX) {
        let batch: Vec<_> = (from..OLD.min(from + 256)).map(|nth| bound(nth, (1, 1), "w", 0)).collect();
        writer.merge(&batch, &[]).await?;
    }
    let writing = tokio::spawn(async move {
        let mut written = Known::new();
        for step in 0..400_u64 {
            // Moves of old sessions and births of new ones.
            let batch = [bound(step * 7 % OLD, (2 + step, 1), "v", 1), bound(OLD + step, (1, 1), "v", 0)];
            writer.merge(&batch, &[]).await.unwrap();
            take(&mut written, &batch);
        }
        writer.merge(&[], &["done".to_owned()]).await.unwrap();
        written
    });
    let known = all(&reader, "done").await?;
    let written = writing.await?;
    assert_eq!(known.len() as u64, OLD + 400);
    for (session, version) in &written {
        assert_eq!(known.get(session), Some(version));
    }
    Ok(())
}

#[tokio::test]
async fn releases_are_in_it_and_what_is_over_is_not() -> Result<()> {
    let redis = Redis::start().await?;
    let (store, clock) = store_at(&redis, 1, 1_000_000).await?;
    let mut short = bound(1, (1, 1), "w", 0);
    short.expires_in_ms = Millis(10);
    store.merge(&[short, released(2, (4, 1)), bound(3, (5, 1), "w", 2)], &[]).await?;
    clock.pass(11);
    let mut snapshot = store.snapshot().await?;
    let mut seen = Vec::new();
    while let Some(page) = snapshot.next().await? {
        seen.extend(page);
    }
    seen.sort_by_key(|binding| binding.version);
    let ends: Vec<_> =
        seen.iter().map(|binding| (binding.target.is_some(), binding.expires_in_ms.0)).collect();
    assert_eq!(ends, [(false, 59_989), (true, 59_989)]);
    Ok(())
}

#[tokio::test]
async fn a_store_that_loses_its_memory_while_it_is_read_says_so() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let mut snapshot = store.snapshot().await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    redis.command::<()>(&["FLUSHALL"]).await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    assert_eq!(snapshot.next().await, Err(StoreError::EpochChanged));
    Ok(())
}
