//! First turns that fail: whatever answered or nobody did, no binding stays, and the next turn chooses afresh.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(script: &str, expected: Expect) {
    expected.assert_eq(&World::new().run(script));
}

#[test]
fn a_first_turn_that_envoy_answers_leaves_nothing() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; answer envoy 503; end; load; page s;
         b: head session=s; b: route held w0 rank 2 v2 hold 10; b: answer 200; b: end; page s; report",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer envoy 503 -> nothing
            end -> forget v1, #rolled_back, report now
            load -> 0
            page s -> empty
            b: head session=s -> pause, ask unsent [failed r1 hold 9]
            b: route held w0 rank 2 v2 hold 10 -> put held w0/2 v2, #routed_held, resume, to worker-w0 rank 2
            b: answer 200 -> put bound w0/2 v2, #committed, report now
            b: end -> nothing
            page s -> bound w0/2 v2
            report -> [slot w1/5 failed x1: Connection, failed r1 hold 9, committed r2 hold 10 w0/2 v2] load []
        "#]],
    );
    for status in ["413", "408", "429", "504"] {
        let trace = World::new().run(&format!(
            "head session=s; route held w1 rank 5 v1 hold 9; answer envoy {status}; end; page s; load"
        ));
        assert!(trace.contains("page s -> empty") && trace.ends_with("load -> 0\n"), "{trace}");
        assert!(!trace.contains("#committed"), "{trace}");
    }
}

#[test]
fn a_first_turn_that_the_engine_fails_leaves_nothing() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; answer 500; end; page s; load; report; head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 500 -> nothing
            end -> forget v1, #rolled_back, report now
            page s -> empty
            load -> 0
            report -> [slot w1/5 failed x1: Status5xx, failed r1 hold 9] load []
            head session=s -> pause, ask
        "#]],
    );
}

#[test]
fn a_client_that_leaves_while_placed_leaves_nothing() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; end; page s; load; report; head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            end -> forget v1, #rolled_back, report now
            page s -> empty
            load -> 0
            report -> [failed r1 hold 9] load []
            head session=s -> pause, ask
        "#]],
    );
}

#[test]
fn a_client_that_leaves_while_routing_leaves_nothing() {
    check(
        "head session=s; end; page s; load; report; b: head session=s; b: route held w1 rank 5 v2",
        expect![[r#"
            head session=s -> pause, ask
            end -> #rolled_back, report now
            page s -> empty
            load -> 0
            report -> [failed r1] load []
            b: head session=s -> pause, ask
            b: route held w1 rank 5 v2 -> put held w1/5 v2, #routed_held, resume, to worker-w1 rank 5
        "#]],
    );
}

#[test]
fn a_quick_retry_carries_the_failure_the_service_has_not_heard() {
    check(
        "report; head session=s; route held w1 rank 5 v1 hold 9; answer 503; end; head session=s",
        expect![[r#"
            report -> [] load []
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 503 -> nothing
            end -> forget v1, #rolled_back, report now
            head session=s -> pause, ask unsent [failed r1 hold 9]
        "#]],
    );
}
