//! Ranks that serve and say nothing of their cache, whoever is served and whyever they say nothing.

use super::kv::{Kv, tokens};
use super::world::*;
use crate::declare;
use crate::state::kv_stream::{Cause, Link};
use crate::state::{Command, KvView};
use routing::contract::*;
use routing::id::*;
use routing::time::Millis;
use serde_json::json;

/// So many answers, then a minute.
fn serve(kv: &mut Kv, count: u32) {
    for name in 0..count {
        kv.loose(&tokens(name, 64));
        let request = kv.requests;
        kv.end(request);
    }
}

fn view(kv: &Kv, worker: &str) -> Option<KvView> {
    let target = Target { worker: worker_id(worker), rank: None };
    kv.world.state.kv_view(kv.world.now, &target)
}

fn declare_off(kv: &mut Kv, worker: &str, pool: &str) {
    let body =
        json!({"pool": pool, "endpoints": [{"address": "10.0.0.9:8000"}], "kv_events": "off"}).to_string();
    let spec = declare::parse(body.as_bytes(), Some(worker)).unwrap();
    kv.world.apply(Command::PutWorker { spec });
}

#[test]
fn requests_without_a_session_are_served_too() {
    let mut kv = Kv::new("worker w0");
    kv.world.apply(Command::KvLink { worker: worker_id("w0"), rank: 0, link: Link::Connecting });
    serve(&mut kv, 8);
    assert_eq!(view(&kv, "w0").unwrap().silent, None, "not for long yet");
    kv.world.now += Millis(60_000);
    assert_eq!(view(&kv, "w0").unwrap().silent, Some(Cause::NotConnected));
    assert_eq!(kv.world.state.kv_silent(kv.world.now), 1);
}

/// It is committed when it is answered and over later: one request.
#[test]
fn a_first_turn_counts_once() {
    let mut kv = Kv::new("worker w0");
    kv.world.apply(Command::KvLink { worker: worker_id("w0"), rank: 0, link: Link::Connecting });
    let turn = |kv: &mut Kv, number: u64| {
        let name = format!("s{number}");
        let reply = kv.ask(route_request(&name, number, "A"), &tokens(1, 64));
        let commit = Entry::Committed {
            session: session(&name),
            pool: pool(),
            request: RequestId(number),
            hold: reply.hold,
            target: reply.target.clone().unwrap(),
            version: reply.version,
        };
        kv.world.report("A", vec![commit, Entry::Ended { request: RequestId(number) }], Vec::new());
    };
    (1..=7).for_each(|number| turn(&mut kv, number));
    kv.world.now += Millis(29_000);
    kv.world.report("A", Vec::new(), Vec::new());
    kv.world.now += Millis(2000);
    assert_eq!(view(&kv, "w0").unwrap().silent, None, "seven");
    turn(&mut kv, 8);
    assert_eq!(view(&kv, "w0").unwrap().silent, Some(Cause::NotConnected));
}

#[test]
fn a_worker_that_is_declared_off_is_seen_where_choices_are_made_by_events() {
    let mut kv = Kv::new("");
    declare_off(&mut kv, "w0", "default");
    assert_eq!(view(&kv, "w0").map(|view| view.link), Some(Link::Off));
    serve(&mut kv, 8);
    kv.world.now += Millis(60_000);
    assert_eq!(view(&kv, "w0").unwrap().silent, Some(Cause::Off));
    assert_eq!(kv.world.state.kv_silent(kv.world.now), 1);
    // A task that is about to end changes nothing.
    kv.world.apply(Command::KvLink { worker: worker_id("w0"), rank: 0, link: Link::Up });
    assert_eq!(view(&kv, "w0").map(|view| view.link), Some(Link::Off));
    // Where nobody chooses by events nobody misses them.
    declare_off(&mut kv, "w0", "other");
    assert!(view(&kv, "w0").is_none());
}
