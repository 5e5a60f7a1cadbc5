//! Case groups A and G where the key stands in the body: `envoy/agents.yaml`, for agents that send no session header.

use e2e::client::{CHAT, SESSION, Turn, send};
use e2e::raw::{Raw, chunked, exchange};
use e2e::{EngineSpec, Steering, World, WorldPlan, h2};
use reqwest::Method;
use routing::hash::{hashed_rank, rank_hash};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{nothing_in_flight, served, three_engines, until_all_served};

const MIB: usize = 1 << 20;
const POLICIES: [&str; 6] =
    ["least_loaded", "session_hash", "round_robin", "random", "power_of_two", "device_aware"];

/// One worker of eight ranks: the rank says which key was read, under every policy.
async fn eight_ranks(policy: &'static str, sources: Value) -> World {
    let plan =
        WorldPlan::new(Steering::Agents, &[EngineSpec::new("w0", 8)]).probes_every_ms(0).policy(policy);
    let sources_of = move |own: &mut Value| {
        if !sources.is_null() {
            own["session"] = json!({"sources": sources});
        }
    };
    plan.edit(move |config| config.plugin(sources_of)).start().await.unwrap()
}

fn rank_of(key: &str) -> Option<u32> {
    hashed_rank(rank_hash(key.as_bytes()), 0, 8).map(|rank| rank.0)
}

/// A chat turn whose body has these fields besides.
async fn with(world: &World, key: Option<&str>, fields: &Value) -> Turn {
    let mut body = json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let request = world.client().request(Method::POST, CHAT).json(&body);
    send(match key {
        Some(key) => request.header(SESSION, key),
        None => request,
    })
    .await
    .unwrap()
}

/// The rank that the key of a turn chose; none without a key.
async fn rank_sent(world: &World) -> Option<u32> {
    let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
    seen.rank_header.map(|rank| rank.parse().unwrap())
}

async fn count(world: &World, word: &str) -> u64 {
    world.envoy().requests(word).await.unwrap()
}

/// Header and body disagree: the order of the sources decides, the same under every policy, whichever comes first.
#[tokio::test]
async fn a5_the_order_of_the_sources_decides() {
    let pairs =
        [("header-a", "body-0"), ("header-b", "body-1"), ("header-c", "body-2"), ("header-d", "body-3")];
    let pairs: Vec<_> = pairs.into_iter().filter(|(header, body)| rank_of(header) != rank_of(body)).collect();
    assert!(pairs.len() >= 2, "the keys prove nothing");
    for (n, policy) in POLICIES.into_iter().enumerate() {
        let body_first = n % 2 == 1;
        let sources = ["body:/session_id".to_owned(), format!("header:{SESSION}")];
        let world = eight_ranks(policy, if body_first { json!(sources) } else { Value::Null }).await;
        for (header, body) in &pairs {
            let both = if body_first { body } else { header };
            for (key, fields, wins) in [
                (Some(*header), json!({"session_id": body}), *both),
                (Some(*header), json!({}), *header),
                (None, json!({"session_id": body}), *body),
                (Some(*header), json!({"session_id": body}), *both),
            ] {
                assert_eq!(
                    served(&with(&world, key, &fields).await).rank,
                    rank_of(wins),
                    "{policy}: {header}, {body}"
                );
                assert_eq!(rank_sent(&world).await, rank_of(wins), "{policy}");
            }
        }
        nothing_in_flight(&world).await;
    }
}

