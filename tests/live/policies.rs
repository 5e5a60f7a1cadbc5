//! What every policy owes a session, `direct` too: its slot, nothing left of a turn that failed, nothing told before an
//! answer. And what has no session is spread as the policy's definition says.

use std::collections::BTreeSet;

use e2e::client::{Turn, send};
use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};
use routing::header::{SERVED, TARGET_WORKER};
use tokio::task::JoinSet;

use crate::support::{BOTH, nothing_in_flight, unknown};

const POLICIES: [&str; 7] =
    ["least_loaded", "session_hash", "round_robin", "random", "power_of_two", "device_aware", "direct"];

/// Two workers of ranks 4..7, a listener of trusted callers, clients told who served.
async fn world(policy: &'static str, steering: Steering) -> World {
    let engines = [EngineSpec::new("w0", 4).from(4), EngineSpec::new("w1", 4).from(4)];
    let plan = WorldPlan::new(steering, &engines).probes_every_ms(0).policy(policy);
    let plan = plan.edit(|config| config.trusted().and_then(|()| config.served_header()));
    let world = if policy == "direct" { plan.cold() } else { plan }.start().await.unwrap();
    for worker in ["w0", "w1"] {
        wait_for("a named worker to serve", async || {
            (first(&world, "direct", None, worker).await.status == 200).then_some(())
        })
        .await
        .unwrap();
    }
    world.forget().await.unwrap();
    world
}

/// A turn that names its worker where the policy wants that.
async fn first(world: &World, policy: &str, session: Option<&str>, worker: &str) -> Turn {
    let request = world.client().chat_request(session, "hello");
    send(if policy == "direct" { request.header(TARGET_WORKER, worker) } else { request }).await.unwrap()
}

#[tokio::test]
async fn three_turns_on_one_slot_and_nothing_left_of_failures() {
    for (n, policy) in POLICIES.iter().enumerate() {
        // Each mode has every other policy; `direct`, which names its target exactly, has both.
        let modes = if *policy == "direct" { &BOTH[..] } else { &BOTH[n % 2..=n % 2] };
        for steering in modes.iter().copied() {
            let world = world(policy, steering).await;
            for (key, rank) in [("session-1", 5), ("conv-42", 6), ("s", 7)] {
                three_turns(&world, policy, key, rank).await;
            }
            a_refused_request_leaves_nothing(&world, policy).await;
            a_failed_first_turn_binds_nothing(&world, policy, steering).await;
            nothing_in_flight(&world).await;
        }
    }
}

async fn three_turns(world: &World, policy: &str, key: &str, rank: u32) {
    let mut slots = BTreeSet::new();
    for n in 0..3 {
        let turn = match n {
            0 => first(world, policy, Some(key), "w1").await,
            _ => world.client().chat(Some(key), "go on").await.unwrap(),
        };
        assert_eq!(turn.status, 200, "{policy}: {}", String::from_utf8_lossy(&turn.body));
        let slot = turn.slot().unwrap();
        let told = turn.header(SERVED).expect("who served is not told");
        assert!(told.starts_with(&format!("{};rank={rank}", slot.worker)), "{policy}: {told:?} for {slot}");
        slots.insert(slot);
    }
    assert_eq!(slots.len(), 1, "{policy}: {key} was on {slots:?}");
    assert_eq!(slots.first().unwrap().rank, Some(rank), "{policy}: {key}");
}

async fn a_failed_first_turn_binds_nothing(world: &World, policy: &str, steering: Steering) {
    // Under `session_hash` nothing is held, so nothing is rolled back.
    for fault in ["500", "503", "reset"] {
        for engine in &world.engines {
            engine.fault(fault, None).await.unwrap();
        }
        let key = format!("unlucky-{fault}");
        let failed = first(world, policy, Some(&key), "w0").await;
        assert!(failed.status >= 500, "{policy}, {steering:?}, {fault}: {}", failed.status);
        assert_eq!(failed.header(SERVED), None, "{policy}, {fault}: told before an answer");
        unknown(world, &key).await;
        for engine in &world.engines {
            engine.heal().await.unwrap();
        }
        assert_eq!(
            first(world, policy, Some(&key), "w0").await.status,
            200,
            "{policy}, {steering:?}, {fault}"
        );
    }
}

async fn a_refused_request_leaves_nothing(world: &World, policy: &str) {
    world.forget().await.unwrap();
    let long = "k".repeat(257);
    let refused = first(world, policy, Some(&long), "w0").await;
    assert_eq!((refused.status, refused.header(SERVED)), (400, None), "{policy}");
    assert_eq!(world.service.session(&long).await.unwrap().status, 404, "{policy}");
    for engine in &world.engines {
        assert!(engine.requests().await.unwrap().is_empty(), "{policy}: it reached {}", engine.name());
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
