//! Declared workers: all replicas read the same, generations only grow, and each change is told in the log.

use anyhow::Result;
use e2e::Redis;
use routing::id::WorkerId;
use routing::time::Millis;
use state_service::store::{StoreError, StreamId};

use crate::support::store;

#[tokio::test]
async fn what_one_declares_the_other_reads_and_is_told() -> Result<()> {
    let redis = Redis::start().await?;
    let (a, b) = (store(&redis, 1).await?, store(&redis, 2).await?);
    let [w1, w2] = ["w1", "w2"].map(|id| WorkerId::parse(id).unwrap());
    let json = |url: &str| serde_json::json!({"url": url, "odd": "ä\n|"});
    assert_eq!(a.put_worker(&w2, &json("x"), 0).await?, 1);
    assert_eq!(b.put_worker(&w1, &json("y"), 0).await?, 2);
    assert_eq!(a.put_worker(&w2, &json("z"), 0).await?, 3);
    let seen = b.workers().await?;
    let rows: Vec<_> =
        seen.workers.iter().map(|w| (w.id.as_str(), w.generation, w.declaration["url"].as_str())).collect();
    assert_eq!((rows, seen.generation), (vec![("w1", 2, Some("y")), ("w2", 3, Some("z"))], 3));
    assert_eq!(seen.workers[0].declaration, json("y"));
    assert_eq!(b.remove_worker(&w2, 0).await?, Some(4));
    assert_eq!(b.remove_worker(&w2, 0).await?, None);
    assert_eq!(a.workers().await?.workers.len(), 1);
    let told = a.follow(StreamId::default(), Millis(0)).await?;
    let notes: Vec<_> = told.entries.iter().flat_map(|entry| entry.notes.clone()).collect();
    assert_eq!(notes, ["worker w2 1", "worker w1 2", "worker w2 3", "removed w2 4"]);
    Ok(())
}

#[tokio::test]
async fn a_generation_is_above_what_its_maker_has_seen() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let worker = WorkerId::parse("w").unwrap();
    assert_eq!(store.put_worker(&worker, &serde_json::json!({}), 40).await?, 41);
    redis.command::<()>(&["FLUSHALL"]).await?;
    assert_eq!(store.put_worker(&worker, &serde_json::json!({}), 41).await?, 42);
    assert_eq!(store.put_worker(&worker, &serde_json::json!({}), 3).await?, 43);
    Ok(())
}

#[tokio::test]
async fn there_is_room_for_so_many_and_no_more() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let id = |nth: usize| WorkerId::parse(&format!("w{nth}")).unwrap();
    let mut words: Vec<String> = ["HSET", "test:{rankpin}:workers", "#", "5"].map(str::to_owned).to_vec();
    for nth in 1..state_service::config::WORKERS_MAX {
        words.extend([format!("w{nth}"), "1 {}".to_owned()]);
    }
    redis.command::<()>(&words).await?;
    assert_eq!(store.put_worker(&id(0), &serde_json::json!({}), 0).await?, 6);
    let full = store.put_worker(&id(5000), &serde_json::json!({}), 0).await;
    assert!(matches!(full, Err(StoreError::TooMany { what: "workers", .. })), "{full:?}");
    assert_eq!(store.put_worker(&id(7), &serde_json::json!({"a": 1}), 0).await?, 7);
    assert_eq!(store.workers().await?.workers.len(), state_service::config::WORKERS_MAX);
    let large = serde_json::json!({"a": "x".repeat(70_000)});
    assert!(matches!(store.put_worker(&id(7), &large, 0).await, Err(StoreError::TooMany { .. })));
    Ok(())
}
