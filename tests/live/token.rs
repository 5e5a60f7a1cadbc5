//! A service with a token file: the filter brings the token by its own field, Envoy's discovery by the block that the shipped configs
//! have commented out. Without the block no worker ever comes to Envoy's pool, and the service says why.

use e2e::bootstrap::Bootstrap;
use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};
use routing::header::cluster;

/// With what Envoy would take for the beginning of a format.
const TOKEN: &str = "b3BlbiBzZXN%hbWUsIHBsZWFzZQ==";
const POOL_SIZE: &str = "cluster.rankpin-pool-default.membership_total";
/// A piece of the warning in the service's log.
const WARNING: &str = "Envoy's discovery is refused";

fn plan(steering: Steering) -> WorldPlan {
    let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4)];
    WorldPlan::new(steering, &engines).token(TOKEN)
}

#[tokio::test]
async fn discovery_and_the_filter_bring_it() {
    let world = plan(Steering::Endpoints).start().await.unwrap();
    assert_eq!(world.envoy().stat(POOL_SIZE).await.unwrap(), 2);
    pinned(&world).await;
    assert_eq!(refused(&world).await, 0.0, "calls without the token");
    assert!(!world.service.log().contains(WARNING));
    nowhere_logged(&world);
}

#[tokio::test]
async fn every_replica_is_asked_with_it() {
    let mut world = plan(Steering::Replicas).replicas(2).start().await.unwrap();
    pinned(&world).await;
    world.replica_mut(0).kill();
    let before = answered(&world, 1).await;
    wait_for("the other replica to be polled", async || (answered(&world, 1).await > before).then_some(()))
        .await
        .unwrap();
    assert_eq!(endpoints(&world, 1, 401).await, 0.0);
    assert_eq!(world.client().chat(Some("pinned"), "and now?").await.unwrap().status, 200);
}

#[tokio::test]
async fn discovery_without_it_is_refused_and_the_service_says_so() {
    let world = plan(Steering::Endpoints).edit(without_block).cold().start().await.unwrap();
    wait_for("a few refused polls", async || (endpoints(&world, 0, 401).await >= 4.0).then_some(()))
        .await
        .unwrap();
    // The filter has its token: it places, on a pool that stays empty.
    let client = world.client();
    wait_for("a placed request that finds no host", async || {
        (client.chat(Some("s"), "hello").await.ok()?.status == 503).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(world.envoy().stat(POOL_SIZE).await.unwrap(), 0);
    let log = world.service.log();
    let warned: Vec<_> = log.lines().filter(|line| line.contains(WARNING)).collect();
    // Once a minute: a slow machine may take longer than one, but polls are more than that.
    assert!(!warned.is_empty() && (warned.len() as f64) < endpoints(&world, 0, 401).await, "{warned:?}");
    assert!(warned.iter().all(|line| line.contains("WARN") && line.contains("no token")), "{warned:?}");
    nowhere_logged(&world);
}

/// One slot serves all turns of a session.
async fn pinned(world: &World) {
    let client = world.client();
    let mut slots = std::collections::BTreeSet::new();
    for _ in 0..6 {
        let turn = client.chat(Some("pinned"), "hello").await.unwrap();
        assert_eq!(turn.status, 200);
        slots.insert(turn.slot().unwrap());
    }
    assert_eq!(slots.len(), 1, "{slots:?}");
    assert_eq!(world.service.session("pinned").await.unwrap().status, 200, "the service knows the session");
}

/// Calls of the data listener that were refused for want of the token.
async fn refused(world: &World) -> f64 {
    let labels = [r#"listener="data""#, r#"status="401""#];
    world.service.metric("rankpin_http_requests_total", &labels).await.unwrap()
}

/// Polls for endpoints that a replica answered so.
async fn endpoints(world: &World, replica: usize, status: u16) -> f64 {
    let status = format!(r#"status="{status}""#);
    let labels = [r#"path="/v3/discovery:endpoints""#, &status];
    world.replica(replica).metric("rankpin_http_requests_total", &labels).await.unwrap()
}

/// Polls for endpoints that a replica answered, with news or without.
async fn answered(world: &World, replica: usize) -> f64 {
    endpoints(world, replica, 200).await + endpoints(world, replica, 304).await
}

fn nowhere_logged(world: &World) {
    for log in [world.service.log(), world.envoy().log()] {
        assert!(!log.contains(TOKEN), "the token is logged");
    }
}

/// As shipped, but for the filter's field.
fn without_block(config: &mut Bootstrap) -> anyhow::Result<()> {
    let clusters = config.document()["static_resources"]["clusters"].as_array_mut().unwrap();
    let service = clusters.iter_mut().find(|one| one["name"] == cluster::SERVICE).unwrap();
    service.as_object_mut().unwrap().remove("typed_extension_protocol_options").unwrap();
    Ok(())
}
