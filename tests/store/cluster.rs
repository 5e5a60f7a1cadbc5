//! The same calls through a cluster, and through sentinels that name the master.

use anyhow::Result;
use e2e::{Redis, wait_for};
use routing::id::WorkerId;
use routing::time::Millis;
use state_service::store::{Claim, Standing, Store};

use crate::support::{bound, claim_one, patient};

async fn open(url: &str) -> Result<Store> {
    Ok(Store::open(&patient(url)?).await?)
}

/// Everything a replica asks, once.
async fn use_it(store: &Store) -> Result<()> {
    anyhow::ensure!(store.status().standing == Standing::Up, "{:?}", store.status());
    let cursor = store.snapshot().await?.cursor;
    let claim = claim_one(store, &bound(1, (1, 1), "w", 0)).await?;
    let Claim::Claimed(binding) = claim else { anyhow::bail!("{claim:?}") };
    anyhow::ensure!(store.renew_claims(&[(binding.session.id, binding.version)]).await? == [true]);
    let batch: Vec<_> = (1..200).map(|nth| bound(nth, (1, 1), "w", 0)).collect();
    store.merge(&batch, &[]).await?;
    store.put_worker(&WorkerId::parse("w").unwrap(), &serde_json::json!({}), 0).await?;
    let followed = store.follow(cursor, Millis(100)).await?;
    anyhow::ensure!(followed.entries.len() == 2 && !followed.gap, "{followed:?}");
    anyhow::ensure!(store.follow(followed.cursor, Millis(20)).await?.entries.is_empty());
    let (mut count, mut snapshot) = (0, store.snapshot().await?);
    while let Some(page) = snapshot.next().await? {
        count += page.len();
    }
    anyhow::ensure!(count == 199, "{count}");
    anyhow::ensure!(store.workers().await?.workers.len() == 1);
    Ok(())
}

#[tokio::test]
async fn a_cluster_is_used_as_one_server_is() -> Result<()> {
    let args = ["--cluster-enabled", "yes"];
    let (one, two) = (Redis::start_with(&args).await?, Redis::start_with(&args).await?);
    // Our tag's slot may be on either; the first address given is not the one that has it.
    let slot: u16 = one.command(&["CLUSTER", "KEYSLOT", "{rankpin}"]).await?;
    let halves = [(&one, 0..8192_u16), (&two, 8192..16384)];
    for (node, slots) in halves {
        let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
        let words: Vec<&str> =
            ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
        node.command::<()>(&words).await?;
    }
    let port = two.address().port().to_string();
    one.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", "1"]).await?;
    two.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", "2"]).await?;
    one.command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port]).await?;
    for node in [&one, &two] {
        let whole = async || {
            let info: String = node.command(&["CLUSTER", "INFO"]).await.ok()?;
            (info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")).then_some(())
        };
        wait_for("a whole cluster", whole).await?;
    }
    let other = if slot < 8192 { &two } else { &one };
    let store = open(&format!("redis-cluster://{}", other.address())).await?;
    use_it(&store).await
}

#[tokio::test]
async fn sentinels_name_the_master() -> Result<()> {
    let master = Redis::start().await?;
    let sentinel = Redis::sentinel("main", &master).await?;
    let store = open(&format!("redis-sentinel://{}/main", sentinel.address())).await?;
    use_it(&store).await?;
    let unknown = open(&format!("redis-sentinel://{}/other", sentinel.address())).await?;
    assert!(matches!(unknown.status().standing, Standing::Away { .. }));
    Ok(())
}
