//! Load as it is counted: at the choice, by every Envoy for itself, with failures as load; long work is no failure.

use std::collections::BTreeMap;

use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{BOTH, bound_to, nothing_in_flight, state, stream, turn, unprobed};

/// Sends turns all at once, none of which is answered before all are placed; how many each worker got.
async fn burst(
    world: &World,
    count: usize,
    session: impl Fn(usize) -> Option<String>,
) -> BTreeMap<String, usize> {
    let clients: Vec<Client> =
        world.envoys.iter().map(|envoy| Client::fresh_connections(envoy.address()).unwrap()).collect();
    let mut turns = JoinSet::new();
    for n in 0..count {
        let (client, session) = (clients[n % clients.len()].clone(), session(n));
        turns.spawn(async move { client.chat(session.as_deref(), "all at once").await.unwrap() });
    }
    let mut served = BTreeMap::new();
    for turn in turns.join_all().await {
        assert_eq!(turn.status, 200, "{}", String::from_utf8_lossy(&turn.body));
        *served.entry(turn.slot().unwrap().worker).or_insert(0) += 1;
    }
    served
}

/// So many engines whose answers take their time to begin: what comes meanwhile comes beside them.
async fn slow_fleet(steering: Steering, workers: usize, envoys: usize, policy: &'static str) -> World {
    let engines: Vec<EngineSpec> = (0..workers).map(|n| EngineSpec::new(&format!("w{n}"), 1)).collect();
    let world = WorldPlan::new(steering, &engines).policy(policy).envoys(envoys).start().await.unwrap();
    for engine in &world.engines {
        engine.fault("slow=6000", None).await.unwrap();
    }
    world
}

/// C1: 480 first turns at once before four workers with a slow prefill.
#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_and_eighty_at_once_are_spread_evenly() {
    tokio::join!(spread(Steering::Cluster, true), spread(Steering::Endpoints, false));
}

async fn spread(steering: Steering, sessions: bool) {
    let world = slow_fleet(steering, 4, 1, "least_loaded").await;
    let served = burst(&world, 480, |n| sessions.then(|| format!("burst-{n}"))).await;
    assert_eq!(served.len(), 4, "{steering:?}: {served:?}");
    for (worker, count) in &served {
        assert!((100..=140).contains(count), "{steering:?}: {worker} got {count} of 480: {served:?}");
    }
    nothing_in_flight(&world).await;
}

/// C5: several Envoys, one burst, nobody has told anybody anything. No herd on one worker.
#[tokio::test(flavor = "multi_thread")]
async fn many_envoys_do_not_herd() {
    tokio::join!(herd("least_loaded", 3), herd("power_of_two", 2));
}

async fn herd(policy: &'static str, envoys: usize) {
    let world = slow_fleet(Steering::Endpoints, 4, envoys, policy).await;
    let served = burst(&world, 160, |_| None).await;
    let most = served.values().max().unwrap();
    // 40 each if even; a herd is all of them.
    assert!(*most <= 80, "{policy}: {served:?}");
}

/// F3, F8: a worker that answers 500 in no time has nothing in flight, and attracts nobody for it.
#[tokio::test]
async fn failing_fast_does_not_look_idle() {
    for steering in BOTH {
        for session in [true, false] {
            let world = unprobed(steering).start().await.unwrap();
            for engine in &world.engines[1..] {
                engine.fault("slow=20", None).await.unwrap();
            }
            world.engine("w0").fault("500", None).await.unwrap();
            // A connection each, so both threads; memory is not one thread's.
            let client = Client::fresh_connections(world.envoy().address()).unwrap();
            let mut failed = 0;
            for n in 0..120 {
                let key = session.then(|| format!("fast-{n}"));
                let status = client.chat(key.as_deref(), "x").await.unwrap().status;
                assert!([200, 500].contains(&status));
                failed += usize::from(status == 500);
            }
            assert!(failed > 0, "{steering:?}: it was never asked");
            assert!(
                failed <= 24,
                "{steering:?}, session {session}: {failed} of 120 went to the failing worker"
            );
            nothing_in_flight(&world).await;
        }
    }
}

/// F9: what takes long is no failure. Its worker stays ready, its sessions stay, and it takes new ones as before.
#[tokio::test]
async fn long_generations_are_no_failures() {
    let steering = Steering::Endpoints;
    let slow = ["--decode-us-per-token", "20000"];
    let engines = [EngineSpec::new("w0", 4).with(&slow), EngineSpec::new("w1", 4).from(4).with(&slow)];
    let world = WorldPlan::new(steering, &engines).probes_every_ms(100).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let client = world.client();
    let mut streams = Vec::new();
    for n in 0..6 {
        // Clients that wait long, and clients that have waited long enough.
        let long = stream(&world, 0, Some(&key)).await;
        if n % 2 == 0 {
            streams.push(long)
        } else {
            long.reset().unwrap()
        }
        world.engine("w0").fault("slow=300", Some(1)).await.unwrap();
        assert_eq!(turn(&client, &key).await, home, "{steering:?}");
    }
    assert_eq!(world.service.worker_state("w0").await.unwrap(), "ready", "{steering:?}");
    let penalties = world.service.metric("rankpin_workers_suspect_total", &[]).await.unwrap();
    assert_eq!(penalties, 0.0, "{steering:?}");
    drop(streams);
    nothing_in_flight(&world).await;
    world.warm_one(0, &world.names()).await.unwrap();
}

/// F6, by the whole drain: those a draining worker has finish there until the deadline, new ones go elsewhere; at the deadline they move.
#[tokio::test]
async fn draining_with_a_deadline() {
    let world = unprobed(Steering::Cluster).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let client = world.client();
    let body = json!({"deadline_s": 12}).to_string();
    let said = world.service.call("POST", "/v1/workers/w0/drain", Some(&body)).await.unwrap();
    assert_eq!(said.status, 200, "{said:?}");
    state(&world, "w0", "draining").await;
    let mut n = 0;
    // The filter hears of it a moment later.
    wait_for("new sessions to stay away", async || {
        for _ in 0..20 {
            n += 1;
            if turn(&client, &format!("drain-{n}")).await.worker == "w0" {
                return None;
            }
        }
        Some(())
    })
    .await
    .unwrap();
    let (mut stayed, mut moved) = (0, None);
    wait_for("the session to leave at the deadline", async || {
        let slot = turn(&client, &key).await;
        if slot == home {
            stayed += 1;
        } else {
            moved = Some(slot);
        }
        moved.clone()
    })
    .await
    .unwrap();
    assert!(stayed > 0, "it left before the deadline");
    assert_eq!(Some(turn(&client, &key).await), moved, "it moved more than once");
}
