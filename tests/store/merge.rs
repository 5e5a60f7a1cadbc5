//! What a merge answers, writes and tells, one case at a time.

use anyhow::Result;
use e2e::Redis;
use routing::time::Millis;
use state_service::state::Outcome::{self, *};
use state_service::store::{BATCH_MAX, NOTE_BYTES_MAX, Store, StoreError, StreamId};

use crate::support::{bound, fresh, keys, released, store, store_at};

async fn outcomes(store: &Store, steps: &[state_service::state::Binding]) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for step in steps {
        outcomes.extend(store.merge(std::slice::from_ref(step), &[]).await?.outcomes);
    }
    Ok(outcomes)
}

#[tokio::test]
async fn each_row_of_the_merge_table_is_told() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store_at(&redis, 1, 1_000_000).await?.0;
    let steps = [
        (bound(1, (5, 1), "a", 0), Inserted),
        (bound(1, (5, 1), "a", 0), Refreshed),
        (bound(1, (4, 9), "b", 0), IgnoredConflict),
        (bound(1, (5, 2), "b", 1), ReplacedNewer),
        (bound(1, (5, 2), "c", 1), IgnoredConflict),
        (released(1, (6, 1)), ReplacedNewer),
        (bound(1, (5, 2), "b", 1), IgnoredStale),
        (released(1, (6, 1)), Refreshed),
        (bound(1, (7, 1), "b", 1), ReplacedNewer),
        (released(2, (1, 1)), Inserted),
    ];
    let given: Vec<_> = steps.iter().map(|(binding, _)| binding.clone()).collect();
    let expected: Vec<_> = steps.iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(outcomes(&store, &given).await?, expected);
    Ok(())
}

#[tokio::test]
async fn a_batch_is_one_entry_and_what_changes_nothing_is_none() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store_at(&redis, 1, 1_000_000).await?.0;
    let batch: Vec<_> = (0..BATCH_MAX as u64).map(|nth| bound(nth, (1, 1), "a", 0)).collect();
    let first = store.merge(&batch, &[]).await?;
    assert!(first.entry.is_some());
    assert_eq!(store.merge(&batch, &[]).await?.entry, None);
    let older = bound(3, (0, 9), "z", 0);
    assert_eq!(store.merge(&[older], &[]).await?.entry, None);
    let noted = store.merge(&[], &["hello".to_owned()]).await?;
    assert!(noted.entry > first.entry);
    let followed = store.follow(StreamId::default(), Millis(0)).await?;
    let seen: Vec<_> =
        followed.entries.iter().map(|entry| (entry.bindings.len(), entry.notes.len())).collect();
    assert_eq!(seen, [(BATCH_MAX, 0), (0, 1)]);
    assert_eq!(followed.entries[0].bindings, batch);
    Ok(())
}

#[tokio::test]
async fn a_later_end_is_kept_and_an_earlier_one_is_not() -> Result<()> {
    let redis = Redis::start().await?;
    let (store, clock) = store_at(&redis, 1, 1_000_000).await?;
    let with_end = |ms| {
        let mut binding = bound(1, (5, 1), "a", 0);
        binding.expires_in_ms = Millis(ms);
        binding
    };
    store.merge(&[with_end(5_000)], &[]).await?;
    store.merge(&[with_end(9_000)], &[]).await?;
    store.merge(&[with_end(1_000)], &[]).await?;
    clock.pass(2_000);
    let session = with_end(0).session.id;
    assert_eq!(store.read(&[session]).await?[0].expires_in_ms, Millis(7_000));
    clock.pass(7_001);
    assert_eq!(store.read(&[session]).await?, []);
    Ok(())
}

#[tokio::test]
async fn more_than_a_call_takes_is_refused_before_it_is_sent() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let many = vec![bound(1, (1, 1), "a", 0); BATCH_MAX + 1];
    let too_many = |result: StoreError| assert!(matches!(result, StoreError::TooMany { .. }), "{result}");
    too_many(store.merge(&many, &[]).await.unwrap_err());
    too_many(store.claim(&fresh(&many)).await.unwrap_err());
    too_many(store.merge(&[], &["x".repeat(NOTE_BYTES_MAX + 1)]).await.unwrap_err());
    let two_lines = store.merge(&[], &["a\nb".to_owned()]).await.unwrap_err();
    assert!(matches!(two_lines, StoreError::Config(_)), "{two_lines}");
    assert_eq!(keys(&redis).await?, ["test:{rankpin}:epoch"]);
    Ok(())
}
