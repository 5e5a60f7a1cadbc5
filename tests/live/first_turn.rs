//! First turns: a crowd of them makes one choice, and one that fails leaves nothing behind.

use std::collections::BTreeSet;
use std::sync::Arc;

use e2e::client::{CHAT, SESSION, Slot, send};
use e2e::raw::{Raw, exchange, request};
use e2e::scripted::{Line, content_length, header};
use e2e::wait::PATIENCE;
use e2e::{EngineSpec, Scripted, Steering, World, WorldPlan, wait_for};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{scripted_workers, scripted_world};

const CROWD: usize = 100;

fn three_engines() -> [EngineSpec; 3] {
    [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 2)]
}

/// None is answered before all are dispatched: every one of them is a first turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_at_once_make_one_choice() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let workers = scripted_workers(3).await;
        let world = scripted_world(steering, &workers).await;
        let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: crowd\ncontent-type: application/json");
        let mut turns = JoinSet::new();
        for _ in 0..CROWD {
            let (to, head) = (world.envoy().address(), head.clone());
            turns.spawn(async move { exchange(to, &head, b"{}").await.unwrap().status() });
        }
        let arrived = arrivals(&workers, CROWD).await;
        let slots: BTreeSet<_> = arrived.iter().map(|(worker, rank, _)| (*worker, rank.clone())).collect();
        assert_eq!(slots.len(), 1, "{steering:?}: {slots:?}");
        for (_, _, mut line) in arrived {
            line.ok().await.unwrap();
        }
        assert!(turns.join_all().await.iter().all(|status| *status == 200));
        assert_eq!(world.envoy().requests("pinned").await.unwrap(), 0);
        // The next one is bound there.
        let next = tokio::spawn({
            let to = world.envoy().address();
            async move { exchange(to, &head, b"{}").await.unwrap().status() }
        });
        let (worker, rank, mut line) = arrivals(&workers, 1).await.pop().unwrap();
        line.ok().await.unwrap();
        assert_eq!(next.await.unwrap(), 200);
        assert!(slots.contains(&(worker, rank)));
    }
}

/// So many requests as they reach the workers: which worker, which rank, and its line, not yet answered.
async fn arrivals(workers: &[Arc<Scripted>], count: usize) -> Vec<(usize, Option<String>, Line)> {
    let (send, mut receive) = mpsc::channel(CROWD);
    let mut accepting = JoinSet::new();
    for (index, worker) in workers.iter().cloned().enumerate() {
        let send = send.clone();
        accepting.spawn(async move {
            while let Ok(mut line) = worker.accept().await {
                let head = line.head().await.unwrap();
                line.body(content_length(&head)).await.unwrap();
                let rank = header(&head, "x-data-parallel-rank").map(str::to_owned);
                // Whoever has enough stops listening.
                let _ = send.send((index, rank, line)).await;
            }
        });
    }
    let mut arrived = Vec::new();
    while arrived.len() < count {
        let next = timeout(PATIENCE, receive.recv()).await;
        arrived
            .push(next.unwrap_or_else(|_| panic!("{} of {count} requests arrived", arrived.len())).unwrap());
    }
    arrived
}

#[tokio::test]
async fn a_first_turn_that_gets_503_binds_nothing() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        fails_and_binds_afresh(steering, "503").await;
    }
}

#[tokio::test]
async fn a_first_turn_that_is_reset_binds_nothing() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        fails_and_binds_afresh(steering, "reset").await;
    }
}

#[tokio::test]
async fn a_first_turn_that_is_given_up_binds_nothing() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        fails_and_binds_afresh(steering, "hang").await;
    }
}

async fn fails_and_binds_afresh(steering: Steering, fault: &str) {
    let world = WorldPlan::new(steering, &three_engines()).start().await.unwrap();
    let key = format!("first-{fault}");
    let rolled_back = world.envoy().requests("rolled_back").await.unwrap();
    fail_once(&world, &key, fault).await;
    wait_for("the hold to be rolled back", async || {
        (world.envoy().requests("rolled_back").await.ok()? > rolled_back).then_some(())
    })
    .await
    .unwrap();
    wait_for("the session to be unknown", async || {
        (world.service.session(&key).await.ok()?.status == 404).then_some(())
    })
    .await
    .unwrap();
    let slot = binds(&world, &key).await;
    // A thread that did not see the worker come back serves the next turns elsewhere for a moment; the binding stays.
    wait_for(&format!("{steering:?}, {fault}: a turn at {slot}"), async || {
        let again = world.client().chat(Some(&key), "again").await.ok()?;
        assert_eq!(again.status, 200, "{steering:?}, {fault}");
        (again.slot()? == slot).then_some(())
    })
    .await
    .unwrap();
}

/// A first turn in which every attempt meets the fault.
async fn fail_once(world: &World, key: &str, fault: &str) {
    if fault == "hang" {
        return give_up(world, key).await;
    }
    let request = world.client().chat_request(Some(key), "first").header("x-fake-fault", fault);
    assert_eq!(send(request).await.unwrap().status, 503);
}

/// A client that goes away once a worker has its request and says nothing.
async fn give_up(world: &World, key: &str) {
    let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {key}\nx-fake-fault: hang");
    let mut client = Raw::connect(world.envoy().address()).await.unwrap();
    client.send(request(&head, br#"{"model":"tiny","messages":[]}"#)).await.unwrap();
    wait_for("a worker to have the request", async || {
        for engine in &world.engines {
            if !engine.requests().await.ok()?.is_empty() {
                return Some(());
            }
        }
        None
    })
    .await
    .unwrap();
    assert_eq!(world.service.session(key).await.unwrap().body["state"], "held");
    drop(client);
}

/// The next turn, and the binding the service then has.
async fn binds(world: &World, key: &str) -> Slot {
    let turn = world.client().chat(Some(key), "second").await.unwrap();
    assert_eq!(turn.status, 200);
    let slot = turn.slot().unwrap();
    let said = wait_for("the session to be bound", async || {
        let said = world.service.session(key).await.ok()?;
        (said.body["state"] == "bound").then_some(said)
    })
    .await
    .unwrap();
    assert_eq!(said.body["target"]["worker"], slot.worker.as_str());
    assert_eq!(said.body["target"]["rank"].as_u64(), slot.rank.map(u64::from));
    slot
}
