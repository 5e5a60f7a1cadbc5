//! Case G3 from the other side: an engine that answers anything at all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use e2e::client::{RESPONSES, SESSION};
use e2e::raw::{Raw, request};
use e2e::{EngineSpec, Steering, World, WorldPlan, artifacts, wait_for};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::proxy::Dice;
use crate::support::{comes_home, in_flight, nothing_in_flight, turn, vms};

const LANES: u64 = 16;
const REQUESTS_A_LANE: usize = 40;

const STATUSES: [&str; 12] =
    ["200", "200", "200", "200", "201", "204", "404", "429", "429", "500", "503", "599"];
const HEADERS: [&str; 12] = [
    "retry-after: 1",
    "retry-after: -1",
    "retry-after: 99999999999999999999",
    "retry-after: Wed, 21 Oct 2015 07:28:00 GMT",
    "retry-after: 0.5",
    "x-rankpin-served: w0;rank=1",
    "content-type: application/json",
    "content-type: text/event-stream",
    "content-encoding: gzip",
    "x-session-id: other",
    "x-data-parallel-rank: 99",
    "x-envoy-overloaded: true",
];
const BODIES: [&str; 7] = [
    r#"{"id":"resp_1","object":"response","output":[]}"#,
    "event: response.created\ndata: {\"response\":{\"id\":\"resp_2\"}}\n\ndata: [DONE]\n\n",
    "data: \ndata:\n\n:\n\ndata: {\"id\":",
    r#"{"id":7,"response":{"id":["x"]},"id":"twice","id":"\u0000\ud800"}"#,
    r#"[[[[[[[[[[[["#,
    "{\"id\":\"0123456789012345678901234567890123456789012345678901234567890123456789\"",
    "\u{feff}{\"id\":\"x\"}\r\n\r\n",
];

/// An engine that answers every request with something else; some answers never end, some break off.
async fn evil(asked: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the runtime of the test.
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((socket, _)) = listener.accept().await {
            number += 1;
            tokio::spawn(answer(socket, Dice::new(number), Arc::clone(&asked)));
        }
    });
    address
}

async fn answer(mut socket: TcpStream, mut dice: Dice, asked: Arc<AtomicUsize>) {
    let mut from = vec![0; 16 << 10];
    if !socket.read(&mut from).await.is_ok_and(|read| read > 0) {
        return;
    }
    asked.fetch_add(1, Ordering::Relaxed);
    let bytes = nonsense(&mut dice);
    for part in bytes.chunks(1 + dice.below(400)) {
        if socket.write_all(part).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    if dice.below(4) == 0 {
        // A reset in place of an end.
        let _ = socket.set_zero_linger();
    }
}

fn nonsense(dice: &mut Dice) -> Vec<u8> {
    if dice.below(8) == 0 {
        return dice.bytes(2_000);
    }
    let mut bytes = format!("HTTP/1.1 {} Whatever", STATUSES[dice.below(STATUSES.len())]).into_bytes();
    for _ in 0..dice.below(5) {
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(HEADERS[dice.below(HEADERS.len())].as_bytes());
    }
    let body = match dice.below(4) {
        0 => dice.bytes(90_000),
        1 => BODIES[dice.below(BODIES.len())].as_bytes().to_vec(),
        _ => dice.broken(&BODIES),
    };
    match dice.below(3) {
        0 => bytes.extend_from_slice(b"\r\ntransfer-encoding: chunked\r\n\r\n7\r\n"),
        1 => bytes.extend_from_slice(
            format!("\r\ncontent-length: {}\r\n\r\n", body.len() + dice.below(2)).as_bytes(),
        ),
        _ => bytes.extend_from_slice(b"\r\nconnection: close\r\n\r\n"),
    }
    bytes.extend(body);
    bytes
}

/// One honest engine behind a filter that reads answers.
async fn world() -> World {
    let plan = WorldPlan::new(Steering::Agents, &[EngineSpec::new("w0", 4)]).probes_every_ms(0);
    let full = plan.edit(|config| {
        config.wasm(&artifacts::module(artifacts::FULL_MODULE)?)?;
        config.served_header()?;
        config.plugin(|own| own["response_ids"] = json!(true))
    });
    full.start().await.unwrap()
}

/// Whatever an engine says, no VM dies, nothing stays counted, and sessions of the others go on.
#[tokio::test]
async fn g3_hostile_answers() {
    let world = world().await;
    let home = turn(&world.client(), "honest").await;
    let asked = Arc::new(AtomicUsize::new(0));
    let address = evil(Arc::clone(&asked)).await;
    let body = json!({"endpoints": [{"address": address.to_string(), "dp_size": 4}]}).to_string();
    let said = world.service.call("PUT", "/v1/workers/evil", Some(&body)).await.unwrap();
    assert_eq!(said.status, 201, "{said:?}");
    // It takes nobody new: all the others have only the evil one, however suspect that becomes.
    world.service.call("POST", "/v1/workers/w0/drain", None).await.unwrap();
    let (before, to) = (vms(&world).await, world.envoy().address());
    let mut n = 0;
    wait_for("the evil engine to be asked", async || {
        n += 1;
        ask(to, 0, n * 3).await;
        (asked.load(Ordering::Relaxed) > 0).then_some(())
    })
    .await
    .unwrap();
    let mut lanes = JoinSet::new();
    for lane in 1..=LANES {
        lanes.spawn(async move {
            for n in 0..REQUESTS_A_LANE {
                ask(to, lane, n).await;
            }
        });
    }
    lanes.join_all().await;
    assert_eq!(vms(&world).await, before, "a VM died");
    assert!(!world.envoy().log().contains("Uncaught RuntimeError"));
    in_flight(&world, "evil", 0).await;
    nothing_in_flight(&world).await;
    let heard = asked.load(Ordering::Relaxed);
    assert!(heard >= 50, "the evil engine was asked {heard} times");
    comes_home(&world, "honest", &home).await;
}

/// A request that may meet either engine, with a key, a response's id, or neither; it ends, however.
async fn ask(to: SocketAddr, lane: u64, n: usize) {
    let key = if n.is_multiple_of(3) { format!("\n{SESSION}: lane-{lane}-{n}") } else { String::new() };
    let previous = if n % 3 == 1 { r#","previous_response_id":"resp_1""# } else { "" };
    let body = format!(r#"{{"model":"tiny","input":"x","max_output_tokens":1{previous}}}"#);
    let head = format!("POST {RESPONSES} HTTP/1.1{key}\ncontent-type: application/json");
    let mut client = Raw::connect(to).await.unwrap();
    client.send(request(&head, body.as_bytes())).await.unwrap();
    client.ended().await.unwrap_or_else(|error| panic!("{error}: lane {lane}, request {n}"));
}
