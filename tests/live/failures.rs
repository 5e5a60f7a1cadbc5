//! What becomes of a bound session's turn when its worker fails, row by row of the failure table, and what becomes of its
//! binding: in both steering modes, since only endpoints steering can serve the same turn elsewhere.

use std::time::{Duration, Instant};

use e2e::client::{Slot, send};
use e2e::raw::Raw;
use e2e::{Client, Steering, World, WorldPlan, wait_for};
use serde_json::Value;

use crate::support::{
    BOTH, asked, binding, bound_to, comes_home, in_flight, nothing_in_flight, rank_is_its_own, refuses,
    served, stream, streamed_by, streaming, three_engines, turn, unprobed,
};

/// For so long a filter remembers that nobody could be reached at a worker.
const REMEMBERED: Duration = Duration::from_secs(1);
/// A turn, and a look at what became of it, that took this long.
const SLOW: Duration = Duration::from_millis(300);

/// F1, the first half. Under cluster steering a turn can only go to its own worker: one turn pays, the next ones do not.
#[tokio::test]
async fn killed() {
    for steering in BOTH {
        let plan = WorldPlan::new(steering, &three_engines()).probes_every_ms(500);
        let mut world = plan.start().await.unwrap();
        let (key, home) = bound_to(&world, "w0").await;
        let client = world.client();
        world.engines[0].kill();
        let (mut failed, mut slow, mut begun) = (0, 0, Instant::now());
        wait_for("the session to be bound elsewhere", async || {
            slow += usize::from(begun.elapsed() >= SLOW);
            begun = Instant::now();
            let turn = client.chat(Some(&key), "again").await.unwrap();
            if turn.status == 200 {
                let slot = turn.slot().unwrap();
                assert_ne!(slot.worker, home.worker);
                rank_is_its_own(&world, &slot).await;
            } else {
                assert_eq!(turn.status, 503);
                failed += 1;
            }
            (binding(&world, &key).await.worker != home.worker).then_some(())
        })
        .await
        .unwrap();
        // Who is so slow that the filter has forgotten it, or the service not heard of it, meets it again.
        let allowed = if steering == Steering::Endpoints { 0 } else { 1 + slow };
        assert!(failed <= allowed, "{steering:?}: {failed} turns failed");
        let moved = turn(&client, &key).await;
        assert_eq!(moved.worker, binding(&world, &key).await.worker);
        for _ in 0..3 {
            assert_eq!(turn(&client, &key).await, moved, "{steering:?}: it moved more than once");
        }
    }
}

#[tokio::test]
async fn removed() {
    for steering in BOTH {
        let world = unprobed(steering).start().await.unwrap();
        let (key, home) = bound_to(&world, "w0").await;
        let before = binding(&world, &key).await;
        world.service.remove("w0").await.unwrap();
        let client = world.client();
        // The filter hears of it a moment later; whenever it does, no turn fails.
        wait_for("the session to leave the removed worker", async || {
            (turn(&client, &key).await.worker != home.worker).then_some(())
        })
        .await
        .unwrap();
        let moved = turn(&client, &key).await;
        rank_is_its_own(&world, &moved).await;
        let after = binding(&world, &key).await;
        assert_eq!(after.worker, moved.worker, "{steering:?}");
        assert_ne!(after.version, before.version);
        assert_eq!(turn(&client, &key).await, moved);
        assert_eq!(binding(&world, &key).await.version, after.version, "{steering:?}: it moved twice");
    }
}

/// F2: the wait is bounded by Envoy's idle limit, and nobody else waits.
#[tokio::test]
async fn hung() {
    tokio::join!(hangs(Steering::Cluster), hangs(Steering::Endpoints));
}

async fn hangs(steering: Steering) {
    let world = unprobed(steering).edit(|config| config.idle_after("5s")).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let (other, elsewhere) = bound_to(&world, "w1").await;
    let before = binding(&world, &key).await;
    world.forget().await.unwrap();
    world.engine("w0").fault("hang", Some(1)).await.unwrap();
    let client = world.client();
    let (hung, ()) = tokio::join!(client.chat(Some(&key), "are you there?"), async {
        wait_for("the worker to have the turn", async || {
            (!world.engine("w0").requests().await.ok()?.is_empty()).then_some(())
        })
        .await
        .unwrap();
        assert_eq!(turn(&world.client(), &other).await, elsewhere, "{steering:?}");
    });
    assert_eq!(hung.unwrap().status, 504, "{steering:?}");
    assert_eq!(asked(&world, "w0").await, 1, "{steering:?}: it was repeated");
    stays_home(&world, &key, &home, &before.version).await;
}

#[tokio::test]
async fn refusing() {
    for steering in BOTH {
        let world = unprobed(steering).start().await.unwrap();
        let (key, home) = bound_to(&world, "w0").await;
        let before = binding(&world, &key).await;
        refuses(&world, "w0").await;
        let client = world.client();
        let mut paid = Instant::now();
        if steering == Steering::Cluster {
            assert_eq!(client.chat(Some(&key), "one pays").await.unwrap().status, 503);
        }
        let away = loop {
            let next = client.chat(Some(&key), "the next does not").await.unwrap();
            if steering == Steering::Endpoints || next.status != 503 || paid.elapsed() < REMEMBERED {
                break served(&next);
            }
            // It came so late that it was the first to pay again.
            paid = Instant::now();
        };
        assert_ne!(away.worker, home.worker, "{steering:?}");
        rank_is_its_own(&world, &away).await;
        world.engine("w0").open().await.unwrap();
        comes_home(&world, &key, &home).await;
        assert_eq!(binding(&world, &key).await, before, "{steering:?}: a refused connection moved it");
        nothing_in_flight(&world).await;
    }
}

