//! Input that is wrong: a clear answer with a stable code, and nothing changed.

use crate::support::{Api, ranked};
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

struct Case {
    name: &'static str,
    method: Method,
    path: &'static str,
    body: String,
    status: u16,
    problem: Value,
}

fn case(
    name: &'static str,
    (method, path): (Method, &'static str),
    body: &impl ToString,
    status: u16,
    problem: Value,
) -> Case {
    Case { name, method, path, body: body.to_string(), status, problem }
}

fn problem(code: &str, title: &str, status: u16, detail: &str) -> Value {
    json!({"type": format!("urn:rankpin:problem:{code}"), "code": code, "title": title, "status": status, "detail": detail})
}

fn invalid(faults: &[(&str, &str, &str)]) -> Value {
    let detail = match faults.len() {
        1 => "1 fault; nothing was changed".to_owned(),
        n => format!("{n} faults; nothing was changed"),
    };
    let errors: Vec<Value> = faults
        .iter()
        .map(|(path, problem, allowed)| json!({"path": path, "problem": problem, "allowed": allowed}))
        .collect();
    let mut whole = problem("worker_invalid", "The worker is not valid", 400, &detail);
    whole["errors"] = json!(errors);
    whole
}

const PUT_NEW: (Method, &str) = (Method::PUT, "/v1/workers/new");

fn faulty_bodies() -> Vec<Case> {
    vec![
        case(
            "several faults at once, an unknown field among them",
            PUT_NEW,
            &json!({"endpoints": [{"address": "10.0.0.9:8000", "dp_size": 0}], "weight": 1001, "colour": "red"}),
            400,
            invalid(&[
                ("endpoints[0].dp_size", "0 is out of range", "a whole number in 1..=1024"),
                ("weight", "1001 is out of range", "a whole number in 1..=1000"),
                (
                    "colour",
                    "unknown field",
                    "id, pool, models, engine, url, block_size, endpoints, weight, device, phase, labels, engine_version, rank_in, in_flight_limit, kv_events",
                ),
            ]),
        ),
        case(
            "id of path and body differ",
            PUT_NEW,
            &json!({"id": "other", "endpoints": [{"address": "10.0.0.9:8000"}]}),
            400,
            invalid(&[("id", "\"other\" is not the id in the path", "new")]),
        ),
        case(
            "a number in quotes and a URL",
            PUT_NEW,
            &json!({"endpoints": [{"address": "http://127.0.0.1:8000", "dp_size": "4"}]}),
            400,
            invalid(&[
                (
                    "endpoints[0].address",
                    "\"http://127.0.0.1:8000\" begins with a scheme, which does not belong there",
                    "host:port, or [IPv6]:port",
                ),
                ("endpoints[0].dp_size", "\"4\" is a string", "a whole number in 1..=1024, without quotes"),
            ]),
        ),
        case(
            "overlapping ranks on one address",
            PUT_NEW,
            &json!({"endpoints": [
                {"address": "10.0.0.9:8000", "dp_start": 0, "dp_size": 4},
                {"address": "10.0.0.9:8000", "dp_start": 2, "dp_size": 4},
            ]}),
            400,
            invalid(&[
                (
                    "endpoints[1].address",
                    "10.0.0.9:8000 is the address of an earlier endpoint",
                    "each address once",
                ),
                (
                    "endpoints[1].dp_start",
                    "ranks 2..6 overlap ranks 0..4",
                    "ranges that join without gap or overlap",
                ),
            ]),
        ),
    ]
}

fn collisions() -> Vec<Case> {
    vec![
        case(
            "another worker's address",
            PUT_NEW,
            &ranked(8001),
            409,
            problem(
                "address_taken",
                "The address is taken",
                409,
                "address 127.0.0.1:8001 belongs to worker old",
            ),
        ),
        case(
            "an id that is taken",
            (Method::POST, "/v1/workers"),
            &json!({"id": "old", "endpoints": [{"address": "10.0.0.9:8000"}]}),
            409,
            problem(
                "worker_exists",
                "The id is taken",
                409,
                "worker old is declared; PUT /v1/workers/old replaces it",
            ),
        ),
        case(
            "no such worker",
            (Method::DELETE, "/v1/workers/none"),
            &"",
            404,
            problem("unknown_worker", "No such worker", 404, "worker none is not declared"),
        ),
    ]
}

fn wrong_questions() -> Vec<Case> {
    vec![
        case(
            "a drain with an unknown field",
            (Method::POST, "/v1/workers/old/drain"),
            &r#"{"deadline":3}"#,
            400,
            problem(
                "body_malformed",
                "The body could not be read",
                400,
                "unknown field `deadline`, expected `deadline_s` or `resume` at line 1 column 11",
            ),
        ),
        case(
            "a patch that breaks a rule",
            (Method::PATCH, "/v1/workers/old"),
            &r#"{"weight":0}"#,
            400,
            invalid(&[("weight", "0 is out of range", "a whole number in 1..=1000")]),
        ),
        case(
            "a method that is not there",
            (Method::PUT, "/v1/pools"),
            &"",
            405,
            problem("method_not_allowed", "Method not allowed", 405, "/v1/pools does not take PUT"),
        ),
        case(
            "a path that is not there",
            (Method::GET, "/v1/route"),
            &"",
            404,
            problem(
                "path_unknown",
                "No such path",
                404,
                "/v1/route is served by the data listener, not by this one",
            ),
        ),
    ]
}

#[tokio::test]
async fn each_fault_has_its_answer_and_changes_nothing() {
    let api = Api::new();
    api.put("old", &ranked(8001)).await;
    let before = api.control(Method::GET, "/v1/workers", "").await.json();
    for case in faulty_bodies().into_iter().chain(collisions()).chain(wrong_questions()) {
        let answer = api.control(case.method, case.path, case.body).await;
        assert_eq!(answer.status.as_u16(), case.status, "{}: {}", case.name, answer.text());
        assert_eq!(answer.header("content-type"), "application/problem+json", "{}", case.name);
        assert_eq!(answer.json(), case.problem, "{}", case.name);
        let after = api.control(Method::GET, "/v1/workers", "").await.json();
        assert_eq!(after, before, "{} changed something", case.name);
    }
}

#[tokio::test]
async fn a_field_given_twice_is_refused_with_its_path() {
    let api = Api::new();
    api.put("old", &ranked(8001)).await;
    let twice =
        r#"{"endpoints":[{"address":"10.0.0.9:8000","dp_size":4,"dp_size":8}],"weight":1,"weight":2}"#;
    for (method, path) in [(Method::PUT, "/v1/workers/w"), (Method::PATCH, "/v1/workers/old")] {
        let answer = api.control(method, path, twice).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(
            answer.json(),
            invalid(&[
                ("endpoints[0].dp_size", "is given twice", "each field once"),
                ("weight", "is given twice", "each field once"),
            ])
        );
    }
}

#[tokio::test]
async fn one_address_is_one_address_however_it_is_spelt() {
    let api = Api::new();
    api.put(
        "old",
        &json!({"endpoints": [{"address": "127.0.0.1:8001"}, {"address": "Host.test:9", "dp_start": 1}]}),
    )
    .await;
    for spelling in ["[::ffff:127.0.0.1]:8001", "[0:0::FFFF:7F00:1]:8001", "127.0.0.1:08001", "hOST.TEST:09"]
    {
        let body = json!({"endpoints": [{"address": spelling}]});
        let answer = api.control(Method::PUT, "/v1/workers/w", body.to_string()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["code"].as_str()),
            (409, Some("address_taken")),
            "{spelling}"
        );
    }
    let both =
        json!({"endpoints": [{"address": "10.0.0.9:1"}, {"address": "[::ffff:10.0.0.9]:1", "dp_start": 1}]});
    let answer = api.control(Method::PUT, "/v1/workers/w", both.to_string()).await;
    assert_eq!(answer.json()["errors"][0]["problem"], "10.0.0.9:1 is the address of an earlier endpoint");
    let zeros =
        api.control(Method::PUT, "/v1/workers/w", r#"{"endpoints":[{"address":"127.0.0.01:1"}]}"#).await;
    assert_eq!(zeros.status, StatusCode::BAD_REQUEST, "octal to some, decimal to others");
}

#[tokio::test]
async fn garbage_is_no_json_on_either_listener() {
    let api = Api::new();
    let garbage = api.control(Method::PUT, "/v1/workers/w", "{garbage").await;
    assert_eq!(garbage.status, StatusCode::BAD_REQUEST);
    assert_eq!(garbage.json()["code"], "worker_invalid");
    assert!(garbage.json()["errors"][0]["problem"].as_str().unwrap().contains("JSON"), "{}", garbage.text());
    for path in ["/v1/route", "/v1/report", "/v1/pages", "/v3/discovery:clusters"] {
        let answer = api.data(Method::POST, path, "{garbage").await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert_eq!(answer.json()["detail"], "not JSON: line 1, column 2", "{path}");
    }
    let query = api.data(Method::GET, "/v1/watch?after=x", "").await;
    assert_eq!(
        (query.status, query.json()["code"].as_str()),
        (StatusCode::BAD_REQUEST, Some("body_malformed"))
    );
}

#[tokio::test]
async fn a_body_above_its_limit_is_refused_as_a_problem() {
    let api = Api::new();
    let at = |bytes: usize| " ".repeat(bytes);
    let control = api.control(Method::PUT, "/v1/workers/w", at((1 << 20) + 1)).await;
    assert_eq!(
        (control.status, control.json()["code"].as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"))
    );
    assert_eq!(control.json()["detail"], "at most 1048576 bytes are read");
    let data = api.data(Method::POST, "/v1/report", at((4 << 20) + 1)).await;
    assert_eq!(
        (data.status, data.json()["code"].as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"))
    );
    let within = api.control(Method::PUT, "/v1/workers/w", at(1 << 20)).await;
    assert_eq!(within.status, StatusCode::BAD_REQUEST, "the limit itself is read, and is no JSON");
}

#[tokio::test]
async fn a_pool_that_the_config_does_not_know_is_refused() {
    let api = Api::configured(&json!({"pools": [{"name": "chat"}]}));
    let body = json!({"pool": "other", "endpoints": [{"address": "10.0.0.9:8000"}]});
    let answer = api.control(Method::PUT, "/v1/workers/w", body.to_string()).await;
    assert_eq!((answer.status.as_u16(), answer.json()["code"].as_str()), (422, Some("unknown_pool")));
    assert_eq!(answer.json()["detail"], "pool other is not in the config; declared pools: chat");
}

#[tokio::test]
async fn a_session_id_that_is_none_is_refused() {
    let api = Api::new();
    let answer = api.control(Method::GET, "/v1/sessions/xyz", "").await;
    assert_eq!((answer.status.as_u16(), answer.json()["code"].as_str()), (400, Some("session_id_invalid")));
    let unknown = api.control(Method::GET, &format!("/v1/sessions/{}", "0".repeat(32)), "").await;
    assert_eq!((unknown.status.as_u16(), unknown.json()["code"].as_str()), (404, Some("unknown_session")));
    assert_eq!(unknown.json()["title"], "No such session");
}

#[tokio::test]
async fn only_a_refused_change_says_that_nothing_changed() {
    let api = Api::new();
    for path in ["/v1/workers/a%20b", "/v1/sessions/xyz"] {
        let detail = |method| async { api.control(method, path, "").await.json()["detail"].clone() };
        assert_eq!(detail(Method::GET).await, "1 fault", "{path}");
        assert_eq!(detail(Method::DELETE).await, "1 fault; nothing was changed", "{path}");
    }
}
