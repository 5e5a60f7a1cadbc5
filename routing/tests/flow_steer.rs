//! How a placed request is steered: headers of both ways, endpoint lists, attempts, notes.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{endpoint, worker};
use expect_test::{Expect, expect};
use routing::contract::{EndpointInfo, RankNumbering};
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn the_chosen_endpoint_is_first_and_two_alternates_follow() {
    check(
        World::endpoints(),
        "head session=s; route held w1 rank 5 v1 hold 9; try w1 200; answer 200; end; page s; report;
         head session=s; try w1 200; answer 200; end; load",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 200 -> rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            page s -> bound w1/5 v1
            report -> [committed r1 hold 9 w1/5 v1] load []
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 200 -> rank 5
            answer 200 -> not looked at
            end -> nothing
            load -> 0
        "#]],
    );
}

#[test]
fn alternates_are_workers_that_take_new_sessions() {
    check(
        World::endpoints(),
        "fleet w0 suspect; head session=s; route bound w1 rank 5 v1; end; fleet w2 down; head session=s; end;
         fleet w0 down; fleet w1 draining; head session=s; end",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80]
            end -> nothing
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80]
            end -> nothing
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80]
            end -> nothing
        "#]],
    );
}

#[test]
fn served_elsewhere_is_committed_there_and_asked_for_again() {
    check(
        World::endpoints(),
        "head session=session-1; route held w1 rank 4 v1 hold 9; try w1; try w0 200; answer 200; page session-1; end;
         report; load; head session=session-1",
        expect![[r#"
            head session=session-1 -> pause, ask
            route held w1 rank 4 v1 hold 9 -> put held w1/4 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 -> rank 4
            try w0 200 -> rank 1
            answer 200 -> forget v1, #committed
            page session-1 -> empty
            end -> nothing
            report -> [slot w1/4 failed x1: Connection, committed r1 hold 9 w0/1 v1] load []
            load -> 0
            head session=session-1 -> pause, ask
        "#]],
    );
}

#[test]
fn a_retry_after_an_engines_503_commits_the_second_host() {
    check(
        World::endpoints(),
        "head session=s; route held w1 rank 5 v1 hold 9; try w1 503; try w2 200; answer 200; end; report; page s",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 503 -> rank 5
            try w2 200 -> no rank
            answer 200 -> forget v1, #committed
            end -> nothing
            report -> [slot w1/5 failed x1: Connection, committed r1 hold 9 w2 v1] load []
            page s -> empty
        "#]],
    );
}

#[test]
fn all_attempts_failed_leaves_nothing() {
    check(
        World::endpoints(),
        "head session=s; route held w1 rank 5 v1 hold 9; try w1; try w0; answer envoy 503; end; page s; load",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 -> rank 5
            try w0 -> rank 3
            answer envoy 503 -> nothing
            end -> forget v1, #rolled_back, report now
            page s -> empty
            load -> 0
        "#]],
    );
}

#[test]
fn an_answer_without_the_upstream_role_is_counted() {
    check(
        World::endpoints(),
        "head session=s; route held w1 rank 5 v1 hold 9; answer 200; end; head session=s; answer 200; end;
         head session=s; answer envoy 503; end; head; answer 200; end",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            answer 200 -> #upstream_role_missing, put bound w1/5 v1, #committed
            end -> nothing
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            answer 200 -> #upstream_role_missing
            end -> nothing
            head session=s -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            answer envoy 503 -> nothing
            end -> nothing
            head -> continue, #session_key_missing, to pool-chat [10.0.0.1:80,10.0.0.3:80]
            answer 200 -> #upstream_role_missing
            end -> nothing
        "#]],
    );
}

#[test]
fn a_worker_only_binding_served_as_chosen_stays_worker_only() {
    check(
        World::endpoints(),
        "head session=session-1; route held w1 v1 hold 9; try w1 200; answer 200; end; page session-1; report",
        expect![[r#"
            head session=session-1 -> pause, ask
            route held w1 v1 hold 9 -> put held w1 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            try w1 200 -> rank 5
            answer 200 -> put bound w1 v1, #committed
            end -> nothing
            page session-1 -> bound w1 v1
            report -> [committed r1 hold 9 w1 v1] load []
        "#]],
    );
}

#[test]
fn a_hybrid_worker_is_reached_at_the_endpoint_of_the_rank() {
    let hybrid = |world: &mut World| {
        let local = |address: &str, start| EndpointInfo {
            rank_numbering: RankNumbering::Local,
            ..endpoint(address, start, 4)
        };
        world.topology.workers = vec![
            worker("w0", &[local("10.0.0.1:80", 0), local("10.0.0.2:80", 4)]),
            worker("w1", &[endpoint("10.0.1.1:80", 0, 4), endpoint("10.0.1.2:80", 4, 4)]),
        ];
    };
    check(
        World::with(hybrid),
        "head session=s; route bound w0 rank 5 v1; b: head session=t; b: route bound w1 rank 5 v1;
         c: head session=u; c: route bound w0 rank 2 v1",
        expect![[r#"
            head session=s -> pause, ask
            route bound w0 rank 5 v1 -> put bound w0/5 v1, #routed_bound, resume, to worker-w0.1 rank 1
            b: head session=t -> pause, ask
            b: route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to worker-w1.1 rank 5
            c: head session=u -> pause, ask
            c: route bound w0 rank 2 v1 -> put bound w0/2 v1, #routed_bound, resume, to worker-w0 rank 2
        "#]],
    );
    let mut world = World::with(hybrid);
    world.config.steering = routing::config::Steering::Endpoints;
    check(
        world,
        "head session=s; route bound w0 rank 5 v1; try 10.0.0.2:80 200; try 10.0.1.2:80 200; try 10.0.0.1:80 200",
        expect![[r#"
            head session=s -> pause, ask
            route bound w0 rank 5 v1 -> put bound w0/5 v1, #routed_bound, resume, to pool-chat [10.0.0.2:80,10.0.1.1:80]
            try 10.0.0.2:80 200 -> rank 1
            try 10.0.1.2:80 200 -> no rank
            try 10.0.0.1:80 200 -> no rank
        "#]],
    );
}

#[test]
fn the_note_tells_plan_session_slot_and_reason() {
    let mut world = World::new();
    world.run("head session=s; route held w1 rank 5 v1 hold 9; b: head");
    let prefix = world.session("s").prefix();
    assert_eq!(world.note("a"), Some(&*format!("-;s={prefix};w=w1;r=5;why=routed_held")));
    let without = world.note("b").unwrap();
    assert!(
        without.starts_with("-;s=-;w=w") && without.ends_with(";r=-;why=session_key_missing"),
        "{without}"
    );
    let mut world = World::endpoints();
    world.run("head session=hunter2; route held w2 v1 hold 9");
    let note = world.note("a").unwrap();
    assert!(note.starts_with("0.1;s=") && note.ends_with(";w=w2;r=-;why=routed_held"), "{note}");
    assert!(!note.contains("hunter2"));
}

#[test]
fn alternates_leave_overloaded_slots_out() {
    check(
        World::endpoints(),
        "head session=session-1; route bound w1 rank 5 v3; end; overload w0 2; head session=session-1; end; overload w0 1; head session=session-1; end;
         overload w2; head session=session-1; end",
        expect![[r#"
            head session=session-1 -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            end -> nothing
            head session=session-1 -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80,10.0.0.1:80]
            end -> nothing
            head session=session-1 -> continue, #pinned, to pool-chat [10.0.0.2:80,10.0.0.3:80]
            end -> nothing
            head session=session-1 -> continue, #pinned, to pool-chat [10.0.0.2:80]
            end -> nothing
        "#]],
    );
}
