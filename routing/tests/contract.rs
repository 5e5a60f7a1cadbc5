//! The wire between filter and service: golden JSON of every message, and what old and new versions do to each other.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{endpoint, pool_name, target, worker};
use routing::contract::{
    Affinity, Cached, Caller, CandidateShown, Device, EndpointInfo, Engine, Entry, Explained, Explanation,
    Fleet, InFlight, KeptSlot, KeyShown, Move, OnAllOverloaded, OnOverload, Outcome, Policy, PoolInfo,
    PrefillAsk, RankIn, RankNumbering, Refusal, Removal, Report, RouteReply, RouteRequest, SessionRef,
    SlotFailure, Topology, WatchQuery, WatchReply, WorkerInfo, WorkerState, WorkerStatus,
};
use routing::demand::{Demands, Label};
use routing::hash::Phase;
use routing::id::{Cursor, Epoch, HoldId, Rank, RankHash, RequestId, SessionId, Version};
use routing::time::Millis;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::fmt::Debug;

macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("../../tests/golden/contract/v1/", $name, ".json"))
    };
}

/// The message is written as the file says and read back as it was.
fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, golden: &str) {
    let written = serde_json::to_value(message).unwrap();
    let file: Value = serde_json::from_str(golden).unwrap();
    assert_eq!(written, file, "\n{}", serde_json::to_string_pretty(&written).unwrap());
    assert_eq!(&serde_json::from_str::<T>(golden).unwrap(), message);
    let with_news: T = serde_json::from_value(sprinkled(file)).unwrap();
    assert_eq!(&with_news, message, "fields of a newer version are ignored");
}

/// Labels are the operator's own names, all of which are known.
fn below(name: &str, value: Value) -> Value {
    if name == "labels" { value } else { sprinkled(value) }
}

/// The document with an unknown field in each object.
fn sprinkled(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut object: serde_json::Map<String, Value> =
                object.into_iter().map(|(name, value)| (name.clone(), below(&name, value))).collect();
            object.insert("from_the_future".to_owned(), serde_json::json!({"a": [1, null]}));
            Value::Object(object)
        }
        Value::Array(list) => Value::Array(list.into_iter().map(sprinkled).collect()),
        plain => plain,
    }
}

fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn session() -> SessionRef {
    SessionRef {
        id: SessionId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        rank_hash: RankHash(13_870_706_736_031_703_813),
    }
}

/// A response id, hashed.
fn alias() -> SessionId {
    SessionId(0xffee_ddcc_bbaa_9988_7766_5544_3322_1100)
}

fn caller() -> Caller {
    Caller { node: "envoy-1".to_owned(), vm: Epoch(18_446_744_073_709_551_615) }
}

fn version(seq: u64) -> Version {
    Version { seq, writer: 42 }
}

fn entries() -> Vec<Entry> {
    let (session, pool, request) = (session(), pool_name("chat"), RequestId(9));
    vec![
        Entry::Committed {
            session,
            pool: pool.clone(),
            request,
            hold: Some(HoldId(77)),
            target: target("w1", Some(5)),
            version: version(3),
        },
        Entry::Committed {
            session,
            pool: pool.clone(),
            request,
            hold: None,
            target: target("w2", None),
            version: version(4),
        },
        Entry::Failed { session, pool: pool.clone(), request, hold: Some(HoldId(77)) },
        Entry::Failed { session, pool: pool.clone(), request, hold: None },
        Entry::Touched { session, pool: pool.clone(), version: version(3), slot: None },
        Entry::Touched {
            session,
            pool: pool.clone(),
            version: version(3),
            slot: Some(KeptSlot { worker_hash: 9, rank: Some(Rank(5)) }),
        },
        Entry::Released { session, pool: pool.clone(), version: version(3) },
        Entry::Alias { alias: alias(), session, pool },
        Entry::SlotFailed { target: target("w1", Some(5)), failure: SlotFailure::Connection, count: 2 },
        Entry::SlotFailed { target: target("w2", None), failure: SlotFailure::Status5xx, count: 1 },
        Entry::SlotAnswered { target: target("w1", Some(5)) },
        Entry::VmGone { vm: Epoch(41) },
    ]
}

