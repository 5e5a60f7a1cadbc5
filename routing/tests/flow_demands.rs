//! What callers demand of the worker that serves, and what they may ask without anything being done.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{endpoint, worker};
use expect_test::{Expect, expect};
use routing::config::NoTopology;
use routing::contract::Affinity;
use std::collections::BTreeSet;
use world::World;

/// `w0` is `gpu=h100`, `w1` is `gpu=l4` and `zone=b`, `w2` is `zone=b`.
fn labelled() -> World {
    World::new().trusted().but(|world| {
        for (at, key, value) in [(0, "gpu", "h100"), (1, "gpu", "l4"), (1, "zone", "b"), (2, "zone", "b")] {
            world.topology.workers[at].labels.insert(key.to_owned(), value.to_owned());
        }
    })
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

/// Where twenty requests without a session go.
fn served(world: &mut World, words: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        let trace = world.run(&format!("x: head {words}; x: end"));
        let at = trace.split("to worker-").nth(1).unwrap_or(&trace);
        seen.insert(at.split_whitespace().next().unwrap().to_owned());
    }
    seen.into_iter().collect()
}

const LIST: &str = "x-gateway-destination-endpoint-subset";

#[test]
fn requests_go_where_all_demands_are_met_and_prefer_where_most_wishes_are() {
    for (words, workers) in [
        ("", &["w0", "w1", "w2"][..]),
        ("x-rankpin-require=gpu", &["w0", "w1"]),
        ("x-rankpin-require=gpu=l4", &["w1"]),
        ("x-rankpin-require=gpu,zone=b", &["w1"]),
        ("x-rankpin-prefer=zone", &["w1", "w2"]),
        ("x-rankpin-prefer=zone,gpu=l4", &["w1"]),
        ("x-rankpin-prefer=nothing", &["w0", "w1", "w2"]),
        ("x-rankpin-require=gpu x-rankpin-prefer=zone", &["w1"]),
        (&format!("{LIST}=10.0.0.3:80"), &["w2"]),
        (&format!("{LIST}=10.0.0.3:80,10.0.0.1:80,6.6.6.6:80"), &["w0", "w2"]),
        (&format!("{LIST}=10.0.0.3:80,10.0.0.1:80 x-rankpin-require=gpu"), &["w0"]),
    ] {
        assert_eq!(served(&mut labelled(), words), workers, "{words}");
    }
}

