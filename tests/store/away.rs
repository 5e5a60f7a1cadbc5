//! A server that is stopped, killed, restarted, or not there: each call ends in its named error, nobody waits, and it is found again.

use anyhow::Result;
use e2e::Redis;
use routing::id::WorkerId;
use routing::time::Millis;
use state_service::store::{REASONS, Standing, Store, StoreError, StreamId};

use crate::support::{bound, config, fresh, released, session, store, until_away};

/// A store that looks at its server while nobody asks it.
async fn beating(redis: &Redis, writer: u64) -> Result<Store> {
    let mut config = config(redis, writer);
    config.beat = Millis(20);
    Ok(Store::open(&config).await?)
}

/// A deadline that a test can wait for, and that a machine which is only busy does not reach.
const HASTY: Millis = Millis(3000);

async fn hasty(redis: &Redis) -> Result<Store> {
    let mut config = config(redis, 1);
    config.deadline = HASTY;
    Ok(Store::open(&config).await?)
}

fn failures(store: &Store, reason: &str) -> u64 {
    let nth = REASONS.iter().position(|name| *name == reason).unwrap();
    store.figures().failures[nth]
}

/// Each call once, and the error it ended in.
async fn each_call(store: &Store) -> Vec<(&'static str, StoreError)> {
    let (worker, binding) = (WorkerId::parse("w").unwrap(), bound(1, (1, 1), "w", 0));
    let (claim, json) = ([(session(1).id, binding.version)], serde_json::json!({}));
    let bindings = [binding];
    vec![
        ("claim", store.claim(&fresh(&bindings)).await.unwrap_err()),
        ("unclaim", store.unclaim(&claim).await.unwrap_err()),
        ("renew", store.renew_claims(&claim).await.unwrap_err()),
        ("merge", store.merge(&bindings, &[]).await.unwrap_err()),
        ("follow", store.follow(StreamId::default(), Millis(10)).await.unwrap_err()),
        ("snapshot", store.snapshot().await.map(drop).unwrap_err()),
        ("read", store.read(&[session(1).id]).await.unwrap_err()),
        ("workers", store.workers().await.unwrap_err()),
        ("put", store.put_worker(&worker, &json, 0).await.unwrap_err()),
        ("remove", store.remove_worker(&worker, 0).await.unwrap_err()),
        ("epoch", store.epoch().await.unwrap_err()),
    ]
}

#[tokio::test]
async fn every_call_to_a_stopped_server_ends_at_its_deadline() -> Result<()> {
    let redis = Redis::start().await?;
    let worker = WorkerId::parse("w").unwrap();
    let (json, binding) = (serde_json::json!({}), bound(1, (1, 1), "w", 0));
    let bindings = [binding.clone()];
    let claim = [(session(1).id, binding.version)];
    // A store of its own for each: after the first deadline the others would not be sent.
    let mut stores = Vec::new();
    for _ in 0..9 {
        stores.push(hasty(&redis).await?);
    }
    redis.pause()?;
    let fresh = fresh(&bindings);
    let (a, b, c, d, e, f, g, h, i) = tokio::join!(
        stores[0].claim(&fresh),
        stores[1].unclaim(&claim),
        stores[2].merge(&bindings, &[]),
        stores[3].follow(StreamId::default(), Millis(100)),
        stores[4].snapshot(),
        stores[5].workers(),
        stores[6].put_worker(&worker, &json, 0),
        stores[7].epoch(),
        stores[8].renew_claims(&claim),
    );
    redis.resume()?;
    let errors = [
        a.unwrap_err(),
        b.unwrap_err(),
        c.unwrap_err(),
        d.unwrap_err(),
        e.map(drop).unwrap_err(),
        f.unwrap_err(),
        g.unwrap_err(),
        h.unwrap_err(),
        i.unwrap_err(),
    ];
    let calls: Vec<_> = errors
        .iter()
        .map(|error| match error {
            StoreError::Deadline { call, after_ms } => (*call, *after_ms),
            other => panic!("{other}"),
        })
        .collect();
    let expected =
        ["claim", "unclaim", "merge", "follow", "tail", "workers", "put_worker", "epoch", "renew_claims"];
    assert_eq!(calls.iter().map(|(call, _)| *call).collect::<Vec<_>>(), expected);
    assert!(
        calls.iter().all(|(call, after)| *after == HASTY.0 + if *call == "follow" { 100 } else { 0 }),
        "{calls:?}"
    );
    Ok(())
}

