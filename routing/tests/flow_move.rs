//! What moves a binding and what does not: states, ranks, generations, newer versions.

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
fn a_worker_that_is_down_loses_its_sessions_within_the_request() {
    check(
        "head session=s; route bound w1 rank 5 v3; end; fleet w1 down; head session=s;
         route bound w0 rank 2 v4; answer 200; end; page s; head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            head session=s -> pause, ask cached w1/5 v3
            route bound w0 rank 2 v4 -> put bound w0/2 v4, #routed_bound, resume, to worker-w0 rank 2
            answer 200 -> nothing
            end -> nothing
            page s -> bound w0/2 v4
            head session=s -> continue, #pinned, to worker-w0 rank 2
        "#]],
    );
}

#[test]
fn suspect_and_draining_workers_keep_their_sessions_and_get_no_new_ones() {
    let mut world = World::new();
    world.run("head session=s; route bound w1 rank 5 v3; end; b: head session=t; b: route bound w0 rank 1 v1; b: end");
    let kept = world.run("fleet w1 suspect; fleet w0 draining; head session=s; b: head session=t");
    assert_eq!(kept.matches("#pinned").count(), 2, "{kept}");
    for n in 0..30 {
        let trace = world.run(&format!("r{n}: head session=k{n}; r{n}: route timeout; n{n}: head"));
        assert_eq!(trace.matches("to worker-w2").count(), 2, "{trace}");
    }
}

#[test]
fn a_rank_outside_the_declared_range_is_asked_for_again_and_others_stay() {
    check(
        "ranks w0 0 8; head session=six; route bound w0 rank 6 v1; end; b: head session=two; b: route bound w0 rank 2 v1; b: end;
         ranks w0 0 4; head session=six; route bound w0 rank 1 v2; end; b: head session=two; b: end; head session=six",
        expect![[r#"
            head session=six -> pause, ask
            route bound w0 rank 6 v1 -> put bound w0/6 v1, #routed_bound, resume, to worker-w0 rank 6
            end -> nothing
            b: head session=two -> pause, ask
            b: route bound w0 rank 2 v1 -> put bound w0/2 v1, #routed_bound, resume, to worker-w0 rank 2
            b: end -> nothing
            head session=six -> pause, ask cached w0/6 v1
            route bound w0 rank 1 v2 -> put bound w0/1 v2, #routed_bound, resume, to worker-w0 rank 1
            end -> nothing
            b: head session=two -> continue, #pinned, to worker-w0 rank 2
            b: end -> nothing
            head session=six -> continue, #pinned, to worker-w0 rank 1
        "#]],
    );
}

#[test]
fn a_worker_only_binding_gets_its_hashed_rank_when_the_worker_declares_eight() {
    check(
        "head session=session-1; route bound w2 v1; answer 200; end; ranks w2 0 8; page session-1;
         head session=session-1; end; page session-1; b: head session=session-1 vm=1; b: end;
         ranks w2 4 4; head session=session-1",
        expect![[r#"
            head session=session-1 -> pause, ask
            route bound w2 v1 -> put bound w2 v1, #routed_bound, resume, to worker-w2
            answer 200 -> nothing
            end -> nothing
            page session-1 -> bound w2 v1
            head session=session-1 -> continue, #pinned, to worker-w2 rank 5
            end -> nothing
            page session-1 -> bound w2 v1
            b: head session=session-1 vm=1 -> continue, #pinned, to worker-w2 rank 5
            b: end -> nothing
            head session=session-1 -> continue, #pinned, to worker-w2 rank 5
        "#]],
    );
}

#[test]
fn a_worker_only_hold_commits_worker_only() {
    check(
        "head session=session-1; route held w1 v1 hold 9; answer 200; end; page session-1; report",
        expect![[r#"
            head session=session-1 -> pause, ask
            route held w1 v1 hold 9 -> put held w1 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1 v1, #committed
            end -> nothing
            page session-1 -> bound w1 v1
            report -> [committed r1 hold 9 w1 v1] load []
        "#]],
    );
}

#[test]
fn another_generation_is_checked_and_kept_when_the_service_is_away() {
    check(
        "head session=s; route bound w1 rank 5 v3; end; generation 1; head session=s; route bound w1 rank 5 v3; end;
         page s; head session=s; end; generation 2; head session=s; route timeout; answer 200; end; page s;
         head session=s; end; generation 3; head session=s; route bound w0 rank 1 v5; end; page s",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            head session=s -> pause, ask cached w1/5 v3
            route bound w1 rank 5 v3 -> put bound w1/5 v3 g1, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            page s -> bound w1/5 v3 g1
            head session=s -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            head session=s -> pause, ask cached w1/5 v3
            route timeout -> #route_timeout, #placed_alone, resume, to worker-w1 rank 5
            answer 200 -> nothing
            end -> nothing
            page s -> bound w1/5 v3 g1
            head session=s -> pause, ask cached w1/5 v3 unsent [failed r3]
            end -> #rolled_back, report now
            head session=s -> pause, ask cached w1/5 v3 unsent [failed r3, failed r4]
            route bound w0 rank 1 v5 -> put bound w0/1 v5 g3, #routed_bound, resume, to worker-w0 rank 1
            end -> nothing
            page s -> bound w0/1 v5 g3
        "#]],
    );
}

#[test]
fn an_answer_that_was_overtaken_changes_neither_page_nor_slot() {
    let mut world = World::new();
    world.run("head session=s; c: head session=s vm=1; b: head session=s; b: route bound w0 rank 1 v6");
    expect![[r#"
        route held w1 rank 5 v5 hold 9 -> #pinned, resume, to worker-w0 rank 1
        page s -> bound w0/1 v6
        end -> nothing
        page s -> bound w0/1 v6
        c: route bound w1 rank 5 v5 -> #pinned, resume, to worker-w0 rank 1
        c: end -> nothing
    "#]]
    .assert_eq(
        &world
            .run("route held w1 rank 5 v5 hold 9; page s; end; page s; c: route bound w1 rank 5 v5; c: end"),
    );
}
