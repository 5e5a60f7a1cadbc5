//! Route, report and watch as the filter speaks them.

use crate::support::{Api, ranked, route_body, until};
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use state_service::http::watch::WATCHERS_MAX;
use std::sync::Arc;
use std::time::{Duration, Instant};

async fn watch(api: &Api, query: &str) -> Value {
    let answer = api.data(Method::GET, &format!("/v1/watch?{query}"), "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

/// The query of a watcher that knows all that `news` told.
fn after(news: &Value, wait_ms: u64) -> String {
    let number = |path: &str| news.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    format!(
        "node=n1&epoch={}&after={}&topology={}&fleet={}&wait_ms={wait_ms}",
        number("/epoch"),
        number("/cursor"),
        number("/topology/version"),
        number("/fleet/version"),
    )
}

#[tokio::test]
async fn a_route_names_the_slot_that_the_hash_says() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    for (key, rank) in [("session-1", 5), ("conv-42", 6), ("s", 7)] {
        let mut body = route_body(key, 1);
        body["a field of tomorrow"] = json!({"x": 1});
        let reply = api.data(Method::POST, "/v1/route", body.to_string()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        assert_eq!(reply.json()["outcome"], "held");
        assert_eq!(reply.json()["target"], json!({"worker": "w", "rank": rank}), "{key}");
    }
}

#[tokio::test]
async fn without_workers_a_route_says_so_at_once() {
    let reply = Api::new().data(Method::POST, "/v1/route", route_body("s", 1).to_string()).await;
    assert_eq!((reply.status, &reply.json()["outcome"]), (StatusCode::OK, &json!("no_worker")));
}

#[tokio::test]
async fn a_report_is_taken_whatever_else_it_says() {
    let api = Api::new();
    let report = json!({"caller": {"node": "n1", "vm": 1}, "seq": 1, "in_flight": [], "entries": [], "tomorrow": [1],
        "upstream_role_missing": 3});
    assert_eq!(api.data(Method::POST, "/v1/report", report.to_string()).await.status, StatusCode::NO_CONTENT);
    let ready = api.control(Method::GET, "/readyz", "").await.json();
    assert_eq!(ready["warnings"][0]["code"], "upstream_role_missing");
    assert!(
        api.control(Method::GET, "/metrics", "")
            .await
            .text()
            .contains("rankpin_upstream_role_missing_total 3\n")
    );
}

#[tokio::test]
async fn a_report_with_too_many_entries_is_refused() {
    let api = Api::new();
    let entry = json!({"kind": "slot_answered", "target": {"worker": "w"}});
    let entries = vec![entry; routing::contract::REPORT_ENTRIES_MAX + 1];
    let report = json!({"caller": {"node": "n1", "vm": 1}, "seq": 1, "in_flight": [], "entries": entries});
    let answer = api.data(Method::POST, "/v1/report", report.to_string()).await;
    assert_eq!((answer.status.as_u16(), answer.json()["code"].as_str()), (400, Some("report_too_long")));
}

#[tokio::test]
async fn a_first_watch_is_answered_with_everything() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    let news = watch(&api, "node=n1&wait_ms=20000").await;
    assert_eq!(news["topology"]["workers"][0]["endpoints"][0]["address"], "127.0.0.1:8001");
    assert_eq!(news["fleet"]["workers"][0]["id"], "w");
    assert_eq!(news["epoch"], api.service.epoch.0);
}

#[tokio::test]
async fn a_watch_with_nothing_new_ends_with_nothing_new() {
    let api = Api::new();
    let first = watch(&api, "node=n1").await;
    let begun = Instant::now();
    let news = watch(&api, &after(&first, 60)).await;
    assert!(begun.elapsed() >= Duration::from_millis(60), "it waited");
    assert_eq!((&news["epoch"], &news["cursor"]), (&first["epoch"], &first["cursor"]));
    assert_eq!((news.get("topology"), news.get("fleet"), &news["gap"]), (None, None, &json!(false)));
    assert_ne!(news["salt"], first["salt"]);
}

#[tokio::test]
async fn a_change_wakes_a_waiting_watch() {
    let api = Arc::new(Api::new());
    let first = watch(&api, "node=n1").await;
    let waiting = tokio::spawn({
        let (api, query) = (Arc::clone(&api), after(&first, 25_000));
        async move { watch(&api, &query).await }
    });
    until("the watch waits", || async {
        (api.service.watchers.available_permits() < WATCHERS_MAX).then_some(())
    })
    .await;
    api.put("w", &ranked(8001)).await;
    let news = tokio::time::timeout(crate::support::PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(news["topology"]["workers"][0]["id"], "w");
}

#[tokio::test]
async fn a_released_session_is_pushed_to_watchers() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    let body = route_body("s", 1);
    let routed = api.data(Method::POST, "/v1/route", body.to_string()).await.json();
    let entry = json!({"kind": "committed", "session": body["session"], "pool": "default", "request": 1,
        "hold": routed["hold"], "target": routed["target"], "version": routed["version"]});
    let report = json!({"caller": body["caller"], "seq": 1, "in_flight": [], "entries": [entry]});
    api.data(Method::POST, "/v1/report", report.to_string()).await;
    let first = watch(&api, "node=n1").await;
    let id = body["session"]["id"].as_str().unwrap();
    api.control(Method::DELETE, &format!("/v1/sessions/{id}"), "").await;
    let news = watch(&api, &after(&first, 25_000)).await;
    assert_eq!((&news["moves"][0]["session"]["id"], news["moves"][0].get("target")), (&json!(id), None));
}

#[tokio::test]
async fn too_many_watchers_are_told_to_come_again() {
    let api = Api::new();
    let _all = api.service.watchers.try_acquire_many(u32::try_from(WATCHERS_MAX).unwrap()).unwrap();
    let answer = api.data(Method::GET, "/v1/watch?wait_ms=25000", "").await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "1"));
    assert_eq!(answer.json()["code"], "watchers_full");
}

#[tokio::test]
async fn the_end_answers_watchers_and_refuses_new_ones() {
    let api = Arc::new(Api::new());
    let first = watch(&api, "node=n1").await;
    let query = after(&first, 25_000);
    let waiting = tokio::spawn({
        let (api, query) = (Arc::clone(&api), query.clone());
        async move { watch(&api, &query).await }
    });
    until("the watch waits", || async {
        (api.service.watchers.available_permits() < WATCHERS_MAX).then_some(())
    })
    .await;
    api.service.stop();
    let news = tokio::time::timeout(crate::support::PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(news["cursor"], first["cursor"]);
    let late = api.data(Method::GET, &format!("/v1/watch?{query}"), "").await;
    assert_eq!((late.status.as_u16(), late.json()["code"].as_str()), (503, Some("stopping")));
    let route = api.data(Method::POST, "/v1/route", route_body("s", 1).to_string()).await;
    assert_eq!(route.status, StatusCode::OK, "routes are answered to the end");
}