/// Every field of the default list, in the forms that agents write.
#[tokio::test]
async fn a9_native_fields_are_recognised() {
    let world = eight_ranks("least_loaded", Value::Null).await;
    let claude = json!({"session_id": "sess-claude", "device_id": "d"}).to_string();
    for (fields, key) in [
        (json!({"session_id": "sess-1"}), "sess-1"),
        (json!({"prompt_cache_key": "cache \u{1F680}"}), ""),
        (json!({"prompt_cache_key": "cache-2"}), "cache-2"),
        (json!({"conversation": "conv_3"}), "conv_3"),
        (json!({"conversation": {"id": "conv_4", "more": [1, {"id": "no"}]}}), "conv_4"),
        (json!({"conversation_params": {"conversation_id": "conv_5"}}), "conv_5"),
        (json!({"metadata": {"session_id": "meta-6", "n": 1}}), "meta-6"),
        (json!({"metadata": {"user_id": "user_ab12_account_cd_session_11-22-33"}}), "11-22-33"),
        (json!({"metadata": {"user_id": claude}}), "sess-claude"),
        (json!({"metadata": {"user_id": "somebody"}}), ""),
        (json!({"session_id": 7, "metadata": "none"}), ""),
        (json!({"session_id": "", "prompt_cache_key": "behind-an-empty-one"}), "behind-an-empty-one"),
    ] {
        let missing = count(&world, "session_key_missing").await;
        served(&with(&world, None, &fields).await);
        let wanted = (!key.is_empty()).then(|| rank_of(key)).flatten();
        assert_eq!(rank_sent(&world).await, wanted, "{fields}");
        let expected = missing + u64::from(key.is_empty());
        assert_eq!(count(&world, "session_key_missing").await, expected, "{fields}");
    }
    let long = "k".repeat(257);
    assert_eq!(with(&world, None, &json!({"session_id": long})).await.status, 400);
}

/// The same bytes however they are framed: a key with escapes, given twice; the last one counts.
#[tokio::test]
async fn a_key_is_the_same_in_any_framing() {
    let world = eight_ranks("least_loaded", Value::Null).await;
    let body = br#"{"session_id":"first","model":"tiny","messages":[{"role":"user","content":"say \"session_id\":\"no\""}],"max_tokens":1,"session_id":"\u0066ram\u0065d\/last"}"#;
    let head = format!("POST {CHAT} HTTP/1.1\ncontent-type: application/json");
    let to = world.envoy().address();
    for size in [1, 7, 64, body.len()] {
        let parts: Vec<&[u8]> = body.chunks(size).collect();
        let mut raw = Raw::connect(to).await.unwrap();
        raw.send(chunked(&head, &parts)).await.unwrap();
        assert_eq!(raw.answer().await.unwrap().status(), 200, "chunks of {size}");
        assert_eq!(rank_sent(&world).await, rank_of("framed/last"), "chunks of {size}");
        let mut raw = Raw::connect(to).await.unwrap();
        for part in e2e::raw::request(&head, body).chunks(size.max(16)) {
            raw.send(part).await.unwrap();
        }
        assert_eq!(raw.answer().await.unwrap().status(), 200, "pieces of {size}");
        assert_eq!(rank_sent(&world).await, rank_of("framed/last"), "pieces of {size}");
    }
    assert_eq!(h2::post(to, CHAT, &[], body.to_vec()).await.unwrap().status, 200);
    assert_eq!(rank_sent(&world).await, rank_of("framed/last"), "http/2");
    let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
    assert_eq!(seen.body().unwrap(), body, "a body that was read is not touched");
    assert_eq!(count(&world, "session_key_missing").await, 0);
}

/// Two conversations that begin alike are two, and without keys none: prompts are not compared.
#[tokio::test]
async fn a13_equal_prompts_are_no_session() {
    let plan = WorldPlan::new(Steering::Agents, &three_engines()).probes_every_ms(0);
    let world = plan.start().await.unwrap();
    let same = json!({"messages": [{"role": "system", "content": "You are a clerk."}, {"role": "user", "content": "Hello"}]});
    let held = count(&world, "routed_held").await;
    for key in ["one", "two"] {
        let mut fields = same.clone();
        fields["prompt_cache_key"] = json!(key);
        served(&with(&world, None, &fields).await);
    }
    assert_eq!(count(&world, "routed_held").await, held + 2, "they were merged");
    let asked =
        until_all_served(60, 3, async || served(&with(&world, None, &same).await).worker).await as u64;
    assert_eq!(count(&world, "session_key_missing").await, asked);
}

