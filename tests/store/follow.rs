//! Following: each entry once and in order, gaps seen whatever made them, nothing waited for past its time.

use anyhow::Result;
use e2e::{Redis, wait_for};
use routing::time::Millis;
use state_service::store::{Entry, FOLLOW_WAIT_MAX, Store, StreamId};

use crate::support::{bound, config, store};

/// Follows until so many entries came.
async fn follow(store: &Store, mut cursor: StreamId, count: usize) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    while entries.len() < count {
        let followed = store.follow(cursor, FOLLOW_WAIT_MAX).await?;
        anyhow::ensure!(!followed.gap, "a gap after {cursor}");
        cursor = followed.cursor;
        entries.extend(followed.entries);
    }
    Ok(entries)
}

#[tokio::test]
async fn two_that_write_at_once_are_followed_entry_by_entry_in_order() -> Result<()> {
    const EACH: u64 = 150;
    let redis = Redis::start().await?;
    let reader = store(&redis, 9).await?;
    let writers = [store(&redis, 1).await?, store(&redis, 2).await?];
    let write = |store: Store| async move {
        for seq in 1..=EACH {
            let writer = store.config().writer;
            let binding = bound(writer * 1000 + seq, (seq, writer), "w", 0);
            store.merge(&[binding], &[]).await.unwrap();
        }
    };
    let [a, b] = writers.map(|writer| tokio::spawn(write(writer)));
    let entries = follow(&reader, StreamId::default(), 2 * EACH as usize).await?;
    a.await?;
    b.await?;
    assert!(entries.windows(2).all(|pair| pair[0].id < pair[1].id));
    for writer in [1, 2] {
        let own = entries.iter().filter(|entry| entry.writer == writer);
        let seqs: Vec<u64> = own.map(|entry| entry.bindings[0].version.seq).collect();
        assert_eq!(seqs, (1..=EACH).collect::<Vec<_>>());
    }
    let figures = reader.figures();
    assert_eq!(
        (figures.entries, figures.lag.iter().sum::<u64>(), figures.gaps),
        (entries.len() as u64, entries.len() as u64, 0)
    );
    Ok(())
}

#[tokio::test]
async fn what_is_waited_for_comes_and_an_empty_wait_ends() -> Result<()> {
    let redis = Redis::start().await?;
    let (reader, writer) = (store(&redis, 9).await?, store(&redis, 1).await?);
    let nothing = reader.follow(StreamId::default(), Millis(20)).await?;
    assert_eq!((nothing.entries.len(), nothing.gap, nothing.cursor), (0, false, StreamId::default()));
    let waiting = tokio::spawn({
        let reader = reader.clone();
        async move { reader.follow(StreamId::default(), FOLLOW_WAIT_MAX).await }
    });
    let blocked = async || {
        redis.command::<String>(&["INFO", "clients"]).await.ok()?.contains("blocked_clients:1").then_some(())
    };
    wait_for("a blocked reader", blocked).await?;
    // A call is not held up by one that waits.
    writer.merge(&[bound(1, (1, 1), "w", 0)], &["n".to_owned()]).await?;
    reader.epoch().await?;
    let followed = waiting.await??;
    assert_eq!((followed.entries.len(), followed.entries[0].writer), (1, 1));
    assert_eq!(followed.entries[0].notes, ["n"]);
    assert!(followed.entries[0].bindings[0].expires_in_ms <= Millis(60_000));
    Ok(())
}

#[tokio::test]
async fn a_cursor_that_the_log_does_not_reach_back_to_is_a_gap() -> Result<()> {
    let redis = Redis::start_with(&["--stream-node-max-entries", "10"]).await?;
    let mut short = config(&redis, 1);
    short.log_entries = 20;
    let writer = Store::open(&short).await?;
    let first = writer.merge(&[bound(0, (1, 1), "w", 0)], &[]).await?.entry.unwrap();
    for seq in 2..100 {
        writer.merge(&[bound(seq, (seq, 1), "w", 0)], &[]).await?;
    }
    let kept: usize = redis.command(&["XLEN", "test:{rankpin}:log"]).await?;
    assert!((20..60).contains(&kept), "{kept}");
    for lost in [StreamId::default(), first] {
        let followed = writer.follow(lost, Millis(0)).await?;
        assert_eq!((followed.gap, followed.entries.len(), followed.cursor), (true, 0, lost));
    }
    // From the snapshot's place it goes on.
    let cursor = writer.snapshot().await?.cursor;
    writer.merge(&[bound(1, (1000, 1), "w", 0)], &[]).await?;
    let followed = writer.follow(cursor, Millis(0)).await?;
    assert_eq!((followed.gap, followed.entries.len()), (false, 1));
    assert_eq!(writer.figures().gaps, 2);
    Ok(())
}

#[tokio::test]
async fn whoever_has_read_the_last_entry_misses_none_by_its_trimming() -> Result<()> {
    let redis = Redis::start_with(&["--stream-node-max-entries", "1"]).await?;
    let mut short = config(&redis, 1);
    short.log_entries = 1;
    let store = Store::open(&short).await?;
    let mut cursor = StreamId::default();
    for seq in 1..20 {
        store.merge(&[bound(1, (seq, 1), "w", 0)], &[]).await?;
        let followed = store.follow(cursor, Millis(0)).await?;
        assert_eq!((followed.gap, followed.entries.len()), (false, 1), "{seq}");
        cursor = followed.cursor;
    }
    Ok(())
}

#[tokio::test]
async fn a_log_that_was_deleted_is_a_gap() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let cursor = store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?.entry.unwrap();
    redis.command::<()>(&["DEL", "test:{rankpin}:log"]).await?;
    assert!(store.follow(cursor, Millis(0)).await?.gap, "nothing is there");
    let later = async || {
        let (seconds, micros): (u64, u64) = redis.command(&["TIME"]).await.ok()?;
        (seconds * 1000 + micros / 1000 > cursor.ms).then_some(())
    };
    wait_for("the next millisecond of the server's clock", later).await?;
    store.merge(&[bound(1, (2, 1), "w", 0)], &[]).await?;
    assert!(store.follow(cursor, Millis(0)).await?.gap, "another log is there");
    Ok(())
}

#[tokio::test]
async fn a_log_that_began_anew_below_the_cursor_is_a_gap() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    // As before a clock that was set back.
    let cursor = StreamId { ms: u64::MAX >> 12, seq: 0 };
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    assert!(store.follow(cursor, Millis(0)).await?.gap);
    Ok(())
}
