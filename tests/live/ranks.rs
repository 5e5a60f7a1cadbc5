//! Which rank is on the wire when it is not the plain case: retries, ranges that start elsewhere, hybrid deployments, ranks
//! that come and go under bound sessions.

use std::collections::BTreeMap;

use e2e::client::Slot;
use e2e::scratch::Scratch;
use e2e::{Client, Engine, EngineSpec, Numbering, Steering, World, WorldPlan, wait_for};
use routing::hash::{hashed_rank, rank_hash};
use routing::header::VLLM_RANK;
use serde_json::{Value, json};

use crate::support::{BOTH, binding, bound_to, served, stream, three_engines, turn, unprobed};

/// F4: a turn of w0 that only the third worker takes. Every attempt carried the number its own host wants, or none.
#[tokio::test]
async fn each_attempt_carries_its_own_rank_or_none() {
    let world = unprobed(Steering::Endpoints).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    world.forget().await.unwrap();
    let client = world.client();
    for (refusing, serving) in [("w1", "w2"), ("w2", "w1")] {
        for engine in ["w0", refusing] {
            world.engine(engine).fault("503", None).await.unwrap();
        }
        assert_eq!(turn(&client, &key).await.worker, serving);
        world.engine(refusing).heal().await.unwrap();
    }
    let hash = rank_hash(key.as_bytes());
    for engine in &world.engines {
        let wanted = match engine.name() {
            "w0" => home.rank,
            "w1" => Some(hashed_rank(hash, 4, 4).unwrap().0),
            _ => None,
        };
        let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        for seen in engine.requests().await.unwrap() {
            assert_eq!(seen.values(VLLM_RANK), wanted, "at {}", engine.name());
        }
    }
}

/// Under cluster steering a retry meets the same worker, so the same rank.
#[tokio::test]
async fn a_retry_at_the_same_worker_carries_the_same_rank() {
    let world = unprobed(Steering::Cluster).start().await.unwrap();
    let (key, home) = bound_to(&world, "w1").await;
    world.forget().await.unwrap();
    world.engine("w1").fault("503", Some(2)).await.unwrap();
    assert_eq!(turn(&world.client(), &key).await, home);
    let seen = world.engine("w1").requests().await.unwrap();
    assert_eq!(seen.len(), 3);
    for attempt in seen {
        assert_eq!(attempt.values(VLLM_RANK), [home.rank.unwrap().to_string()]);
    }
}

/// B1, B3, B4: global ranks 8..15 and no others; on the wire as the endpoint wants them.
#[tokio::test]
async fn a_range_that_starts_at_eight() {
    for (steering, numbering) in
        [(Steering::Cluster, Numbering::Local), (Steering::Endpoints, Numbering::Global)]
    {
        let engine = EngineSpec::new("w0", 8).from(8).numbered(numbering);
        let world = WorldPlan::new(steering, &[engine]).start().await.unwrap();
        let first = if numbering == Numbering::Local { 8 } else { 0 };
        for n in 0..24 {
            let key = format!("far-{n}");
            let slot = turn(&world.client(), &key).await;
            let rank = hashed_rank(rank_hash(key.as_bytes()), 8, 8).unwrap().0;
            assert_eq!(slot.rank, Some(rank));
            let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
            assert_eq!(seen.values(VLLM_RANK), [(rank - first).to_string()], "{numbering:?}");
        }
    }
}

