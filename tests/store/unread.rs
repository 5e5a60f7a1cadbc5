//! A replica that never read the store: whom it serves, and what it says of itself.

use anyhow::Result;
use e2e::scratch::Scratch;
use e2e::{Redis, Service, ServicePlan, wait_for};
use serde_json::{Value, json};

/// What a balancer is told.
async fn asked(replica: &Service) -> Option<(u16, Value)> {
    let said = reqwest::get(format!("http://{}/readyz", replica.data())).await.ok()?;
    Some((said.status().as_u16(), said.json().await.ok()?))
}

async fn until(replica: &Service, status: u16) -> Result<Value> {
    wait_for(&format!("the data listener to say {status}"), async || {
        asked(replica).await.and_then(|(said, body)| (said == status).then_some(body))
    })
    .await
}

async fn start(scratch: &Scratch, redis: &Redis) -> Result<Service> {
    let plan = ServicePlan { probe_interval_ms: 0, store: Some(redis.url()), ..ServicePlan::default() };
    Service::start(scratch.path(), &plan).await
}

/// Restarted while the store is away, it must not take over from replicas that know all: one worker that is declared at it is
/// all it has. Without any it is not asked, however long that lasts.
#[tokio::test]
async fn without_a_worker_nobody_asks_it() -> Result<()> {
    let (scratch, mut redis) = (Scratch::new()?, Redis::start().await?);
    redis.kill();
    let replica = start(&scratch, &redis).await?;
    let body = until(&replica, 503).await?;
    assert_eq!(body["reasons"][0]["code"], "loading");
    let worker = json!({"endpoints": [{"address": "127.0.1.1:9"}]}).to_string();
    let said = replica.call("PUT", "/v1/workers/w1", Some(&worker)).await?;
    assert_eq!((said.status, said.body["code"].as_str()), (503, Some("store_away")), "{said:?}");
    assert_eq!(replica.topology("").await?, ["w1"], "it counts here");
    until(&replica, 200).await?;
    let said = replica.call("DELETE", "/v1/workers/w1", None).await?;
    assert_eq!(said.status, 503, "{said:?}");
    let body = until(&replica, 503).await?;
    let detail = body["reasons"][0]["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.starts_with("what other replicas know is not loaded from the store yet: "), "{detail}");
    redis.restart().await?;
    until(&replica, 200).await?;
    Ok(())
}

/// What another program keeps under a name of ours does not go away by being asked for again and again.
#[tokio::test]
async fn a_store_that_cannot_be_read_is_named() -> Result<()> {
    let (scratch, redis) = (Scratch::new()?, Redis::start().await?);
    let _: String = redis.command(&["SET", "rankpin:{rankpin}:workers", "mine"]).await?;
    let replica = start(&scratch, &redis).await?;
    wait_for("the reason to be told", async || {
        let (status, body) = asked(&replica).await?;
        let detail = body["reasons"][0]["detail"].as_str()?;
        (status == 503 && detail.contains("another")).then_some(())
    })
    .await?;
    let _: i64 = redis.command(&["DEL", "rankpin:{rankpin}:workers"]).await?;
    until(&replica, 200).await?;
    Ok(())
}
