//! What the store does not take: replicas say so, place alike without it, and nothing else waits behind it.

use anyhow::{Context, Result};
use e2e::kept::{Vm, session_of};
use e2e::scratch::Scratch;
use e2e::{Service, wait_for};
use routing::contract::Target;
use serde_json::{Map, Value, json};

use crate::replicas::{known_of, start};

/// Where a replica sends a first turn; it is answered, and reported.
async fn turn(vm: &mut Vm, key: &str) -> Result<Target> {
    let reply = vm.turn(session_of(key)).await?;
    vm.report(Vec::new()).await?;
    reply.target.context("no target")
}

async fn is_away(replica: &Service) -> Option<bool> {
    let said = replica.call("GET", "/readyz", None).await.ok()?;
    Some(said.body["warnings"].as_array()?.iter().any(|warning| warning["code"] == "store_away"))
}

/// Turns until both say of the store what is expected.
async fn turns_until(replicas: &[Service], vms: &mut [Vm], away: bool, run: &str) -> Result<()> {
    let mut n = 0;
    wait_for(&format!("both replicas to say away: {away}"), async || {
        n += 1;
        for (nth, vm) in vms.iter_mut().enumerate() {
            turn(vm, &format!("{run}-{nth}-{n}")).await.ok()?;
        }
        let all = [is_away(&replicas[0]).await?, is_away(&replicas[1]).await?];
        (all == [away; 2]).then_some(())
    })
    .await
}

/// A server without memory answers whatever is read, and takes nothing: replicas that go on claiming split every new session.
#[tokio::test]
async fn a_store_that_takes_nothing_is_away() -> Result<()> {
    let scratch = Scratch::new()?;
    let (redis, replicas) = start(&scratch).await?;
    let mut vms = Vec::new();
    for (nth, replica) in replicas.iter().enumerate() {
        vms.push(Vm::connect(replica.data(), &format!("envoy-{nth}"), 1 + nth as u64).await?);
    }
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    turns_until(&replicas, &mut vms, true, "refused").await?;
    for n in 0..60 {
        let key = format!("alike-{n}");
        let (a, b) = (turn(&mut vms[0], &key).await?, turn(&mut vms[1], &key).await?);
        assert_eq!(a, b, "{key}");
    }
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    turns_until(&replicas, &mut vms, false, "taken").await?;
    Ok(())
}

/// One declaration that no other replica could read is refused, and the sessions behind it are told.
#[tokio::test]
async fn a_declaration_that_is_too_long_keeps_nothing_waiting() -> Result<()> {
    let scratch = Scratch::new()?;
    let (_redis, replicas) = start(&scratch).await?;
    let quotes = "\"".repeat(250);
    let labels: Map<String, Value> = (0..64).map(|n| (format!("{quotes}{n:03}"), json!(quotes))).collect();
    let models: Vec<String> = (0..63).map(|n| format!("{quotes}{n}")).collect();
    let body = json!({"endpoints": [{"address": "127.0.1.9:9"}], "labels": labels, "models": models});
    let said = replicas[0].call("PUT", "/v1/workers/wbig", Some(&body.to_string())).await?;
    assert_eq!((said.status, said.body["code"].as_str()), (400, Some("worker_too_large")), "{said:?}");
    assert_eq!(replicas[0].topology("").await?.len(), 4, "nothing of it is left");
    let mut vm = Vm::connect(replicas[0].data(), "envoy-0", 1).await?;
    let told = turn(&mut vm, "behind").await?;
    wait_for("the other replica to hear of a session", async || {
        let known = known_of(replicas[1].control(), &["behind".to_owned()]).await.ok()?;
        (known == [Some(told.clone())]).then_some(())
    })
    .await
}
