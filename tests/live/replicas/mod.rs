//! Several replicas of the service on one real store, several Envoys that each ask another one: one answer, and none lost.

mod failover;
mod faults;
mod index;
mod load;
mod turns;

use crate::support::turn;
use e2e::client::Slot;
use e2e::kept::session_of;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use serde_json::Value;

/// Four engines of four ranks behind as many Envoys as replicas.
fn plan(replicas: usize) -> WorldPlan {
    let engines: Vec<EngineSpec> = (0..4).map(|n| EngineSpec::new(&format!("w{n}"), 4)).collect();
    WorldPlan::new(Steering::Replicas, &engines).envoys(replicas).replicas(replicas)
}

/// The same, of engines that take their time.
fn slow(replicas: usize) -> WorldPlan {
    let slow = |n| EngineSpec::new(&format!("w{n}"), 4).with(&["--decode-us-per-token", "20000"]);
    let engines: Vec<EngineSpec> = (0..4).map(slow).collect();
    WorldPlan::new(Steering::Replicas, &engines).envoys(replicas).replicas(replicas)
}

/// A client of each Envoy.
fn clients(world: &World) -> Vec<Client> {
    world.envoys.iter().map(|envoy| Client::new(envoy.address()).unwrap()).collect()
}

/// What a replica knows of a session.
async fn known(world: &World, replica: usize, key: &str) -> Value {
    world.replica(replica).session(key).await.map_or(Value::Null, |said| said.body)
}

/// Until every replica says that of a session.
async fn all_say(world: &World, key: &str, state: &str) {
    let replicas = world.shared.as_ref().map_or(1, |shared| shared.ways.len());
    for replica in 0..replicas {
        wait_for(&format!("replica {replica} to know that {key} is {state}"), async || {
            (known(world, replica, key).await["state"] == state).then_some(())
        })
        .await
        .unwrap();
    }
}

/// Ends a session at a replica, without a word of any Envoy.
async fn release(world: &World, replica: usize, key: &str) {
    let path = format!("/v1/sessions/{}", session_of(key).id);
    let said = world.replica(replica).call("DELETE", &path, None).await.unwrap();
    assert_eq!(said.status, 204, "{said:?}");
}

/// Moves a session: a replica ends it, and at `client` it begins anew on another worker.
async fn move_away(world: &World, replica: usize, client: &Client, key: &str, home: &Slot) -> Slot {
    let path = format!("/v1/workers/{}/drain", home.worker);
    let drain = async |body: &str| {
        let said = world.replica(replica).call("POST", &path, Some(body)).await.unwrap();
        assert_eq!(said.status, 200, "{said:?}");
    };
    drain("{}").await;
    release(world, replica, key).await;
    let what = format!("{key} to begin on another worker");
    let moved = wait_for(&what, async || {
        let now = turn(client, key).await;
        (now.worker != home.worker).then_some(now)
    });
    let moved = moved.await.unwrap();
    // From now on it could go home again: whoever does so was not told.
    drain(r#"{"resume": true}"#).await;
    moved
}
