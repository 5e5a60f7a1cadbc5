//! Cases with many sessions: of one turn each, and before a fleet that grows.

use std::collections::BTreeMap;

use e2e::client::Slot;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{nothing_in_flight, served, three_engines, turn};

const KEYS: usize = 10_000;
const ROUNDS: usize = 4;
const LANES: usize = 32;
const LIVE: usize = 24;

/// Ten thousand keys of one turn each, through an Envoy whose cache holds fifty: whoever goes on talking keeps its slot.
#[tokio::test(flavor = "multi_thread")]
async fn a3_ten_thousand_keys_and_the_live_sessions_stay() {
    let small = |config: &mut serde_json::Value| config["pages"] = json!({"count": 16, "bytes": 256});
    let plan = WorldPlan::new(Steering::Endpoints, &three_engines()).probes_every_ms(0);
    let world = plan.edit(move |config| config.plugin(small)).start().await.unwrap();
    let known = world.service.metric("rankpin_sessions", &[]).await.unwrap();
    let homes = live_turns(&world).await;
    for round in 0..ROUNDS {
        once_each(&world, round).await;
        assert_eq!(live_turns(&world).await, homes, "after round {round}");
    }
    nothing_in_flight(&world).await;
    wait_for("every session to be bound", async || {
        let sessions = world.service.metric("rankpin_sessions", &[]).await.ok()?;
        (sessions as usize == known as usize + KEYS + LIVE).then_some(())
    })
    .await
    .unwrap();
    let evicted = world.service.metric("rankpin_sessions_evicted_total", &[]).await.unwrap();
    assert_eq!(evicted, 0.0, "the table has room for a million");
}

/// One turn of each session that lives on.
async fn live_turns(world: &World) -> BTreeMap<String, Slot> {
    let client = world.client();
    let mut slots = BTreeMap::new();
    for n in 0..LIVE {
        let key = format!("live-{n}");
        slots.insert(key.clone(), turn(&client, &key).await);
    }
    slots
}

/// A round's share of the keys, in lanes beside one another.
async fn once_each(world: &World, round: usize) {
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let client = Client::new(world.envoy().address()).unwrap();
        lanes.spawn(async move {
            for n in (lane..KEYS / ROUNDS).step_by(LANES) {
                let key = format!("once-{round}-{n}");
                assert_eq!(client.chat(Some(&key), "x").await.unwrap().status, 200);
            }
        });
    }
    lanes.join_all().await;
}

/// A worker added to eight: no bound session moves, and of the others at most its share go there, from nowhere else to nowhere
/// else. Which keys do is arithmetic, no luck.
#[tokio::test]
async fn d7_a_ninth_worker_takes_its_share_and_nobody_bound() {
    let engines: Vec<EngineSpec> = (0..8).map(|n| EngineSpec::new(&format!("w{n}"), 1)).collect();
    for policy in ["least_loaded", "session_hash"] {
        let mut world = WorldPlan::new(Steering::Endpoints, &engines).policy(policy).start().await.unwrap();
        let before = slots(&world).await;
        world.add_engine(EngineSpec::new("w8", 1)).await.unwrap();
        world.service.register(world.engine("w8")).await.unwrap();
        world.warm_one(0, &["w8".to_owned()]).await.unwrap();
        let after = slots(&world).await;
        let moved: Vec<_> = before.iter().filter(|(key, slot)| after[*key] != **slot).collect();
        if policy == "least_loaded" {
            assert!(moved.is_empty(), "bound sessions moved: {moved:?}");
            continue;
        }
        assert!(
            moved.iter().all(|(key, _)| after[*key].worker == "w8"),
            "moved between old workers: {moved:?}"
        );
        // A ninth of 180 is 20; three standard deviations are 13.
        assert!((7..=33).contains(&moved.len()), "{} of 180 moved", moved.len());
    }
}

async fn slots(world: &World) -> BTreeMap<String, Slot> {
    let client = world.client();
    let mut slots = BTreeMap::new();
    for n in 0..180 {
        let key = format!("ninth-{n}");
        slots.insert(key.clone(), served(&client.chat(Some(&key), "x").await.unwrap()));
    }
    slots
}

/// Five hundred at once, one prompt of four thousand tokens in all of them, half of them sessions: nobody is refused while there
/// is room, and no worker gets them all.
#[tokio::test(flavor = "multi_thread")]
async fn c6_a_burst_with_one_shared_prefix() {
    let engines: Vec<EngineSpec> = (0..4).map(|n| EngineSpec::new(&format!("w{n}"), 2)).collect();
    let plan = WorldPlan::new(Steering::Endpoints, &engines).pool(json!({"in_flight_limit": 20}));
    let world = plan.start().await.unwrap();
    for engine in &world.engines {
        engine.fault("slow=1000", None).await.unwrap();
    }
    let prompt = "the same words again and ".repeat(800);
    let mut turns = JoinSet::new();
    for n in 0..500 {
        let (client, prompt) = (Client::fresh_connections(world.envoy().address()).unwrap(), prompt.clone());
        let key = (n % 2 == 0).then(|| format!("burst-{}", n % 40));
        turns.spawn(async move { client.chat(key.as_deref(), &prompt).await.unwrap() });
    }
    let mut served_by = BTreeMap::new();
    for turn in turns.join_all().await {
        *served_by.entry(served(&turn).worker).or_insert(0) += 1;
    }
    assert_eq!(served_by.len(), 4, "{served_by:?}");
    assert!(served_by.values().all(|count| *count <= 250), "{served_by:?}");
    nothing_in_flight(&world).await;
}
