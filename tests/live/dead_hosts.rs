//! Hosts that are gone, and come back: how often Envoy dials them, and what that costs turns that are not theirs.

use std::time::Instant;

use e2e::{EngineSpec, Steering, WorldPlan};

use crate::support::{
    BOTH, bound_to, comes_home, nothing_in_flight, refuses, served, state, three_engines, turn, unprobed,
};

const POOL: &str = "rankpin-pool-default";

/// F7: ten times gone and back. Every turn is answered, no count is off afterwards, and the worker is taken back.
#[tokio::test]
async fn flapping_ten_times() {
    for steering in BOTH {
        let plan = WorldPlan::new(steering, &three_engines()).probes_every_ms(100);
        let world = plan.start().await.unwrap();
        let client = world.client();
        let (mut unanswered, mut slow) = (0, 0);
        for flap in 0..10 {
            refuses(&world, "w0").await;
            let begun = Instant::now();
            for n in 0..6 {
                let turn = client.chat(Some(&format!("flap-{n}")), "x").await.unwrap();
                assert!([200, 503].contains(&turn.status), "{steering:?}, {flap}: {}", turn.status);
                unanswered += u64::from(turn.status != 200);
            }
            // A filter remembers a refusal for a second: in each one more may meet it.
            slow += begun.elapsed().as_secs();
            world.engine("w0").open().await.unwrap();
        }
        let allowed = if steering == Steering::Endpoints { 0 } else { 10 + slow };
        assert!(unanswered <= allowed, "{steering:?}: {unanswered} of 60 turns failed");
        state(&world, "w0", "ready").await;
        nothing_in_flight(&world).await;
    }
}

/// Envoy's own fallback, without the filter: whoever hashes to the dead host is served by another at the second dial.
#[tokio::test]
async fn the_default_route_dials_a_dead_host_once() {
    for steering in BOTH {
        let plan = unprobed(steering).cold().edit(|config| {
            config.without_filter();
            Ok(())
        });
        let mut world = plan.start().await.unwrap();
        let dead = world.engine("w0").address();
        world.engines[0].kill();
        let client = world.client();
        let dials =
            async || world.envoy().host_stat("rankpin-default", dead, "cx_connect_fail").await.unwrap();
        let mut met = 0;
        for n in 0..40 {
            let before = dials().await;
            served(&client.chat(Some(&format!("hashed-{n}")), "x").await.unwrap());
            let dialled = dials().await - before;
            assert!(dialled <= 1, "{steering:?}: a request dialled the dead host {dialled} times");
            met += dialled;
        }
        assert!(met > 0, "{steering:?}: no session hashed to the dead host");
    }
}

/// Behind the endpoint list the same: it names the dead worker alone, since the other one just said it is busy, and the
/// fallback finds that other one. Several times, as half of all sessions hash there anyway.
#[tokio::test]
async fn the_fallback_behind_the_list_dials_a_dead_host_once() {
    let engines = [EngineSpec::new("w0", 1), EngineSpec::new("w1", 1)];
    let plan = WorldPlan::new(Steering::Endpoints, &engines).probes_every_ms(0).threads(1);
    let world = plan.start().await.unwrap();
    let (other, _) = bound_to(&world, "w1").await;
    let (client, dead) = (world.client(), world.engine("w0").address());
    for _ in 0..5 {
        let (key, home) = bound_to(&world, "w0").await;
        world.engine("w1").fault("429=10", Some(1)).await.unwrap();
        assert_eq!(turn(&client, &other).await.worker, "w0");
        refuses(&world, "w0").await;
        let before = world.envoy().host_stat(POOL, dead, "cx_connect_fail").await.unwrap();
        assert_eq!(turn(&client, &key).await.worker, "w1");
        let dialled = world.envoy().host_stat(POOL, dead, "cx_connect_fail").await.unwrap() - before;
        assert_eq!(dialled, 1, "{key}: dials of the dead host");
        world.engine("w0").open().await.unwrap();
        comes_home(&world, &key, &home).await;
    }
}
