//! Bindings for hosts: what they apply, what they are told, and when a stream is over.

use crate::support::{Api, PATIENCE, ranked, route_body, token_file, until};
use axum::body::{Body, HttpBody};
use axum::http::{Method, Request, StatusCode};
use routing::hash::{Phase, rank_hash, session_id};
use serde_json::{Value, json};
use state_service::auth::Token;
use state_service::http::data_router;
use state_service::http::listener::{Patience, serve};
use state_service::service::Followers;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

const STREAM: &str = "/v1/bindings/stream";
const SNAPSHOT: &str = "/v1/bindings/snapshot";
const APPLY: &str = "/v1/bindings/apply";

/// An answer read line by line.
struct Lines {
    body: Body,
    seen: Vec<u8>,
}

impl Lines {
    async fn open(api: &Api, path: &str) -> Self {
        let response = api.open(path).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        Self { body: response.into_body(), seen: Vec::new() }
    }

    /// The stream of a host, its first line read.
    async fn follow(api: &Api, writer: &str, after: Option<&str>) -> Self {
        let after = after.map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        let mut lines = Self::open(api, &format!("{STREAM}?writer={writer}{after}")).await;
        let first = lines.next().await.unwrap();
        assert!(first["writer"].is_u64() && first["bindings"] == json!([]), "{first}");
        lines
    }

    async fn next(&mut self) -> Option<Value> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx));
        let frame = timeout(PATIENCE, frame).await.expect("no line")?;
        self.seen = frame.unwrap().into_data().unwrap().to_vec();
        assert_eq!(self.seen.pop(), Some(b'\n'), "a frame is a line");
        Some(serde_json::from_slice(&self.seen).unwrap())
    }

    /// The next line that tells of a binding, or is the last.
    async fn news(&mut self) -> Value {
        let news = async {
            loop {
                let line = self.next().await.expect("ended");
                if line["bindings"] != json!([]) || !line["closed"].is_null() {
                    return line;
                }
            }
        };
        timeout(PATIENCE, news).await.expect("no news")
    }

    /// What the next line with news tells: session, where, sequence.
    async fn told(&mut self) -> Vec<String> {
        let line = self.news().await;
        line["bindings"].as_array().unwrap().iter().map(short).collect()
    }

    async fn rest(mut self) -> Vec<Value> {
        let mut lines = Vec::new();
        while let Some(line) = self.next().await {
            lines.push(line);
        }
        lines
    }
}

/// Of a session that [`bind`] made.
fn short(binding: &Value) -> String {
    let name = ["a", "b", "c", "d", "e"].into_iter().find(|name| json!(id(name)) == binding["id"]);
    let place = binding["target"]["worker"].as_str().unwrap_or("released");
    format!("{} {place} v{}", name.unwrap_or("?"), binding["version"]["seq"])
}

fn id(key: &str) -> String {
    session_id(b"", b"", "default", Phase::Aggregated, key.as_bytes()).to_string()
}

fn bind(key: &str, seq: u64, worker: &str) -> Value {
    json!({
        "id": id(key), "rank_hash": rank_hash(key.as_bytes()), "version": {"seq": seq},
        "target": {"worker": worker}, "expires_in_ms": 600_000,
    })
}

fn release(key: &str, seq: u64) -> Value {
    let mut binding = bind(key, seq, "");
    binding["target"] = Value::Null;
    binding
}

fn with(mut binding: Value, field: &str, value: Value) -> Value {
    *binding.pointer_mut(field).unwrap_or_else(|| panic!("{field}")) = value;
    binding
}

