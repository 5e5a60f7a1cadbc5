//! The control listener when all is well.

use crate::support::{Api, ranked, route_body, token_file, until};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::json;
use state_service::auth::Token;

#[tokio::test]
async fn a_worker_is_declared_shown_changed_and_forgotten() {
    let api = Api::new();
    let put = api.control(Method::PUT, "/v1/workers/w", ranked(8001).to_string()).await;
    assert_eq!((put.status, put.header("location")), (StatusCode::CREATED, "/v1/workers/w"));
    assert_eq!((&put.json()["id"], &put.json()["state"]), (&json!("w"), &json!("joining")));
    assert_eq!(put.json()["endpoints"][0]["resolved"], "127.0.0.1:8001");

    let again = api.control(Method::PUT, "/v1/workers/w", put.json()["declared"].to_string()).await;
    assert_eq!(again.status, StatusCode::OK, "what is shown as declared can be put again: {}", again.text());

    let patch = api.control(Method::PATCH, "/v1/workers/w", r#"{"weight":7,"labels":{"rack":"a"}}"#).await;
    assert_eq!((patch.status, &patch.json()["declared"]["weight"]), (StatusCode::OK, &json!(7)));
    assert_eq!(patch.json()["declared"]["endpoints"][0]["dp_start"], 4, "what the patch does not name stays");

    let list = api.control(Method::GET, "/v1/workers", "").await.json();
    assert_eq!(list["workers"].as_array().unwrap().len(), 1);
    let mut alone = api.control(Method::GET, "/v1/workers/w", "").await.json();
    assert!(alone.as_object_mut().unwrap().remove("slots").is_some(), "told of one worker only");
    assert_eq!(list["workers"][0], alone);

    let delete = api.control(Method::DELETE, "/v1/workers/w", "").await;
    assert_eq!((delete.status, delete.bytes.len()), (StatusCode::NO_CONTENT, 0));
    assert_eq!(api.control(Method::GET, "/v1/workers/w", "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_new_worker_can_be_posted_without_its_id_in_the_path() {
    let api = Api::new();
    let body = json!({"id": "w", "endpoints": [{"address": "[::1]:8000"}]});
    let post = api.control(Method::POST, "/v1/workers", body.to_string()).await;
    assert_eq!((post.status, post.header("location")), (StatusCode::CREATED, "/v1/workers/w"));
}

#[tokio::test]
async fn a_drain_begins_and_ends() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    let drained = api.control(Method::POST, "/v1/workers/w/drain", r#"{"deadline_s":60}"#).await;
    assert_eq!((drained.status, &drained.json()["draining"]), (StatusCode::OK, &json!(true)));
    let resumed = api.control(Method::POST, "/v1/workers/w/drain", r#"{"resume":true}"#).await;
    assert_eq!(resumed.json()["draining"], false);
    assert_eq!(
        api.control(Method::POST, "/v1/workers/w/drain", "").await.json()["draining"],
        true,
        "no body, no deadline"
    );
}

#[tokio::test]
async fn ready_needs_a_worker_and_no_stop() {
    let api = Api::new();
    let ready = api.control(Method::GET, "/readyz", "").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    let expected = json!({"ready": false, "reasons": [{"code": "no_worker", "detail": "no worker is declared"}], "warnings": []});
    assert_eq!(ready.json(), expected);
    api.put("w", &ranked(8001)).await;
    assert_eq!(api.control(Method::GET, "/readyz", "").await.status, StatusCode::OK);
    api.service.stop();
    let stopping = api.control(Method::GET, "/readyz", "").await;
    assert_eq!((stopping.status.as_u16(), &stopping.json()["reasons"][0]["code"]), (503, &json!("stopping")));
    assert_eq!(api.control(Method::GET, "/healthz", "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn pools_and_topology_show_what_is_declared() {
    let api = Api::configured(&json!({"pools": [
        {"name": "chat", "policy": "session_hash", "ttl_s": 60, "models": ["tiny", "small"]}
    ]}));
    let worker =
        json!({"pool": "chat", "endpoints": [{"address": "10.0.0.1:8000"}], "models": ["tiny", "lora"]});
    api.put("w", &worker).await;
    let pools = api.control(Method::GET, "/v1/pools", "").await.json();
    let expected = json!({"pools": [{
        "name": "chat", "policy": "session_hash", "affinity": "hard", "ttl_s": 60, "device_ratio": 8,
        "rank": "auto", "rank_pick": "hash", "soft_margin_percent": 150, "on_overload": "spill",
        "wait_ms": 2000, "on_all_overloaded": "least_loaded", "in_flight_limit": null, "models": ["lora", "small", "tiny"], "workers": 1,
    }]});
    assert_eq!(pools, expected);
    let topology = api.control(Method::GET, "/v1/topology", "").await.json();
    assert_eq!(topology["topology"]["workers"][0]["id"], "w");
    assert_eq!(topology["topology"]["pools"][0]["models"], json!(["lora", "small", "tiny"]));
    assert_eq!(topology["fleet"]["workers"][0]["state"], "joining");
    let unknown = api.control(Method::GET, "/v1/topology?nod=x", "").await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST, "a mistyped name is not ignored");
}

#[tokio::test]
async fn a_pool_by_caches_tells_how_its_tokens_are_got_and_what_is_wrong_with_it() {
    let api = Api::configured(&json!({"pools": [
        {"name": "bare", "policy": "kv_aware"},
        {"name": "meant", "policy": "kv_aware", "tokens": "off", "kv": {"load_cap_percent": 150}},
        {"name": "nowhere", "policy": "kv_aware", "tokens": {"mode": "local", "path": "no/such/folder"}},
        {"name": "texts", "policy": "kv_aware", "tokens": {"mode": "approximate"}},
    ]}));
    let failed = until("the tokenizer to fail", async || {
        let pools = api.control(Method::GET, "/v1/pools", "").await.json();
        (pools["pools"][2]["tokens"]["state"] == "failed").then_some(pools)
    });
    let pools = failed.await["pools"].clone();
    assert_eq!(pools[0]["tokens"], json!({"mode": "off"}));
    assert_eq!(
        (&pools[1]["tokens"]["mode"], &pools[1]["kv"]["load_cap_percent"]),
        (&json!("off"), &json!(150))
    );
    assert_eq!(pools[2]["tokens"]["mode"], "local");
    let detail = pools[2]["tokens"]["detail"].as_str().unwrap();
    assert!(detail.contains("no/such/folder/tokenizer.json"), "{detail}");
    assert_eq!(
        (&pools[3]["tokens"]["mode"], &pools[3]["tokens"]["state"]),
        (&json!("approximate"), &json!("ready"))
    );
    let ready = api.control(Method::GET, "/readyz", "").await.json();
    let warned = |code: &str| {
        let all = ready["warnings"].as_array().unwrap().iter();
        all.filter(|one| one["code"] == code)
            .map(|one| one["detail"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (unsaid, failed) = (warned("tokens_unsaid"), warned("tokenizer_not_loaded"));
    assert!(unsaid.len() == 1 && unsaid[0].starts_with("pool bare "), "{ready}");
    assert!(failed.len() == 1 && failed[0].starts_with("pool nowhere: "), "{ready}");
    assert!(failed[0].contains("/tokenize"), "{ready}");
}

#[tokio::test]
async fn a_session_is_shown_and_released() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    let body = route_body("conv-42", 1);
    let routed = api.data(Method::POST, "/v1/route", body.to_string()).await.json();
    let path = format!("/v1/sessions/{}", body["session"]["id"].as_str().unwrap());
    let held = api.control(Method::GET, &path, "").await.json();
    assert_eq!(
        (&held["state"], &held["owners"], &held["target"]),
        (&json!("held"), &json!(1), &routed["target"])
    );

    let entry = json!({"kind": "committed", "session": body["session"], "pool": "default", "request": 1,
        "hold": routed["hold"], "target": routed["target"], "version": routed["version"]});
    let report = json!({"caller": body["caller"], "seq": 1, "in_flight": [], "entries": [entry]});
    assert_eq!(api.data(Method::POST, "/v1/report", report.to_string()).await.status, StatusCode::NO_CONTENT);
    assert_eq!(api.control(Method::GET, &path, "").await.json()["state"], "bound");

    assert_eq!(api.control(Method::DELETE, &path, "").await.status, StatusCode::NO_CONTENT);
    let released = api.control(Method::GET, &path, "").await.json();
    assert_eq!((&released["state"], &released["target"]), (&json!("released"), &json!(null)));
    assert_eq!(api.control(Method::DELETE, &path, "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_count_requests_and_decisions() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    api.data(Method::POST, "/v1/route", route_body("s", 1).to_string()).await;
    let metrics = api.control(Method::GET, "/metrics", "").await;
    assert!(metrics.header("content-type").starts_with("text/plain"));
    let text = metrics.text();
    for line in [
        "# HELP rankpin_route_held_total Routes answered with a fresh hold.",
        "rankpin_route_held_total 1",
        "rankpin_holds 1",
        "rankpin_workers{state=\"joining\"} 1",
        "rankpin_http_requests_total{listener=\"data\",path=\"/v1/route\",method=\"POST\",status=\"200\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
    let mut names: Vec<&str> =
        text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let families = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), families, "a family is written twice");
    let counts = |line: &&str| line.starts_with("# HELP ") && line.contains("_total ");
    let mut helps: Vec<&str> = text.lines().filter(counts).filter_map(|l| l.splitn(4, ' ').nth(3)).collect();
    assert!(helps.iter().all(|help| help.len() > 5 && !help.starts_with(' ')), "{helps:?}");
    let all = helps.len();
    helps.sort_unstable();
    helps.dedup();
    assert_eq!(helps.len(), all, "two counters say the same of themselves");
}

#[tokio::test]
async fn with_a_token_everything_but_health_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let token = Token::read(&token_file(dir.path(), "0123456789abcdef\n")).unwrap();
    let api = Api::guarded(token);
    let with = |path: &str, value: &str| {
        Request::get(path).header("authorization", value).body(Body::empty()).unwrap()
    };
    let without = api.control(Method::GET, "/v1/workers", "").await;
    assert_eq!((without.status, without.header("www-authenticate")), (StatusCode::UNAUTHORIZED, "Bearer"));
    assert_eq!(without.json()["code"], "unauthorized");
    for (method, path) in [(Method::POST, "/v1/route"), (Method::GET, "/v1/watch"), (Method::GET, "/nowhere")]
    {
        assert_eq!(api.data(method, path, "").await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let wrong = api.control_request(with("/metrics", "Bearer 0123456789abcdeX")).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    let right = api.control_request(with("/metrics", "Bearer 0123456789abcdef")).await;
    assert_eq!(right.status, StatusCode::OK);
    let watch = api.data_request(with("/v1/watch", "Bearer 0123456789abcdef")).await;
    assert_eq!(watch.status, StatusCode::OK);
    for answer in
        [api.control(Method::GET, "/healthz", "").await, api.data(Method::GET, "/healthz", "").await]
    {
        assert_eq!(answer.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn the_openapi_document_is_served() {
    let document = Api::new().control(Method::GET, "/openapi.json", "").await.json();
    assert_eq!(document["openapi"], "3.1.0");
}

#[tokio::test]
async fn every_route_of_the_table_is_there() {
    let api = Api::new();
    for (listener, path, methods) in state_service::http::ROUTES {
        for method in *methods {
            let method: Method = method.to_uppercase().parse().unwrap();
            let answer = match *listener {
                "data" => api.data(method.clone(), path, "").await,
                _ => api.control(method.clone(), path, "").await,
            };
            let text = answer.text();
            assert!(
                !text.contains("path_unknown") && !text.contains("method_not_allowed"),
                "{method} {path}: {text}"
            );
        }
    }
}
