//! Today's messages and those of the first version (`tests/golden/a1`, its golden files and its state file): each reads the other's. A
//! word or field that only one of them knows costs what it says and nothing else. That whole processes get along under traffic is shown
//! by `cargo xtask upgrade`.

mod contract;

use super::contract::{golden, state};
use super::read;
use contract as old;
use routing::contract::{Report, RouteReply, RouteRequest, WatchQuery, WatchReply};
use routing::id::Epoch;
use routing::time::Timestamp;
use routing::watch::{Position, StoredFleet};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use state_service::declare;
use state_service::state::{Command, Reply};
use std::collections::BTreeSet;

/// Names a worker of the first version's state file, and each of its endpoints, may have: it refuses a worker with any other.
const SAVED: [&str; 9] =
    ["id", "pool", "models", "engine", "endpoints", "weight", "device", "phase", "labels"];
const SAVED_ENDPOINT: [&str; 5] = ["address", "rank_numbering", "dp_start", "dp_size", "tls"];

fn a1(name: &str) -> Value {
    serde_json::from_str(&read(&format!("tests/golden/a1/{name}.json"))).unwrap()
}

/// What is left of a document for those that know `T` only.
fn through<T: Serialize + DeserializeOwned>(document: &Value) -> Value {
    let read: T =
        serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{error}: {document}"));
    serde_json::to_value(read).unwrap()
}

/// Words that are read as others, as `path: from -> to`. Everything else that was read is as it was written.
fn read_as(written: &Value, read: &Value, at: &str, into: &mut BTreeSet<String>) {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            for (name, value) in read {
                let was = written.get(name).unwrap_or_else(|| panic!("{at}/{name} was not written"));
                read_as(was, value, &format!("{at}/{name}"), into);
            }
        }
        (Value::Array(written), Value::Array(read)) => {
            assert_eq!(written.len(), read.len(), "{at}");
            written.iter().zip(read).for_each(|(written, read)| read_as(written, read, at, into));
        }
        (Value::String(written), Value::String(read)) if written != read => {
            into.insert(format!("{at}: {written} -> {read}"));
        }
        _ => assert_eq!(written, read, "{at}"),
    }
}

fn words<T: Serialize + DeserializeOwned>(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    read_as(document, &through::<T>(document), "", &mut found);
    found
}

#[test]
fn we_read_every_message_of_the_first_version_as_it_was_meant() {
    let same = |name: &str, read: Value| assert_eq!(read, a1(name), "{name}");
    same("route_request", through::<RouteRequest>(&a1("route_request")));
    same("route_request_bare", through::<RouteRequest>(&a1("route_request_bare")));
    same("route_reply_held", through::<RouteReply>(&a1("route_reply_held")));
    same("route_replies_bare", through::<Vec<RouteReply>>(&a1("route_replies_bare")));
    same("report", through::<Report>(&a1("report")));
    same("watch_query", through::<WatchQuery>(&a1("watch_query")));
    same("watch_reply", through::<WatchReply>(&a1("watch_reply")));
    same("watch_reply_bare", through::<WatchReply>(&a1("watch_reply_bare")));
    let files = std::fs::read_dir(super::at("tests/golden/a1")).unwrap().count();
    assert_eq!(files, 9, "a file here is read by nobody: eight messages and the state file are");
}

