//! The golden messages of contract v1 between the filter's code and the service's: what one writes the other takes, and it
//! answers with nothing the golden answers do not have. That each message is as its file says is tested in `routing`.

use super::{at, read};
use routing::contract::{
    PAGES_PATH, PageUpload, REPORT_PATH, ROUTE_PATH, RouteRequest, VERSION, WATCH_PATH, WatchReply,
};
use routing::id::Epoch;
use routing::time::Timestamp;
use routing::watch::{Position, StoredFleet};
use serde::de::DeserializeOwned;
use serde_json::Value;
use state_service::config::ServiceConfig;
use state_service::declare;
use state_service::http::ROUTES;
use state_service::http::openapi::DOCUMENT;
use state_service::state::{Command, Reply, State, StateConfig};
use std::collections::BTreeSet;

pub(super) fn golden(name: &str) -> Value {
    serde_json::from_str(&read(&format!("tests/golden/contract/v1/{name}.json"))).unwrap()
}

fn message<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_value(golden(name)).unwrap()
}

/// A service with pool `chat` and worker `w1`, ranks 4 to 7, as the golden messages name them.
pub(super) fn state() -> State {
    let mut config = ServiceConfig::without_file();
    config
        .pools
        .push(routing::contract::PoolInfo::with_defaults(routing::id::PoolName::parse("chat").unwrap()));
    let mut state = State::new(Epoch(7), StateConfig::new(config));
    let body =
        br#"{"pool": "chat", "endpoints": [{"address": "10.0.0.1:8000", "dp_start": 4, "dp_size": 4}]}"#;
    let spec = declare::parse(body, Some("w1")).unwrap();
    assert!(matches!(apply(&mut state, Command::PutWorker { spec }), Reply::Declared(_)));
    state
}

fn apply(state: &mut State, command: Command) -> Reply {
    state.apply(Timestamp(1000), command, &mut Vec::new())
}

/// Every path of member names in a document; what stands in a list counts once.
fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            let at = format!("{at}/{name}");
            paths(value, &at, into);
            into.insert(at);
        }),
        Value::Array(list) => list.iter().for_each(|value| paths(value, at, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn paths_of(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    paths(value, "", &mut found);
    found
}

/// Nothing in `written` that the golden documents do not have.
fn has_nothing_new(written: &Value, golden_names: &[&str]) {
    let known: BTreeSet<String> = golden_names.iter().flat_map(|name| paths_of(&golden(name))).collect();
    let new: Vec<String> = paths_of(written).difference(&known).cloned().collect();
    assert!(new.is_empty(), "{new:?} is in no file of {golden_names:?}: add it there");
}

#[test]
fn the_service_takes_every_golden_question_and_answers_as_the_golden_answers() {
    let dry: RouteRequest = message("route_request_split");
    let Reply::Route(reply) = apply(&mut state(), Command::Route { request: dry, prompt: None, draw: 0 })
    else {
        panic!()
    };
    assert!(reply.explained.is_some(), "{reply:?}");
    has_nothing_new(&serde_json::to_value(&reply).unwrap(), &["route_reply_split", "route_reply_held"]);
    for name in ["route_request", "route_request_bare"] {
        let request = message(name);
        let Reply::Route(reply) = apply(&mut state(), Command::Route { request, prompt: None, draw: 0 })
        else {
            panic!("{name}")
        };
        assert!(reply.target.is_some(), "{name}: {reply:?}");
        has_nothing_new(&serde_json::to_value(&reply).unwrap(), &["route_reply_held"]);
    }
    assert_eq!(apply(&mut state(), Command::Report(message("report"))), Reply::Done);
    let upload: PageUpload = message("page_upload");
    assert_eq!(serde_json::to_value(&upload).unwrap(), golden("page_upload"));
    assert_eq!(apply(&mut state(), Command::Pages(upload)), Reply::Done);
}

#[test]
fn the_service_answers_a_watch_as_the_golden_answer_and_the_filter_takes_it_in() {
    let mut state = state();
    // The golden caller remembers another life: it is given nothing before all workers are told.
    apply(&mut state, Command::EarlierLife { all_told: true });
    let query = message("watch_query");
    let Reply::Watch(Some(news)) = apply(&mut state, Command::Watch { query, salt: 1 }) else {
        panic!("no news")
    };
    let written = serde_json::to_value(&*news).unwrap();
    has_nothing_new(&written, &["watch_reply"]);
    let read: WatchReply = serde_json::from_value(written).unwrap();
    let applied = Position::default().apply(read, &StoredFleet::default(), Timestamp(1000));
    assert_eq!(applied.topology.map(|topology| topology.workers.len()), Some(1));
    assert_eq!(applied.position.epoch, Epoch(7));
}

#[test]
fn an_answer_of_a_newer_version_is_taken_in() {
    let mut newer = golden("watch_reply");
    newer["from_the_future"] = serde_json::json!([1]);
    newer["topology"]["workers"][0]["from_the_future"] = serde_json::json!({});
    let reply: WatchReply = serde_json::from_value(newer).unwrap();
    assert_eq!(reply, message("watch_reply"));
}

#[test]
fn the_contracts_paths_are_served_and_described() {
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    for (path, method) in
        [(ROUTE_PATH, "post"), (REPORT_PATH, "post"), (PAGES_PATH, "post"), (WATCH_PATH, "get")]
    {
        assert!(path.starts_with(&format!("/v{VERSION}/")), "{path}");
        let served =
            ROUTES.iter().any(|(on, at, methods)| *on == "data" && *at == path && methods.contains(&method));
        assert!(served, "{method} {path} is not on the data listener");
        assert!(
            document["paths"][path][method].is_object(),
            "{method} {path} is not in the OpenAPI document"
        );
    }
}

#[test]
fn the_poll_names_the_parameters_the_service_reads() {
    let path = Position::default().path("edge 1");
    let (path, query) = path.split_once('?').unwrap();
    assert_eq!(path, WATCH_PATH);
    let asked: BTreeSet<&str> = query.split('&').map(|pair| pair.split('=').next().unwrap()).collect();
    let query = golden("watch_query");
    let read: BTreeSet<&str> = query.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(asked, read);
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    let parameters = document["paths"][WATCH_PATH]["get"]["parameters"].as_array().unwrap();
    let described: BTreeSet<&str> = parameters.iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(described, read);
}

#[test]
fn every_golden_file_is_read_by_a_test() {
    let tests = read("routing/tests/contract.rs") + &read("tests/wire/contract.rs");
    for file in std::fs::read_dir(at("tests/golden/contract/v1")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(tests.contains(&format!("\"{name}\"")), "{name} is read by nobody");
    }
}
