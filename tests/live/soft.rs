//! Soft affinity: a session leaves its worker exactly when that carries too much more than the best one, and by default takes
//! no rank along. Hard never leaves by load, off keeps nothing.

use e2e::raw::Raw;
use e2e::{EngineSpec, Steering, World, WorldPlan};
use routing::hash::{hashed_rank, rank_hash};
use routing::header::VLLM_RANK;
use serde_json::{Value, json};

use crate::support::{
    binding, in_flight, nothing_in_flight, rank_is_its_own, stream, streamed_by, three_engines, turn,
};

/// Two workers whose long answers are long, before one Envoy thread: its own counts are the whole truth.
fn pair(steering: Steering, pool: Value) -> WorldPlan {
    let slow = ["--decode-us-per-token", "20000"];
    let engines = [EngineSpec::new("w0", 4).with(&slow), EngineSpec::new("w1", 4).from(4).with(&slow)];
    WorldPlan::new(steering, &engines).probes_every_ms(0).threads(1).pool(pool)
}

/// A session that nothing was sent for yet, of which the first stream is on `worker`.
async fn first_stream(world: &World, worker: &str, carried: u64) -> (String, Raw) {
    for n in 0..100 {
        let key = format!("soft-{worker}-{n}");
        let opened = stream(world, 0, Some(&key)).await;
        if streamed_by(&opened) == worker {
            in_flight(world, worker, carried + 1).await;
            return (key, opened);
        }
        let elsewhere = streamed_by(&opened);
        let before = world.service.in_flight(&elsewhere).await.unwrap();
        drop(opened);
        in_flight(world, &elsewhere, before.saturating_sub(1)).await;
    }
    panic!("100 new sessions and none on {worker}");
}

/// Opens streams of a session until `worker` carries so many; asserts that none goes elsewhere.
async fn fill(world: &World, key: &str, worker: &str, open: &mut Vec<Raw>, wanted: u64) {
    while world.service.in_flight(worker).await.unwrap() < wanted {
        let carried = world.service.in_flight(worker).await.unwrap();
        let opened = stream(world, 0, Some(key)).await;
        assert_eq!(streamed_by(&opened), worker, "it left with {carried} on its worker");
        open.push(opened);
        in_flight(world, worker, carried + 1).await;
    }
}

/// C3: margins 1.0 and 1.5. With two in flight on the best worker, a session stays beside 4 or 5 and leaves beside one more.
#[tokio::test]
async fn it_moves_exactly_past_the_margin() {
    for (steering, percent, most) in [(Steering::Cluster, 100, 4), (Steering::Endpoints, 150, 5)] {
        let pool = json!({"affinity": "soft", "soft_margin_percent": percent});
        let world = pair(steering, pool).start().await.unwrap();
        let (other, opened) = first_stream(&world, "w1", 0).await;
        let mut open = vec![opened];
        fill(&world, &other, "w1", &mut open, 2).await;
        let (key, opened) = first_stream(&world, "w0", 0).await;
        open.push(opened);
        fill(&world, &key, "w0", &mut open, most + 1).await;
        let before = binding(&world, &key).await;
        let moved = stream(&world, 0, Some(&key)).await;
        assert_eq!(streamed_by(&moved), "w1", "{steering:?}, {percent} %: it stayed beside {}", most + 1);
        in_flight(&world, "w1", 3).await;
        let after = binding(&world, &key).await;
        assert_eq!((after.worker.as_str(), before.worker.as_str()), ("w1", "w0"));
        assert_ne!(after.version, before.version);
        // And there it is from now on.
        assert_eq!(turn(&world.client(), &key).await.worker, "w1");
        drop((open, moved));
        nothing_in_flight(&world).await;
    }
}