#[test]
fn the_first_version_reads_every_message_of_ours() {
    let of_a_filter = [
        words::<old::RouteRequest>(&golden("route_request")),
        words::<old::RouteRequest>(&golden("route_request_bare")),
        words::<old::RouteRequest>(&golden("route_request_split")),
        words::<old::Report>(&golden("report")),
        words::<old::WatchQuery>(&golden("watch_query")),
    ];
    let of_a_service = [
        words::<old::RouteReply>(&golden("route_reply_held")),
        words::<old::RouteReply>(&golden("route_reply_split")),
        words::<Vec<old::RouteReply>>(&golden("route_replies_bare")),
        words::<old::WatchReply>(&golden("watch_reply")),
        words::<old::WatchReply>(&golden("watch_reply_bare")),
    ];
    let unknown: BTreeSet<String> = of_a_filter.into_iter().chain(of_a_service).flatten().collect();
    // Left alone, and decided by the filter.
    let expected = [
        "/entries/kind: alias -> unknown",
        "/entries/kind: vm_gone -> unknown",
        "/outcome: refused -> unsure",
    ];
    assert_eq!(unknown, expected.map(str::to_owned).into());
}

#[test]
fn the_first_version_pins_and_places_in_pools_of_words_it_does_not_know() {
    let mut news = golden("watch_reply");
    news["topology"]["pools"][0]["policy"] = "kv_aware".into();
    news["topology"]["pools"][0]["affinity"] = "soft".into();
    let expected =
        ["/topology/pools/affinity: soft -> hard", "/topology/pools/policy: kv_aware -> least_loaded"];
    assert_eq!(words::<old::WatchReply>(&news), expected.map(str::to_owned).into());
}

#[test]
fn our_service_answers_filters_of_the_first_version_so_that_they_understand() {
    for name in ["route_request", "route_request_bare"] {
        let request = serde_json::from_value(a1(name)).unwrap();
        let command = Command::Route { request, prompt: None, draw: 0 };
        let Reply::Route(reply) = state().apply(Timestamp(1000), command, &mut Vec::new()) else {
            panic!("{name}")
        };
        let written = serde_json::to_value(&reply).unwrap();
        assert_eq!(words::<old::RouteReply>(&written), BTreeSet::new(), "{name}");
        assert!(through::<old::RouteReply>(&written)["target"]["worker"] == "w1", "{name}: {written}");
    }
    let report: Report = serde_json::from_value(a1("report")).unwrap();
    assert_eq!(state().apply(Timestamp(1000), Command::Report(report), &mut Vec::new()), Reply::Done);
    let mut state = state();
    state.apply(Timestamp(1000), Command::EarlierLife { all_told: true }, &mut Vec::new());
    let query = serde_json::from_value(a1("watch_query")).unwrap();
    let Reply::Watch(Some(news)) =
        state.apply(Timestamp(1000), Command::Watch { query, salt: 1 }, &mut Vec::new())
    else {
        panic!("no news")
    };
    let written = serde_json::to_value(&*news).unwrap();
    assert_eq!(words::<old::WatchReply>(&written), BTreeSet::new());
    assert_eq!(through::<old::WatchReply>(&written)["topology"]["workers"][0]["endpoints"][0]["dp_size"], 4);
}

#[test]
fn our_filter_takes_in_news_of_the_first_version_and_is_asked_for_nothing_it_has_not() {
    let news: WatchReply = serde_json::from_value(a1("watch_reply")).unwrap();
    assert!(!news.upload, "the first version has nowhere to upload to");
    let applied = Position::default().apply(news, &StoredFleet::default(), Timestamp(1000));
    assert_eq!(applied.topology.map(|topology| topology.workers.len()), Some(4));
    assert_eq!(applied.position.epoch, Epoch(7));
}

#[test]
fn each_takes_back_the_workers_that_the_other_saved() {
    for value in a1("workers")["workers"].as_array().unwrap() {
        let spec = declare::parse(value.to_string().as_bytes(), None).unwrap();
        let saved = spec.to_saved();
        assert_eq!(&saved, value, "what the first version saved is saved again just so");
        let names = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let among = |names: BTreeSet<String>, known: &[&str]| {
            assert!(names.iter().all(|name| known.contains(&name.as_str())), "{names:?}");
        };
        among(names(&saved), &SAVED);
        for endpoint in saved["endpoints"].as_array().unwrap() {
            among(names(endpoint), &SAVED_ENDPOINT);
        }
    }
}
