//! `POST /v1/explain` and `rankpin explain`: what they say is what the service then does.

use crate::support::Api;
use axum::http::{Method, StatusCode};
use routing::hash::{self, Phase};
use routing::policy::mix;
use serde_json::{Value, json};

const REQUESTS: u64 = 500;

/// Pools in which nothing is left to chance as long as no two loads are equal.
async fn fleet() -> Api {
    let api = Api::configured(&json!({"pools": [
        {"name": "hard"}, {"name": "soft", "affinity": "soft"}, {"name": "hashed", "policy": "session_hash"},
        {"name": "turns", "policy": "round_robin"}, {"name": "exact", "policy": "direct"}, {"name": "off", "affinity": "off"},
        {"name": "split", "in_flight_limit": 500},
    ]}));
    let mut port = 8000;
    for pool in ["hard", "soft", "hashed", "turns", "exact", "off", "split"] {
        for (n, labels) in [json!({"zone": "x"}), json!({"zone": "y"}), json!({"zone": "y", "gpu": "h100"})]
            .iter()
            .enumerate()
        {
            port += 1;
            let phase = if pool == "split" && n == 2 { "prefill" } else { "aggregated" };
            let endpoint = json!({"address": format!("127.0.0.1:{port}"), "dp_start": 4, "dp_size": if pool == "split" { 1 } else { 4 }});
            let worker = json!({"pool": pool, "labels": labels, "phase": phase, "endpoints": [endpoint]});
            api.put(&format!("{pool}-{n}"), &worker).await;
        }
    }
    api
}

async fn report(api: &Api, seq: u64, entries: Vec<Value>) {
    let pools = ["hard", "soft", "hashed", "turns", "exact", "off", "split"];
    let slot = |pool: &str, n: u64| json!({"target": {"worker": format!("{pool}-{n}")}, "count": 1000 * ((n + seq) % 3) + 10});
    let in_flight: Vec<Value> = pools.iter().flat_map(|pool| (0..3).map(move |n| slot(pool, n))).collect();
    let body =
        json!({"caller": {"node": "n1", "vm": 11}, "seq": seq, "in_flight": in_flight, "entries": entries});
    let answer = api.data(Method::POST, "/v1/report", body.to_string()).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text());
}

fn route(pool: &str, key: Option<&str>, n: u64, headers: &[[&str; 2]]) -> Value {
    let phase = if pool == "split" { Phase::Decode } else { Phase::Aggregated };
    let session = |phase| {
        let id = |key: &str| hash::session_id(b"", b"", pool, phase, key.as_bytes());
        key.map(|key| json!({"id": id(key), "rank_hash": hash::rank_hash(key.as_bytes())}))
    };
    let value = |name: &str| headers.iter().find(|[of, _]| *of == name).map(|[_, value]| *value);
    let mut body = json!({
        "caller": {"node": "n1", "vm": 11}, "request": n, "pool": pool, "session": session(phase), "deadline_ms": 30,
    });
    if let Some((key, value)) = value("x-rankpin-require").and_then(|text| text.split_once('=')) {
        body["demands"] = json!({"require": [{"key": key, "value": value}]});
    }
    body["named"] = value("x-rankpin-worker").map_or(Value::Null, |worker| json!({"worker": worker}));
    if pool == "split" {
        body["prefill"] = json!({"request": 100_000 + n, "session": session(Phase::Prefill)});
    }
    body
}

fn decision(answer: &Value, target: &str) -> [Value; 4] {
    ["outcome", "refusal", "reason", target].map(|name| answer[name].clone())
}

#[tokio::test]
async fn five_hundred_explanations_over_http_are_what_the_routes_then_answer() {
    let api = fleet().await;
    let pools = ["hard", "soft", "hashed", "turns", "exact", "off", "split"];
    let mut said = std::collections::BTreeMap::<String, u64>::new();
    let (mut entries, mut seq) = (Vec::new(), 1);
    report(&api, seq, Vec::new()).await;
    for n in 0..REQUESTS {
        let pick = |salt, of: usize| usize::try_from(mix(mix(n, 77), salt)).unwrap() % of;
        let pool = pools[pick(1, pools.len())];
        let key = format!("s{}", pick(2, 12));
        let key = (pick(3, 6) > 0 || pool == "hashed").then_some(key.as_str());
        let worker = format!("{pool}-{}", pick(4, 4));
        let mut headers = Vec::new();
        headers.extend(key.map(|key| ["x-session-id", key]));
        if pick(5, 4) == 0 {
            headers.push(["x-rankpin-require", ["zone=x", "zone=y", "zone=z"][pick(6, 3)]]);
        }
        if pick(7, if pool == "exact" { 2 } else { 8 }) == 0 && pool != "split" {
            headers.push(["x-rankpin-worker", &worker]);
        }
        let question = json!({"config": {"trust": "callers"}, "headers": headers, "pool": pool});
        let shown = api.control(Method::POST, "/v1/explain", question.to_string()).await;
        assert_eq!(shown.status, StatusCode::OK, "{}", shown.text());
        let shown = shown.json();
        let reply =
            api.data(Method::POST, "/v1/route", route(pool, key, n, &headers).to_string()).await.json();
        assert_eq!(decision(&shown, "choice"), decision(&reply, "target"), "{question}\n{shown}\n{reply}");
        if pool == "split" && reply["target"].is_object() {
            assert_eq!(
                decision(&shown["prefill"], "choice"),
                decision(&reply["prefill"], "target"),
                "{shown}\n{reply}"
            );
        }
        *said.entry(reply["reason"].as_str().unwrap().to_owned()).or_default() += 1;
        if reply["outcome"] == "held" && pick(8, 3) > 0 {
            let session = &route(pool, key, n, &headers)["session"];
            entries.push(json!({"kind": "committed", "session": session, "pool": pool, "request": n, "hold": reply["hold"],
                "target": reply["target"], "version": reply["version"]}));
        }
        if n % 25 == 24 {
            seq += 1;
            report(&api, seq, std::mem::take(&mut entries)).await;
        }
    }
    println!("{REQUESTS} explanations over HTTP, by reason: {said:?}");
    let sorts = [
        "bound",
        "joined",
        "least_loaded",
        "moved",
        "spilled",
        "named",
        "excluded",
        "session_hash",
        "round_robin",
    ];
    assert!(sorts.iter().all(|sort| said.contains_key(*sort)), "of all sorts: {said:?}");
}

