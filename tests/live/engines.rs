//! Engines as they differ on the wire: who reads a rank where, bodies that get one written in, conversations instead of ranks.

use e2e::client::{CHAT, SESSION, send};
use e2e::engine::Seen;
use e2e::raw::{Raw, chunked, exchange};
use e2e::{EngineSpec, Numbering, Steering, World, WorldPlan, h2};
use routing::header;
use serde_json::json;

use crate::support::{BOTH, bound_to, served};

/// An SGLang that reads the rank in the body alone; its ranks are 4–7, which it counts from 0.
fn old_sglang(name: &str) -> EngineSpec {
    let spec = EngineSpec::new(name, 4).from(4).numbered(Numbering::Local);
    spec.engine("sglang", "0.5.9").declaring("rank_in", json!("body"))
}

async fn last(world: &World, engine: &str) -> Seen {
    world.engine(engine).requests().await.unwrap().pop().unwrap()
}

/// A body of a client that names a rank itself, and what must come of it.
fn bodies(rank: u32) -> (String, String) {
    let rest = "\"model\" : \"tiny\",\"max_tokens\":1, \"n\":1.50,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}] }\n";
    let sent = format!("{{ \"data_parallel_rank\":3,\"routed_dp_rank\" : 9,{rest}");
    (sent, format!("{{\"data_parallel_rank\":{rank},{rest}"))
}

#[tokio::test]
async fn a_rank_in_the_body_whatever_the_framing() {
    let world = WorldPlan::new(Steering::Agents, &[old_sglang("w0")]).start().await.unwrap();
    let to = world.envoy().address();
    let (key, slot) = bound_to(&world, "w0").await;
    let local = slot.rank.unwrap() - 4;
    let (sent, expected) = bodies(local);
    let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {key}\ncontent-type: application/json");
    let (a, rest) = sent.as_bytes().split_at(17);
    let (b, c) = rest.split_at(40);
    for how in ["length", "chunked", "http/2"] {
        let status = match how {
            "length" => exchange(to, &head, sent.as_bytes()).await.unwrap().status(),
            "chunked" => {
                let mut raw = Raw::connect(to).await.unwrap();
                raw.send(chunked(&head, &[a, b, c])).await.unwrap();
                raw.answer().await.unwrap().status()
            }
            _ => h2::post(to, CHAT, &[(SESSION, &key)], sent.clone().into_bytes()).await.unwrap().status,
        };
        let seen = last(&world, "w0").await;
        assert_eq!(status, 200, "{how}");
        assert_eq!(String::from_utf8(seen.body().unwrap()).unwrap(), expected, "{how}: every other byte");
        assert_eq!(seen.values("content-length"), [expected.len().to_string()], "{how}");
        assert!(seen.values("transfer-encoding").is_empty(), "{how}");
        assert_eq!((seen.rank, seen.rank_header), (slot.rank, None), "{how}");
    }
    assert_eq!(world.envoy().requests("rank_body_malformed").await.unwrap(), 0);
}

#[tokio::test]
async fn a_body_that_cannot_get_a_rank_goes_as_it_is_and_is_counted() {
    let world = WorldPlan::new(Steering::Agents, &[old_sglang("w0")]).start().await.unwrap();
    let (key, _) = bound_to(&world, "w0").await;
    let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {key}\ncontent-type: application/json");
    let message = json!([{"role": "user", "content": "x".repeat(1_300_000)}]);
    let long = json!({"model": "tiny", "max_tokens": 1, "messages": message}).to_string();
    for (body, counter) in [(&*long, "rank_body_too_long"), ("{\"model\":", "rank_body_malformed")] {
        exchange(world.envoy().address(), &head, body.as_bytes()).await.unwrap();
        let seen = last(&world, "w0").await;
        assert_eq!(seen.values("content-length"), [body.len().to_string()]);
        assert_eq!((seen.body_bytes, seen.rank_header), (body.len(), None), "{counter}");
        assert_eq!(world.envoy().requests(counter).await.unwrap(), 1, "{counter}");
    }
}

#[tokio::test]
async fn each_attempt_gets_the_clients_body_and_its_own_rank() {
    let engines = [old_sglang("w0"), EngineSpec::new("w1", 4)];
    let world = WorldPlan::new(Steering::Agents, &engines).probes_every_ms(0).start().await.unwrap();
    let (key, slot) = bound_to(&world, "w0").await;
    let (sent, expected) = bodies(slot.rank.unwrap() - 4);
    world.engine("w0").fault("503", Some(1)).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {key}\ncontent-type: application/json");
    let answer = exchange(world.envoy().address(), &head, sent.as_bytes()).await.unwrap();
    assert_eq!((answer.status(), answer.header("x-engine-name")), (200, Some("w1")));
    let (first, second) = (last(&world, "w0").await, last(&world, "w1").await);
    assert_eq!(String::from_utf8(first.body().unwrap()).unwrap(), expected);
    assert_eq!(String::from_utf8(second.body().unwrap()).unwrap(), sent, "not a byte of the first attempt");
    assert_eq!(second.values("content-length"), [sent.len().to_string()]);
    assert_eq!(second.rank_header, second.rank.map(|rank| rank.to_string()), "by header there");
}

#[tokio::test]
async fn a_rank_goes_only_where_it_is_read() {
    for steering in BOTH {
        let engine = EngineSpec::new("w0", 4).engine("vllm", "0.32.0");
        let world = WorldPlan::new(steering, &[engine]).start().await.unwrap();
        let (key, slot) = bound_to(&world, "w0").await;
        let (client, session) = (world.client(), Some(&*key));
        let embeddings = json!({"model": "tiny", "input": "hi"});
        let silent = [
            client.respond(session, "hi", None),
            client.post("/v1/embeddings", session, &embeddings),
            client.transcribe(session, 100_000),
        ];
        for request in silent {
            served(&send(request).await.unwrap());
            let seen = last(&world, "w0").await;
            assert!(seen.values(header::VLLM_RANK).is_empty(), "{steering:?} {}", seen.path);
        }
        let completion = json!({"model": "tiny", "prompt": "hi", "max_tokens": 1});
        let message = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
        for (path, body) in [("/v1/completions", completion), ("/v1/messages", message)] {
            assert_eq!(served(&send(client.post(path, session, &body)).await.unwrap()), slot, "{path}");
        }
    }
}

#[tokio::test]
async fn tensorrt_llm_is_told_the_conversation() {
    for steering in BOTH {
        let engine = EngineSpec::new("w0", 4).engine("trtllm", "1.2.0");
        let world = WorldPlan::new(steering, &[engine]).start().await.unwrap();
        let client = world.client();
        let mut ranks = std::collections::BTreeSet::new();
        for n in 0..12 {
            let turn = async || {
                let request = client.chat_request(None, "hi").header("thread-id", format!("thread-{n}"));
                served(&send(request.header("x-correlation-id", "new-each-turn")).await.unwrap()).rank
            };
            let rank = turn().await;
            assert_eq!([turn().await, turn().await], [rank; 2], "{steering:?}: one conversation, one rank");
            let seen = last(&world, "w0").await;
            assert_eq!((seen.values(SESSION).len(), seen.rank_header), (1, None), "{steering:?}");
            ranks.insert(rank);
        }
        assert!(ranks.len() > 1, "conversations spread");
        served(&client.chat(Some("its-own"), "hi").await.unwrap());
        assert_eq!(last(&world, "w0").await.conversation.as_deref(), Some("its-own"), "as the client says");
    }
}
