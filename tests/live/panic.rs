//! A VM of the filter dies: the streams of its thread end, those of others do not, and nothing of the dead stays counted.
//! Uses a build of the filter that has a trap in it; what is shipped has none.

use std::time::{Duration, Instant};

use e2e::raw::Raw;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, artifacts, wait_for};
use tokio::task::JoinSet;

use crate::support::{gauges, in_flight, nothing_in_flight, served, stream};

/// Ends the VM that sees it, in the test build alone.
const TRAP: &str = "x-rankpin-test-trap";
/// What the product promises; printed beside the measurement, not asserted.
const PROMISED: Duration = Duration::from_secs(2);
/// Streams held on each thread at least.
const EACH: u64 = 3;

fn trapped(steering: Steering) -> WorldPlan {
    let engine = EngineSpec::new("w0", 4).with(&["--decode-us-per-token", "20000"]);
    let plan = WorldPlan::new(steering, &[engine]).probes_every_ms(0);
    plan.edit(|config| config.wasm(&artifacts::trap_wasm()?))
}

#[tokio::test]
async fn its_streams_end_and_no_others() {
    let steering = Steering::Endpoints;
    let world = trapped(steering).start().await.unwrap();
    let streams = on_both_threads(&world).await;
    let held = streams.len();
    gauges(&world, 0, held as u64).await;
    in_flight(&world, "w0", held as u64).await;
    let before = active(&world).await;
    spring(&world).await;
    let died = Instant::now();
    let (dead, alive) = parted(streams, &before).await;
    assert!(dead > 0 && !alive.is_empty(), "{steering:?}: {dead} of {held} streams ended");
    in_flight(&world, "w0", alive.len() as u64).await;
    gauges(&world, 0, alive.len() as u64).await;
    println!("counts right {:?} after the VM died (promised: {PROMISED:?})", died.elapsed());
    still_flow(alive).await;
    nothing_in_flight(&world).await;
    serves_again(&world).await;
}

/// Streams until each of the two threads has some.
async fn on_both_threads(world: &World) -> Vec<Raw> {
    // What made this world warm has gone: from here on every connection is a stream.
    wait_for("no connections", async || (active(world).await.iter().sum::<u64>() == 0).then_some(()))
        .await
        .unwrap();
    let mut streams = Vec::new();
    while active(world).await.iter().any(|count| *count < EACH) {
        let session = format!("thread-{}", streams.len() % 4);
        let session = (streams.len() % 3 != 0).then_some(session.as_str());
        streams.push(stream(world, 0, session).await);
        assert!(streams.len() < 200, "one thread takes no connections: {:?}", active(world).await);
    }
    streams
}

/// Client connections of each thread.
async fn active(world: &World) -> Vec<u64> {
    let stats = world.envoy().stats("downstream_cx_active").await.unwrap();
    let own =
        stats.into_iter().filter(|(name, _)| name.starts_with("listener.127") && name.contains("worker_"));
    own.map(|(_, count)| count).collect()
}

async fn spring(world: &World) {
    let request = Client::fresh_connections(world.envoy().address()).unwrap().chat_request(None, "boom");
    let answer = request.header(TRAP, "1").send().await;
    let survived = answer.is_ok_and(|answer| answer.status().is_success());
    assert!(!survived, "the trap did not spring: is this the test build of the filter?");
}

/// How many streams ended, and those that did not: exactly one thread's share.
async fn parted(streams: Vec<Raw>, before: &[u64]) -> (usize, Vec<Raw>) {
    let (mut dead, mut alive) = (0, Vec::new());
    for mut one in streams {
        // A living one sends a token every 20 ms; a dead one has an end to read.
        match one.moves().await.unwrap() {
            true => alive.push(one),
            false => dead += 1,
        }
    }
    assert!(before.contains(&(dead as u64)), "{dead} streams ended, the threads had {before:?}");
    (dead, alive)
}

/// Goes on reading those left, and leaves them.
async fn still_flow(streams: Vec<Raw>) {
    let mut reading = JoinSet::new();
    for mut one in streams {
        reading.spawn(async move { one.moves().await.unwrap() });
    }
    assert!(reading.join_all().await.iter().all(|moved| *moved), "a stream of another thread broke");
}

/// Both threads, once Envoy has loaded the dead one's VM again.
async fn serves_again(world: &World) {
    let client = Client::fresh_connections(world.envoy().address()).unwrap();
    let mut in_a_row = 0;
    wait_for("sixteen answers in a row", async || {
        let turn = client.chat(Some("after"), "x").await.ok()?;
        in_a_row = if turn.status == 200 { in_a_row + 1 } else { 0 };
        (in_a_row == 16).then_some(())
    })
    .await
    .unwrap();
    let bound = served(&client.chat(Some("after"), "x").await.unwrap());
    assert_eq!(bound.worker, "w0");
}
