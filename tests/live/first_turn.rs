//! First turns: a crowd of them makes one choice, and one that fails leaves nothing behind.

use std::collections::BTreeSet;
use std::time::Duration;

use e2e::client::{Slot, send};
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use tokio::task::JoinSet;

const CROWD: usize = 100;

fn three_engines() -> [EngineSpec; 3] {
    [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 2)]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_at_once_make_one_choice() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let world = WorldPlan::new(steering, &three_engines()).start().await.unwrap();
        let client = Client::fresh_connections(world.envoy().address()).unwrap();
        let mut turns = JoinSet::new();
        for n in 0..CROWD {
            // Slow enough that all of them are on their way before the first is answered.
            let request =
                client.chat_request(Some("crowd"), &format!("{n}")).header("x-fake-fault", "slow=400");
            turns.spawn(send(request));
        }
        let mut slots = BTreeSet::new();
        for turn in turns.join_all().await {
            let turn = turn.unwrap();
            assert_eq!(turn.status, 200, "{}", String::from_utf8_lossy(&turn.body));
            slots.insert(turn.slot().unwrap());
        }
        assert_eq!(slots.len(), 1, "{steering:?}: {slots:?}");
        let pinned = world.envoy().requests("pinned").await.unwrap();
        assert!(pinned < CROWD as u64, "every turn was pinned: none of them was a first turn");
    }
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
    let again = world.client().chat(Some(&key), "again").await.unwrap();
    assert_eq!(again.slot(), Some(slot), "{steering:?}, {fault}");
}

/// A first turn in which every attempt meets the fault.
async fn fail_once(world: &World, key: &str, fault: &str) {
    let client = Client::impatient(world.envoy().address(), Duration::from_millis(700)).unwrap();
    let answer = send(client.chat_request(Some(key), "first").header("x-fake-fault", fault)).await;
    match fault {
        "hang" => assert!(answer.is_err(), "a hung engine answered: {answer:?}"),
        _ => assert_eq!(answer.unwrap().status, 503),
    }
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
