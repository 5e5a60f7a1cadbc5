//! Threads and Envoys agree on every session's slot, and ask the service at most once each.

use std::collections::BTreeSet;
use std::sync::Arc;

use e2e::client::Slot;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const SESSIONS: usize = 200;
const TURNS: usize = 6;
const ENVOYS: usize = 2;
/// Sessions under way at once.
const AT_ONCE: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn two_envoys_of_two_threads_agree_under_endpoints_steering() {
    agree(Steering::Endpoints).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_envoys_of_two_threads_agree_under_cluster_steering() {
    agree(Steering::Cluster).await;
}

async fn agree(steering: Steering) {
    let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 1)];
    let world = WorldPlan::new(steering, &engines).envoys(ENVOYS).start().await.unwrap();
    let routes_before = world.service.routes().await.unwrap();
    let asked_before = [asked(&world, 0).await, asked(&world, 1).await];
    let disagreeing: Vec<_> = play(&world).await.into_iter().filter(|(_, slots)| slots.len() != 1).collect();
    assert!(disagreeing.is_empty(), "{} sessions moved: {disagreeing:?}", disagreeing.len());
    let routes = world.service.routes().await.unwrap() - routes_before;
    assert!(routes <= (SESSIONS * ENVOYS) as u64, "{routes} route calls");
    for (index, before) in asked_before.into_iter().enumerate() {
        let asked = asked(&world, index).await - before;
        assert!(asked <= SESSIONS as u64, "envoy {index} asked {asked} times for {SESSIONS} sessions");
        assert_eq!(threads_used(&world, index).await, 2, "envoy {index}");
    }
}

/// The slots of every session, over all its turns.
async fn play(world: &World) -> Vec<(String, BTreeSet<Slot>)> {
    let clients: Vec<Client> =
        world.envoys.iter().map(|envoy| Client::fresh_connections(envoy.address()).unwrap()).collect();
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut sessions = JoinSet::new();
    for n in 0..SESSIONS {
        let (clients, room) = (clients.clone(), Arc::clone(&room));
        sessions.spawn(async move {
            let _place = room.acquire_owned().await.unwrap();
            let key = format!("agreement-{n}");
            let mut slots = BTreeSet::new();
            for turn in 0..TURNS {
                let client = &clients[(n + turn) % ENVOYS];
                let turn = client.chat(Some(&key), &format!("turn {turn} of {n}")).await.unwrap();
                assert_eq!(turn.status, 200, "{key}: {}", String::from_utf8_lossy(&turn.body));
                slots.insert(turn.slot().unwrap());
            }
            (key, slots)
        });
    }
    sessions.join_all().await
}

/// Requests that the filter of this Envoy asked the service about.
async fn asked(world: &World, index: usize) -> u64 {
    let mut sum = 0;
    for word in ["routed_held", "routed_bound", "routed_unpinned", "placed_alone"] {
        sum += world.envoys[index].requests(word).await.unwrap();
    }
    sum
}

/// Threads of this Envoy that took connections.
async fn threads_used(world: &World, index: usize) -> usize {
    let stats = world.envoys[index].stats("downstream_cx_total").await.unwrap();
    stats.iter().filter(|(name, count)| name.contains(".worker_") && *count > 0).count()
}
