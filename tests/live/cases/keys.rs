//! Case group A where the key stands in a header, or nowhere.

use std::collections::{BTreeMap, BTreeSet};

use e2e::client::{CHAT, SESSION, Slot, Turn, send};
use e2e::raw::exchange;
use e2e::{EngineSpec, Steering, World, WorldPlan};
use routing::header::VLLM_RANK;
use serde_json::json;

use crate::support::{served, three_engines, turn, until_all_served};

/// A chat turn with these headers and no others.
async fn with(world: &World, headers: &[(&str, &str)]) -> Turn {
    let mut request = world.client().chat_request(None, "hello");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(request).await.unwrap()
}

/// New sessions that the filter of the first Envoy asked the service to place.
async fn placed(world: &World) -> u64 {
    world.envoy().requests("routed_held").await.unwrap()
}

async fn keyless(world: &World) -> u64 {
    world.envoy().requests("session_key_missing").await.unwrap()
}

async fn world(steering: Steering) -> World {
    WorldPlan::new(steering, &three_engines()).probes_every_ms(0).start().await.unwrap()
}

/// 64 requests before four slots, under the policies that `affinity` does not show.
#[tokio::test]
async fn a1_no_key_is_spread() {
    let policies = ["round_robin", "random", "power_of_two", "device_aware"];
    for (n, policy) in policies.into_iter().enumerate() {
        let engines: Vec<EngineSpec> = (0..4).map(|n| EngineSpec::new(&format!("w{n}"), 2)).collect();
        let steering = if n % 2 == 0 { Steering::Cluster } else { Steering::Endpoints };
        let world = WorldPlan::new(steering, &engines).policy(policy).start().await.unwrap();
        let mut served_by: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..64 {
            *served_by.entry(served(&with(&world, &[]).await).worker).or_default() += 1;
        }
        assert_eq!(served_by.len(), 4, "{policy}: {served_by:?}");
        assert!(served_by.values().all(|count| *count <= 40), "{policy}: {served_by:?}");
        assert_eq!(keyless(&world).await, 64, "{policy}");
        for engine in &world.engines {
            for seen in engine.requests().await.unwrap() {
                assert_eq!(seen.values(VLLM_RANK), [""; 0], "{policy}: a rank without a session");
            }
        }
    }
}

/// What is new on each request is never a key: beside a session id it changes nothing, alone it is none.
#[tokio::test]
async fn a2_a_request_id_is_no_key() {
    let world = world(Steering::Endpoints).await;
    let before = placed(&world).await;
    let mut slots = BTreeSet::new();
    for n in 0..20 {
        let (request, trace) = (format!("request-{n}"), format!("00-{n:032x}-{n:016x}-01"));
        let headers = [
            ("x-request-id", request.as_str()),
            (SESSION, "the-session"),
            ("x-correlation-id", request.as_str()),
            ("traceparent", trace.as_str()),
        ];
        slots.insert(served(&with(&world, &headers).await));
    }
    assert_eq!(slots.len(), 1, "{slots:?}");
    assert_eq!(placed(&world).await, before + 1);
    let same = [("x-request-id", "one"), ("x-correlation-id", "one"), ("traceparent", "one")];
    let asked = until_all_served(60, 3, async || served(&with(&world, &same).await).worker).await as u64;
    assert_eq!((keyless(&world).await, placed(&world).await), (asked, before + 1));
}

/// A rollout that names its session on every other turn.
#[tokio::test]
async fn a4_turns_without_a_key_are_spread_and_counted() {
    let world = world(Steering::Cluster).await;
    let (client, mut keyed) = (world.client(), BTreeSet::new());
    let others = until_all_served(60, 3, async || {
        keyed.insert(turn(&client, "rollout").await);
        served(&with(&world, &[]).await).worker
    });
    let others = others.await as u64;
    assert_eq!(keyed.len(), 1, "{keyed:?}");
    assert_eq!(keyless(&world).await, others);
}

/// Claude Code: a root session and two of its sub-agents are three sessions, and another root's are others.
#[tokio::test]
async fn a8_each_agent_is_a_session_of_its_own() {
    let world = world(Steering::Endpoints).await;
    let before = placed(&world).await;
    let mut slots: BTreeMap<(usize, usize), BTreeSet<Slot>> = BTreeMap::new();
    for round in 0..3 {
        for root in 0..6 {
            let id = format!("root-{root}");
            for (n, agent) in [None, Some("agent-a"), Some("agent-b")].into_iter().enumerate() {
                let mut headers = vec![("x-claude-code-session-id", id.as_str())];
                headers.extend(agent.map(|agent| ("x-claude-code-agent-id", agent)));
                slots.entry((root, n)).or_default().insert(served(&with(&world, &headers).await));
            }
        }
        assert_eq!(placed(&world).await, before + 18, "after round {round}");
    }
    assert!(slots.values().all(|slots| slots.len() == 1), "{slots:?}");
    let apart = (0..6).filter(|root| (1..3).any(|n| slots[&(*root, n)] != slots[&(*root, 0)]));
    assert!(apart.count() > 0, "every agent is where its root is: {slots:?}");
}