fn topology() -> Topology {
    let hybrid = worker(
        "w0",
        &[
            EndpointInfo { rank_numbering: RankNumbering::Local, ..endpoint("10.0.0.1:8000", 0, 4) },
            endpoint("[2001:db8::1]:8000", 4, 4),
        ],
    );
    let single = EndpointInfo { rank_numbering: RankNumbering::None, ..endpoint("10.0.0.3:8000", 0, 1) };
    let engine = |name: &str, engine| WorkerInfo { engine, ..worker(name, std::slice::from_ref(&single)) };
    let pool = |name: &str, policy, affinity| PoolInfo {
        policy,
        affinity,
        ..PoolInfo::with_defaults(pool_name(name))
    };
    Topology {
        version: 12,
        pools: vec![
            pool("chat", Policy::LeastLoaded, Affinity::Hard),
            PoolInfo {
                on_overload: OnOverload::Refuse,
                wait_ms: Millis(500),
                on_all_overloaded: OnAllOverloaded::Refuse,
                in_flight_limit: Some(64),
                models: vec!["m1".to_owned(), "m2".to_owned()],
                ..pool("embed", Policy::SessionHash, Affinity::Off)
            },
        ],
        workers: vec![
            WorkerInfo { weight: 3, first_slot: Some(40), ..hybrid },
            WorkerInfo {
                phase: Phase::Prefill,
                models: vec!["m1".to_owned()],
                labels: [("gpu", "h100"), ("!spot", "yes")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
                engine_version: Some("0.5.9".to_owned()),
                rank_in: RankIn::Body,
                ..engine("w1", Engine::Sglang)
            },
            engine("w2", Engine::Trtllm),
            engine("w3", Engine::Custom),
        ],
    }
}

fn fleet() -> Fleet {
    use WorkerState::{Down, Draining, Joining, Ready, Suspect};
    let status = |(n, state): (usize, WorkerState)| WorkerStatus {
        in_flight: 10 + u32::try_from(n).unwrap(),
        penalty: u32::try_from(n % 2).unwrap(),
        ..WorkerStatus::idle(common::id(&format!("w{n}")), state)
    };
    let mut workers: Vec<WorkerStatus> =
        [Joining, Ready, Suspect, Draining, Down].into_iter().enumerate().map(status).collect();
    workers[1] = WorkerStatus {
        waiting: 7,
        overloaded: vec![Rank(4), Rank(6)],
        all_overloaded: true,
        ..workers[1].clone()
    };
    Fleet { version: 13, workers }
}

fn route_reply(outcome: Outcome) -> RouteReply {
    RouteReply { ttl_ms: Millis(1_800_000), ..RouteReply::nowhere(outcome, Cursor(100), Epoch(7), "test") }
}

#[test]
fn route_request() {
    let full = RouteRequest {
        session: Some(session()),
        cached: Some(Cached {
            worker_hash: 18_446_744_073_709_551_614,
            rank: Some(Rank(5)),
            version: version(3),
        }),
        named: Some(target("w1", Some(5))),
        unsent: entries()[2..4].to_vec(),
        ..RouteRequest::new(caller(), RequestId(9), pool_name("chat"), Millis(30))
    };
    same(&full, golden!("route_request"));
    let bare = RouteRequest { session: None, cached: None, named: None, unsent: Vec::new(), ..full };
    same(&bare, golden!("route_request_bare"));
}

#[test]
fn route_request_of_a_split_pool_with_demands() {
    let label =
        |key: &str, value: Option<&str>| Label { key: key.to_owned(), value: value.map(str::to_owned) };
    let prefill = PrefillAsk {
        request: RequestId(10),
        session: Some(session()),
        cached: Some(Cached { worker_hash: 9, rank: Some(Rank(5)), version: version(3) }),
        named: Some(target("w1", Some(5))),
        unsent: entries()[3..4].to_vec(),
    };
    let split = RouteRequest {
        demands: Demands {
            addresses: vec!["10.0.0.1:8000".to_owned()],
            require: vec![label("gpu", Some("h100")), label("spot", None)],
            prefer: vec![label("zone", Some("x"))],
            model: Some("m1".to_owned()),
        },
        wait_ms: Millis(2000),
        alias: Some(alias()),
        prefill: Some(Box::new(prefill)),
        dry_run: true,
        ..RouteRequest::new(caller(), RequestId(9), pool_name("chat"), Millis(30))
    };
    same(&split, golden!("route_request_split"));
}

#[test]
fn route_reply_of_a_split_pool_explained() {
    let bare = |phase, outcome, reason: &str| Explanation {
        key: None,
        pool: pool_name("chat"),
        phase,
        outcome,
        refusal: None,
        reason: reason.to_owned(),
        choice: None,
        candidates: Vec::new(),
        prefill: None,
    };
    let all = [
        Removal::State,
        Removal::Model,
        Removal::Labels,
        Removal::AllowList,
        Removal::Preference,
        Removal::Overload,
    ];
    let candidate = |name: &str, rank, state, load| CandidateShown {
        worker: common::id(name),
        rank,
        state,
        load,
        score: None,
        overlap: None,
        removed_by: Vec::new(),
    };
    let explained = Explanation {
        key: Some(KeyShown { source: "header:x-session-id".to_owned(), session: session().id }),
        refusal: Some(Refusal::Excluded),
        choice: Some(target("w1", Some(5))),
        candidates: vec![
            CandidateShown { removed_by: all.to_vec(), ..candidate("w0", None, WorkerState::Draining, 3) },
            CandidateShown { score: Some(1), ..candidate("w1", Some(Rank(5)), WorkerState::Ready, 1) },
        ],
        prefill: Some(Box::new(bare(Phase::Prefill, Outcome::NoWorker, "no_worker"))),
        ..bare(Phase::Decode, Outcome::Refused, "excluded")
    };
    let split = RouteReply {
        refusal: Some(Refusal::Excluded),
        session: Some(session()),
        prefill: Some(Box::new(route_reply(Outcome::NoWorker))),
        explained: Explained::of(&explained),
        reason: "excluded".to_owned(),
        ..route_reply(Outcome::Refused)
    };
    same(&split, golden!("route_reply_split"));
}

#[test]
fn route_replies() {
    let held = RouteReply {
        target: Some(target("w1", Some(5))),
        alternates: vec![common::id("w0"), common::id("w2")],
        version: version(3),
        hold: Some(HoldId(77)),
        reason: "least_loaded".to_owned(),
        ..route_reply(Outcome::Held)
    };
    same(&held, golden!("route_reply_held"));
    let all: Vec<RouteReply> = [
        Outcome::Held,
        Outcome::Bound,
        Outcome::Unpinned,
        Outcome::NoWorker,
        Outcome::Unsure,
        Outcome::UnknownPool,
        Outcome::Refused,
    ]
    .map(route_reply)
    .to_vec();
    same(&all, golden!("route_replies_bare"));
}

#[test]
fn report() {
    let full = Report {
        caller: caller(),
        seq: 4,
        in_flight: vec![
            InFlight { target: target("w0", Some(2)), count: 3 },
            InFlight { target: target("w2", None), count: 1 },
        ],
        entries: entries(),
        upstream_role_missing: 0,
    };
    same(&full, golden!("report"));
    let words = r#"{"caller":{"node":"n","vm":1},"seq":1,"in_flight":[],"entries":[{"kind":"dreamt","of":"sheep"}],
        "upstream_role_missing":2}"#;
    let newer: Report = serde_json::from_str(words).unwrap();
    assert_eq!((newer.entries, newer.upstream_role_missing), (vec![Entry::Unknown], 2));
}

