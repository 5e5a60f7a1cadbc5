//! Requests in flight by slot: right while they run, nothing left however they end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use e2e::client::{CHAT, SESSION};
use e2e::raw::{Raw, request};
use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{
    BOTH, binding, bound_to, gauges, nothing_in_flight, stream, streaming, three_engines, turn, unknown,
    unprobed,
};

/// Three engines whose long answers are long.
fn slow(steering: Steering) -> WorldPlan {
    let slow = ["--decode-us-per-token", "20000"];
    let engines = three_engines().map(|engine| engine.with(&slow));
    WorldPlan::new(steering, &engines).probes_every_ms(0)
}

/// Each slot's gauge is that of the requests its rank serves; the service's view of a worker names the same gauges.
#[tokio::test]
async fn each_slot_has_its_own() {
    for steering in BOTH {
        let world = slow(steering).start().await.unwrap();
        let mut streams = Vec::new();
        let mut expected = BTreeMap::new();
        for n in 0..24 {
            let session = format!("slot-{}", n % 12);
            let opened = stream(&world, 0, (n % 4 != 3).then_some(session.as_str())).await;
            let worker = opened.header("x-engine-name").unwrap();
            // Without a session, or where there is but one rank, no rank is counted.
            let rank = opened.header("x-engine-rank").filter(|_| n % 4 != 3 && worker != "w2");
            *expected.entry((worker, rank.map(|rank| rank.parse().unwrap()))).or_insert(0) += 1;
            streams.push(opened);
        }
        gauges(&world, 0, 24).await;
        let counted = world.in_flight(0).await.unwrap().into_iter().filter(|(_, count)| *count > 0);
        let counted: BTreeMap<_, u64> =
            counted.map(|(slot, count)| ((slot.worker, slot.rank), count)).collect();
        assert_eq!(counted, expected, "{steering:?}");
        the_service_says_the_same(&world).await;
        for (n, opened) in streams.into_iter().enumerate() {
            if n.is_multiple_of(2) {
                opened.reset().unwrap();
            }
        }
        nothing_in_flight(&world).await;
    }
}

/// Each worker's slots in `GET /v1/workers/ID`: the gauge's name, and in flight what that gauge says.
async fn the_service_says_the_same(world: &World) {
    let names = world.service.gauges(&World::node(0)).await.unwrap();
    let counts = world.in_flight(0).await.unwrap();
    for engine in &world.engines {
        let expected: BTreeSet<(Option<u64>, String, u64)> = names
            .iter()
            .filter(|(slot, _)| slot.worker == engine.name())
            .map(|(slot, name)| (slot.rank.map(u64::from), name.clone(), counts[slot]))
            .collect();
        wait_for("the service to say the same", async || {
            let said =
                world.service.call("GET", &format!("/v1/workers/{}", engine.name()), None).await.ok()?;
            let slot = |slot: &Value| {
                let gauge = slot["gauge"].as_str()?.to_owned();
                Some((slot["rank"].as_u64(), gauge, slot["in_flight"].as_u64()?))
            };
            let slots: Option<BTreeSet<_>> = said.body["slots"].as_array()?.iter().map(slot).collect();
            (slots? == expected).then_some(())
        })
        .await
        .unwrap();
    }
}

/// Envoy gives up a stream on which nothing moves, before its answer and after.
#[tokio::test]
async fn timed_out() {
    tokio::join!(times_out(Steering::Cluster), times_out(Steering::Endpoints));
}

async fn times_out(steering: Steering) {
    let world = unprobed(steering).edit(|config| config.idle_after("10s")).start().await.unwrap();
    let (key, _) = bound_to(&world, "w0").await;
    world.engine("w0").fault("hang", Some(4)).await.unwrap();
    let client = world.client();
    let mut waiting = JoinSet::new();
    for _ in 0..4 {
        let (client, key) = (client.clone(), key.clone());
        waiting.spawn(async move { client.chat(Some(&key), "are you there?").await.unwrap().status });
    }
    gauges(&world, 0, 4).await;
    assert_eq!(waiting.join_all().await, [504; 4], "{steering:?}");
    nothing_in_flight(&world).await;
}

#[tokio::test]
async fn reset_by_the_engine() {
    for steering in BOTH {
        let world = unprobed(steering).start().await.unwrap();
        for fault in ["reset", "die-mid-stream", "500"] {
            for engine in &world.engines {
                engine.fault(fault, Some(2)).await.unwrap();
            }
            let mut turns = JoinSet::new();
            for n in 0..12 {
                let client = world.client();
                // However it ends.
                turns.spawn(
                    async move { client.chat(Some(&format!("broken-{}", n % 7)), "x").await.map(drop) },
                );
            }
            turns.join_all().await;
            for engine in &world.engines {
                engine.heal().await.unwrap();
            }
        }
        nothing_in_flight(&world).await;
    }
}

