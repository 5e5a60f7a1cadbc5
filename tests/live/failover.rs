//! A worker fails under a bound session: the turn is served elsewhere with the rank of the host that serves it, and what a
//! client leaves half way is given back.

use e2e::client::{CHAT, SESSION, Slot};
use e2e::raw::{Raw, request};
use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};
use serde_json::json;

fn plan() -> WorldPlan {
    let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 1)];
    // Nobody but the requests themselves finds out.
    WorldPlan::new(Steering::Endpoints, &engines).probes_every_ms(0)
}

/// A session bound to `worker`.
async fn bound_to(world: &World, worker: &str) -> (String, Slot) {
    for n in 0..100 {
        let key = format!("failover-{n}");
        let slot = world.client().chat(Some(&key), "hello").await.unwrap().slot().unwrap();
        if slot.worker == worker {
            return (key, slot);
        }
    }
    panic!("100 new sessions and none on {worker}");
}

/// The rank header of the last request that `slot`'s worker saw, against the rank that served.
async fn rank_is_its_own(world: &World, slot: &Slot) {
    let seen = world.engine(&slot.worker).requests().await.unwrap().pop().unwrap();
    let wanted: &[String] = &match slot.worker.as_str() {
        "w2" => vec![],
        _ => vec![slot.rank.unwrap().to_string()],
    };
    assert_eq!(seen.values("x-data-parallel-rank"), wanted, "at {slot}");
}

#[tokio::test]
async fn a_turn_whose_worker_is_dead_is_served_elsewhere_with_the_right_rank() {
    for _ in 0..3 {
        let mut world = plan().start().await.unwrap();
        let (key, home) = bound_to(&world, "w0").await;
        world.engines[0].kill();
        let turn = world.client().chat(Some(&key), "again").await.unwrap();
        assert_eq!(turn.status, 200, "{}", String::from_utf8_lossy(&turn.body));
        let slot = turn.slot().unwrap();
        assert_ne!(slot.worker, home.worker);
        rank_is_its_own(&world, &slot).await;
    }
}

#[tokio::test]
async fn a_turn_retried_elsewhere_carries_that_rank_and_the_next_one_is_home() {
    let world = plan().start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    world.engine("w0").fault("503", Some(1)).await.unwrap();
    let away = world.client().chat(Some(&key), "once").await.unwrap();
    assert_eq!(away.status, 200);
    let away = away.slot().unwrap();
    assert_ne!(away.worker, home.worker);
    rank_is_its_own(&world, &away).await;
    let back = world.client().chat(Some(&key), "twice").await.unwrap();
    assert_eq!(back.slot(), Some(home), "one 503 moves no binding");
}

#[tokio::test]
async fn turns_given_up_half_way_are_given_back() {
    let engine = EngineSpec::new("w0", 4).with(&["--decode-us-per-token", "20000"]);
    let world = WorldPlan::new(Steering::Endpoints, &[engine]).start().await.unwrap();
    let body = json!({"model": "tiny", "stream": true, "max_tokens": 4000,
        "messages": [{"role": "user", "content": "tell me everything"}]})
    .to_string();
    let mut clients = Vec::new();
    for n in 0..20 {
        let head =
            format!("POST {CHAT} HTTP/1.1\n{SESSION}: aborted-{}\ncontent-type: application/json", n % 5);
        let mut client = Raw::connect(world.envoy().address()).await.unwrap();
        client.send(request(&head, body.as_bytes())).await.unwrap();
        client.read_until("data:").await.unwrap();
        clients.push(client);
    }
    in_flight(&world, |count| count == 20).await;
    for (n, client) in clients.into_iter().enumerate() {
        if n % 2 == 0 {
            client.reset().unwrap();
        }
    }
    in_flight(&world, |count| count == 0).await;
}

/// Until the service counts so many requests in flight on w0.
async fn in_flight(world: &World, enough: impl Fn(u64) -> bool) {
    wait_for("the requests in flight", async || {
        let said = world.service.call("GET", "/v1/workers/w0", None).await.ok()?;
        said.body["in_flight"].as_u64().filter(|count| enough(*count)).map(drop)
    })
    .await
    .unwrap();
}
