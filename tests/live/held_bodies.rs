//! `envoy/agents.yaml`: requests whose key stands in the body wait for it, at any size and framing, and never for ever.

use e2e::bootstrap::Bootstrap;
use e2e::client::{CHAT, SESSION};
use e2e::raw::{Answer, Raw, chunked, exchange};
use e2e::scratch::Scratch;
use e2e::scripted::content_length;
use e2e::{EngineSpec, Steering, World, WorldPlan, artifacts, envoy, h2, wait_for};
use serde_json::{Value, json};

use crate::support::{scripted_workers, scripted_world_with, three_engines};

const MIB: usize = 1 << 20;
const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\ncontent-type: application/json";

/// A turn of a client that names its conversation in the body, with so many bytes of other things before that.
fn body(field: &str, value: &Value, padding: usize) -> Vec<u8> {
    let padding = "x".repeat(padding);
    let text = json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]})
        .to_string();
    format!(r#"{{"padding":"{padding}","{field}":{value},{}"#, &text[1..]).into_bytes()
}

/// The last request that any engine saw: which engine, and its body's size.
async fn seen(world: &World, name: &str) -> (usize, String) {
    let seen = world.engine(name).requests().await.unwrap().pop().unwrap();
    (seen.body_bytes, seen.body_sha256)
}

fn served(answer: &Answer) -> String {
    assert_eq!(answer.status(), 200, "{}", answer.head);
    answer.header("x-engine-name").unwrap().to_owned()
}

async fn counted(world: &World, word: &str) -> u64 {
    world.envoy().requests(word).await.unwrap()
}