#[tokio::test]
async fn the_filters_own_finding_is_run_and_the_key_is_not_shown() {
    let api = Api::new();
    api.put("w", &json!({"endpoints": [{"address": "127.0.0.1:8001"}]})).await;
    let question = json!({
        "config": {"session": {"sources": ["cookie:sid", "body:/a/b"], "scope": ["header:x-tenant"]}, "hash_secret": "s"},
        "headers": [["X-Tenant", "t"], ["content-type", "application/json"]], "body": r#"{"a": {"b": "the-key"}}"#,
    });
    let shown = api.control(Method::POST, "/v1/explain", question.to_string()).await;
    let scope = [1u32.to_le_bytes().as_slice(), b"t"].concat();
    let id = hash::session_id(b"s", &scope, "default", Phase::Aggregated, b"the-key");
    assert_eq!(shown.json()["key"], json!({"source": "body:/a/b", "session": id}), "{}", shown.text());
    assert!(!shown.text().contains("the-key"));
    assert_eq!(
        shown.json()["candidates"],
        json!([{"worker": "w", "state": "joining", "load": 0, "score": 0}])
    );
    let session = api.control(Method::GET, &format!("/v1/sessions/{id}"), "").await;
    assert_eq!(session.status, StatusCode::NOT_FOUND, "nothing is made");
}

#[tokio::test]
async fn callers_that_are_not_trusted_demand_nothing() {
    let api = Api::new();
    api.put("w", &json!({"endpoints": [{"address": "127.0.0.1:8001"}]})).await;
    let ask = |config: Value| {
        let headers = [["x-rankpin-worker", "w9"], ["x-rankpin-require", "gpu"]];
        json!({"config": config, "headers": headers}).to_string()
    };
    let plain = api.control(Method::POST, "/v1/explain", ask(json!({}))).await.json();
    assert_eq!((&plain["outcome"], &plain["choice"]["worker"]), (&json!("unpinned"), &json!("w")));
    let trusted = api.control(Method::POST, "/v1/explain", ask(json!({"trust": "callers"}))).await.json();
    assert_eq!(trusted["refusal"], "worker_unknown", "{trusted}");
}

#[tokio::test]
async fn what_the_filter_answers_itself_is_told() {
    let api = Api::configured(&json!({"pools": [{"name": "a", "models": ["m"]}]}));
    api.put("w", &json!({"pool": "a", "endpoints": [{"address": "127.0.0.1:8001"}]})).await;
    let long = json!({"headers": [["x-session-id", "k".repeat(257)]]});
    let answer = api.control(Method::POST, "/v1/explain", long.to_string()).await.json();
    assert_eq!(answer["answered"]["status"], 400, "{answer}");
    let unknown = json!({"config": {"pool_by": "header x-model"}, "headers": [["x-model", "other"]]});
    let answer = api.control(Method::POST, "/v1/explain", unknown.to_string()).await.json();
    assert_eq!(
        (&answer["answered"]["status"], &answer["answered"]["body"]["error"]["code"]),
        (&json!(404), &json!("model_not_found")),
        "{answer}"
    );
}

#[tokio::test]
async fn a_pool_that_is_not_there_is_told_with_those_that_are() {
    let api = Api::new();
    let answer = api.control(Method::POST, "/v1/explain", json!({"pool": "nope"}).to_string()).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (422, &json!("unknown_pool")));
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("nope") && detail.contains("default"), "{detail}");
}

#[tokio::test]
async fn every_fault_of_a_question_is_told_with_its_path() {
    let api = Api::new();
    let question = json!({
        "config": {"trust": "everybody", "session": {"sources": ["nonsense"]}}, "headers": [["a"], ["b", 1], "c"], "body": 7,
        "pool": "a b", "more": 1,
    });
    let answer = api.control(Method::POST, "/v1/explain", question.to_string()).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (StatusCode::BAD_REQUEST, "application/problem+json")
    );
    let errors = answer.json()["errors"].as_array().unwrap().clone();
    let paths: Vec<&str> = errors.iter().map(|error| error["path"].as_str().unwrap()).collect();
    let expected = [
        "config.trust",
        "config.session.sources[0]",
        "headers[0]",
        "headers[1]",
        "headers[2]",
        "body",
        "pool",
        "more",
    ];
    assert!(expected.iter().all(|path| paths.contains(path)), "{paths:?}");
    let empty = api.control(Method::POST, "/v1/explain", "").await;
    assert_eq!((empty.status, &empty.json()["code"]), (StatusCode::BAD_REQUEST, &json!("explain_invalid")));
    let large = api.control(Method::POST, "/v1/explain", vec![b' '; (1 << 20) + 1]).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
}