#[test]
fn of_a_worker_with_several_endpoints_the_one_that_would_serve_must_be_allowed() {
    let hybrid = || {
        World::new().trusted().but(|world| {
            let endpoints = [endpoint("10.0.0.1:80", 0, 4), endpoint("10.0.0.2:80", 4, 4)];
            world.topology.workers =
                vec![worker("w0", &endpoints), worker("w2", &[endpoint("10.0.0.3:80", 0, 1)])];
        })
    };
    check(
        hybrid(),
        &format!(
            "head session=s; route bound w0 rank 5 v1; end; head session=s {LIST}=10.0.0.2:80; end; head session=s {LIST}=10.0.0.1:80; end"
        ),
        expect![[r#"
            head session=s -> pause, ask
            route bound w0 rank 5 v1 -> put bound w0/5 v1, #routed_bound, resume, to worker-w0.1 rank 5
            end -> nothing
            head session=s x-gateway-destination-endpoint-subset=10.0.0.2:80 -> continue, #pinned, to worker-w0.1 rank 5
            end -> nothing
            head session=s x-gateway-destination-endpoint-subset=10.0.0.1:80 -> pause, #named_refused, respond 403 {"error":{"message":"the session is bound to a worker that this request's demands exclude","type":"invalid_request_error","param":null,"code":"target_excluded"}}
            end -> nothing
        "#]],
    );
    let all = format!("{LIST}=10.0.0.1:80,10.0.0.2:80");
    assert_eq!(served(&mut hybrid(), &all), ["w0", "w0.1"], "whichever of its endpoints serves");
    let one = format!("{LIST}=10.0.0.1:80,10.0.0.3:80");
    assert_eq!(served(&mut hybrid(), &one), ["w2"], "its other endpoint might serve");
}

#[test]
fn a_taint_repels_new_sessions_and_keeps_its_own() {
    let mut world = labelled();
    world.run("head session=s; route bound w2 v1; end");
    let mut world = world.but(|world| {
        world.topology.workers[2].labels.insert("!spot".to_owned(), "yes".to_owned());
    });
    assert_eq!(served(&mut world, ""), ["w0", "w1"]);
    assert_eq!(served(&mut world, "x-rankpin-require=spot"), ["w2"]);
    check(
        world,
        "head session=s; end; head session=s x-rankpin-require=gpu; end; b: head session=s x-rankpin-require=zone; b: end",
        expect![[r#"
            head session=s -> continue, #pinned, to worker-w2
            end -> nothing
            head session=s x-rankpin-require=gpu -> pause, #named_refused, respond 403 {"error":{"message":"the session is bound to a worker that this request's demands exclude","type":"invalid_request_error","param":null,"code":"target_excluded"}}
            end -> nothing
            b: head session=s x-rankpin-require=zone -> continue, #pinned, to worker-w2
            b: end -> nothing
        "#]],
    );
}

#[test]
fn a_bound_slot_that_is_excluded_is_refused_under_hard_and_left_under_soft() {
    check(
        labelled(),
        &format!("head session=s; route bound w1 rank 5 v1; end; head session=s x-rankpin-require=gpu=h100; end;
         head session=s {LIST}=10.0.0.1:80; end; page s; load; report; head session=s x-rankpin-require=gpu; end"),
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            head session=s x-rankpin-require=gpu=h100 -> pause, #named_refused, respond 403 {"error":{"message":"the session is bound to a worker that this request's demands exclude","type":"invalid_request_error","param":null,"code":"target_excluded"}}
            end -> nothing
            head session=s x-gateway-destination-endpoint-subset=10.0.0.1:80 -> pause, #named_refused, respond 403 {"error":{"message":"the session is bound to a worker that this request's demands exclude","type":"invalid_request_error","param":null,"code":"target_excluded"}}
            end -> nothing
            page s -> bound w1/5 v1
            load -> 0
            report -> [] load []
            head session=s x-rankpin-require=gpu -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
        "#]],
    );
    check(
        labelled().but(|world| world.topology.pools[0].affinity = Affinity::Soft),
        "head session=s; route bound w1 v1; end; head session=s x-rankpin-require=gpu=h100; route held w0 v2 hold 9; answer 200; end; page s",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 v1 -> put bound w1 v1, #routed_bound, resume, to worker-w1
            end -> nothing
            head session=s x-rankpin-require=gpu=h100 -> pause, ask cached w1 v1
            route held w0 v2 hold 9 -> put held w0 v2, #routed_held, resume, to worker-w0
            answer 200 -> put bound w0 v2, #committed, report now
            end -> nothing
            page s -> bound w0 v2
        "#]],
    );
}

#[test]
fn a_binding_that_came_meanwhile_is_followed_only_where_it_meets_the_demands() {
    for (require, told) in [("gpu", "#pinned, resume, to worker-w1 rank 5"), ("gpu=h100", "respond 403")] {
        let mut world = labelled();
        let trace = world.run(&format!(
            "head session=s x-rankpin-require={require}; b: head session=s; b: route bound w1 rank 5 v3; route timeout"
        ));
        assert!(trace.contains(told), "{require}: {trace}");
        assert!(world.run("page s").contains("bound w1/5 v3"), "{require}");
    }
}

#[test]
fn demands_that_nobody_meets_are_503_and_never_passed_on() {
    check(
        labelled(),
        "head x-rankpin-require=tpu; end; b: head session=s x-rankpin-require=tpu; b: route refused unmet; b: end;
         c: head session=s x-rankpin-require=tpu; c: route timeout; c: end; fleet w0 down; fleet w1 down; fleet w2 down;
         d: head x-rankpin-require=gpu; d: end; e: head; e: end; load",
        expect![[r#"
            head x-rankpin-require=tpu -> pause, #named_refused, respond 503 retry-after 1 {"error":{"message":"no worker of this pool meets the demands of the request","type":"server_error","param":null,"code":"demands_unmet"}}
            end -> nothing
            b: head session=s x-rankpin-require=tpu -> pause, ask
            b: route refused unmet -> #named_refused, respond 503 retry-after 1 {"error":{"message":"no worker of this pool meets the demands of the request","type":"server_error","param":null,"code":"demands_unmet"}}
            b: end -> nothing
            c: head session=s x-rankpin-require=tpu -> pause, ask
            c: route timeout -> #route_timeout, #rolled_back, report now, #named_refused, respond 503 retry-after 1 {"error":{"message":"no worker of this pool meets the demands of the request","type":"server_error","param":null,"code":"demands_unmet"}}
            c: end -> nothing
            d: head x-rankpin-require=gpu -> pause, #named_refused, respond 503 retry-after 1 {"error":{"message":"no worker of this pool meets the demands of the request","type":"server_error","param":null,"code":"demands_unmet"}}
            d: end -> nothing
            e: head -> continue, #no_worker, to default
            e: end -> nothing
            load -> 0
        "#]],
    );
    for (words, told) in
        [("", "to default"), ("x-rankpin-require=gpu", "respond 503"), ("worker=w1", "respond 503")]
    {
        let mut world = World::without_topology(NoTopology::PassThrough);
        world.config.trust = routing::config::Trust::Callers;
        assert!(world.run(&format!("head {words}")).contains(told), "{words}");
    }
}

#[test]
fn a_list_that_cannot_be_read_is_refused() {
    let many = format!("x-rankpin-prefer={}", "a,".repeat(33));
    for words in ["x-rankpin-require==h100", "x-rankpin-prefer=a,=b", &format!("{LIST}=,"), &many] {
        let trace = labelled().run(&format!("head {words}; load"));
        assert!(trace.contains("respond 400") && trace.contains("demands_malformed"), "{words}: {trace}");
    }
}

#[test]
fn nobody_listens_to_untrusted_callers() {
    let script = format!(
        "head session=s worker=w0 rank=2 x-rankpin-prefill-worker=w9 x-rankpin-require==,tpu {LIST}=, x-rankpin-dry-run=1; route bound w1 rank 5 v1"
    );
    let mut world = World::new();
    let trace = world.run(&script);
    assert!(trace.ends_with("resume, to worker-w1 rank 5\n"), "{trace}");
    let question = world.question.unwrap();
    assert!(question.named.is_none() && question.demands.is_empty() && !question.dry_run, "{question:?}");
}

#[test]
fn a_dry_run_is_answered_and_nothing_is_done() {
    let mut world = labelled();
    world.run("head session=hunter2; route bound w1 rank 5 v1; end; report");
    check(
        world,
        "@900000; head session=hunter2 x-rankpin-dry-run=1 x-session-final=1; route bound w1 rank 5 v1 explained; end;
         b: head session=hunter2 x-rankpin-dry-run=1; b: end; c: head x-rankpin-dry-run=true; c: route failed; c: end;
         d: head session=t x-rankpin-dry-run=1; remove-pool; d: route held w1 rank 5 v2 hold 4; d: end;
         page hunter2; page t; load; report",
        expect![[r#"
            head session=hunter2 x-rankpin-dry-run=1 x-session-final=1 -> pause, ask dry cached w1/5 v1
            route bound w1 rank 5 v1 explained -> #dry_run, respond 200 {"key":{"source":"header:x-session-id","session":"d4ef17e1b0843ca38c2fd376eebe46a8"},"pool":"chat","phase":"aggregated","outcome":"bound","reason":"scripted","choice":{"worker":"w1","rank":5},"candidates":[]}
            end -> nothing
            b: head session=hunter2 x-rankpin-dry-run=1 -> pause, ask dry cached w1/5 v1
            b: end -> nothing
            c: head x-rankpin-dry-run=true -> pause, ask dry
            c: route failed -> #route_failed, #dry_run, respond 503 retry-after 1 {"error":{"message":"the state service did not answer, and a dry run asks it","type":"server_error","param":null,"code":"dry_run_unanswered"}}
            c: end -> nothing
            d: head session=t x-rankpin-dry-run=1 -> pause, ask dry
            d: route held w1 rank 5 v2 hold 4 -> #no_topology, respond 503 retry-after 1 {"error":{"message":"no model worker is known yet; try again shortly","type":"server_error","param":null,"code":"no_workers_known"}}
            d: end -> nothing
            page hunter2 -> bound w1/5 v1
            page t -> empty
            load -> 0
            report -> [] load []
        "#]],
    );
    let mut split = World::split().trusted();
    check(
        World::split().trusted(),
        "head session=s x-rankpin-dry-run=1; end; b: head x-rankpin-dry-run=1 x-rankpin-prefill-worker=wp1; b: end; load; report",
        expect![[r#"
            head session=s x-rankpin-dry-run=1 -> pause, ask dry + prefill r2
            end -> nothing
            b: head x-rankpin-dry-run=1 x-rankpin-prefill-worker=wp1 -> pause, ask dry + prefill r4 without a session at wp1
            b: end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
    let trace = split.run("head session=hunter2 x-rankpin-dry-run=1; route held wd0 v1 hold 9 explained");
    let shown = format!(
        "\"session\":\"{}\"",
        serde_json::to_string(&split.session("hunter2@decode")).unwrap().trim_matches('"')
    );
    assert!(trace.contains(&shown) && !trace.split("->").nth(2).unwrap().contains("hunter2"), "{trace}");
}

#[test]
fn a_dry_run_without_the_service_is_503() {
    let mut world = labelled();
    for _ in 0..5 {
        world.run("x: head session=x; x: route failed; x: end");
    }
    let trace = world.run("head session=s x-rankpin-dry-run=1; load");
    assert!(trace.contains("respond 503 retry-after 1") && trace.ends_with("load -> 0\n"), "{trace}");
}