/// The generation may have run: a reset is not repeated unless the operator says so.
#[tokio::test]
async fn reset_before_the_answer() {
    for steering in BOTH {
        // Envoy's own 503: no engine said it.
        let (world, key, home) = passes_on(steering, "reset", 503).await;
        // Whether that worker is still there is not known: for a moment its turns are served elsewhere.
        comes_home(&world, &key, &home).await;
        nothing_in_flight(&world).await;
    }
}

#[tokio::test]
async fn unavailable_once() {
    for steering in BOTH {
        let world = unprobed(steering).start().await.unwrap();
        let (key, home) = bound_to(&world, "w0").await;
        let before = binding(&world, &key).await;
        world.engine("w0").fault("503", Some(1)).await.unwrap();
        let slot = turn(&world.client(), &key).await;
        rank_is_its_own(&world, &slot).await;
        // The alternates are elsewhere; a worker's own cluster has but the worker.
        assert_eq!(slot == home, steering == Steering::Cluster, "{steering:?}: served by {slot}");
        // Whether it is there again is not known: for a moment its turns are served elsewhere.
        comes_home(&world, &key, &home).await;
        assert_eq!(
            binding(&world, &key).await.version,
            before.version,
            "{steering:?}: the failure moved the binding"
        );
        nothing_in_flight(&world).await;
    }
}

#[tokio::test]
async fn failing_at_once() {
    for steering in BOTH {
        let (world, key, home) = passes_on(steering, "500", 500).await;
        for status in [502, 504] {
            passed_on(&world, &key, &status.to_string(), status).await;
        }
        assert_eq!(turn(&world.client(), &key).await, home, "{steering:?}");
        nothing_in_flight(&world).await;
    }
}

/// A session of w0, and its turn under that fault.
async fn passes_on(steering: Steering, fault: &str, status: u16) -> (World, String, Slot) {
    let world = unprobed(steering).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    passed_on(&world, &key, fault, status).await;
    (world, key, home)
}

/// Asserts that the fault is passed to the client, asked for once, and leaves the binding as it is.
async fn passed_on(world: &World, key: &str, fault: &str, status: u16) {
    let before = binding(world, key).await;
    world.forget().await.unwrap();
    world.engine("w0").fault(fault, Some(1)).await.unwrap();
    let failed = world.client().chat(Some(key), "hello?").await.unwrap();
    assert_eq!(failed.status, status, "{fault}");
    let seen = [asked(world, "w0").await, asked(world, "w1").await, asked(world, "w2").await];
    assert_eq!(seen, [1, 0, 0], "{fault}: it was repeated");
    assert_eq!(binding(world, key).await, before, "{fault}: the failure moved the binding");
}

/// F1, the second half: the client sees the break once, the next turn is where it was.
#[tokio::test]
async fn dying_mid_stream() {
    for steering in BOTH {
        let world = unprobed(steering).start().await.unwrap();
        let (key, home) = bound_to(&world, "w0").await;
        let before = binding(&world, &key).await;
        world.forget().await.unwrap();
        world.engine("w0").fault("die-mid-stream", Some(1)).await.unwrap();
        let mut broken = stream(&world, 0, Some(&key)).await;
        assert_eq!(streamed_by(&broken), "w0");
        broken.ended().await.unwrap();
        assert!(
            !String::from_utf8_lossy(broken.seen()).contains("[DONE]"),
            "{steering:?}: the break is hidden"
        );
        let seen = [asked(&world, "w0").await, asked(&world, "w1").await, asked(&world, "w2").await];
        assert_eq!(seen, [1, 0, 0], "{steering:?}: it was repeated");
        stays_home(&world, &key, &home, &before.version).await;
    }
}

/// An answer is an answer: it binds a new session, and moves no bound one.
#[tokio::test]
async fn refused_by_the_engine_as_wrong() {
    let steering = Steering::Endpoints;
    let world = unprobed(steering).start().await.unwrap();
    let wrong = |client: &Client| client.chat_request(Some("wrong"), "x").body(r#"{"model":"tiny"}"#);
    let client = world.client();
    for n in 0..2 {
        let turn = send(wrong(&client)).await.unwrap();
        assert_eq!(turn.status, 400, "{steering:?}, turn {n}");
    }
    let bound = binding(&world, "wrong").await;
    let slot = turn(&client, "wrong").await;
    assert_eq!(slot.worker, bound.worker);
    assert_eq!(binding(&world, "wrong").await, bound, "{steering:?}");
}

/// The next turns are at home under the same binding, and nothing is left in flight.
async fn stays_home(world: &World, key: &str, home: &Slot, version: &Value) {
    let client = world.client();
    for n in 0..2 {
        assert_eq!(&turn(&client, key).await, home, "turn {n} after the failure");
    }
    assert_eq!(&binding(world, key).await.version, version, "the failure moved the binding");
    nothing_in_flight(world).await;
}

/// A stream to look at, half sent: nothing of it is counted once its client is gone.
#[tokio::test]
async fn given_up_before_the_body_is_sent() {
    let steering = Steering::Cluster;
    let world = unprobed(steering).start().await.unwrap();
    let (key, _) = bound_to(&world, "w0").await;
    let bytes = streaming(Some(&key), 4);
    let mut client = Raw::connect(world.envoy().address()).await.unwrap();
    client.send(&bytes[..bytes.len() - 10]).await.unwrap();
    in_flight(&world, "w0", 1).await;
    client.reset().unwrap();
    nothing_in_flight(&world).await;
}
