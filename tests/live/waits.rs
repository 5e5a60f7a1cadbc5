//! Bound turns that wait for their overloaded slot: served there when it clears, elsewhere when their time is up, nowhere when their
//! client has gone.

use std::time::{Duration, Instant};

use e2e::client::{CHAT, SESSION};
use e2e::raw::{Raw, request};
use e2e::{Steering, World, wait_for};
use serde_json::json;

use crate::overload::{answered, overload, overloaded, world, world_with};
use crate::support::{binding, bound_to, comes_home, nothing_in_flight, served, turn};

/// Its time runs out before its slot clears: served elsewhere, not before then.
#[tokio::test]
async fn wait_spills_when_its_time_is_up() {
    let steering = Steering::Endpoints;
    let pool = json!({"in_flight_limit": 2, "on_overload": "wait", "wait_ms": 700});
    // The wait is no part of the time that a first turn's answer may take.
    let short = |config: &mut e2e::Bootstrap| config.route_deadline(300);
    let world = world_with(steering, pool, short).await;
    let (key, home) = bound_to(&world, "w0").await;
    let before = binding(&world, &key).await;
    let open = overload(&world, &key, &home, 2).await;
    let client = world.client();
    answered(&client, &key, "a turn elsewhere", |turn| served(turn).worker != home.worker).await;
    let asked = Instant::now();
    assert_ne!(turn(&client, &key).await, home);
    assert!(asked.elapsed() >= Duration::from_millis(700), "it spilled after {:?}", asked.elapsed());
    assert_eq!(world.service.metric("rankpin_waiting", &[]).await.unwrap(), 0.0);
    drop(open);
    comes_home(&world, &key, &home).await;
    assert_eq!(binding(&world, &key).await, before);
    nothing_in_flight(&world).await;
}

/// Its slot clears while it waits: served at home. Whoever goes elsewhere has waited in vain, and is counted so.
#[tokio::test]
async fn wait_is_served_at_home_when_the_slot_clears() {
    let steering = Steering::Cluster;
    let pool = json!({"in_flight_limit": 2, "on_overload": "wait"});
    let world = world_with(steering, pool, |config| config.route_deadline(300)).await;
    let (key, home) = bound_to(&world, "w0").await;
    wait_for("a turn that waited to be served at home", async || {
        let open = overload(&world, &key, &home, 2).await;
        let [cleared, over] = ["rankpin_wait_cleared_total", "rankpin_wait_over_total"];
        let (was, late) = (metric(&world, cleared).await, metric(&world, over).await);
        let (client, own) = (world.client(), key.clone());
        let waiting = tokio::spawn(async move { client.chat(Some(&own), "me too").await.unwrap() });
        wait_for("a turn that waits, or one that is answered", async || {
            (metric(&world, "rankpin_waiting").await > 0.0 || waiting.is_finished()).then_some(())
        })
        .await
        .unwrap();
        drop(open);
        let slot = served(&waiting.await.unwrap());
        let (waited, in_vain) = (metric(&world, cleared).await > was, metric(&world, over).await > late);
        assert!(slot == home || in_vain, "it was at {slot}, and its time was not up");
        nothing_in_flight(&world).await;
        overloaded(&world, &home, false).await;
        (slot == home && waited).then_some(())
    })
    .await
    .unwrap();
}

async fn metric(world: &World, name: &str) -> f64 {
    world.service.metric(name, &[]).await.unwrap()
}

/// Clients that go away while they wait leave nobody waiting, and nothing counted; those that stay are served.
#[tokio::test]
async fn who_leaves_while_it_waits_leaves_nothing() {
    let steering = Steering::Endpoints;
    let world = world(steering, json!({"in_flight_limit": 2, "on_overload": "wait"})).await;
    let (key, home) = bound_to(&world, "w0").await;
    let open = overload(&world, &key, &home, 2).await;
    let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {key}\ncontent-type: application/json");
    let bytes =
        request(&head, br#"{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":1}"#);
    wait_for("clients that wait", async || {
        let mut waiting = Vec::new();
        for _ in 0..8 {
            let mut client = Raw::connect(world.envoy().address()).await.ok()?;
            client.send(&bytes).await.ok()?;
            waiting.push(client);
        }
        // Eight at once wait for seconds: whoever looks sees them, however slow.
        let seen = metric(&world, "rankpin_waiting").await > 0.0;
        for (n, client) in waiting.into_iter().enumerate() {
            if n % 2 == 0 { client.reset().ok()? } else { drop(client) }
        }
        seen.then_some(())
    })
    .await
    .unwrap();
    wait_for("nobody to wait", async || (metric(&world, "rankpin_waiting").await == 0.0).then_some(()))
        .await
        .unwrap();
    drop(open);
    comes_home(&world, &key, &home).await;
    nothing_in_flight(&world).await;
}

/// The service dies under those who wait: they are served all the same.
#[tokio::test]
async fn a_service_that_dies_lets_them_go_on() {
    let steering = Steering::Endpoints;
    // Far more than the turns that a service which is just back has not heard the end of.
    let mut world = world(steering, json!({"in_flight_limit": 8, "on_overload": "wait"})).await;
    let (key, home) = bound_to(&world, "w0").await;
    let open = overload(&world, &key, &home, 8).await;
    let (client, own) = (world.client(), key.clone());
    answered(&client, &key, "a turn elsewhere", |turn| served(turn).worker != home.worker).await;
    let waiting = tokio::spawn(async move { client.chat(Some(&own), "me too").await.unwrap() });
    wait_for("a turn that waits, or one that is answered", async || {
        (metric(&world, "rankpin_waiting").await > 0.0 || waiting.is_finished()).then_some(())
    })
    .await
    .unwrap();
    world.service.kill();
    served(&waiting.await.unwrap());
    for _ in 0..3 {
        turn(&world.client(), &key).await;
    }
    drop(open);
    // A service that came back earlier would hear of the streams as of any others.
    wait_for("Envoy to have noticed that they left", async || {
        (world.envoy().stat("http.openai.downstream_rq_active").await.ok()? == 0).then_some(())
    })
    .await
    .unwrap();
    world.service.start_again().await.unwrap();
    comes_home(&world, &key, &home).await;
    nothing_in_flight(&world).await;
}
