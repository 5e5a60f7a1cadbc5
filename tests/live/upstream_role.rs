//! The upstream role forgotten in the config: requests are served, but the loss of ranks is counted and told.

use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};

/// A piece of the warning in Envoy's log that names the remedy.
const WARNING: &str = "without the role 'rankpin-upstream'";

#[tokio::test]
async fn its_absence_is_counted_and_warned_of() {
    let plan = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 4)]);
    let world = plan.edit(|config| config.without_upstream_role()).start().await.unwrap();
    let turn = world.client().chat(Some("s"), "hello").await.unwrap();
    assert_eq!(turn.status, 200, "a missing rank costs locality, not the request");
    assert!(missing(&world).await > 0);
    wait_for("the warning in Envoy's log", async || world.envoy().log().contains(WARNING).then_some(()))
        .await
        .unwrap();
    let warnings = world.envoy().log().matches(WARNING).count();
    // Once a VM: two threads, and the main one.
    assert!(warnings <= 3, "{warnings} warnings");
}

#[tokio::test]
async fn its_presence_is_not() {
    let world = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
    for n in 0..8 {
        world.client().chat(Some(&format!("k{n}")), "hello").await.unwrap();
    }
    assert_eq!(missing(&world).await, 0);
    assert!(!world.envoy().log().contains(WARNING));
}

async fn missing(world: &World) -> u64 {
    world.envoy().requests("upstream_role_missing").await.unwrap()
}
