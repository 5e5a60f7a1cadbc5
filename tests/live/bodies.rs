//! What passes through is not touched: the session header, every byte of a body, the framing of a stream; and a pinned
//! turn's body is on its way to the worker before it is complete.

use e2e::client::{CHAT, SESSION};
use e2e::raw::{Raw, exchange};
use e2e::scripted::content_length;
use e2e::{EngineSpec, Scripted, Steering, World, WorldPlan, sse};
use serde_json::json;

use crate::support::{scripted_workers, scripted_world};

const MIB: usize = 1 << 20;
const BOTH: [Steering; 2] = [Steering::Cluster, Steering::Endpoints];
/// With a listener that would read bodies if the key stood there: here it stands in a header.
const ALL: [Steering; 3] = [Steering::Cluster, Steering::Endpoints, Steering::Agents];

/// Visible ASCII of every kind a key may have.
const KEY: &str = "MiXeD/Key:42~!#$%&'*+-.^_|(){}[]<>@;=?,\"";

/// Bodies that any re-serialisation would change.
const BODIES: &[&str] = &[
    r#"{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"unknown":{"b":1,"a":[]},"cache_salt":"s"}"#,
    r#"{ "temperature" : 0.70 , "seed":18446744073709551615,"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#,
    "\n\t{\"model\" :\r\n \"tiny\",\"max_tokens\":1, \"messages\":[ {\"role\":\"user\",\"content\":\"\\u00e9\\/\u{1F680}\"} ] }\r\n \n",
    r#"{"model":"tiny","max_tokens":1,"max_tokens":1,"messages":[{"content":"dup","role":"user"}],"top_p":1.0,"e":1E0,"n":-0}"#,
];

#[tokio::test]
async fn headers_and_bodies_arrive_byte_for_byte() {
    for steering in ALL {
        let world = WorldPlan::new(steering, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\nX-Session-ID: {KEY}\ncontent-type: application/json");
        for body in BODIES {
            // The first turn and a pinned one.
            for _ in 0..2 {
                exchange(world.envoy().address(), &head, body.as_bytes()).await.unwrap();
                let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
                assert_eq!(seen.body().unwrap(), body.as_bytes(), "{steering:?}: {body}");
                assert_eq!(seen.values(SESSION), [KEY]);
                assert_eq!(seen.values("content-length"), [body.len().to_string().as_str()]);
            }
        }
        assert!(world.envoy().requests("pinned").await.unwrap() > 0, "no turn was pinned");
    }
}

#[tokio::test]
async fn stream_framing_passes_unchanged() {
    for steering in BOTH {
        let world = WorldPlan::new(steering, &[EngineSpec::new("w0", 1)]).start().await.unwrap();
        let body = json!({"model": "tiny", "stream": true, "max_tokens": 24, "stream_options": {"include_usage": true},
            "messages": [{"role": "user", "content": "tell me of the sea"}]})
        .to_string();
        let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: sse\ncontent-type: application/json");
        let through = |to| exchange(to, &head, body.as_bytes());
        // Once to fill the cache, so that both streams tell the same usage.
        through(world.engine("w0").address()).await.unwrap();
        let direct = through(world.engine("w0").address()).await.unwrap();
        let steered = through(world.envoy().address()).await.unwrap();
        assert_eq!((direct.status(), steered.status()), (200, 200));
        let (direct, steered) = (unchunked(&direct.body), unchunked(&steered.body));
        assert!(sse::is_whole(&steered), "{}", String::from_utf8_lossy(&steered));
        assert_eq!(without_identity(&steered), without_identity(&direct));
    }
}

/// Takes HTTP/1.1 chunk framing off.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap().trim(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
        if size == 0 {
            break;
        }
    }
    whole
}

/// The stream without what differs from reply to reply: its id and its time.
fn without_identity(stream: &[u8]) -> String {
    let text = String::from_utf8(stream.to_vec()).unwrap();
    let blank = |line: &str| match line.split_once(r#"","object""#) {
        Some((_, rest)) => {
            let (before, after) = rest.split_once(r#""created":"#).unwrap();
            format!("data: {before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line.to_owned(),
    };
    text.split('\n').map(blank).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn ten_mebibytes_pass_on_a_first_and_on_a_pinned_turn() {
    for steering in ALL {
        let world = WorldPlan::new(steering, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
        let padding = "x".repeat(10 * MIB);
        let body = json!({"model": "tiny", "max_tokens": 1, "padding": padding,
            "messages": [{"role": "user", "content": "large"}]})
        .to_string();
        let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: large\ncontent-type: application/json");
        for turn in ["first", "pinned"] {
            let answer = exchange(world.envoy().address(), &head, body.as_bytes()).await.unwrap();
            assert_eq!(answer.status(), 200, "{steering:?}, {turn} turn: {}", answer.head);
            let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
            assert_eq!(seen.body_bytes, body.len());
            assert_eq!(seen.body_sha256, sha256(body.as_bytes()));
        }
        assert!(world.envoy().requests("routed_held").await.unwrap() > 0, "no first turn was routed");
        assert!(world.envoy().requests("pinned").await.unwrap() > 0, "no turn was pinned");
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A buffering filter would show the worker nothing until the body is complete, and this test would wait in vain.
#[tokio::test]
async fn a_pinned_body_reaches_the_worker_before_it_is_complete() {
    for steering in ALL {
        let workers = scripted_workers(1).await;
        let worker = &workers[0];
        let world = scripted_world(steering, &workers).await;
        bind(&world, worker, "flowing").await;
        let routes = world.service.routes().await.unwrap();
        let mut client = Raw::connect(world.envoy().address()).await.unwrap();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: t\r\n{SESSION}: flowing\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            10 * MIB
        );
        client.send(head).await.unwrap();
        let mut line = worker.accept().await.unwrap();
        assert_eq!(content_length(&line.head().await.unwrap()), 10 * MIB);
        for n in 0..9 {
            let (sent, read) = tokio::join!(client.send(vec![n; MIB]), line.body(MIB));
            sent.unwrap();
            assert_eq!(read.unwrap(), vec![n; MIB], "{steering:?}: MiB {n}");
        }
        client.send(vec![9; MIB]).await.unwrap();
        assert_eq!(line.body(MIB).await.unwrap(), vec![9; MIB]);
        line.ok().await.unwrap();
        assert_eq!(client.answer().await.unwrap().status(), 200);
        assert_eq!(world.service.routes().await.unwrap(), routes, "a pinned turn asked the service");
    }
}

/// One turn that binds the session.
async fn bind(world: &World, worker: &Scripted, key: &str) {
    let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {key}\ncontent-type: application/json");
    tokio::select! {
        answer = exchange(world.envoy().address(), &head, b"{}") => assert_eq!(answer.unwrap().status(), 200),
        served = worker.serve() => served.unwrap(),
    }
}