/// A filter behind ours refuses the body: Envoy's own 413, after the turn was placed. Neither counted nor committed.
#[tokio::test]
async fn too_large() {
    let steering = Steering::Endpoints;
    let limit = json!({"name": "limit", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer", "max_request_bytes": 4096}});
    let plan = unprobed(steering).edit(move |config| {
        config.body_limit(4096)?;
        config.before_router(&limit)
    });
    let world = plan.start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let before = binding(&world, &key).await;
    for n in 0..3 {
        sends_too_much(&world, Some(&key)).await;
        sends_too_much(&world, None).await;
        let first = format!("large-{n}");
        sends_too_much(&world, Some(&first)).await;
        unknown(&world, &first).await;
    }
    assert_eq!(turn(&world.client(), &key).await, home, "{steering:?}");
    assert_eq!(binding(&world, &key).await, before, "{steering:?}");
    nothing_in_flight(&world).await;
}

/// A request whose body grows too large once it is placed.
async fn sends_too_much(world: &World, session: Option<&str>) {
    let key = session.map(|key| format!("\n{SESSION}: {key}")).unwrap_or_default();
    let bytes = request(&format!("POST {CHAT} HTTP/1.1{key}"), &[b'x'; 8_000]);
    let mut client = Raw::connect(world.envoy().address()).await.unwrap();
    let (now, later) = bytes.split_at(bytes.len() - 6_000);
    client.send(now).await.unwrap();
    gauges(world, 0, 1).await;
    client.send(later).await.unwrap();
    client.read_until("HTTP/1.1 413 ").await.unwrap();
    gauges(world, 0, 0).await;
}

const ABORTS: usize = 10_000;
const AT_ONCE: usize = 50;
const SESSIONS: usize = 97;
/// Far above what the aborts take anywhere; beyond it the test has failed, not the machine.
const ABORTS_MAX: Duration = Duration::from_secs(300);

/// Ten thousand clients that go away: before their body, before the answer, with a FIN and with a reset.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_aborts() {
    let sinks = [sink().await, sink().await];
    let named = [("s0".to_owned(), sinks[0]), ("s1".to_owned(), sinks[1])];
    let clusters = named.clone();
    let plan = WorldPlan::new(Steering::Endpoints, &[]).probes_every_ms(0).cold();
    let world = plan.edit(move |config| config.workers(&clusters)).start().await.unwrap();
    for (id, address) in &named {
        let body = json!({"endpoints": [{"address": address.to_string(), "dp_size": 4}]}).to_string();
        let said = world.service.call("PUT", &format!("/v1/workers/{id}"), Some(&body)).await.unwrap();
        assert_eq!(said.status, 201, "{said:?}");
    }
    placed(&world).await;
    let started = Instant::now();
    let mut aborting = JoinSet::new();
    for lane in 0..AT_ONCE {
        let to = world.envoy().address();
        aborting.spawn(async move {
            for n in (lane..ABORTS).step_by(AT_ONCE) {
                abort(to, n).await;
            }
        });
    }
    tokio::time::timeout(ABORTS_MAX, aborting.join_all()).await.expect("the aborts take minutes");
    println!("{ABORTS} aborts in {:?}", started.elapsed());
    let answered = world.envoy().stat("http.openai.downstream_rq_2xx").await.unwrap();
    assert!(answered >= ABORTS as u64 / 2, "only {answered} answers had begun");
    gauges(&world, 0, 0).await;
    for (id, _) in &named {
        crate::support::in_flight(&world, id, 0).await;
    }
    crate::support::nothing_held(&world).await;
}

/// One client that goes away: half of them once their answer has begun, the others before that; with a FIN or a reset.
async fn abort(to: std::net::SocketAddr, n: usize) {
    let mut client = Raw::connect(to).await.unwrap();
    let head =
        format!("POST {CHAT} HTTP/1.1\n{SESSION}: abort-{}\ncontent-type: application/json", n % SESSIONS);
    let bytes = request(&head, br#"{"model":"tiny","messages":[]}"#);
    let sent = if n % 4 == 3 { bytes.len() - 8 } else { bytes.len() };
    client.send(&bytes[..sent]).await.unwrap();
    if n.is_multiple_of(2) {
        client.read_until("data:").await.unwrap();
    }
    if n.is_multiple_of(3) {
        client.reset().unwrap();
    }
}

/// Until the filter places requests: one is in flight until its client goes away.
async fn placed(world: &World) {
    wait_for("a request to be placed", async || {
        let mut client = Raw::connect(world.envoy().address()).await.ok()?;
        client.send(streaming(Some("placed"), 1)).await.ok()?;
        let placed = world.envoy().requests("routed_held").await.ok()?;
        (placed > 0).then_some(())
    })
    .await
    .unwrap();
}

/// A worker that begins an answer to everything and never ends it; cheap enough for ten thousand.
async fn sink() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the runtime of the test.
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(begin(socket));
        }
    });
    address
}

async fn begin(mut socket: TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n";
    let (mut from, mut nowhere) = ([0; 1024], tokio::io::sink());
    // Its end is the client's doing, whenever it comes.
    if socket.read(&mut from).await.is_ok_and(|read| read > 0) && socket.write_all(head).await.is_ok() {
        let _ = tokio::io::copy(&mut socket, &mut nowhere).await;
    }
}

/// The gauges are the same few, whatever comes and goes.
#[tokio::test]
async fn numbers_are_given_again() {
    let world = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 4)]).probes_every_ms(0);
    let world = world.start().await.unwrap();
    let node = World::node(0);
    let declare = async |id: &str| {
        let body = json!({"endpoints": [{"address": "127.0.0.1:9", "dp_size": 8}]}).to_string();
        let said = world.service.call("PUT", &format!("/v1/workers/{id}"), Some(&body)).await.unwrap();
        assert_eq!(said.status, 201, "{said:?}");
        let gauges = wait_for("the worker in the topology", async || {
            let gauges = world.service.gauges(&node).await.ok()?;
            gauges.iter().any(|(slot, _)| slot.worker == id).then_some(gauges)
        });
        let gauges = gauges.await.unwrap();
        gauges.into_iter().filter(|(slot, _)| slot.worker == id).map(|(_, name)| name).collect::<Vec<_>>()
    };
    let first = declare("one").await;
    assert_eq!(first.len(), 9, "eight ranks and one for requests without");
    world.service.remove("one").await.unwrap();
    assert_eq!(declare("two").await, first);
}
