//! Uploaded bindings over HTTP, and what a worker's slots are called.

use crate::support::{Api, ranked, route_body};
use axum::http::{Method, StatusCode};
use routing::contract::UPLOAD_BINDINGS_MAX;
use routing::hash::worker_hash;
use routing::id::WorkerId;
use serde_json::{Value, json};

fn upload(key: &str, worker: &str, count: usize) -> Value {
    let session = route_body(key, 1)["session"].clone();
    let hash = worker_hash(&WorkerId::parse(worker).unwrap());
    let binding = json!({"session": session, "slot": {"worker_hash": hash, "rank": 5},
        "version": {"seq": 3, "writer": 9}, "idle_ms": 1000});
    json!({"caller": {"node": "n1", "vm": 1}, "last": true, "bindings": vec![binding; count], "tomorrow": 1})
}

async fn post(api: &Api, body: &Value) -> crate::support::Answer {
    api.data(Method::POST, "/v1/pages", body.to_string()).await
}

#[tokio::test]
async fn an_uploaded_binding_is_where_the_next_turn_goes() {
    let api = Api::new();
    api.put("v", &ranked(8001)).await;
    assert_eq!(post(&api, &upload("s", "w", 1)).await.status, StatusCode::NO_CONTENT);
    let metrics = api.control(Method::GET, "/metrics", "").await.text();
    assert!(metrics.contains("\nrankpin_parked 1\n"), "{metrics}");
    api.put("w", &ranked(8002)).await;
    let reply = api.data(Method::POST, "/v1/route", route_body("s", 1).to_string()).await.json();
    assert_eq!((&reply["outcome"], &reply["target"]), (&json!("bound"), &json!({"worker": "w", "rank": 5})));
}

#[tokio::test]
async fn an_upload_that_is_too_long_is_refused() {
    let api = Api::new();
    assert_eq!(post(&api, &upload("s", "w", UPLOAD_BINDINGS_MAX)).await.status, StatusCode::NO_CONTENT);
    let answer = post(&api, &upload("s", "w", UPLOAD_BINDINGS_MAX + 1)).await;
    assert_eq!((answer.status.as_u16(), answer.json()["code"].as_str()), (400, Some("upload_too_long")));
    assert_eq!(answer.json()["detail"], "4097 bindings, at most 4096 are taken at once");
}

#[tokio::test]
async fn pages_are_asked_of_those_who_remember_another_life() {
    let api = Api::new();
    let watch = |epoch: u64| {
        let path = format!("/v1/watch?node=n1&epoch={epoch}");
        let api = &api;
        async move { api.data(Method::GET, &path, "").await.json() }
    };
    assert_eq!(watch(0).await.get("upload"), None);
    let asked = watch(99).await;
    assert_eq!((&asked["upload"], asked.get("topology")), (&json!(true), None));
}

#[tokio::test]
async fn a_worker_shows_the_gauges_of_its_slots() {
    let api = Api::new();
    api.put("v", &json!({"endpoints": [{"address": "127.0.0.1:8001"}]})).await;
    api.put("w", &ranked(8002)).await;
    let report = json!({"caller": {"node": "n1", "vm": 1}, "seq": 1, "entries": [],
        "in_flight": [{"target": {"worker": "w", "rank": 5}, "count": 3}, {"target": {"worker": "w"}, "count": 1}]});
    api.data(Method::POST, "/v1/report", report.to_string()).await;
    let shown = api.control(Method::GET, "/v1/workers/w", "").await.json();
    let slot = |rank: Option<u32>, in_flight: u32, n: u32| {
        let gauge = format!("rankpin.slot.{n}.in_flight");
        // No engine was scraped.
        json!({"rank": rank, "in_flight": in_flight, "load": in_flight, "overloaded": false, "gauge": gauge,
            "running": null, "waiting": null, "kv_usage": null})
    };
    let expected = [(Some(4), 0, 1), (Some(5), 3, 2), (Some(6), 0, 3), (Some(7), 0, 4), (None, 1, 5)];
    assert_eq!(shown["slots"], json!(expected.map(|(rank, in_flight, n)| slot(rank, in_flight, n))));
    let single = api.control(Method::GET, "/v1/workers/v", "").await.json();
    assert_eq!(single["slots"], json!([slot(None, 0, 0)]));
    let listed = api.control(Method::GET, "/v1/workers", "").await.json();
    assert_eq!(listed["workers"][0].get("slots"), None);
}