#[tokio::test]
async fn a_key_in_the_body_keeps_its_slot_in_every_framing() {
    let world = WorldPlan::new(Steering::Agents, &three_engines()).start().await.unwrap();
    let keys = [
        ("prompt_cache_key", json!("cache-1")),
        ("conversation", json!({"id": "conv_1"})),
        ("metadata", json!({"session_id": "meta-1"})),
        (
            "metadata",
            json!({"user_id": format!("user_{}_account__session_{}", "0".repeat(64), "4fdd4b0e-2a34-4a2f-9f09-6c9a0d0f4cf1")}),
        ),
    ];
    for (field, value) in &keys {
        let at = world.envoy().address();
        let (small, large) = (body(field, value, 0), body(field, value, 300_000));
        let first = served(&exchange(at, HEAD, &small).await.unwrap());
        let before = counted(&world, "pinned").await;
        for body in [&small, &large] {
            assert_eq!(served(&exchange(at, HEAD, body).await.unwrap()), first, "{field}, with its length");
            let parts: Vec<&[u8]> = body.chunks(50_000).collect();
            let mut raw = Raw::connect(at).await.unwrap();
            raw.send(chunked(HEAD, &parts)).await.unwrap();
            assert_eq!(served(&raw.answer().await.unwrap()), first, "{field}, in chunks");
            let turn = h2::post(at, CHAT, &[], body.clone()).await.unwrap();
            assert_eq!(
                (turn.status, turn.header("x-engine-name")),
                (200, Some(first.as_str())),
                "{field}, HTTP/2"
            );
            assert_eq!(seen(&world, &first).await, (body.len(), sha256(body)), "{field}: every byte arrives");
        }
        assert_eq!(counted(&world, "pinned").await, before + 6, "{field}");
    }
    assert_eq!(counted(&world, "body_missing").await, 0);
    assert_eq!(counted(&world, "body_malformed").await, 0);
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Envoy would answer 413 where a request that waits is answered with StopIteration alone.
#[tokio::test]
async fn ten_mebibytes_wait_for_their_slot() {
    let world = WorldPlan::new(Steering::Agents, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
    let at = world.envoy().address();
    let held = counted(&world, "routed_held").await;
    for (n, head) in [format!("{HEAD}\n{SESSION}: in-the-head"), HEAD.to_owned()].iter().enumerate() {
        let mut body = body("prompt_cache_key", &json!(format!("early-{n}")), 0);
        body.pop();
        body.extend_from_slice(format!(r#","more":"{}"}}"#, "x".repeat(10 * MIB)).as_bytes());
        served(&exchange(at, head, &body).await.unwrap());
        assert_eq!(seen(&world, "w0").await, (body.len(), sha256(&body)));
    }
    assert_eq!(counted(&world, "routed_held").await, held + 2, "both waited for `route`");
    assert_eq!(counted(&world, "body_too_long").await, 1, "the second was read as far as the limit");
    let turn = h2::post(at, CHAT, &[], body("prompt_cache_key", &json!("late"), 10 * MIB)).await.unwrap();
    assert_eq!(turn.status, 200);
    assert_eq!(counted(&world, "body_too_long").await, 2, "its key stands behind the limit");
}

/// An answer of the filter's own, given while a body is being read.
#[tokio::test]
async fn a_key_too_long_in_the_body_is_refused() {
    let world = WorldPlan::new(Steering::Agents, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
    let at = world.envoy().address();
    let before = world.engine("w0").requests().await.unwrap().len();
    let body = body("prompt_cache_key", &json!("k".repeat(257)), 200_000);
    let mut statuses = vec![exchange(at, HEAD, &body).await.unwrap().status()];
    let mut raw = Raw::connect(at).await.unwrap();
    let parts: Vec<&[u8]> = body.chunks(50_000).collect();
    raw.send(chunked(HEAD, &parts)).await.unwrap();
    statuses.push(raw.answer().await.unwrap().status());
    statuses.push(h2::post(at, CHAT, &[], body).await.unwrap().status);
    assert_eq!(statuses, [400, 400, 400]);
    assert_eq!(counted(&world, "key_too_long").await, 3);
    assert_eq!(world.engine("w0").requests().await.unwrap().len(), before, "an engine saw a refused request");
    assert!(!world.envoy().log().contains("Uncaught RuntimeError"), "a VM died: {}", world.envoy().log());
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let workers = scripted_workers(1).await;
    let world = scripted_world_with(Steering::Agents, &workers, |config| {
        config.plugin(|plugin| plugin["session"]["body_wait_ms"] = json!(50))
    })
    .await;
    let body = body("prompt_cache_key", &json!("slow"), 0);
    let mut client = Raw::connect(world.envoy().address()).await.unwrap();
    let head = HEAD.replace('\n', "\r\n");
    client.send(format!("{head}\r\nhost: t\r\ncontent-length: {}\r\n\r\n", body.len())).await.unwrap();
    client.send(&body[..10]).await.unwrap();
    let mut line = workers[0].accept().await.unwrap();
    assert_eq!(content_length(&line.head().await.unwrap()), body.len());
    assert_eq!(counted(&world, "body_missing").await, 1);
    client.send(&body[10..]).await.unwrap();
    assert_eq!(line.body(body.len()).await.unwrap(), body);
    line.ok().await.unwrap();
    client.read_until("\r\n\r\n").await.unwrap();
    assert_eq!(counted(&world, "session_key_missing").await, 1);
}

/// A client that is gone while its request waits leaves nothing behind, and the guard finds nobody to knock at.
#[tokio::test]
async fn a_client_that_leaves_while_its_body_is_awaited() {
    let world = WorldPlan::new(Steering::Agents, &three_engines())
        .edit(|config| config.plugin(|plugin| plugin["session"]["body_wait_ms"] = json!(300)))
        .start()
        .await
        .unwrap();
    let head = HEAD.replace('\n', "\r\n");
    for _ in 0..50 {
        let mut client = Raw::connect(world.envoy().address()).await.unwrap();
        client.send(format!("{head}\r\nhost: t\r\ncontent-length: 100\r\n\r\n{{")).await.unwrap();
        client.reset().unwrap();
    }
    let mut slow = Raw::connect(world.envoy().address()).await.unwrap();
    slow.send(format!("{head}\r\nhost: t\r\ncontent-length: 100\r\n\r\n{{")).await.unwrap();
    wait_for("the guard", async || (counted(&world, "body_missing").await > 0).then_some(())).await.unwrap();
    let turn = body("prompt_cache_key", &json!("after"), 0);
    served(&exchange(world.envoy().address(), HEAD, &turn).await.unwrap());
    assert!(!world.envoy().log().contains("Uncaught RuntimeError"), "a VM died: {}", world.envoy().log());
}

#[tokio::test]
async fn without_envoys_flag_requests_go_on_and_the_log_says_why() {
    let world = WorldPlan::new(Steering::Agents, &three_engines())
        .threads(1)
        .edit(|config| {
            config.without_bodies_shown();
            config.plugin(|plugin| plugin["session"]["body_wait_ms"] = json!(50))
        })
        .start()
        .await
        .unwrap();
    for n in 0..20 {
        let turn = body("prompt_cache_key", &json!(format!("unseen-{n}")), 0);
        served(&exchange(world.envoy().address(), HEAD, &turn).await.unwrap());
    }
    assert_eq!(counted(&world, "body_missing").await, 20);
    let log = world.envoy().log();
    let told =
        log.lines().filter(|line| line.contains("is allow_on_headers_stop_iteration: true set")).count();
    assert_eq!(told, 1, "{log}");
}

/// An engine that reads its rank in the body, behind an upstream role that is shown none.
#[tokio::test]
async fn without_envoys_flag_attempts_go_on_without_a_rank() {
    let engine = EngineSpec::new("w0", 4).engine("sglang", "0.5.9").declaring("rank_in", json!("body"));
    let plan = WorldPlan::new(Steering::Agents, &[engine]).threads(1).edit(|config| {
        config.without_bodies_shown();
        Ok(())
    });
    let world = plan.start().await.unwrap();
    let head = format!("{HEAD}\n{SESSION}: in-the-head");
    let body = body("n", &json!(1), 300_000);
    for _ in 0..5 {
        served(&exchange(world.envoy().address(), &head, &body).await.unwrap());
        assert_eq!(seen(&world, "w0").await, (body.len(), sha256(&body)), "as the client sent it");
    }
    assert!(counted(&world, "rank_body_too_long").await >= 5);
    let log = world.envoy().log();
    let told = log.lines().filter(|line| line.contains("to the role 'rankpin-upstream'")).count();
    assert_eq!(told, 1, "{log}");
}

#[test]
fn a_module_that_sees_no_bodies_refuses_the_config() {
    let scratch = Scratch::new().unwrap();
    let mut bootstrap = Bootstrap::shipped(Steering::Agents).unwrap();
    bootstrap.wasm(&artifacts::wasm().unwrap()).unwrap();
    let said = envoy::validate(&bootstrap, scratch.path()).unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(
        !said.status.success() && text.contains("session.body") && text.contains("rankpin-body.wasm"),
        "{text}"
    );
}