/// B2: one worker, two endpoints. The rank chooses the endpoint, and the endpoint how it is written.
#[tokio::test]
async fn a_hybrid_worker_of_two_endpoints() {
    for (steering, numbering) in
        [(Steering::Cluster, Numbering::Global), (Steering::Endpoints, Numbering::Local)]
    {
        let scratch = Scratch::new().unwrap();
        let front =
            Engine::start(scratch.path(), EngineSpec::new("front", 4).numbered(numbering)).await.unwrap();
        let back = EngineSpec::new("back", 4).from(4).numbered(numbering);
        let back = Engine::start(scratch.path(), back).await.unwrap();
        let clusters = [("w0".to_owned(), front.address()), ("w0.1".to_owned(), back.address())];
        let plan = WorldPlan::new(steering, &[]).cold().edit(move |config| config.workers(&clusters));
        let world = plan.start().await.unwrap();
        declare(&world, "w0", &json!({"endpoints": [front.endpoint(), back.endpoint()]})).await;
        world.warm_one(0, &["front".to_owned(), "back".to_owned()]).await.unwrap();
        let client = world.client();
        for key in ["session-1", "conv-42", "s", "hybrid-0", "hybrid-1", "hybrid-2"] {
            let rank = hashed_rank(rank_hash(key.as_bytes()), 0, 8).unwrap().0;
            let engine = if rank < 4 { &front } else { &back };
            for _ in 0..2 {
                let wanted = Slot { worker: engine.name().to_owned(), rank: Some(rank) };
                assert_eq!(turn(&client, key).await, wanted, "{steering:?}");
                let seen = engine.requests().await.unwrap().pop().unwrap();
                let wire = if numbering == Numbering::Local { rank % 4 } else { rank };
                assert_eq!(seen.values(VLLM_RANK), [wire.to_string()], "{numbering:?}, {key}");
            }
        }
    }
}

/// B5: many streams on a session's worker, and its turns are where they were, rank and all.
#[tokio::test]
async fn no_rank_drifts_under_rising_load() {
    let steering = Steering::Endpoints;
    let engines = [slow("w0", 0), slow("w1", 4)];
    let world = WorldPlan::new(steering, &engines).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let mut streams = Vec::new();
    for n in 0..20 {
        streams.push(stream(&world, 0, Some(&key)).await);
        assert_eq!(turn(&world.client(), &key).await, home, "{steering:?}: beside {n} streams");
    }
}

/// An engine whose long answers are long.
fn slow(name: &str, start: u32) -> EngineSpec {
    EngineSpec::new(name, 4).from(start).with(&["--decode-us-per-token", "20000"])
}

const GROWN: [&str; 6] = ["session-1", "conv-42", "s", "grown-0", "grown-1", "grown-2"];

/// Bound while the worker declared one rank: the hashed one of eight from then on, on both Envoys, under the same binding.
#[tokio::test]
async fn growing_from_one_rank_to_eight() {
    for steering in BOTH {
        let engines = [EngineSpec::new("w0", 8), EngineSpec::new("w1", 8)];
        let envoys = if steering == Steering::Endpoints { 2 } else { 1 };
        let world = WorldPlan::new(steering, &engines).envoys(envoys).start().await.unwrap();
        declare_ranks(&world, 1).await;
        let client = |envoy: &e2e::Envoy| Client::fresh_connections(envoy.address()).unwrap();
        let clients: Vec<Client> = world.envoys.iter().map(client).collect();
        for (n, client) in clients.iter().enumerate() {
            no_rank_is_sent(&world, client, n).await;
        }
        let mut bound = BTreeMap::new();
        for key in GROWN {
            let worker = turn(&clients[0], key).await.worker;
            bound.insert(key, (binding(&world, key).await, worker));
        }
        declare_ranks(&world, 8).await;
        for key in GROWN {
            let (before, worker) = &bound[key];
            assert_eq!((&before.worker, before.rank), (worker, None));
            let rank = hashed_rank(rank_hash(key.as_bytes()), 0, 8).unwrap().0;
            let wanted = Slot { worker: worker.clone(), rank: Some(rank) };
            for client in &clients {
                rank_arrives(&world, client, key, &wanted).await;
            }
            let after = binding(&world, key).await;
            assert_eq!(
                (&after.worker, &after.version),
                (worker, &before.version),
                "{steering:?}: {key} moved"
            );
        }
    }
}

/// Every worker declares so many ranks.
async fn declare_ranks(world: &World, ranks: u32) {
    for engine in &world.engines {
        patch_ranks(world, engine.name(), &engine.endpoint(), ranks).await;
    }
}

/// New sessions until they carry no rank: then this Envoy has heard of the one rank. Both threads must have.
async fn no_rank_is_sent(world: &World, client: &Client, envoy: usize) {
    let mut n = 0;
    wait_for("new sessions without a rank", async || {
        for _ in 0..16 {
            n += 1;
            let worker = turn(client, &format!("early-{envoy}-{n}")).await.worker;
            let seen = world.engine(&worker).requests().await.unwrap().pop().unwrap();
            if !seen.values(VLLM_RANK).is_empty() {
                return None;
            }
        }
        Some(())
    })
    .await
    .unwrap();
}