async fn apply(api: &Api, writer: &str, bindings: &[Value]) -> Vec<Value> {
    let body = json!({"writer": writer, "bindings": bindings}).to_string();
    let answer = api.data(Method::POST, APPLY, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()["outcomes"].as_array().unwrap().clone()
}

async fn outcomes(api: &Api, writer: &str, bindings: &[Value]) -> Vec<String> {
    let outcomes = apply(api, writer, bindings).await;
    outcomes.iter().map(|one| one["outcome"].as_str().unwrap().to_owned()).collect()
}

/// Two workers of one rank.
async fn api() -> Api {
    let api = Api::new();
    for (id, port) in [("w0", 1), ("w1", 2)] {
        let body = json!({"endpoints": [{"address": format!("127.0.0.1:{port}")}]});
        api.put(id, &body).await;
    }
    api
}

async fn metric(api: &Api, sample: &str) -> String {
    let text = api.control(Method::GET, "/metrics", Body::empty()).await.text();
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in {text}")).to_owned()
}

#[tokio::test]
async fn every_outcome_is_told_in_order_and_a_bad_binding_spoils_no_other() {
    let api = api().await;
    api.put("ranked", &ranked(3)).await;
    let told = outcomes(
        &api,
        "host-a",
        &[
            bind("a", 3, "w0"),
            bind("a", 3, "w0"),
            bind("a", 4, "w1"),
            bind("a", 2, "w0"),
            json!({"id": 7}),
            release("a", 5),
            bind("a", 4, "w1"),
            bind("b", 1, "later"),
            with(bind("c", 1, "ranked"), "/target", json!({"worker": "ranked", "rank": 99})),
            bind("d", 1, "w0"),
        ],
    )
    .await;
    assert_eq!(
        told,
        [
            "inserted",
            "refreshed",
            "replaced_newer",
            "ignored_conflict",
            "rejected",
            "replaced_newer",
            "ignored_stale",
            "parked",
            "parked",
            "inserted"
        ]
    );
    let session = api.control(Method::GET, &format!("/v1/sessions/{}", id("d")), Body::empty()).await.json();
    assert_eq!((&session["state"], &session["target"]["worker"]), (&json!("bound"), &json!("w0")));
    assert_eq!(session["version"], json!({"seq": 1, "writer": api.service.writer("host-a")}));
    // What was parked counts once its worker is declared.
    api.put("later", &json!({"endpoints": [{"address": "127.0.0.1:4"}]})).await;
    let session = api.control(Method::GET, &format!("/v1/sessions/{}", id("b")), Body::empty()).await.json();
    assert_eq!(session["target"]["worker"], json!("later"));
}

#[tokio::test]
async fn a_rejected_binding_says_why() {
    let api = Api::configured(&json!({"pools": [{"name": "default"}, {"name": "loose", "affinity": "off"}]}));
    api.put("w0", &json!({"endpoints": [{"address": "127.0.0.1:1"}]})).await;
    api.put("w1", &json!({"pool": "loose", "endpoints": [{"address": "127.0.0.1:2"}]})).await;
    let good = || bind("a", 1, "w0");
    let mut unknown = good();
    unknown["colour"] = json!("red");
    let cases = [
        (json!("x"), "is a string"),
        (json!([]), "is a list"),
        (Value::Null, "is null"),
        (json!({}), "id: is missing"),
        (with(good(), "/id", json!("12")), "id: "),
        (with(good(), "/rank_hash", json!("7")), r#"rank_hash: "7" is not"#),
        (with(good(), "/rank_hash", json!(-1)), "rank_hash: -1 is not"),
        (with(good(), "/version", json!(3)), "version: is a number"),
        (with(good(), "/version/seq", json!(0)), "version.seq: 0 is not"),
        (with(good(), "/version/seq", json!(1.5)), "version.seq: 1.5 is not"),
        (with(good(), "/version/seq", json!((1_u64 << 62) + 1)), "version.seq: "),
        (with(good(), "/version", json!({"seq": 1, "writer": -1})), "version.writer: "),
        (with(good(), "/target", json!("w0")), "target: "),
        (with(good(), "/target", json!({})), "target.worker: is missing"),
        (with(good(), "/target/worker", json!("a b")), "target.worker: "),
        (with(good(), "/target", json!({"worker": "w0", "rank": -1})), "target.rank: "),
        (with(good(), "/expires_in_ms", json!(0)), "expires_in_ms: 0 is not"),
        (with(good(), "/expires_in_ms", json!(31_536_000_001_u64)), "expires_in_ms: "),
        (unknown, "colour: unknown field"),
        (with(good(), "/id", json!("x".repeat(3000))), "bytes long"),
        (bind("a", 1, "w1"), "the worker's pool keeps no bindings"),
    ];
    let told = apply(&api, "host-a", &cases.clone().map(|(binding, _)| binding)).await;
    for ((binding, reason), told) in cases.iter().zip(&told) {
        assert_eq!(told["outcome"], "rejected", "{binding}");
        assert!(told["reason"].as_str().unwrap().contains(reason), "{binding}: {told}");
    }
    assert_eq!(told.len(), cases.len());
    // Given twice: of a body as a text, as no JSON value can hold it.
    let twice = bind("a", 1, "w0").to_string().replacen('{', r#"{"expires_in_ms": 5, "#, 1);
    let answer =
        api.data(Method::POST, APPLY, format!(r#"{{"writer": "a", "bindings": [{twice}]}}"#)).await.json();
    assert!(answer["outcomes"][0]["reason"].as_str().unwrap().contains("expires_in_ms"), "{answer}");
    assert_eq!(metric(&api, "rankpin_sessions").await, "0");
}

#[tokio::test]
async fn a_bad_body_is_refused_with_the_name_of_the_field_and_changes_nothing() {
    let api = api().await;
    let good = bind("a", 1, "w0").to_string();
    let many = vec!["0"; 1_000_000].join(",");
    let deep = "[".repeat(1_000_000);
    for (body, status, code, path) in [
        (String::new(), 400, "bindings_invalid", ""),
        ("[]".to_owned(), 400, "bindings_invalid", ""),
        ("{}".to_owned(), 400, "bindings_invalid", ""),
        (r#"{"writer": "a"}"#.to_owned(), 400, "bindings_invalid", ""),
        (format!(r#"{{"writer": "a", "bindings": [{good}], "colour": 1}}"#), 400, "bindings_invalid", ""),
        (format!(r#"{{"writer": 7, "bindings": [{good}]}}"#), 400, "bindings_invalid", "writer"),
        (format!(r#"{{"writer": "", "bindings": [{good}]}}"#), 400, "bindings_invalid", "writer"),
        (format!(r#"{{"writer": "a b", "bindings": [{good}]}}"#), 400, "bindings_invalid", "writer"),
        (
            format!(r#"{{"writer": "{}", "bindings": [{good}]}}"#, "x".repeat(65)),
            400,
            "bindings_invalid",
            "writer",
        ),
        (r#"{"writer": "a", "bindings": {}}"#.to_owned(), 400, "bindings_invalid", "bindings"),
        (r#"{"writer": "a", "bindings": null}"#.to_owned(), 400, "bindings_invalid", "bindings"),
        (format!(r#"{{"writer": "a", "bindings": [{good}, NaN]}}"#), 400, "bindings_invalid", ""),
        (format!(r#"{{"writer": "a", "bindings": {deep}"#), 400, "bindings_invalid", ""),
        (format!(r#"{{"writer": "a", "bindings": [{many}]}}"#), 400, "bindings_invalid", "bindings"),
        (
            format!(r#"{{"writer": "a", "bindings": ["{}"]}}"#, "x".repeat(10 << 20)),
            413,
            "body_too_large",
            "",
        ),
    ] {
        let shown: String = body.chars().take(60).collect();
        let answer = api.data(Method::POST, APPLY, body).await;
        let problem = answer.json();
        assert_eq!((answer.status.as_u16(), &problem["code"]), (status, &json!(code)), "{shown}: {problem}");
        assert!(status == 413 || problem["errors"][0]["path"] == path, "{shown}: {problem}");
    }
    let nested = format!("{}{}", "[".repeat(900), "]".repeat(900));
    let told =
        api.data(Method::POST, APPLY, format!(r#"{{"writer": "a", "bindings": [{nested}]}}"#)).await.json();
    assert_eq!(told["outcomes"][0]["outcome"], "rejected", "{told}");
    let missing = api.data(Method::POST, APPLY, r#"{"writer": "a"}"#).await.json();
    assert!(missing["errors"][0]["problem"].as_str().unwrap().contains("`bindings`"), "{missing}");
    assert_eq!(metric(&api, "rankpin_sessions").await, "0");
}

#[tokio::test]
async fn the_largest_batch_is_applied_and_one_more_is_refused() {
    let api = api().await;
    let mut batch: Vec<Value> = (0..4096).map(|n| bind(&format!("s{n}"), 1, "w0")).collect();
    let told = outcomes(&api, "host-a", &batch).await;
    assert!(told.len() == 4096 && told.iter().all(|one| one == "inserted"));
    batch.push(bind("one more", 1, "w0"));
    let body = json!({"writer": "host-a", "bindings": batch}).to_string();
    let answer = api.data(Method::POST, APPLY, body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["errors"][0]["path"], "bindings");
    assert_eq!(metric(&api, "rankpin_sessions").await, "4096");
}

#[tokio::test]
async fn binds_moves_releases_and_touches_are_told_to_all_but_who_made_them() {
    let api = api().await;
    let (mut a, mut b) =
        (Lines::follow(&api, "host-a", None).await, Lines::follow(&api, "host-b", None).await);
    apply(&api, "host-a", &[bind("a", 1, "w0"), bind("b", 1, "w1")]).await;
    assert_eq!(b.told().await, ["a w0 v1", "b w1 v1"]);
    apply(&api, "host-b", &[bind("a", 2, "w1")]).await;
    assert_eq!(a.told().await, ["a w1 v2"], "its own are not among them");
    apply(&api, "host-a", &[release("b", 2)]).await;
    assert_eq!(b.told().await, ["b released v2"]);
    // A touch: the same version, a later end.
    apply(&api, "host-a", &[with(bind("c", 1, "w0"), "/expires_in_ms", json!(1000))]).await;
    assert_eq!(b.told().await, ["c w0 v1"]);
    let mut touch = bind("c", 1, "w0");
    touch["version"]["writer"] = json!(api.service.writer("host-a"));
    assert_eq!(outcomes(&api, "host-b", &[touch]).await, ["refreshed"]);
    let line = a.news().await;
    let told = &line["bindings"][0];
    assert_eq!(short(told), "c w0 v1");
    assert!(told["expires_in_ms"].as_u64().unwrap() > 500_000, "{told}");
    // And what happens here.
    let answer = api.control(Method::DELETE, &format!("/v1/sessions/{}", id("a")), Body::empty()).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(a.told().await, ["a released v3"]);
    assert_eq!(b.told().await, ["a released v3"]);
}

/// A host's binding is kept alive by whoever serves its turns.
#[tokio::test]
async fn a_turn_through_an_envoy_is_told_as_a_touch_and_so_is_its_own_binding() {
    let api = api().await;
    let mut a = Lines::follow(&api, "host-a", None).await;
    apply(&api, "host-a", &[with(bind("a", 1, "w1"), "/expires_in_ms", json!(5000))]).await;
    let reply = api.data(Method::POST, "/v1/route", route_body("a", 1).to_string()).await.json();
    assert_eq!((&reply["outcome"], &reply["target"]["worker"]), (&json!("bound"), &json!("w1")), "{reply}");
    let session = json!({"id": id("a"), "rank_hash": rank_hash(b"a")});
    let entry =
        json!({"kind": "touched", "session": session, "pool": "default", "version": reply["version"]});
    let report = json!({"caller": {"node": "n1", "vm": 11}, "seq": 1, "in_flight": [], "entries": [entry]});
    let answer = api.data(Method::POST, "/v1/report", report.to_string()).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text());
    let line = a.news().await;
    assert_eq!(short(&line["bindings"][0]), "a w1 v1");
    assert!(line["bindings"][0]["expires_in_ms"].as_u64().unwrap() > 1_000_000, "{line}");
}

#[tokio::test]
async fn who_loses_is_told_against_what() {
    let api = api().await;
    apply(&api, "host-a", &[bind("a", 7, "w0"), release("b", 7)]).await;
    let lost = apply(&api, "host-b", &[bind("a", 3, "w1"), bind("b", 3, "w1"), bind("c", 3, "w1")]).await;
    assert_eq!(
        (short(&lost[0]["known"]), short(&lost[1]["known"])),
        ("a w0 v7".to_owned(), "b released v7".to_owned())
    );
    assert_eq!(lost[0]["known"]["version"]["writer"], json!(api.service.writer("host-a")));
    assert!(lost[2]["known"].is_null(), "{lost:?}");
}

/// Two writers of one version: the version that settles it is nobody's own, so both hear of it.
#[tokio::test]
async fn who_gave_a_version_that_another_gave_too_hears_the_one_that_settles_it() {
    let api = api().await;
    let (mut a, mut b) =
        (Lines::follow(&api, "host-a", None).await, Lines::follow(&api, "host-b", None).await);
    let same = |worker| with(bind("a", 1, worker), "/version", json!({"seq": 1, "writer": 7}));
    apply(&api, "host-a", &[same("w1")]).await;
    assert_eq!(b.told().await, ["a w1 v1"]);
    let told = apply(&api, "host-b", &[same("w0")]).await;
    assert_eq!(
        (&told[0]["outcome"], short(&told[0]["known"])),
        (&json!("ignored_conflict"), "a w1 v2".to_owned())
    );
    assert_eq!(a.told().await, ["a w1 v2"]);
    assert_eq!(b.told().await, ["a w1 v2"]);
}

#[tokio::test]
async fn a_stream_goes_on_from_its_cursor_and_a_snapshot_leads_into_it() {
    let api = api().await;
    apply(&api, "host-a", &[bind("a", 1, "w0"), bind("b", 1, "w1"), release("c", 1)]).await;
    let snapshot = Lines::open(&api, &format!("{SNAPSHOT}?writer=host-b")).await.rest().await;
    let (first, last) = (&snapshot[0], snapshot.last().unwrap());
    assert_eq!(first["writer"], json!(api.service.writer("host-b")));
    assert_eq!(last["total"], 3);
    let mut all: Vec<String> =
        snapshot.iter().flat_map(|page| page["bindings"].as_array().unwrap().iter().map(short)).collect();
    all.sort();
    assert_eq!(all, ["a w0 v1", "b w1 v1", "c released v1"]);
    apply(&api, "host-a", &[bind("d", 1, "w0")]).await;
    let mut b = Lines::follow(&api, "host-b", first["cursor"].as_str()).await;
    let line = b.news().await;
    assert_eq!(short(&line["bindings"][0]), "d w0 v1");
    drop(b);
    apply(&api, "host-a", &[bind("a", 2, "w1"), bind("a", 3, "w0"), bind("e", 1, "w0")]).await;
    let mut b = Lines::follow(&api, "host-b", line["cursor"].as_str()).await;
    assert_eq!(b.told().await, ["a w0 v3", "e w0 v1"], "each session once, as it is now");
    drop(b);
    let mut fresh = Lines::follow(&api, "host-c", None).await;
    assert_eq!(fresh.told().await.len(), 5, "without a cursor from the beginning");
}

/// Nothing is lost between a snapshot and its cursor, whatever happens while it is read.
#[tokio::test]
async fn what_changes_while_a_snapshot_is_read_comes_after_its_cursor() {
    let api = api().await;
    let batch: Vec<Value> = (0..1000).map(|n| bind(&format!("s{n}"), 1, "w0")).collect();
    apply(&api, "host-a", &batch).await;
    let mut snapshot = Lines::open(&api, SNAPSHOT).await;
    let cursor = snapshot.next().await.unwrap()["cursor"].as_str().unwrap().to_owned();
    let page = snapshot.next().await.unwrap();
    let moved: Vec<Value> = (0..1000).map(|n| bind(&format!("s{n}"), 2, "w1")).collect();
    apply(&api, "host-a", &moved).await;
    let read = page["bindings"].as_array().unwrap().len();
    assert!((1..1000).contains(&read), "{read}: a page");
    let rest = snapshot.rest().await;
    assert_eq!(rest.last().unwrap()["total"], 1000);
    let mut stream = Lines::follow(&api, "host-b", Some(&cursor)).await;
    let mut told = 0;
    while told < 1000 {
        let line = stream.news().await;
        let bindings = line["bindings"].as_array().unwrap();
        assert!(bindings.iter().all(|one| one["version"]["seq"] == 2), "{line}");
        assert!(bindings.len() <= 256);
        told += bindings.len();
    }
    assert_eq!(told, 1000);
}

#[tokio::test]
async fn one_writer_has_one_stream_until_it_ends() {
    let api = api().await;
    let first = Lines::follow(&api, "host-a", None).await;
    let path = format!("{STREAM}?writer=host-a");
    let answer = api.data(Method::GET, &path, Body::empty()).await;
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (StatusCode::CONFLICT, &json!("writer_is_streaming"))
    );
    assert_eq!(answer.header("retry-after"), "1");
    let _other = Lines::follow(&api, "host-b", None).await;
    assert_eq!(metric(&api, "rankpin_host_streams").await, "2");
    drop(first);
    drop(Lines::follow(&api, "host-a", None).await);
    assert_eq!(metric(&api, "rankpin_host_streams").await, "1");
    assert_eq!(metric(&api, r#"rankpin_host_streams_ended_total{reason="gone"}"#).await, "2");
}

#[tokio::test]
async fn streams_and_snapshots_have_a_bound() {
    let api = api().await;
    let mut streams = Vec::new();
    for n in 0..state_service::service::STREAMS_MAX {
        streams.push(Lines::follow(&api, &format!("host-{n}"), None).await);
    }
    let answer = api.data(Method::GET, &format!("{STREAM}?writer=late"), Body::empty()).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (503, &json!("streams_full")));
    streams.pop();
    drop(Lines::follow(&api, "late", None).await);
    let mut snapshots = Vec::new();
    for _ in 0..state_service::service::SNAPSHOTS_MAX {
        snapshots.push(Lines::open(&api, SNAPSHOT).await);
    }
    let answer = api.data(Method::GET, SNAPSHOT, Body::empty()).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (503, &json!("snapshots_full")));
    snapshots.pop();
    drop(Lines::open(&api, SNAPSHOT).await);
}

#[tokio::test]
async fn a_cursor_that_leads_nowhere_is_answered_with_where_all_can_be_read() {
    let api = api().await;
    apply(&api, "host-a", &[bind("a", 1, "w0")]).await;
    let cursor =
        Lines::open(&api, SNAPSHOT).await.next().await.unwrap()["cursor"].as_str().unwrap().to_owned();
    let (epoch, _) = cursor.split_once('-').unwrap();
    let beyond = format!("{epoch}-ffffff");
    let other_life = "1234-1".to_owned();
    for (after, code) in [(beyond, "cursor_too_old"), (other_life, "cursor_of_another_life")] {
        let path = format!("{STREAM}?writer=host-b&after={after}");
        let answer = api.data(Method::GET, &path, Body::empty()).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["code"]), (StatusCode::GONE, &json!(code)));
        assert_eq!(problem["snapshot"], SNAPSHOT);
        assert!(problem["detail"].as_str().unwrap().contains(SNAPSHOT), "{problem}");
    }
    for query in ["", "?writer=", "?writer=a%20b", "?writer=a&after=x", "?writer=a&colour=red"] {
        let answer = api.data(Method::GET, &format!("{STREAM}{query}"), Body::empty()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}: {}", answer.text());
    }
    assert_eq!(metric(&api, "rankpin_host_streams").await, "0");
}

/// More sessions change than are remembered: who is so late reads all of them, and nobody is told half of it.
#[tokio::test]
async fn a_cursor_past_retention_is_gone_and_so_is_a_stream_that_was_overrun() {
    let api = api().await;
    let mut late = Lines::follow(&api, "late", None).await;
    let cursor =
        Lines::open(&api, SNAPSHOT).await.next().await.unwrap()["cursor"].as_str().unwrap().to_owned();
    for batch in 0..33 {
        let bindings: Vec<Value> = (0..4096).map(|n| bind(&format!("s{batch}.{n}"), 1, "w0")).collect();
        apply(&api, "host-a", &bindings).await;
    }
    let answer =
        api.data(Method::GET, &format!("{STREAM}?writer=host-b&after={cursor}"), Body::empty()).await;
    assert_eq!((answer.status, &answer.json()["code"]), (StatusCode::GONE, &json!("cursor_too_old")));
    let last = late.next().await.unwrap();
    assert_eq!((&last["closed"], &last["snapshot"]), (&json!("gap"), &json!(SNAPSHOT)));
    assert_eq!(late.next().await, None);
    drop(late);
    assert_eq!(metric(&api, r#"rankpin_host_streams_ended_total{reason="gap"}"#).await, "1");
}

#[tokio::test(start_paused = true)]
async fn a_line_comes_when_nothing_happens_and_its_cursor_is_past_what_is_not_told() {
    let api = api().await;
    let mut a = Lines::follow(&api, "host-a", None).await;
    let quiet = a.next().await.unwrap();
    assert_eq!(quiet["bindings"], json!([]));
    apply(&api, "host-a", &[bind("a", 1, "w0")]).await;
    let after = a.next().await.unwrap();
    assert!(after["bindings"] == json!([]) && after["cursor"] != quiet["cursor"], "{quiet} {after}");
}

#[tokio::test]
async fn the_end_of_the_service_is_told_and_nobody_begins_after_it() {
    let api = api().await;
    let mut a = Lines::follow(&api, "host-a", None).await;
    let mut snapshot = Lines::open(&api, SNAPSHOT).await;
    snapshot.next().await.unwrap();
    api.service.stop();
    assert_eq!(a.next().await.unwrap()["closed"], "stopping");
    assert_eq!(a.next().await, None);
    let rest = snapshot.rest().await;
    assert!(rest[0]["closed"] == "stopping" && rest[0]["total"].is_null(), "{rest:?}");
    for (method, path) in [(Method::GET, format!("{STREAM}?writer=b")), (Method::GET, SNAPSHOT.to_owned())] {
        let answer = api.data(method, &path, Body::empty()).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (503, &json!("stopping")), "{path}");
    }
}

#[tokio::test]
async fn hosts_need_the_token_like_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let api = Api::guarded(Token::read(&token_file(dir.path(), "0123456789abcdef")).unwrap());
    for (method, path) in
        [(Method::GET, "/v1/bindings/stream?writer=a"), (Method::GET, SNAPSHOT), (Method::POST, APPLY)]
    {
        let answer = api.data(method.clone(), path, Body::empty()).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        let request =
            Request::builder().method(method).uri(path).header("authorization", "Bearer 0123456789abcdef");
        let answer = api.open_request(request.body(Body::from("{}")).unwrap()).await;
        assert_ne!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
}

#[tokio::test]
async fn who_was_not_asked_for_is_excluded() {
    for followers in [Followers::Nobody, Followers::Replicas] {
        let api = Api::followed_by(followers);
        let body = json!({"writer": "a", "bindings": [bind("a", 1, "w0")]}).to_string();
        for (method, path, body) in [
            (Method::GET, "/v1/bindings/stream?writer=a", String::new()),
            (Method::GET, SNAPSHOT, String::new()),
            (Method::POST, APPLY, body),
        ] {
            let answer = api.data(method, path, body).await;
            let said = (answer.status.as_u16(), &answer.json()["code"]);
            assert_eq!(said, (409, &json!("hosts_excluded")), "{path}, {followers:?}");
        }
    }
}

/// Over a socket whose reader takes nothing: what changes is kept once a session, and the connection is closed after a stated time.
#[tokio::test]
async fn a_reader_that_takes_nothing_is_closed_and_counted() {
    let api = api().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_close, closing) = watch::channel(false);
    let patience = Patience { reader_wait: Duration::from_millis(200), ..Patience::SERVICE };
    tokio::spawn(serve(listener, data_router(&api.service), closing, patience));
    let mut stalled = TcpStream::connect(address).await.unwrap();
    stalled.write_all(b"GET /v1/bindings/stream?writer=slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut seq = 0;
    let ended = r#"rankpin_host_streams_ended_total{reason="slow"}"#;
    until("the stalled stream is closed", || {
        seq += 1;
        let bindings: Vec<Value> = (0..4096).map(|n| bind(&format!("s{n}"), seq, "w0")).collect();
        let api = &api;
        async move {
            apply(api, "host-a", &bindings).await;
            (metric(api, ended).await == "1").then_some(())
        }
    })
    .await;
    assert_eq!(metric(&api, "rankpin_host_streams").await, "0");
    // What it could not take is gone with its connection.
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stalled.read_to_end(&mut rest)).await.expect("still open");
    let text = String::from_utf8_lossy(&rest);
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}
