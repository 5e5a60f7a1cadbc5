//! Sustained load, up to capacity and past it: what affinity is worth then, beside the same fleet without.

use e2e::client::send;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan};
use serde_json::{Value, json};
use std::time::Instant;
use tokio::task::JoinSet;

use crate::support::nothing_in_flight;

/// Slots, and requests in flight on one from which on it is overloaded.
const SLOTS: usize = 4;
const LIMIT: usize = 3;
/// Conversations at a time: a slot each, as many as slots take, and twice as many.
const LEVELS: [usize; 3] = [SLOTS, SLOTS * LIMIT, SLOTS * LIMIT * 2];
const TURNS: usize = 6;

/// What a level gave.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// Share of the prompt tokens of all turns but the first that were cached.
    hits: f64,
    turns_per_s: f64,
}

async fn world(pool: Value) -> World {
    // A rank computes one prompt after the other: what is not cached takes its time from all.
    let slow = ["--prefill-us-per-token", "1000"];
    let engines = [EngineSpec::new("w0", 2).with(&slow), EngineSpec::new("w1", 2).from(2).with(&slow)];
    let plan = WorldPlan::new(Steering::Endpoints, &engines).probes_every_ms(0).pool(pool);
    plan.start().await.unwrap()
}

/// One conversation; prompt and cached tokens of its later turns.
async fn converse(client: Client, key: String) -> (u64, u64) {
    // As much before the first question as agents have, and of each its own.
    let said = |n: usize| format!("{key} says {n}: {}", "so it is written ".repeat(4));
    let mut messages = vec![json!({"role": "system", "content": said(0).repeat(4)})];
    let (mut prompt, mut cached) = (0, 0);
    for n in 0..TURNS {
        messages.push(json!({"role": "user", "content": said(n)}));
        let turn = send(client.messages(Some(&key), &json!(messages), 1)).await.unwrap();
        assert_eq!(turn.status, 200);
        messages.push(json!({"role": "assistant", "content": "ok"}));
        if n > 0 {
            prompt += turn.prompt_tokens();
            cached += turn.cached_tokens();
        }
    }
    (prompt, cached)
}

async fn level(world: &World, at_once: usize, name: &str) -> Level {
    let client = Client::fresh_connections(world.envoy().address()).unwrap();
    let mut conversations = JoinSet::new();
    let began = Instant::now();
    for n in 0..at_once {
        conversations.spawn(converse(client.clone(), format!("{name}-{at_once}-{n}")));
    }
    let told = conversations.join_all().await;
    let (prompt, cached) = told.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let turns = (at_once * TURNS) as f64;
    Level { hits: cached as f64 / prompt as f64, turns_per_s: turns / began.elapsed().as_secs_f64() }
}

/// C2: more and more conversations at a time, spilled where their slots are full. The share of tokens found in caches falls
/// step by step and not at once, and what is done in a second is never less than what least loaded does.
#[tokio::test(flavor = "multi_thread")]
async fn near_capacity_hits_fall_smoothly() {
    let pinned = world(json!({"in_flight_limit": LIMIT, "rank_pick": "least_loaded"})).await;
    let spread = world(json!({"affinity": "off"})).await;
    let mut before = 1.0;
    for at_once in LEVELS {
        let (own, least_loaded) =
            tokio::join!(level(&pinned, at_once, "pinned"), level(&spread, at_once, "spread"));
        println!("{at_once} at once: {own:.2?}, least_loaded {least_loaded:.2?}");
        assert!(own.hits > before - 0.35, "{at_once} at once: from {before:.2} to {own:?}");
        assert!(own.hits > least_loaded.hits, "{at_once} at once: {own:?}, least_loaded {least_loaded:?}");
        assert!(
            own.turns_per_s > least_loaded.turns_per_s * 0.9,
            "{at_once} at once: {own:?}, least_loaded {least_loaded:?}"
        );
        before = own.hits;
    }
    nothing_in_flight(&pinned).await;
    nothing_in_flight(&spread).await;
}
