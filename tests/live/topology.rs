//! Workers come and go: a new one takes traffic, a removed one finishes what it has, a hung one is found and comes back,
//! and none of it leaves anything behind in Envoy.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use e2e::client::{CHAT, SESSION};
use e2e::raw::{Raw, request};
use e2e::scripted::Line;
use e2e::wait::{PATIENCE, wait_within};
use e2e::{Bootstrap, EngineSpec, Scripted, Steering, World, WorldPlan, wait_for};
use serde_json::json;

use crate::support::{gauges, stream};

const POOL: &str = "rankpin-pool-default";
/// What the product promises for a worker declared by the API; printed beside the measurement, not asserted.
const PROMISED: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_worker_declared_by_the_api_takes_traffic() {
    let mut world = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
    world.add_engine(EngineSpec::new("w1", 4).from(4)).await.unwrap();
    let client = world.client();
    world.service.register(world.engine("w1")).await.unwrap();
    let declared = Instant::now();
    let mut turns = 0;
    wait_within(Duration::from_secs(20), "a session placed on the new worker", async || {
        turns += 1;
        let turn = client.chat(Some(&format!("new-{turns}")), "hello").await.unwrap();
        assert_eq!(turn.status, 200, "while a worker is added");
        (turn.slot().unwrap().worker == "w1").then_some(())
    })
    .await
    .unwrap();
    println!("first turn on the new worker after {:?} (promised: {PROMISED:?})", declared.elapsed());
}

#[tokio::test]
async fn a_removed_worker_finishes_its_stream() {
    let worker = Scripted::start().await.unwrap();
    let world = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 1)])
        .probes_every_ms(0)
        .start()
        .await
        .unwrap();
    declare(&world, "held", worker.address().to_string()).await;
    members(&world, 2).await;
    let (mut client, mut line) = stream_on(&world, &worker).await;
    line.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: 1\n\n")
        .await
        .unwrap();
    world.service.remove("held").await.unwrap();
    members(&world, 1).await;
    told(&world, 1).await;
    line.write("data: 2\n\ndata: [DONE]\n\n").await.unwrap();
    drop(line);
    let answer = client.answer().await.unwrap();
    assert_eq!(answer.status(), 200);
    let body = String::from_utf8(answer.body).unwrap();
    for data in ["data: 1", "data: 2", "data: [DONE]"] {
        assert!(body.contains(data), "{data:?} is missing in {body:?}");
    }
}

/// Sends turns of new sessions until one of them is placed on the scripted worker, which then has its head.
async fn stream_on(world: &World, worker: &Scripted) -> (Raw, Line) {
    let body = json!({"model": "tiny", "stream": true, "max_tokens": 2,
        "messages": [{"role": "user", "content": "hello"}]})
    .to_string();
    let mut n = 0;
    loop {
        n += 1;
        let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: held-{n}\ncontent-type: application/json");
        let mut client = Raw::connect(world.envoy().address()).await.unwrap();
        client.send(request(&head, body.as_bytes())).await.unwrap();
        tokio::select! {
            answer = client.answer() => assert_eq!(answer.unwrap().status(), 200),
            line = worker.accept() => {
                let mut line = line.unwrap();
                line.head().await.unwrap();
                return (client, line);
            }
        }
    }
}

#[tokio::test]
async fn a_hung_worker_is_found_and_comes_back() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4)];
        let world = WorldPlan::new(steering, &engines).probes_every_ms(100).start().await.unwrap();
        let client = world.client();
        let bound = key_on(&world, "w0").await;
        world.engine("w0").fault("health-hang", None).await.unwrap();
        state(&world, "w0", "down").await;
        // The filter learns of it a moment later; then the session moves, and every turn is served meanwhile.
        wait_for("the bound session to move", async || {
            let turn = client.chat(Some(&bound), "still there?").await.unwrap();
            assert_eq!(turn.status, 200);
            (turn.slot().unwrap().worker == "w1").then_some(())
        })
        .await
        .unwrap();
        let mut workers = BTreeSet::new();
        for n in 0..20 {
            workers.insert(
                client.chat(Some(&format!("meanwhile-{n}")), "x").await.unwrap().slot().unwrap().worker,
            );
        }
        assert_eq!(Vec::from_iter(workers), ["w1"], "{steering:?}: a worker that is down was chosen");
        world.engine("w0").heal().await.unwrap();
        state(&world, "w0", "ready").await;
        world.warm_one(0, &world.names()).await.unwrap();
        let after = client.chat(Some(&bound), "and now?").await.unwrap();
        assert_eq!(after.slot().unwrap().worker, "w1", "a session that moved stays where it is");
    }
}

