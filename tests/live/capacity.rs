//! Sustained load, up to capacity and past it: what affinity is worth then, beside the same fleet without.

use e2e::client::send;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan};
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

use crate::support::nothing_in_flight;

/// Slots, and requests in flight on one from which on it is overloaded.
const SLOTS: usize = 4;
const LIMIT: usize = 3;
/// Conversations at a time: a slot each, as many as slots take, and twice as many.
const LEVELS: [usize; 3] = [SLOTS, SLOTS * LIMIT, SLOTS * LIMIT * 2];
const TURNS: usize = 6;
/// Most that the share of tokens found may fall from one level to the next.
const FALL: f64 = 0.35;
/// So much of what least loaded does in a second is done at least.
const LESS: f64 = 0.9;
/// Nobody who runs takes so long to say how he is.
const STOOD_STILL: Duration = Duration::from_millis(200);
/// A level is played anew so often at most.
const ANEW_MAX: usize = 10;

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

/// A level of both fleets beside each other. Where it is not as it should be and somebody stood still meanwhile, it says nothing of
/// either: it is played anew by other conversations.
async fn both(pinned: &World, spread: &World, at_once: usize, before: f64) -> [Level; 2] {
    for n in 0.. {
        let names = [format!("pinned-{n}"), format!("spread-{n}")];
        let levels =
            async { tokio::join!(level(pinned, at_once, &names[0]), level(spread, at_once, &names[1])) };
        let ((own, other), longest) = beside_a_look(&[pinned, spread], levels).await;
        let is_well =
            own.hits > before - FALL && own.hits > other.hits && own.turns_per_s > other.turns_per_s * LESS;
        if is_well || longest < STOOD_STILL || n == ANEW_MAX {
            return [own, other];
        }
        println!("{at_once} at once: somebody stood still for {longest:?}");
    }
    unreachable!("it returns")
}

/// What came of it, and the longest that all parts of these fleets took meanwhile to say how they are.
async fn beside_a_look<T>(worlds: &[&World], work: impl Future<Output = T>) -> (T, Duration) {
    let (longest, begun) = (Cell::new(Duration::ZERO), Cell::new(Instant::now()));
    let look = async {
        loop {
            begun.set(Instant::now());
            for world in worlds {
                for engine in &world.engines {
                    engine.cached_blocks().await.unwrap();
                }
                world.service.call("GET", "/healthz", None).await.unwrap();
                world.envoy().admin("/ready").await.unwrap();
            }
            longest.set(longest.get().max(begun.get().elapsed()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = look => unreachable!("it never ends"),
    };
    (done, longest.get().max(begun.get().elapsed()))
}

/// C2: more and more conversations at a time, spilled where their slots are full. The share of tokens found in caches falls
/// step by step and not at once, and what is done in a second is never less than what least loaded does.
#[tokio::test(flavor = "multi_thread")]
async fn near_capacity_hits_fall_smoothly() {
    let pinned = world(json!({"in_flight_limit": LIMIT, "rank_pick": "least_loaded"})).await;
    let spread = world(json!({"affinity": "off"})).await;
    let mut before = 1.0;
    for at_once in LEVELS {
        let [own, least_loaded] = both(&pinned, &spread, at_once, before).await;
        println!("{at_once} at once: {own:.2?}, least_loaded {least_loaded:.2?}");
        assert!(own.hits > before - FALL, "{at_once} at once: from {before:.2} to {own:?}");
        assert!(own.hits > least_loaded.hits, "{at_once} at once: {own:?}, least_loaded {least_loaded:?}");
        assert!(
            own.turns_per_s > least_loaded.turns_per_s * LESS,
            "{at_once} at once: {own:?}, least_loaded {least_loaded:?}"
        );
        before = own.hits;
    }
    nothing_in_flight(&pinned).await;
    nothing_in_flight(&spread).await;
}