/// Turns until the filter has heard of the ranks; none is elsewhere, and none carries another rank.
async fn rank_arrives(world: &World, client: &Client, key: &str, wanted: &Slot) {
    let rank = wanted.rank.unwrap().to_string();
    wait_for("the hashed rank on the wire", async || {
        assert_eq!(turn(client, key).await.worker, wanted.worker, "{key} moved");
        let seen = world.engine(&wanted.worker).requests().await.unwrap().pop().unwrap();
        let ranks = seen.values(VLLM_RANK);
        assert!(ranks.is_empty() || ranks == [rank.as_str()], "{key} carried {ranks:?}");
        (!ranks.is_empty()).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(&turn(client, key).await, wanted);
}

/// B12: the range shrinks to 0..4. Whoever was on a rank beyond is bound anew once, the others stay where they are.
#[tokio::test]
async fn shrinking_from_eight_ranks_to_four() {
    for steering in BOTH {
        let world = WorldPlan::new(steering, &[EngineSpec::new("w0", 8)]).start().await.unwrap();
        let client = Client::fresh_connections(world.envoy().address()).unwrap();
        let keys: Vec<String> = (0..16).map(|n| format!("shrunk-{n}")).collect();
        let mut before = BTreeMap::new();
        for key in &keys {
            before.insert(key, (turn(&client, key).await, binding(&world, key).await));
        }
        let beyond = before.values().filter(|(slot, _)| slot.rank >= Some(4)).count();
        assert!((1..16).contains(&beyond), "the keys are all on one side");
        patch_ranks(&world, "w0", &world.engine("w0").endpoint(), 4).await;
        wait_for("no rank beyond the range", async || {
            for key in &keys {
                if turn(&client, key).await.rank >= Some(4) {
                    return None;
                }
            }
            Some(())
        })
        .await
        .unwrap();
        for key in &keys {
            let (slot, bound) = &before[key];
            let now = turn(&client, key).await;
            let then = binding(&world, key).await;
            if slot.rank < Some(4) {
                assert_eq!((&now, &then), (slot, bound), "{steering:?}: {key} was inside the range");
            } else {
                assert!(
                    then.rank < Some(4) && now.rank.map(u64::from) == then.rank,
                    "{steering:?}: {then:?}"
                );
                assert_ne!(then.version, bound.version);
                turn(&client, key).await;
                assert_eq!(binding(&world, key).await, then, "{steering:?}: {key} was bound anew twice");
            }
        }
    }
}

/// Without a topology there is no rank, wherever the default route goes.
#[tokio::test]
async fn the_default_route_carries_no_rank() {
    for steering in BOTH {
        let plan = WorldPlan::new(steering, &three_engines()).cold();
        let nowhere = plan.edit(|config| config.plugin(|own| own["service"]["cluster"] = json!("nowhere")));
        let world = nowhere.start().await.unwrap();
        for n in 0..8 {
            served(&world.client().chat(Some(&format!("early-{n}")), "x").await.unwrap());
        }
        for engine in &world.engines {
            for seen in engine.requests().await.unwrap() {
                assert_eq!(seen.values(VLLM_RANK), [""; 0], "{steering:?}, at {}", engine.name());
            }
        }
        assert_eq!(world.envoy().requests("no_topology").await.unwrap(), 8);
    }
}

/// Another number of ranks behind the same address.
async fn patch_ranks(world: &World, worker: &str, endpoint: &Value, ranks: u32) {
    let mut endpoint = endpoint.clone();
    endpoint["dp_size"] = json!(ranks);
    let body = json!({"endpoints": [endpoint]}).to_string();
    let said = world.service.call("PATCH", &format!("/v1/workers/{worker}"), Some(&body)).await.unwrap();
    assert_eq!(said.status, 200, "{said:?}");
}

async fn declare(world: &World, worker: &str, body: &Value) {
    let path = format!("/v1/workers/{worker}");
    let said = world.service.call("PUT", &path, Some(&body.to_string())).await.unwrap();
    assert_eq!(said.status, 201, "{said:?}");
}
