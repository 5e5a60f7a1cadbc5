//! Every turn of a session reaches its slot, with the number its endpoint wants; without a session there is no rank.

use std::collections::{BTreeMap, BTreeSet};

use e2e::client::{Slot, Turn};
use e2e::{EngineSpec, Numbering, Steering, World, WorldPlan};

use crate::support::until_all_served;

/// Keys whose ranks the design states, on a worker declaring ranks 4..7.
const STATED: [(&str, u32); 3] = [("session-1", 5), ("conv-42", 6), ("s", 7)];
const TURNS: usize = 3;

#[tokio::test]
async fn cluster_steering_least_loaded() {
    one_slot_per_session(Steering::Cluster, "least_loaded").await;
}

#[tokio::test]
async fn cluster_steering_session_hash() {
    one_slot_per_session(Steering::Cluster, "session_hash").await;
}

#[tokio::test]
async fn endpoints_steering_least_loaded() {
    one_slot_per_session(Steering::Endpoints, "least_loaded").await;
}

#[tokio::test]
async fn endpoints_steering_session_hash() {
    one_slot_per_session(Steering::Endpoints, "session_hash").await;
}

async fn one_slot_per_session(steering: Steering, policy: &'static str) {
    for numbering in [Numbering::Local, Numbering::Global] {
        let engine = EngineSpec::new("w0", 4).from(4).numbered(numbering);
        let world = WorldPlan::new(steering, &[engine]).policy(policy).start().await.unwrap();
        eight_sessions(&world, numbering).await;
        // The first turn under the hash asks nobody either.
        let routes = world.service.routes().await.unwrap();
        assert!(policy != "session_hash" || routes == 0, "{routes} route calls under session_hash");
    }
}

async fn eight_sessions(world: &World, numbering: Numbering) {
    let more = (0..5).map(|n| format!("conversation-{n}"));
    let keys: Vec<String> = STATED.iter().map(|(key, _)| (*key).to_owned()).chain(more).collect();
    let client = world.client();
    let mut slots: BTreeMap<&str, BTreeSet<Slot>> = BTreeMap::new();
    for turn in 0..TURNS {
        for key in &keys {
            let turn = client.chat(Some(key), &format!("turn {turn}")).await.unwrap();
            assert_eq!(turn.status, 200, "{}", String::from_utf8_lossy(&turn.body));
            slots.entry(key).or_default().insert(turn.slot().unwrap());
        }
    }
    for (key, slots) in &slots {
        assert_eq!(slots.len(), 1, "session {key:?} was on {slots:?}");
    }
    for (key, rank) in STATED {
        let expected = Slot { worker: "w0".to_owned(), rank: Some(rank) };
        assert!(slots[key].contains(&expected), "{key} was on {:?}, not on {expected}", slots[key]);
    }
    the_wire_has_the_number_the_endpoint_wants(world, numbering).await;
}

async fn the_wire_has_the_number_the_endpoint_wants(world: &World, numbering: Numbering) {
    let seen = world.engine("w0").requests().await.unwrap();
    assert_eq!(seen.len(), TURNS * 8);
    let first = if numbering == Numbering::Global { 0 } else { 4 };
    for request in seen {
        let wanted = (request.rank.unwrap() - first).to_string();
        assert_eq!(request.values("x-data-parallel-rank"), [wanted.as_str()], "{numbering:?}");
    }
}

#[tokio::test]
async fn a_single_rank_gets_no_rank_header() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let engines = [EngineSpec::new("w0", 1), EngineSpec::new("w1", 1)];
        let world = WorldPlan::new(steering, &engines).start().await.unwrap();
        let client = world.client();
        for key in ["a", "b", "c", "d"] {
            let mut workers = BTreeSet::new();
            for _ in 0..TURNS {
                workers.insert(served(&client.chat(Some(key), "hello").await.unwrap()).worker);
            }
            assert_eq!(workers.len(), 1, "session {key} was on {workers:?}");
        }
        no_rank_header_anywhere(&world, 4 * TURNS).await;
    }
}

#[tokio::test]
async fn without_a_session_there_is_no_rank_and_all_workers_serve() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        for policy in ["least_loaded", "session_hash"] {
            let engines =
                [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 2)];
            let world = WorldPlan::new(steering, &engines).policy(policy).start().await.unwrap();
            let client = world.client();
            let asked = until_all_served(60, 3, async || {
                served(&client.chat(None, "a question").await.unwrap()).worker
            });
            let asked = asked.await;
            no_rank_header_anywhere(&world, asked).await;
            let missing = world.envoy().requests("session_key_missing").await.unwrap();
            assert_eq!(missing, asked as u64, "{steering:?}, {policy}");
        }
    }
}

fn served(turn: &Turn) -> Slot {
    assert_eq!(turn.status, 200, "{}", String::from_utf8_lossy(&turn.body));
    turn.slot().unwrap()
}

async fn no_rank_header_anywhere(world: &World, requests: usize) {
    let mut count = 0;
    for engine in &world.engines {
        for request in engine.requests().await.unwrap() {
            assert_eq!(request.values("x-data-parallel-rank"), [""; 0], "at {}", engine.name());
            count += 1;
        }
    }
    assert_eq!(count, requests);
}
