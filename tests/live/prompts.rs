//! `envoy/kv.yaml`: requests that the service places bring their prompt, at any size and framing; bound ones go on unread, and none
//! waits for ever. What is made of the prompts is `kv_aware`'s.

use e2e::client::{CHAT, SESSION};
use e2e::raw::{Answer, Raw, chunked, exchange};
use e2e::scripted::content_length;
use e2e::{EngineSpec, Steering, World, WorldPlan, artifacts, h2, wait_for};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};

use crate::support::{scripted_workers, scripted_world_of, stream, three_engines, vms};

const MIB: usize = 1 << 20;
const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\ncontent-type: application/json";

/// A pool that compares prompts as text, so that nobody needs a tokenizer.
fn plan(engines: &[EngineSpec]) -> WorldPlan {
    let pool = json!({"policy": "kv_aware", "tokens": {"mode": "approximate"}});
    WorldPlan::new(Steering::Kv, engines).pool(pool).probes_every_ms(0).edit(|config| config.served_header())
}

/// The same with the module that watches answers, too.
fn watching(engines: &[EngineSpec]) -> WorldPlan {
    plan(engines).edit(|config| config.wasm(&artifacts::module("rankpin-full.wasm")?))
}

fn body(text: &str) -> Vec<u8> {
    json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": text}]})
        .to_string()
        .into_bytes()
}

fn served(answer: &Answer) -> String {
    assert_eq!(answer.status(), 200, "{}", answer.head);
    answer.header("x-rankpin-served").unwrap().to_owned()
}

async fn counted(world: &World, word: &str) -> u64 {
    world.envoy().requests(word).await.unwrap()
}