#[test]
fn watch() {
    let query = WatchQuery {
        node: "envoy-1".to_owned(),
        epoch: 7,
        after: 100,
        topology: 12,
        fleet: 13,
        wait_ms: 20_000,
    };
    same(&query, golden!("watch_query"));
    let session = session();
    let full = WatchReply {
        epoch: Epoch(7),
        cursor: Cursor(103),
        salt: 18_446_744_073_709_551_615,
        gap: true,
        topology: Some(topology()),
        fleet: Some(fleet()),
        moves: vec![
            Move { session, version: version(5), target: Some(target("w1", Some(5))) },
            Move { session, version: version(6), target: None },
        ],
        upload: true,
    };
    same(&full, golden!("watch_reply"));
    let bare =
        WatchReply { gap: false, topology: None, fleet: None, moves: Vec::new(), upload: false, ..full };
    same(&bare, golden!("watch_reply_bare"));
}

#[test]
fn what_an_older_peer_leaves_out_has_a_default() {
    let reply: RouteReply =
        read(r#"{"outcome":"no_worker","ttl_ms":1,"as_of":2,"epoch":3,"reason":"all_down"}"#);
    assert_eq!((reply.target, reply.alternates, reply.hold), (None, Vec::new(), None));
    assert_eq!(reply.version, Version::default());
    let watch: WatchReply = read(r#"{"epoch":1,"cursor":2,"salt":3}"#);
    assert!(!watch.gap && watch.topology.is_none() && watch.fleet.is_none() && watch.moves.is_empty());
    assert_eq!(read::<WatchQuery>("{}"), WatchQuery::default());
    let pool: PoolInfo = read(r#"{"name":"chat"}"#);
    assert_eq!(
        (pool.policy, pool.affinity, pool.ttl_ms),
        (Policy::LeastLoaded, Affinity::Hard, Millis(1_800_000))
    );
    let worker: WorkerInfo = read(r#"{"id":"w0","pool":"chat","endpoints":[{"address":"10.0.0.1:80"}]}"#);
    assert_eq!((worker.engine, worker.weight), (Engine::Vllm, 1));
    let plain = EndpointInfo { rank_numbering: RankNumbering::Global, ..endpoint("10.0.0.1:80", 0, 1) };
    assert_eq!(worker.endpoints, [plain]);
    let status: WorkerStatus = read(r#"{"id":"w0","state":"ready"}"#);
    assert_eq!(status.in_flight, 0);
}

#[test]
fn malformed_messages_are_refused() {
    for text in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"outcome":"held"}"#,
        r#"{"outcome":"held","ttl_ms":-1,"as_of":2,"epoch":3,"reason":""}"#,
        r#"{"outcome":"held","ttl_ms":1,"as_of":2,"epoch":3,"reason":"","target":{"worker":""}}"#,
        r#"{"outcome":"held","ttl_ms":1,"as_of":2,"epoch":3,"reason":"","target":{"worker":"a b"}}"#,
        r#"{"outcome":"held","ttl_ms":1,"as_of":2,"epoch":3,"reason":"","target":{"worker":"w0","rank":-1}}"#,
        r#"{"outcome":"held","ttl_ms":1,"as_of":2,"epoch":3,"reason":"","target":{"worker":"w0","rank":4294967296}}"#,
    ] {
        assert!(serde_json::from_str::<RouteReply>(text).is_err(), "{text}");
    }
    for id in [
        "",
        "00",
        "0123456789abcdef001122334455667",
        "0123456789abcdef001122334455667g",
        "+123456789abcdef0011223344556677",
    ] {
        assert!(
            serde_json::from_str::<SessionRef>(&format!(r#"{{"id":"{id}","rank_hash":1}}"#)).is_err(),
            "{id}"
        );
    }
    assert!(serde_json::from_str::<PoolInfo>(&format!(r#"{{"name":"{}"}}"#, "x".repeat(64))).is_err());
    assert!(serde_json::from_str::<PoolInfo>(&format!(r#"{{"name":"{}"}}"#, "x".repeat(63))).is_ok());
}

#[test]
fn a_word_of_a_newer_build_is_read_as_the_safe_one() {
    fn read<T: serde::de::DeserializeOwned>(word: &str) -> T {
        serde_json::from_str(&format!("{word:?}")).unwrap()
    }
    assert_eq!(read::<Outcome>("levitated"), Outcome::Unsure);
    assert_eq!(read::<Policy>("astrology"), Policy::LeastLoaded);
    assert_eq!(read::<Affinity>("lukewarm"), Affinity::Hard);
    assert_eq!(read::<Device>("abacus"), Device::Accelerator);
    assert_eq!(read::<Engine>("steam"), Engine::Custom);
    assert_eq!(read::<RankNumbering>("roman"), RankNumbering::None);
    assert_eq!(read::<WorkerState>("daydreaming"), WorkerState::Suspect);
    assert_eq!(read::<SlotFailure>("sulked"), SlotFailure::Connection);
    assert_eq!(read::<Refusal>("shrugged"), Refusal::WorkerUnavailable);
    assert_eq!(read::<Removal>("banished"), Removal::Overload);
    assert_eq!(read::<OnOverload>("panic"), OnOverload::Spill);
    assert_eq!(read::<OnAllOverloaded>("panic"), OnAllOverloaded::LeastLoaded);
    assert_eq!(read::<RankIn>("trailer"), RankIn::Header);
    // The words of today are themselves.
    assert_eq!(read::<Policy>("session_hash"), Policy::SessionHash);
    assert_eq!(read::<WorkerState>("down"), WorkerState::Down);
    assert_eq!(read::<Outcome>("unknown_pool"), Outcome::UnknownPool);
}