/// Each agent's own header names the session by itself; under another name the same id is the same session.
#[tokio::test]
async fn a9_native_headers_are_recognised() {
    for (steering, names) in [
        (
            Steering::Cluster,
            ["thread-id", "session-id", "session_id", "conversation_id", "conversation-id", "Thread-Id"],
        ),
        (
            Steering::Endpoints,
            [
                "x-session-affinity",
                "x-dynamo-session-id",
                "x-smg-routing-key",
                "x-claude-code-session-id",
                "x-litellm-session-id",
                "x-aibrix-session-key",
            ],
        ),
    ] {
        let world = world(steering).await;
        for (n, name) in names.into_iter().enumerate() {
            let (before, key) = (placed(&world).await, format!("native-{n}"));
            let mut slots = BTreeSet::new();
            for _ in 0..3 {
                slots.insert(over_the_wire(&world, name, &key).await);
            }
            assert_eq!(slots.len(), 1, "{name}: {slots:?}");
            assert_eq!(placed(&world).await, before + 1, "{name}");
            assert_eq!(over_the_wire(&world, SESSION, &key).await, *slots.first().unwrap(), "{name}");
            assert_eq!(placed(&world).await, before + 1, "{name}: its id is another session elsewhere");
        }
        assert_eq!(keyless(&world).await, 0, "{steering:?}");
    }
}

/// A turn with that header spelled exactly so.
async fn over_the_wire(world: &World, name: &str, value: &str) -> Slot {
    let head = format!("POST {CHAT} HTTP/1.1\n{name}: {value}\ncontent-type: application/json");
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    let answer = exchange(world.envoy().address(), &head, body.to_string().as_bytes()).await.unwrap();
    assert_eq!(answer.status(), 200, "{name}: {}", answer.head);
    let rank = answer.header("x-engine-rank").and_then(|rank| rank.parse().ok());
    Slot { worker: answer.header("x-engine-name").unwrap().to_owned(), rank }
}

/// The shipped listeners read no bodies: neither a `user` in a message nor one beside the messages is a key.
#[tokio::test]
async fn a14_no_word_of_a_body_is_a_key() {
    let world = world(Steering::Endpoints).await;
    let mut n = 0;
    let asked = until_all_served(60, 3, async || {
        n += 1;
        let text = r#"say {"user": "x", "session_id": "x"} please"#;
        let body = json!({"model": "tiny", "max_tokens": 1, "user": "x", "session_id": "x",
            "metadata": {"session_id": "x", "turn": n}, "messages": [{"role": "user", "content": text}]});
        let request = world.client().request(reqwest::Method::POST, CHAT).json(&body);
        served(&send(request).await.unwrap()).worker
    });
    let asked = asked.await as u64;
    assert_eq!(keyless(&world).await, asked);
}

/// What is no key counts as absent, and hides no key in the next source; spaces around a key are not part of it.
#[tokio::test]
async fn a15_what_is_no_key_is_absent() {
    let world = world(Steering::Cluster).await;
    let mut missing = 0;
    let nul = "a\0b".to_owned();
    for value in ["", "   ", "two words", "\tx\ty\t", "caf\u{e9}", "\u{1F680}", "\u{7f}"] {
        let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {value}\ncontent-type: application/json");
        let answer = exchange(world.envoy().address(), &head, b"{}").await.unwrap();
        if answer.header("x-engine-name").is_some() {
            missing += 1;
            assert_eq!(keyless(&world).await, missing, "{value:?}");
            assert_eq!(world.service.session(value).await.unwrap().status, 404, "{value:?}");
        } else {
            // Envoy's own parser does not let it in.
            assert_eq!(answer.status(), 400, "{value:?}: {}", answer.head);
        }
        let both = format!("{head}\nthread-id: beside");
        let beside = exchange(world.envoy().address(), &both, b"{}").await.unwrap();
        assert!(beside.status() == 400 || keyless(&world).await == missing, "{value:?} hid the next source");
    }
    assert!(missing >= 5, "Envoy let only {missing} of them in");
    let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: {nul}\ncontent-type: application/json");
    let answer = exchange(world.envoy().address(), &head, b"{}").await.unwrap();
    assert_eq!(answer.status(), 400, "{}", answer.head);
    let before = placed(&world).await;
    let slots = [" spaced", "spaced", "spaced  ", "\tspaced"].map(|value| (value, before));
    let mut seen = BTreeSet::new();
    for (value, _) in slots {
        seen.insert(over_the_wire(&world, SESSION, value).await);
    }
    assert_eq!((seen.len(), placed(&world).await), (1, before + 1), "{seen:?}");
}