/// A move whose turn fails moved nothing.
#[tokio::test]
async fn a_move_that_fails_leaves_the_binding() {
    let steering = Steering::Endpoints;
    let world = pair(steering, json!({"affinity": "soft"})).start().await.unwrap();
    let (key, opened) = first_stream(&world, "w0", 0).await;
    let mut open = vec![opened];
    fill(&world, &key, "w0", &mut open, 3).await;
    let before = binding(&world, &key).await;
    world.engine("w1").fault("500", Some(1)).await.unwrap();
    let failed = world.client().chat(Some(&key), "move").await.unwrap();
    assert_eq!(failed.status, 500, "{steering:?}: it did not try to move");
    open.clear();
    nothing_in_flight(&world).await;
    assert_eq!(binding(&world, &key).await, before, "{steering:?}");
    assert_eq!(turn(&world.client(), &key).await.worker, "w0");
}

#[tokio::test]
async fn hard_never_moves_by_load() {
    let steering = Steering::Cluster;
    let world = pair(steering, json!({"affinity": "hard"})).start().await.unwrap();
    let (key, opened) = first_stream(&world, "w0", 0).await;
    let mut open = vec![opened];
    fill(&world, &key, "w0", &mut open, 12).await;
    assert_eq!(turn(&world.client(), &key).await.worker, "w0", "{steering:?}");
}

/// The worker is kept and the rank is the engine's; `rank` says otherwise in either direction.
#[tokio::test]
async fn who_sends_a_rank() {
    for (steering, affinity, rank, sent) in [
        (Steering::Cluster, "soft", "auto", false),
        (Steering::Endpoints, "soft", "auto", false),
        (Steering::Endpoints, "soft", "pinned", true),
        (Steering::Endpoints, "hard", "engine", false),
    ] {
        let pool = json!({"affinity": affinity, "rank": rank});
        let world = WorldPlan::new(steering, &three_engines()).pool(pool).start().await.unwrap();
        let client = world.client();
        for n in 0..6 {
            let key = format!("ranked-{n}");
            let first = turn(&client, &key).await;
            for _ in 0..2 {
                assert_eq!(turn(&client, &key).await.worker, first.worker, "{affinity}: it moved");
            }
            let bound = binding(&world, &key).await;
            let start = if first.worker == "w1" { 4 } else { 0 };
            let hashed = hashed_rank(rank_hash(key.as_bytes()), start, 4).map(|rank| u64::from(rank.0));
            let expected = hashed.filter(|_| sent && first.worker != "w2");
            assert_eq!(
                (bound.worker.as_str(), bound.rank),
                (first.worker.as_str(), expected),
                "{affinity}, {rank}"
            );
            if sent {
                rank_is_its_own(&world, &first).await;
            }
        }
        for engine in &world.engines {
            for seen in engine.requests().await.unwrap() {
                let carries = !seen.values(VLLM_RANK).is_empty();
                assert_eq!(carries, sent && engine.name() != "w2", "{steering:?}, {affinity}, {rank}");
            }
        }
    }
}

/// A run of failures is left at once while another worker is well.
#[tokio::test]
async fn a_suspect_worker_is_left() {
    let steering = Steering::Endpoints;
    let world = pair(steering, json!({"affinity": "soft"})).start().await.unwrap();
    let (key, opened) = first_stream(&world, "w0", 0).await;
    drop(opened);
    nothing_in_flight(&world).await;
    world.engine("w0").fault("500", None).await.unwrap();
    let client = world.client();
    let mut failed = 0;
    e2e::wait_for("the session to leave", async || {
        let turn = client.chat(Some(&key), "x").await.unwrap();
        failed += usize::from(turn.status == 500);
        (turn.status == 200).then_some(())
    })
    .await
    .unwrap();
    // Three in a row make it suspect; a few more may pass until the filter has heard.
    assert!(failed <= 20, "{steering:?}: {failed} turns failed before it was left");
    assert_eq!(turn(&client, &key).await.worker, "w1");
}

/// No session state at all.
#[tokio::test]
async fn off_keeps_nothing() {
    let steering = Steering::Cluster;
    let pool = json!({"affinity": "off"});
    let world = WorldPlan::new(steering, &three_engines()).pool(pool).start().await.unwrap();
    let mut workers = std::collections::BTreeSet::new();
    e2e::wait_for("all three workers to have served it", async || {
        workers.insert(turn(&world.client(), "nobody").await.worker);
        (workers.len() == 3).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(world.service.session("nobody").await.unwrap().status, 404);
    nothing_in_flight(&world).await;
}
