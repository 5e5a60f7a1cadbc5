//! Prompts of questions over HTTP: made into blocks, looked for, booked; and reservations of hosts that dispatch themselves.

use crate::support::{Answer, Api, until};
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

async fn fleet(tokens: Value, kv: Value) -> Api {
    let pool = json!({"name": "default", "policy": "kv_aware", "tokens": tokens, "kv": kv});
    let api = Api::configured(&json!({"pools": [pool]}));
    for (worker, port) in [("w0", 8000), ("w1", 8001)] {
        let endpoint = json!({"address": format!("127.0.0.1:{port}"), "dp_size": 2});
        api.put(worker, &json!({"labels": {"lora": "sql, poems"}, "endpoints": [endpoint]})).await;
    }
    api
}

fn ids(name: u32, n: u32) -> Vec<u32> {
    (0..n).map(|at| name * 1000 + at).collect()
}

async fn caches(api: &Api, worker: &str, rank: u32, tokens: &[u32], lora: Option<&str>) {
    let hashes: Vec<usize> = (1..=tokens.len() / 16).collect();
    let stored = json!({"type": "stored", "hashes": hashes, "parent": null, "tokens": tokens, "block_size": 16, "lora": lora});
    let push = json!({"worker": worker, "rank": rank, "seq": 0, "events": [stored]});
    let answer = api.control(Method::POST, "/v1/kv-events", push.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
}

async fn ask(api: &Api, request: u64, prompt: &Value) -> Value {
    let body = json!({"caller": {"node": "n1", "vm": 11}, "request": request, "pool": "default", "deadline_ms": 2000, "prompt": prompt});
    let answer = api.data(Method::POST, "/v1/route", body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

async fn reserve(api: &Api, body: &Value) -> Answer {
    api.data(Method::POST, "/v1/reservations", body.to_string()).await
}

async fn metric(api: &Api, name: &str) -> u64 {
    let text = api.control(Method::GET, "/metrics", "").await.text();
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}\n{text}"));
    line.trim().parse().unwrap()
}

fn chat(model: &str, said: &str) -> Value {
    let body = json!({"model": model, "messages": [{"role": "user", "content": said}]});
    json!({"text": {"path": "/v1/chat/completions", "body": body.to_string(), "whole": true}})
}

#[tokio::test]
async fn tokens_and_blocks_are_looked_for_and_what_is_found_is_told() {
    let api = fleet(json!({"mode": "engine"}), json!({})).await;
    caches(&api, "w1", 1, &ids(1, 64), None).await;
    let reply = ask(&api, 1, &json!({"tokens": {"ids": ids(1, 100)}})).await;
    assert_eq!(
        (&reply["target"], &reply["overlap"]),
        (&json!({"worker": "w1", "rank": 1}), &json!({"blocks": 4, "of": 6}))
    );
    assert_eq!(reply["reason"], "overlap");
    let chain = routing::block::Chain::of(Default::default(), 16, &ids(1, 100));
    let hashes: Vec<u64> = chain.hashes.iter().map(|hash| hash.0).collect();
    let reply = ask(&api, 2, &json!({"blocks": {"hashes": hashes, "block_size": 16, "tokens": 100}})).await;
    assert_eq!(reply["overlap"], json!({"blocks": 4, "of": 6}));
    // The same tokens under a salt, or with an adapter, are others.
    for (n, apart) in
        [(3, json!({"ids": ids(1, 100), "salt": "s"})), (4, json!({"ids": ids(1, 100), "lora": "sql"}))]
    {
        assert_eq!(ask(&api, n, &json!({"tokens": apart})).await["overlap"]["blocks"], 0);
    }
    assert_eq!(metric(&api, "rankpin_kv_booked").await, 4);
    let ended: Vec<Value> = (1..=4).map(|request| json!({"kind": "ended", "request": request})).collect();
    let report = json!({"caller": {"node": "n1", "vm": 11}, "seq": 1, "in_flight": [], "entries": ended});
    assert_eq!(api.data(Method::POST, "/v1/report", report.to_string()).await.status, StatusCode::NO_CONTENT);
    assert_eq!(metric(&api, "rankpin_kv_booked").await, 0);
}

#[tokio::test]
async fn without_tokens_a_text_goes_where_it_was_sent_before_also_after_its_prediction_is_over() {
    let api = fleet(json!({"mode": "approximate"}), json!({"prediction_ttl_ms": 0})).await;
    let long = "a sentence that is said again and again. ".repeat(40);
    let first = ask(&api, 1, &chat("m", &long)).await;
    assert_eq!((&first["reason"], &first["overlap"]["blocks"]), (&json!("kv_aware"), &json!(0)));
    let again = ask(&api, 2, &chat("m", &format!("{long} And more."))).await;
    assert_eq!((&again["reason"], &again["target"]), (&json!("overlap"), &first["target"]));
    assert!(again["overlap"]["blocks"].as_u64().unwrap() > 20, "{again}");
    // What an adapter computed is not the model's.
    assert_eq!(ask(&api, 3, &chat("m:poems", &long)).await["overlap"]["blocks"], 0);
    assert_eq!(ask(&api, 4, &chat("sql", &long)).await["overlap"]["blocks"], 0);
    assert_eq!(metric(&api, "rankpin_prompts_total{pool=\"default\",source=\"approximate\"}").await, 4);
}

/// An engine that makes a token of each byte of what is said.
async fn engine() -> std::net::SocketAddr {
    let tokenize = |body: String| async move {
        let body: Value = serde_json::from_str(&body).unwrap();
        let said = body["messages"][0]["content"].as_str().unwrap().to_owned();
        let tokens: Vec<u32> = said.bytes().map(u32::from).collect();
        json!({"count": tokens.len(), "max_model_len": 4096, "tokens": tokens}).to_string()
    };
    let router = axum::Router::new().route("/tokenize", axum::routing::post(tokenize));
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(socket, router).await });
    address
}