/// Nothing is booked any more.
async fn nothing_booked(world: &World) {
    wait_for("all bookings to end", async || {
        (world.service.metric("rankpin_kv_booked", &[]).await.ok()? == 0.0).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn prompts_of_every_size_and_framing_are_read_and_arrive_whole() {
    let world = watching(&[EngineSpec::new("w0", 4)]).start().await.unwrap();
    let (at, before) = (world.envoy().address(), counted(&world, "routed_held").await);
    for (n, size) in [10, 70_000, 900_000, 10 * MIB].into_iter().enumerate() {
        // What the engine does not look at: a longer conversation than it takes would be refused.
        let padding = json!("grüße ".repeat(size / 8 + 1)).to_string();
        let body = [format!(r#"{{"padding":{padding},"#).as_bytes(), &body("hi")[1..]].concat();
        let head = format!("{HEAD}\n{SESSION}: size-{n}");
        served(&exchange(at, &head, &body).await.unwrap());
        let parts: Vec<&[u8]> = body.chunks(33_333).collect();
        let mut raw = Raw::connect(at).await.unwrap();
        raw.send(chunked(&head.replace("size", "chunks"), &parts)).await.unwrap();
        served(&raw.answer().await.unwrap());
        let key = format!("h2-{n}");
        let turn = h2::post(at, CHAT, &[(SESSION, &key)], body.clone()).await.unwrap();
        assert_eq!(turn.status, 200);
        let seen = world.engine("w0").requests().await.unwrap();
        let sha: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
        for one in seen.iter().rev().take(3) {
            let (bytes, status) = (one.body_bytes, one.status);
            assert_eq!(one.body_sha256, sha, "{size}: {bytes} bytes of {} arrived: {status:?}", body.len());
        }
    }
    assert_eq!(counted(&world, "routed_held").await, before + 12);
    assert_eq!(counted(&world, "body_too_long").await, 3, "of the largest the head was sent");
    for word in ["body_missing", "prompt_unread", "route_failed", "route_timeout", "placed_alone"] {
        assert_eq!(counted(&world, word).await, 0, "{word}");
    }
    nothing_booked(&world).await;
}

/// Twins meet: what was sent somewhere is looked for there, with a session or without one.
#[tokio::test]
async fn the_second_of_two_twins_goes_where_the_first_one_went() {
    let world = watching(&three_engines()).start().await.unwrap();
    let at = world.envoy().address();
    let prompt = body(&"all of this was said before, and more than once. ".repeat(60));
    let first = served(&exchange(at, HEAD, &prompt).await.unwrap());
    let slot = |told: &str| told.split(";reason=").next().unwrap().to_owned();
    for head in [HEAD.to_owned(), format!("{HEAD}\n{SESSION}: twin")] {
        let told = served(&exchange(at, &head, &prompt).await.unwrap());
        assert_eq!(slot(&told), slot(&first), "{told} after {first}");
        let blocks = told.split_once(";reason=overlap;blocks=").map(|(_, blocks)| blocks.to_owned());
        let (held, of) = blocks.as_deref().and_then(|blocks| blocks.split_once('/')).unwrap();
        let (held, of): (u32, u32) = (held.parse().unwrap(), of.parse().unwrap());
        assert!(held + 1 >= of && of > 40, "{told}");
    }
    nothing_booked(&world).await;
}

/// Where answers are watched the service hears of the first byte, long before the last.
#[tokio::test]
async fn the_first_byte_of_an_answer_ends_its_prefill() {
    let slow = EngineSpec::new("w0", 4).with(&["--decode-us-per-token", "20000"]);
    let world = watching(&[slow]).start().await.unwrap();
    let stream = stream(&world, 0, None).await;
    let outcome = ["outcome=\"prefilled\""];
    wait_for("the first byte to be told", async || {
        (world.service.metric("rankpin_kv_bookings_total", &outcome).await.ok()? >= 1.0).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(world.service.metric("rankpin_kv_booked", &[]).await.unwrap(), 1.0, "it goes on");
    stream.reset().unwrap();
    nothing_booked(&world).await;
}

/// Every way a request ends ends its booking, also the client's.
#[tokio::test]
async fn clients_that_leave_at_any_time_leave_nothing_booked() {
    let world = plan(&three_engines()).edit(|config| config.route_deadline(300)).start().await.unwrap();
    let head = HEAD.replace('\n', "\r\n");
    let whole = body("here and gone");
    for cut in [0, 1, whole.len() - 1, whole.len()].into_iter().cycle().take(120) {
        let mut client = Raw::connect(world.envoy().address()).await.unwrap();
        client.send(format!("{head}\r\nhost: t\r\ncontent-length: {}\r\n\r\n", whole.len())).await.unwrap();
        client.send(&whole[..cut]).await.unwrap();
        client.reset().unwrap();
    }
    served(&exchange(world.envoy().address(), HEAD, &whole).await.unwrap());
    nothing_booked(&world).await;
    assert!(!world.envoy().log().contains("Uncaught RuntimeError"), "a VM died: {}", world.envoy().log());
    assert!(vms(&world).await > 0);
}

/// A bound turn's head goes on before its body is there; a first turn's waits for the body, but not for ever.
#[tokio::test]
async fn bound_turns_are_not_read_and_slow_prompts_not_waited_for() {
    let workers = scripted_workers(1).await;
    let plan =
        plan(&[]).edit(|config| config.plugin(|plugin| plugin["session"]["body_wait_ms"] = json!(200)));
    let world = scripted_world_of(plan, &workers).await;
    let body = body("one after the other");
    let missing = counted(&world, "body_missing").await;
    for (turn, read) in [("first", 1), ("bound", 1), ("bound again", 1)] {
        let mut client = Raw::connect(world.envoy().address()).await.unwrap();
        let head = format!("{HEAD}\n{SESSION}: slow\nhost: t\ncontent-length: {}\n\n", body.len());
        client.send(head.replace('\n', "\r\n")).await.unwrap();
        client.send(&body[..10]).await.unwrap();
        let mut line = workers[0].accept().await.unwrap();
        assert_eq!(content_length(&line.head().await.unwrap()), body.len(), "{turn}: its head came first");
        client.send(&body[10..]).await.unwrap();
        assert_eq!(line.body(body.len()).await.unwrap(), body);
        line.ok().await.unwrap();
        client.read_until("\r\n\r\n").await.unwrap();
        assert_eq!(counted(&world, "body_missing").await, missing + read, "{turn}");
    }
    assert!(counted(&world, "pinned").await >= 2);
    nothing_booked(&world).await;
}

/// The flag of Envoy is missing: one turn finds out, the others do not wait for a body that is not shown, and the log asks for it.
#[tokio::test]
async fn without_envoys_flag_one_turn_waits_in_vain_and_the_log_asks_why() {
    let wait = Duration::from_secs(5);
    let world = plan(&[EngineSpec::new("w0", 4)])
        .threads(1)
        .edit(move |config| {
            config.without_bodies_shown();
            config.plugin(|plugin| plugin["session"]["body_wait_ms"] = json!(wait.as_millis() as u64))
        })
        .start()
        .await
        .unwrap();
    let (missing, begun) = (counted(&world, "body_missing").await, Instant::now());
    for n in 0..7 {
        served(&exchange(world.envoy().address(), HEAD, &body(&format!("unseen {n}"))).await.unwrap());
    }
    assert!(begun.elapsed() < 2 * wait, "more than one waited: {:?}", begun.elapsed());
    assert_eq!(counted(&world, "body_missing").await, missing + 7);
    let log = world.envoy().log();
    assert_eq!(log.matches("is allow_on_headers_stop_iteration: true set").count(), 1, "{log}");
}

#[tokio::test]
async fn a_module_that_sees_no_bodies_asks_without_prompts_and_the_log_says_so_once() {
    let world = plan(&three_engines())
        .threads(1)
        .edit(|config| config.wasm(&artifacts::wasm()?))
        .start()
        .await
        .unwrap();
    let (unread, loose) = (counted(&world, "prompt_unread").await, counted(&world, "routed_unpinned").await);
    for _ in 0..5 {
        served(&exchange(world.envoy().address(), HEAD, &body("unseen")).await.unwrap());
    }
    assert_eq!(counted(&world, "prompt_unread").await, unread + 5);
    assert_eq!(counted(&world, "routed_unpinned").await, loose + 5);
    let log = world.envoy().log();
    assert_eq!(log.matches("and rankpin.wasm sees none").count(), 1, "{log}");
    nothing_booked(&world).await;
}
