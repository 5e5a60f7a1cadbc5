//! A worker that says it is busy: its turns are served elsewhere while it asks for that, and return home afterwards.

use e2e::client::Slot;
use e2e::{Steering, World, wait_for};

use crate::support::{
    asked, binding, bound_to, comes_home, nothing_in_flight, rank_is_its_own, turn, unprobed,
};

/// C4: away, and back when the time the engine asked for is over.
#[tokio::test]
async fn too_many_requests() {
    tokio::join!(busy(Steering::Cluster, "429=8", 429), busy(Steering::Endpoints, "429=8", 429));
}

#[tokio::test]
async fn unavailable_with_retry_after() {
    let fault = "503-retry-after=8";
    tokio::join!(busy(Steering::Cluster, fault, 503), busy(Steering::Endpoints, fault, 503));
}

/// One busy answer of a bound session's worker. Only the turn that hears it can fail, where it cannot go elsewhere.
async fn busy(steering: Steering, fault: &str, status: u16) {
    let world = unprobed(steering).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let before = binding(&world, &key).await;
    let client = world.client();
    world.forget().await.unwrap();
    world.engine("w0").fault(fault, None).await.unwrap();
    let heard = client.chat(Some(&key), "now?").await.unwrap();
    if steering == Steering::Endpoints {
        assert_eq!(heard.status, 200, "{fault}");
        assert_ne!(heard.slot().unwrap().worker, "w0");
    } else {
        assert_eq!(heard.status, status);
        assert_eq!(heard.header("retry-after"), Some("8"), "the client is not told when to come again");
    }
    let seen = asked(&world, "w0").await;
    // The worker's own word holds for eight seconds: a second turn does not even ask.
    let spilled = world.envoy().requests("spilled").await.unwrap();
    let away = turn(&client, &key).await;
    assert_ne!(away.worker, "w0", "{steering:?}, {fault}");
    rank_is_its_own(&world, &away).await;
    assert_eq!(asked(&world, "w0").await, seen, "{steering:?}: it was asked while it is busy");
    assert_eq!(world.envoy().requests("spilled").await.unwrap(), spilled + 1);
    world.engine("w0").heal().await.unwrap();
    comes_home(&world, &key, &home).await;
    assert_eq!(binding(&world, &key).await, before, "{steering:?}, {fault}: a busy worker lost its session");
    nothing_in_flight(&world).await;
}

/// One busy rank does not shut its worker: another session's rank goes on.
#[tokio::test]
async fn one_rank_busy_is_not_its_worker() {
    let steering = Steering::Endpoints;
    let world = unprobed(steering).start().await.unwrap();
    let (busy, home) = bound_to(&world, "w0").await;
    let (other, beside) = loop_until_other_rank(&world, &home).await;
    let client = world.client();
    world.engine("w0").fault("429=10", Some(1)).await.unwrap();
    client.chat(Some(&busy), "now?").await.unwrap();
    assert_ne!(turn(&client, &busy).await.worker, "w0", "{steering:?}");
    assert_eq!(turn(&client, &other).await, beside, "{steering:?}: the whole worker was avoided");
}

/// A session of w0 on another rank than that.
async fn loop_until_other_rank(world: &World, than: &Slot) -> (String, Slot) {
    loop {
        let (key, slot) = bound_to(world, "w0").await;
        if slot.rank != than.rank {
            return (key, slot);
        }
    }
}

/// A 429 is an answer: it binds a session whose first turn nobody else could take.
#[tokio::test]
async fn a_first_turn_told_to_wait() {
    let steering = Steering::Cluster;
    let world = unprobed(steering).start().await.unwrap();
    for engine in &world.engines {
        engine.fault("429=1", None).await.unwrap();
    }
    let client = world.client();
    assert_eq!(client.chat(Some("early"), "hello").await.unwrap().status, 429);
    let bound = binding(&world, "early").await;
    for engine in &world.engines {
        engine.heal().await.unwrap();
    }
    wait_for("a turn at the bound worker", async || {
        let slot = turn(&client, "early").await;
        (slot.worker == bound.worker).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(binding(&world, "early").await, bound, "{steering:?}");
}

/// Nobody has room: a busy worker is better than none, and no turn waits.
#[tokio::test]
async fn all_are_busy() {
    let steering = Steering::Endpoints;
    let world = unprobed(steering).start().await.unwrap();
    let (key, _) = bound_to(&world, "w0").await;
    for engine in &world.engines {
        engine.fault("429=10", None).await.unwrap();
    }
    let client = world.client();
    for _ in 0..6 {
        assert_eq!(client.chat(Some(&key), "now?").await.unwrap().status, 429, "{steering:?}");
    }
    for engine in &world.engines {
        engine.heal().await.unwrap();
    }
    assert_eq!(client.chat(Some(&key), "now?").await.unwrap().status, 200, "{steering:?}");
}