#[tokio::test]
async fn a_worker_is_asked_for_the_tokens_of_a_text_and_its_block_size_is_learned() {
    let pool = json!({"name": "default", "policy": "kv_aware", "tokens": {"mode": "engine"}});
    let api = Api::configured(&json!({"pools": [pool]}));
    let (cached, asked) = (engine().await, engine().await);
    for (worker, address) in [("w0", cached), ("w1", asked)] {
        api.put(worker, &json!({"endpoints": [{"address": address.to_string()}], "models": ["m", "sql"]}))
            .await;
    }
    let said = "x".repeat(100);
    let tokens: Vec<u32> = said.bytes().map(u32::from).collect();
    let stored =
        json!({"type": "stored", "hashes": [1, 2], "parent": null, "tokens": tokens[..64], "block_size": 32});
    let push = json!({"worker": "w1", "rank": 0, "seq": 0, "events": [stored]});
    let answer = api.control(Method::POST, "/v1/kv-events", push.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let reply = ask(&api, 1, &chat("m", &said)).await;
    assert_eq!(
        (&reply["target"], &reply["overlap"]),
        (&json!({"worker": "w1"}), &json!({"blocks": 2, "of": 3})),
        "{reply}"
    );
    assert_eq!(metric(&api, "rankpin_prompts_total{pool=\"default\",source=\"engine\"}").await, 1);
    // An adapter's blocks are its own, and of a model that nobody names none are looked for.
    assert_eq!(ask(&api, 2, &chat("sql", &said)).await["overlap"], json!({"blocks": 0, "of": 3}));
    let other = ask(&api, 3, &chat("other", &said)).await;
    assert_eq!((&other["reason"], &other["overlap"]), (&json!("kv_aware"), &Value::Null), "{other}");
    assert_eq!(metric(&api, "rankpin_prompts_unread_total{pool=\"default\",reason=\"model\"}").await, 1);
}

#[tokio::test]
async fn a_prompt_that_cannot_be_made_into_blocks_is_placed_by_its_length() {
    let api = fleet(json!({"mode": "approximate"}), json!({})).await;
    for (n, text) in [("/v1/embeddings", "{}"), ("/v1/chat/completions", "no json"), ("/v1/completions", "")]
        .iter()
        .enumerate()
    {
        let prompt = json!({"text": {"path": text.0, "body": text.1, "whole": true}});
        let reply = ask(&api, n as u64, &prompt).await;
        assert_eq!((&reply["reason"], &reply["overlap"]), (&json!("kv_aware"), &Value::Null), "{reply}");
    }
    assert_eq!(metric(&api, "rankpin_prompts_unread_total{pool=\"default\",reason=\"surface\"}").await, 1);
}

#[tokio::test]
async fn a_host_reserves_releases_and_leaks_nothing() {
    let api = fleet(json!("off"), json!({})).await;
    caches(&api, "w0", 1, &ids(1, 64), None).await;
    let wish = |id: &str| json!({"id": id, "pool": "default", "prompt": {"tokens": {"ids": ids(1, 70)}}});
    let reserved = reserve(&api, &wish("r1")).await.json();
    assert_eq!(
        (&reserved["id"], &reserved["booked"], &reserved["reason"]),
        (&json!("r1"), &json!(true), &json!("overlap"))
    );
    assert_eq!(
        (&reserved["target"], &reserved["overlap"]["blocks"]),
        (&json!({"worker": "w0", "rank": 1}), &json!(4))
    );
    // Again: the same slot, booked once, however busy it is by then.
    for n in 0..20 {
        reserve(&api, &wish(&format!("other-{n}"))).await;
    }
    assert_eq!(reserve(&api, &wish("r1")).await.json()["target"], reserved["target"]);
    assert_eq!(metric(&api, "rankpin_kv_booked").await, 21);
    let path = "/v1/reservations/r1";
    let prefilled = || api.data(Method::POST, "/v1/reservations/r1/prefill-complete", "");
    assert_eq!(prefilled().await.status, StatusCode::NO_CONTENT);
    for _ in 0..2 {
        assert_eq!(api.data(Method::DELETE, path, "").await.status, StatusCode::NO_CONTENT);
        assert_eq!(prefilled().await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(metric(&api, "rankpin_kv_booked").await, 20);
    // Told twice that it is over is not told before it begins.
    assert_eq!(reserve(&api, &wish("r1")).await.json()["booked"], true);
    assert_eq!(api.data(Method::DELETE, path, "").await.status, StatusCode::NO_CONTENT);
    // Released before it was reserved.
    assert_eq!(api.data(Method::DELETE, "/v1/reservations/early", "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(reserve(&api, &wish("early")).await.json()["booked"], false);
    assert_eq!(metric(&api, "rankpin_kv_booked").await, 20);
    // Its time ends it if nobody does.
    let mut short = wish("short");
    short["ttl_ms"] = json!(1);
    assert_eq!(reserve(&api, &short).await.json()["booked"], true);
    until("the reservation ends", || async {
        api.service.expire();
        (metric(&api, "rankpin_kv_booked").await == 20).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_host_may_name_the_slot_and_is_told_what_is_wrong() {
    let api = fleet(json!("off"), json!({})).await;
    let prompt = json!({"tokens": {"ids": ids(1, 70)}});
    let named = json!({"pool": "default", "prompt": prompt, "worker": "w1", "rank": 1});
    let answer = reserve(&api, &named).await.json();
    assert_eq!(answer["target"], json!({"worker": "w1", "rank": 1}));
    assert!(answer["id"].as_str().unwrap().len() >= 32, "{answer}");
    for (body, status, code) in [
        (json!({"pool": "nope", "prompt": prompt}), 422, "unknown_pool"),
        (json!({"pool": "default", "prompt": prompt, "worker": "w9"}), 404, "no_place"),
        (json!({"pool": "default", "prompt": prompt, "worker": "w1", "rank": 2}), 422, "no_place"),
        (json!({"pool": "default", "prompt": prompt, "rank": 1}), 400, "reservation_invalid"),
        (json!({"pool": "default", "prompt": prompt, "id": ""}), 400, "reservation_invalid"),
        (json!({"pool": "default", "prompt": prompt, "ttl_ms": 0}), 400, "reservation_invalid"),
        (json!({"pool": "default"}), 400, "reservation_invalid"),
    ] {
        let answer = reserve(&api, &body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["code"].as_str().unwrap()),
            (status, code),
            "{body}"
        );
    }
    let seen = api.control(Method::GET, "/v1/workers/w1", "").await.json();
    let booked = json!({"requests": 1, "by_hosts": 1, "prefill_tokens": 70, "blocks": 4});
    assert_eq!((&seen["booked"], &seen["slots"][1]["booked"]), (&booked, &booked), "{seen}");
    assert_eq!(seen["slots"][0]["booked"]["requests"], 0);
    let plain = Api::new();
    let answer = reserve(&plain, &json!({"pool": "default", "prompt": prompt})).await;
    assert_eq!((answer.status.as_u16(), answer.json()["code"].as_str().unwrap()), (422, "not_kv_aware"));
}

#[tokio::test]
async fn what_is_wrong_with_a_reservation_is_said_by_its_place() {
    let api = fleet(json!("off"), json!({})).await;
    let text = json!({"path": "/v1/chat/completions", "body": {}});
    for (body, path, allowed) in [
        (json!({"prompt": {"tokens": {"ids": [1]}}}), "pool", "1..=63 bytes"),
        (json!({"pool": "default"}), "prompt", "one of text, tokens, blocks"),
        (json!({"pool": "default", "prompt": {"text": "hello"}}), "prompt.text", "a JSON object"),
        (json!({"pool": "default", "prompt": {"text": text}}), "prompt.text.body", "a string"),
        (
            json!({"pool": "default", "prompt": {"token": {"ids": [1]}}}),
            "prompt.token",
            "text, tokens, blocks",
        ),
        (
            json!({"pool": "default", "prompt": {"tokens": {"ids": [1, -2]}}}),
            "prompt.tokens.ids[1]",
            "0..=4294967295",
        ),
        (
            json!({"pool": "default", "prompt": {"blocks": {"hashes": []}}}),
            "prompt.blocks.block_size",
            "a whole number",
        ),
        (
            json!({"pool": "default", "prompt": {"tokens": {"ids": [1]}}, "ttl_ms": "1s"}),
            "ttl_ms",
            "1..=3600000",
        ),
        (json!({"pool": "default", "prompt": {"tokens": {"ids": [1]}}, "ttl": 5}), "ttl", "ttl_ms"),
    ] {
        let answer = reserve(&api, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}: {}", answer.text());
        let errors = answer.json()["errors"].as_array().cloned().unwrap_or_default();
        let fault = errors.iter().find(|fault| fault["path"] == path);
        let fault = fault.unwrap_or_else(|| panic!("{body}: nothing of {path} in {}", answer.text()));
        assert!(fault["allowed"].as_str().unwrap().contains(allowed), "{fault}");
    }
    let elsewhere = api.control(Method::POST, "/v1/reservations", "{}").await;
    assert_eq!(elsewhere.status, StatusCode::NOT_FOUND);
    let said = elsewhere.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!(said, "/v1/reservations is served by the data listener, not by this one");
    let deeper = api.control(Method::DELETE, "/v1/reservations/r1", "").await.json();
    assert!(deeper["detail"].as_str().unwrap().contains("the data listener"), "{deeper}");
    let nowhere = api.control(Method::GET, "/v1/nothing", "").await.json();
    assert!(nowhere["detail"].as_str().unwrap().contains("/openapi.json"), "{nowhere}");
}

#[tokio::test]
async fn explain_shows_what_each_slot_caches_and_costs_and_books_nothing() {
    let api = fleet(json!({"mode": "approximate"}), json!({})).await;
    let said = "a sentence that is said again and again. ".repeat(40);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": said}]}).to_string();
    let placed =
        ask(&api, 1, &json!({"text": {"path": "/v1/chat/completions", "body": body, "whole": true}})).await;
    let question = json!({"pool": "default", "body": body});
    let shown = api.control(Method::POST, "/v1/explain", question.to_string()).await.json();
    assert_eq!((&shown["choice"], &shown["reason"]), (&placed["target"], &json!("overlap")), "{shown}");
    let candidates = shown["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 4);
    let held = |one: &&Value| one["overlap"]["blocks"] != 0;
    let holders: Vec<&Value> = candidates.iter().filter(held).collect();
    assert_eq!((holders.len(), &holders[0]["worker"]), (1, &placed["target"]["worker"]));
    let least = candidates.iter().map(|one| one["score"].as_u64().unwrap()).min();
    assert_eq!(holders[0]["score"].as_u64(), least);
    assert_eq!(metric(&api, "rankpin_kv_booked").await, 1);
}
