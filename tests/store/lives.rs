//! Nothing stays for ever, and all of it has one hash tag.

use anyhow::Result;
use e2e::Redis;
use routing::id::WorkerId;
use state_service::store::Store;

use crate::support::{bound, claim_one, keys, released, store};

async fn fill(store: &Store) -> Result<()> {
    store.merge(&[bound(1, (1, 1), "w", 0), released(2, (1, 1))], &["note".to_owned()]).await?;
    claim_one(store, &bound(3, (1, 1), "w", 0)).await?;
    claim_one(store, &bound(2, (1, 1), "w", 0)).await?;
    store.put_worker(&WorkerId::parse("w").unwrap(), &serde_json::json!({"url": "x"}), 0).await?;
    Ok(())
}

#[tokio::test]
async fn every_key_ends_some_day_and_all_are_of_one_tag() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    fill(&store).await?;
    let keys = keys(&redis).await?;
    assert_eq!(keys.len(), 6, "{keys:?}");
    for key in keys {
        assert!(key.starts_with("test:{rankpin}:"), "{key}");
        let left: i64 = redis.command(&["PTTL", &key]).await?;
        assert!(left > 0, "{key} stays for ever");
        let config = store.config();
        if key.contains(":s:") {
            assert!(left <= (60_000 + config.linger.0).cast_signed(), "{key}: {left}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_record_outlives_its_end_so_that_its_version_is_known() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let mut short = bound(1, (1, 1), "w", 0);
    short.expires_in_ms = routing::time::Millis(1);
    store.merge(&[short.clone()], &[]).await?;
    let key = format!("test:{{rankpin}}:s:{}", short.session.id);
    let left: u64 = redis.command(&["PTTL", &key]).await?;
    assert!(left > store.config().linger.0 - 60_000, "{left}");
    Ok(())
}

#[tokio::test]
async fn what_all_share_is_kept_alive_by_asking_for_the_epoch() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    fill(&store).await?;
    for key in ["epoch", "log", "workers"].map(|end| format!("test:{{rankpin}}:{end}")) {
        redis.command::<()>(&["PEXPIRE", &key, "60000"]).await?;
        store.epoch().await?;
        let left: u64 = redis.command(&["PTTL", &key]).await?;
        assert!(left > 60_000, "{key}: {left}");
    }
    Ok(())
}

#[tokio::test]
async fn two_prefixes_do_not_see_each_other() -> Result<()> {
    let redis = Redis::start().await?;
    let ours = store(&redis, 1).await?;
    let mut config = state_service::store::StoreConfig::new(&redis.url(), "other", 2)?;
    (config.deadline, config.connect) = (ours.config().deadline, ours.config().connect);
    let others = Store::open(&config).await?;
    fill(&ours).await?;
    assert_ne!(ours.epoch().await?, others.epoch().await?);
    assert!(others.workers().await?.workers.is_empty());
    assert_eq!(others.snapshot().await?.next().await?, None);
    Ok(())
}
