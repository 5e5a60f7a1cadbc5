//! The other policies: each pins as the default does, and spreads what has no session as its definition says.

use std::collections::BTreeSet;

use e2e::{EngineSpec, Steering, WorldPlan, wait_for};
use tokio::task::JoinSet;

const POLICIES: [&str; 4] = ["round_robin", "random", "power_of_two", "device_aware"];

#[tokio::test]
async fn every_policy_pins_a_session_to_its_worker_and_rank() {
    for policy in POLICIES {
        let steering = if policy.starts_with('r') { Steering::Cluster } else { Steering::Endpoints };
        let engines = [EngineSpec::new("w0", 4).from(4), EngineSpec::new("w1", 4).from(4)];
        let world = WorldPlan::new(steering, &engines).policy(policy).start().await.unwrap();
        let client = world.client();
        for (key, rank) in [("session-1", 5), ("conv-42", 6), ("s", 7)] {
            let mut slots = BTreeSet::new();
            for turn in 0..3 {
                let turn = client.chat(Some(key), &format!("turn {turn}")).await.unwrap();
                assert_eq!(turn.status, 200, "{policy}");
                slots.insert(turn.slot().unwrap());
            }
            assert_eq!(slots.len(), 1, "{policy}: {key} was on {slots:?}");
            assert_eq!(slots.first().unwrap().rank, Some(rank), "{policy}: {key}");
        }
        let pinned = world.envoy().requests("pinned").await.unwrap();
        assert_eq!(pinned, 6, "{policy}: two of three turns of each session ask nobody");
    }
}

#[tokio::test]
async fn a_failed_first_turn_binds_nothing_under_any_policy() {
    for policy in POLICIES {
        let world = WorldPlan::new(Steering::Cluster, &[EngineSpec::new("w0", 4)])
            .policy(policy)
            .start()
            .await
            .unwrap();
        world.engine("w0").fault("500", Some(1)).await.unwrap();
        let failed = world.client().chat(Some("unlucky"), "hello").await.unwrap();
        assert_eq!(failed.status, 500, "{policy}");
        wait_for("the failed hold to go", async || {
            (world.service.session("unlucky").await.ok()?.status == 404).then_some(())
        })
        .await
        .unwrap();
        let next = world.client().chat(Some("unlucky"), "hello").await.unwrap();
        assert_eq!(next.status, 200, "{policy}");
        assert_eq!(world.envoy().requests("rolled_back").await.unwrap(), 1, "{policy}");
    }
}

/// The cursor is one for all threads of an Envoy, so the turns are exact.
#[tokio::test]
async fn round_robin_is_even_over_two_threads() {
    let engines: Vec<EngineSpec> = (0..4).map(|n| EngineSpec::new(&format!("w{n}"), 1)).collect();
    let world = WorldPlan::new(Steering::Endpoints, &engines).policy("round_robin").start().await.unwrap();
    let mut plays = JoinSet::new();
    for client in (0..8).map(|_| world.client()) {
        plays.spawn(async move {
            for n in 0..150 {
                assert_eq!(client.chat(None, &format!("question {n}")).await.unwrap().status, 200);
            }
        });
    }
    plays.join_all().await;
    for engine in &world.engines {
        let served = engine.requests().await.unwrap().len();
        assert!((298..=302).contains(&served), "{} served {served} of 1200", engine.name());
    }
}