/// Words in a message are no fields, nor is `user`: it names a person.
#[tokio::test]
async fn a14_words_in_messages_are_no_key() {
    let world = eight_ranks("least_loaded", Value::Null).await;
    let text = r#"{"user": "x", "session_id": "x", "metadata": {"session_id": "x"}}"#;
    for fields in [
        json!({"messages": [{"role": "user", "content": text}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": text, "session_id": "x"}]}]}),
        json!({"messages": [{"role": "user", "content": "x", "session_id": "x", "metadata": {"session_id": "x"}}]}),
        json!({"user": "x"}),
        json!({"extra": {"session_id": "x"}, "tools": [{"session_id": "x"}]}),
    ] {
        let missing = count(&world, "session_key_missing").await;
        with(&world, None, &fields).await;
        assert_eq!(rank_sent(&world).await, None, "{fields}");
        assert_eq!(count(&world, "session_key_missing").await, missing + 1, "{fields}");
    }
}

/// A body of 2 MiB whose key stands in front, or at the very end: behind what is read. It passes either way, whole.
#[tokio::test]
async fn g2_large_bodies_are_read_up_to_the_budget() {
    let world = eight_ranks("least_loaded", Value::Null).await;
    let to = world.envoy().address();
    let head = format!("POST {CHAT} HTTP/1.1\ncontent-type: application/json");
    let rest = r#""model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"large"}]"#;
    let padding = "x".repeat(2 * MIB);
    let front = format!(r#"{{"session_id":"in-front",{rest},"padding":"{padding}"}}"#);
    let behind = format!(r#"{{{rest},"padding":"{padding}","session_id":"behind"}}"#);
    let mut cut = 0;
    for (body, rank) in [(&front, rank_of("in-front")), (&behind, None)] {
        for how in ["length", "chunked", "http/2"] {
            let status = match how {
                "length" => exchange(to, &head, body.as_bytes()).await.unwrap().status(),
                "chunked" => {
                    let parts: Vec<&[u8]> = body.as_bytes().chunks(100_000).collect();
                    let mut raw = Raw::connect(to).await.unwrap();
                    raw.send(chunked(&head, &parts)).await.unwrap();
                    raw.answer().await.unwrap().status()
                }
                _ => h2::post(to, CHAT, &[], body.clone().into_bytes()).await.unwrap().status,
            };
            assert_eq!(status, 200, "{how}");
            let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
            assert_eq!((seen.body_bytes, seen.body_sha256), (body.len(), sha256(body)), "{how}");
            assert_eq!(rank_sent(&world).await, rank, "{how}");
            cut += 1;
            assert_eq!(count(&world, "body_too_long").await, cut, "{how}");
        }
    }
    assert_eq!(count(&world, "session_key_missing").await, 3);
    nothing_in_flight(&world).await;
}

fn sha256(body: &str) -> String {
    Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is no JSON is not read, or read in vain: it passes as it is.
#[tokio::test]
async fn what_is_no_json_passes() {
    let world = eight_ranks("least_loaded", Value::Null).await;
    let to = world.envoy().address();
    for (kind, body, malformed) in [
        ("application/json", r#"{"session_id":"half","#, 1),
        ("application/json", "", 0),
        ("text/plain", r#"{"session_id":"text"}"#, 0),
        ("application/json\ncontent-encoding: gzip", "\u{1f}\u{8b}", 0),
        ("application/json", "[1,2,{\"session_id\":\"in a list\"}]", 0),
    ] {
        let (before, missing) =
            (count(&world, "body_malformed").await, count(&world, "session_key_missing").await);
        let head = format!("POST {CHAT} HTTP/1.1\ncontent-type: {kind}");
        exchange(to, &head, body.as_bytes()).await.unwrap();
        assert_eq!(count(&world, "body_malformed").await, before + malformed, "{kind}: {body}");
        assert_eq!(count(&world, "session_key_missing").await, missing + 1, "{kind}: {body}");
        let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
        assert_eq!((seen.body().unwrap().as_slice(), seen.rank_header), (body.as_bytes(), None), "{kind}");
    }
    let form = send(world.client().transcribe(None, 200_000)).await.unwrap();
    assert_eq!(form.status, 200);
    nothing_in_flight(&world).await;
}