/// A session bound to that worker.
async fn key_on(world: &World, worker: &str) -> String {
    let client = world.client();
    for n in 0..100 {
        let key = format!("on-{worker}-{n}");
        if client.chat(Some(&key), "hello").await.unwrap().slot().unwrap().worker == worker {
            return key;
        }
    }
    panic!("100 new sessions and none on {worker}");
}

async fn state(world: &World, worker: &str, wanted: &str) {
    wait_for(&format!("{worker} to be {wanted}"), async || {
        (world.service.worker_state(worker).await.ok()? == wanted).then_some(())
    })
    .await
    .unwrap();
}

const ROUNDS: u16 = 20;
const WORKERS_A_ROUND: u16 = 50;

#[tokio::test]
async fn a_thousand_workers_added_and_removed_leave_no_statistics() {
    let engine = EngineSpec::new("w0", 4).with(&["--decode-us-per-token", "2000"]);
    let plan = WorldPlan::new(Steering::Endpoints, &[engine]).probes_every_ms(0);
    let world = plan.edit(poll_often).start().await.unwrap();
    let client = world.client();
    // Statistics that come with the first use are there after two rounds, and the gauge of its slot after a long turn.
    round(&world, 0).await;
    round(&world, 1).await;
    let long = stream(&world, 0, Some("counted")).await;
    gauges(&world, 0, 1).await;
    drop(long);
    let before = statistics(&world).await;
    for n in 2..ROUNDS + 2 {
        round(&world, n).await;
        // Bound before the workers came: it stays, and the filter takes every new topology in.
        assert_eq!(client.chat(Some("counted"), "x").await.unwrap().slot().unwrap().worker, "w0");
    }
    let after = statistics(&world).await;
    let grown: Vec<_> = after.difference(&before).collect();
    assert!(
        grown.is_empty(),
        "{} statistics more after {} workers: {grown:?}",
        grown.len(),
        ROUNDS * WORKERS_A_ROUND
    );
}

/// Twenty polls a second instead of two: the thousand shall not take ten minutes.
fn poll_often(config: &mut Bootstrap) -> anyhow::Result<()> {
    config.discovery_every("0.05s")
}

/// Fifty workers that Envoy and its filter see come and go.
async fn round(world: &World, n: u16) {
    for index in 0..WORKERS_A_ROUND {
        // Nobody dials them: new sessions wait until they are gone.
        let address = format!("127.9.{n}.{}:9", index + 1);
        declare(world, &format!("cycle-{n}-{index}"), address).await;
    }
    members(world, 1 + u64::from(WORKERS_A_ROUND)).await;
    told(world, 1 + usize::from(WORKERS_A_ROUND)).await;
    for index in 0..WORKERS_A_ROUND {
        world.service.remove(&format!("cycle-{n}-{index}")).await.unwrap();
    }
    members(world, 1).await;
    told(world, 1).await;
}

/// All names but those of what the service answered, by status: a slow answer is another one, and has nothing to do with workers.
async fn statistics(world: &World) -> BTreeSet<String> {
    let text = world.envoy().admin("/stats").await.unwrap();
    let names = text.lines().filter_map(|line| line.split_once(": ")).map(|(name, _)| name.to_owned());
    names.filter(|name| !is_status_of_service(name)).collect()
}

/// `cluster.rankpin-service.[internal.]upstream_rq_504` and `…_5xx`.
fn is_status_of_service(name: &str) -> bool {
    let status = name.rsplit_once(".upstream_rq_").map_or("", |(_, status)| status);
    name.starts_with("cluster.rankpin-service.")
        && status.len() == 3
        && status.starts_with(|c: char| c.is_ascii_digit())
}

async fn declare(world: &World, id: &str, address: String) {
    let declaration = json!({"endpoints": [{"address": address, "dp_size": 8}]}).to_string();
    let said = world.service.call("PUT", &format!("/v1/workers/{id}"), Some(&declaration)).await.unwrap();
    assert_eq!(said.status, 201, "{said:?}");
}

/// Until Envoy's pool has so many endpoints.
async fn members(world: &World, count: u64) {
    let name = format!("cluster.{POOL}.membership_total");
    wait_within(PATIENCE, &format!("{count} endpoints"), async || {
        (world.envoy().stat(&name).await.ok()? == count).then_some(())
    })
    .await
    .unwrap();
}

/// Until the service tells the filters of so many workers.
async fn told(world: &World, count: usize) {
    wait_for(&format!("{count} workers in the topology"), async || {
        (world.service.topology(&World::node(0)).await.ok()?.len() == count).then_some(())
    })
    .await
    .unwrap();
}