#[tokio::test]
async fn after_a_deadline_calls_fail_at_once_until_the_server_goes_on() -> Result<()> {
    let redis = Redis::start().await?;
    let store = hasty(&redis).await?;
    let before = store.epoch().await?;
    redis.pause()?;
    assert!(matches!(store.epoch().await, Err(StoreError::Deadline { .. })));
    assert!(until_away(&store).await.contains("did not answer"));
    for _ in 0..1000 {
        assert!(matches!(store.merge(&[], &["x".to_owned()]).await, Err(StoreError::Away { .. })));
    }
    assert_eq!((failures(&store, "away"), store.status().epoch), (1000, Some(before)));
    redis.resume()?;
    store.until_up().await;
    // Every call that was answered late, or never sent, left the connection that is used now alone.
    let mut patient = config(&redis, 2);
    patient.deadline = Millis(20_000);
    let other = Store::open(&patient).await?;
    assert_eq!(other.epoch().await?, before);
    assert_eq!(store.figures().epoch_changes, 0);
    Ok(())
}

#[tokio::test]
async fn a_killed_server_is_lost_to_whoever_waits_and_away_to_all_others() -> Result<()> {
    let mut redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.follow(StreamId::default(), Millis(5000)).await }
    });
    let blocked = async || {
        redis.command::<String>(&["INFO", "clients"]).await.ok()?.contains("blocked_clients:1").then_some(())
    };
    e2e::wait_for("a blocked reader", blocked).await?;
    redis.kill();
    assert!(matches!(waiting.await?, Err(StoreError::Lost { call: "follow", .. })));
    let first = store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await.unwrap_err();
    assert!(matches!(first, StoreError::Lost { .. } | StoreError::Away { .. }), "{first}");
    until_away(&store).await;
    for (call, error) in each_call(&store).await {
        assert!(matches!(error, StoreError::Away { .. }), "{call}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_comes_back_empty_has_another_epoch_and_is_used_again() -> Result<()> {
    let mut redis = Redis::start().await?;
    let (a, b) = (beating(&redis, 1).await?, beating(&redis, 2).await?);
    let before = a.epoch().await?;
    assert_eq!(b.epoch().await?, before);
    a.merge(&[bound(1, (9, 1), "w", 0)], &[]).await?;
    let (mut epochs, mut others) = (a.epochs(), b.epochs());
    redis.restart().await?;
    // Nobody asks anything: a beat finds out.
    let after = epochs.wait_for(|now| *now != Some(before)).await?.unwrap();
    others.wait_for(|now| *now == Some(after)).await?;
    a.until_up().await;
    b.until_up().await;
    assert_eq!((a.epoch().await?, b.epoch().await?, a.status().epoch), (after, after, Some(after)));
    assert_eq!((a.figures().epoch_changes, b.figures().epoch_changes), (1, 1));
    assert_eq!(b.read(&[session(1).id]).await?, []);
    b.merge(&[released(1, (10, 2))], &[]).await?;
    // The connection for waiting has nobody who looks: whoever follows finds it broken, once.
    let first = a.follow(StreamId::default(), Millis(0)).await;
    let followed = match first {
        Err(StoreError::Lost { .. }) => {
            a.until_up().await;
            a.follow(StreamId::default(), Millis(0)).await?
        }
        other => other?,
    };
    assert_eq!(followed.entries.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_memory_that_goes_under_an_open_connection_is_noticed_by_the_next_call() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let before = store.status().epoch;
    redis.command::<()>(&["FLUSHALL"]).await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    let after = store.status().epoch;
    assert!(after.is_some() && after != before, "{before:?} {after:?}");
    assert_eq!(store.figures().epoch_changes, 1);
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_no_error_at_opening() -> Result<()> {
    let mut redis = Redis::start().await?;
    redis.kill();
    let store = store(&redis, 1).await?;
    assert!(matches!(store.status().standing, Standing::Away { .. }));
    let error = store.epoch().await.unwrap_err();
    assert!(matches!(&error, StoreError::Away { reason } if reason.contains("refused")), "{error}");
    redis.restart().await?;
    store.until_up().await;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_refuses_writes_says_why_and_stays_up() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let error = store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Refused { call: "merge", reason } if reason.contains("OOM") || reason.contains("memory")),
        "{error}"
    );
    assert_eq!(store.status().standing, Standing::Up);
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left() -> Result<()> {
    let (redis, master) = (Redis::start().await?, Redis::start().await?);
    let store = store(&redis, 1).await?;
    let port = master.address().port().to_string();
    redis.command::<()>(&["REPLICAOF", "127.0.0.1", &port]).await?;
    let error = store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await.unwrap_err();
    // It may be loading, or have closed our connection, by now.
    assert!(!matches!(error, StoreError::Deadline { .. }), "{error}");
    until_away(&store).await;
    redis.command::<()>(&["REPLICAOF", "NO", "ONE"]).await?;
    store.until_up().await;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    Ok(())
}
