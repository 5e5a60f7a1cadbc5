//! Failures that outlive their request: what a bound session's next turn does (affinity section 4, the table), under both ways
//! to steer.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    world.run("head session=s; route bound w1 rank 5 v1; end; report");
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_refused_connection_spills_the_next_turns_and_they_come_home() {
    check(
        World::new(),
        "@2000; head session=s; answer envoy 503; end; report; b: head session=s; b: answer 200; b: end; page s;
         @2999; c: head session=s; c: end; @3000; d: head session=s; d: answer 200; d: end; report; load",
        expect![[r#"
            head session=s -> continue, #pinned, to worker-w1 rank 5
            answer envoy 503 -> nothing
            end -> nothing
            report -> [slot w1/5 failed x1: Connection] load []
            b: head session=s -> continue, #spilled, to worker-w0 rank 3
            b: answer 200 -> nothing
            b: end -> nothing
            page s -> bound w1/5 v1
            c: head session=s -> continue, #spilled, to worker-w0 rank 3
            c: end -> nothing
            d: head session=s -> continue, #pinned, to worker-w1 rank 5
            d: answer 200 -> nothing
            d: end -> nothing
            report -> [slot w1/5 answered] load []
            load -> 0
        "#]],
    );
    check(
        World::endpoints(),
        "@2000; head session=s; try w1; try w2 200; answer 200; end; report; b: head session=s; b: try w0 200; b: answer 200; b: end;
         page s; @3000; d: head session=s; d: try w1 200; d: end; report; load",
        expect![[r#"
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 -> rank 5
            try w2 200 -> no rank
            answer 200 -> not looked at
            end -> nothing
            report -> [slot w1/5 failed x1: Connection] load []
            b: head session=s -> continue, #spilled, to pool-chat [10.0.0.1:80,10.0.0.3:80]
            b: try w0 200 -> rank 3
            b: answer 200 -> not looked at
            b: end -> nothing
            page s -> bound w1/5 v1
            d: head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            d: try w1 200 -> rank 5
            d: end -> nothing
            report -> [slot w1/5 answered] load []
            load -> 0
        "#]],
    );
}

#[test]
fn a_busy_slot_spills_until_its_retry_after_and_is_no_failure() {
    check(
        World::new(),
        "@2000; head session=s; answer 503 2; end; report; b: head session=s; b: end; @3999; c: head session=s; c: end;
         @4000; d: head session=s; d: end; report",
        expect![[r#"
            head session=s -> continue, #pinned, to worker-w1 rank 5
            answer 503 2 -> nothing
            end -> nothing
            report -> [] load []
            b: head session=s -> continue, #spilled, to worker-w0 rank 3
            b: end -> nothing
            c: head session=s -> continue, #spilled, to worker-w0 rank 3
            c: end -> nothing
            d: head session=s -> continue, #pinned, to worker-w1 rank 5
            d: end -> nothing
            report -> [] load []
        "#]],
    );
    check(
        World::endpoints(),
        "@2000; head session=s; try w1 429; try w2 200; answer 200; end; b: head session=s; b: end; @3000; c: head session=s; c: end;
         report; page s",
        expect![[r#"
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 429 -> rank 5
            try w2 200 -> no rank
            answer 200 -> not looked at
            end -> nothing
            b: head session=s -> continue, #spilled, to pool-chat [10.0.0.1:80,10.0.0.2:80,10.0.0.3:80]
            b: end -> nothing
            c: head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            c: end -> nothing
            report -> [] load []
            page s -> bound w1/5 v1
        "#]],
    );
}

#[test]
fn other_answers_of_the_engine_neither_move_nor_spill() {
    for status in ["500", "502", "504", "400", "404", "200"] {
        let mut world = World::new();
        world.run("head session=s; route bound w1 rank 5 v1; end; report");
        let trace =
            world.run(&format!("head session=s; answer {status}; end; b: head session=s; b: end; page s"));
        assert!(trace.ends_with("b: end -> nothing\npage s -> bound w1/5 v1\n"), "{trace}");
        assert_eq!(trace.matches("#pinned, to worker-w1 rank 5").count(), 2, "{trace}");
    }
}

#[test]
fn what_envoy_answers_itself_says_only_what_it_means() {
    for (answer, told) in [
        (
            "503 upstream_reset_before_response_started{remote_connection_failure|Connection_refused}",
            "Connection",
        ),
        ("503 cluster_not_found", "Connection"),
        ("503 no_healthy_upstream", "Connection"),
        ("504 response_timeout", "Status5xx"),
        ("504 stream_idle_timeout", "Status5xx"),
        ("503 upstream_reset_before_response_started{overflow}", ""),
        ("413 request_payload_too_large", ""),
        ("429 rate_limited", ""),
        ("408 request_overall_timeout", ""),
    ] {
        for endpoints in [false, true] {
            let mut world = if endpoints { World::endpoints() } else { World::new() };
            world.run("head session=s; route bound w1 rank 5 v1; end; report");
            let attempt = if endpoints { "try w1;" } else { "" };
            let trace = world.run(&format!("head session=s; {attempt} answer envoy {answer}; end; report"));
            let expected = if told.is_empty() {
                "report -> [] load []\n".to_owned()
            } else {
                format!("report -> [slot w1/5 failed x1: {told}] load []\n")
            };
            assert!(trace.ends_with(&expected), "{answer}: {trace}");
        }
    }
}

#[test]
fn a_missing_cluster_is_counted() {
    check(
        World::new(),
        "head session=s; answer envoy 503 cluster_not_found; end",
        expect![[r#"
        head session=s -> continue, #pinned, to worker-w1 rank 5
        answer envoy 503 cluster_not_found -> #cluster_missing
        end -> nothing
    "#]],
    );
}

#[test]
fn a_broken_stream_counts_and_the_binding_stays() {
    check(
        World::new(),
        "head session=s; answer 200; end broken; page s; report; b: head session=s; b: end",
        expect![[r#"
            head session=s -> continue, #pinned, to worker-w1 rank 5
            answer 200 -> nothing
            end broken -> #stream_broken
            page s -> bound w1/5 v1
            report -> [slot w1/5 failed x1: Status5xx] load []
            b: head session=s -> continue, #pinned, to worker-w1 rank 5
            b: end -> nothing
        "#]],
    );
    check(
        World::endpoints(),
        "head session=s; try w1 200; end broken; report; load",
        expect![[r#"
        head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
        try w1 200 -> rank 5
        end broken -> #stream_broken
        report -> [slot w1/5 failed x1: Status5xx] load []
        load -> 0
    "#]],
    );
}

#[test]
fn a_slot_that_fails_fast_does_not_look_idle() {
    let mut world = World::endpoints();
    world.run("head; try w0 500; answer 500; end");
    let trace: String = (0..50).map(|_| world.run("head; end")).collect();
    assert!(!trace.contains("[10.0.0.1:80"), "the other two have nothing in flight either: {trace}");
    world.run("@60000");
    let later: String = (0..50).map(|_| world.run("head; end")).collect();
    assert!(later.contains("[10.0.0.1:80"), "forgiven: {later}");
}

#[test]
fn an_answer_in_trouble_is_told_and_others_are_not() {
    check(
        World::endpoints(),
        "head session=s; try w1 200; end; report; b: head session=s; b: try w1 500; b: answer 500; b: end; report;
         c: head session=s; c: try w1 200; c: end; report; fleet w1 suspect; @90000; d: head session=s; d: try w1 200; d: end; report",
        expect![[r#"
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 200 -> rank 5
            end -> nothing
            report -> [] load []
            b: head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            b: try w1 500 -> rank 5
            b: answer 500 -> not looked at
            b: end -> nothing
            report -> [slot w1/5 failed x1: Status5xx] load []
            c: head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            c: try w1 200 -> rank 5
            c: end -> nothing
            report -> [slot w1/5 answered] load []
            d: head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            d: try w1 200 -> rank 5
            d: end -> nothing
            report -> [slot w1/5 answered] load []
        "#]],
    );
}

#[test]
fn an_answer_of_a_host_that_nobody_declared_binds_nothing() {
    let mut world = World::endpoints();
    let trace = world.run(
        "head session=s; route held w1 rank 5 v1 hold 9; try w1; try 10.9.9.9:80 200; answer 200; end; page s; report",
    );
    assert!(trace.contains("page s -> empty") && !trace.contains("committed"), "{trace}");
    assert!(trace.contains("failed r1 hold 9"), "{trace}");
}

#[test]
fn session_hash_leaves_a_suspect_where_it_is_and_spills_like_a_bound_turn() {
    let mut world = World::session_hash();
    let home =
        |trace: &str| trace.split(" to worker-").nth(1).and_then(|to| to.lines().next()).map(str::to_owned);
    let first = home(&world.run("head session=s; answer 200; end")).unwrap();
    let worker = first.split_whitespace().next().unwrap().to_owned();
    assert_eq!(
        home(&world.run(&format!("fleet {worker} suspect; head session=s; end"))),
        Some(first.clone())
    );
    let spilled = world.run("head session=s; answer envoy 503; end; b: head session=s; b: end");
    assert!(spilled.contains("#spilled"), "{spilled}");
    let back = world.run("@3000; head session=s; end");
    assert!(back.contains("#session_hash") && home(&back) == Some(first.clone()), "{back}");
    for state in ["down", "draining"] {
        assert_ne!(
            home(&world.run(&format!("fleet {worker} {state}; head session=s; end"))),
            Some(first.clone())
        );
    }
}
