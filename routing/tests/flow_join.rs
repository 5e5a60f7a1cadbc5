//! Concurrent first turns: one slot for all, one commit, and no failure that undoes it.

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
fn concurrent_first_turns_join_the_hold_in_the_page() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9;
         b: head session=s; c: head session=s vm=1; load;
         c: answer 200; page s; answer 200; page s; end; b: end; c: end; load; page s; report; report 1",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: head session=s -> continue, #joined, to worker-w1 rank 5
            c: head session=s vm=1 -> continue, #joined, to worker-w1 rank 5
            load -> 3
            c: answer 200 -> put bound w1/5 v1, #committed
            page s -> bound w1/5 v1
            answer 200 -> put bound w1/5 v1 (no change), #committed
            page s -> bound w1/5 v1
            end -> nothing
            b: end -> #rolled_back, report now
            c: end -> nothing
            load -> 0
            page s -> bound w1/5 v1
            report -> [committed r1 hold 9 w1/5 v1, failed r2] load []
            report 1 -> [committed r1 w1/5 v1] load []
        "#]],
    );
}

#[test]
fn a_hundred_concurrent_first_turns_share_one_slot() {
    let mut world = World::new();
    world.run("r0: head session=s; r0: route held w1 rank 5 v1 hold 9");
    for n in 1..100 {
        let trace = world.run(&format!("r{n}: head session=s vm={}", n % 2));
        assert!(trace.ends_with("-> continue, #joined, to worker-w1 rank 5\n"), "{trace}");
    }
    assert_eq!(world.run("load"), "load -> 100\n");
    for n in 0..100 {
        world.run(&format!("r{n}: answer 200; r{n}: end"));
    }
    assert_eq!(world.run("load; page s"), "load -> 0\npage s -> bound w1/5 v1\n");
}

#[test]
fn first_turns_on_the_way_at_once_end_in_one_binding() {
    check(
        "head session=s; b: head session=s vm=1;
         route held w1 rank 5 v1 hold 9; b: route held w1 rank 5 v1 hold 9;
         b: answer 200; b: end; answer 200; end; page s",
        expect![[r#"
            head session=s -> pause, ask
            b: head session=s vm=1 -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: route held w1 rank 5 v1 hold 9 -> put held w1/5 v1 (no change), #routed_held, resume, to worker-w1 rank 5
            b: answer 200 -> put bound w1/5 v1, #committed
            b: end -> nothing
            answer 200 -> put bound w1/5 v1 (no change), #committed
            end -> nothing
            page s -> bound w1/5 v1
        "#]],
    );
}

#[test]
fn a_joiner_that_fails_does_not_undo_a_commit() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; b: head session=s; answer 200; b: end; page s; end;
         head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: head session=s -> continue, #joined, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            b: end -> #rolled_back, report now
            page s -> bound w1/5 v1
            end -> nothing
            head session=s -> continue, #pinned, to worker-w1 rank 5
        "#]],
    );
}

#[test]
fn an_owner_that_fails_does_not_undo_a_joiners_commit() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; b: head session=s; b: answer 200; b: end; answer 503; end;
         page s; report",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: head session=s -> continue, #joined, to worker-w1 rank 5
            b: answer 200 -> put bound w1/5 v1, #committed
            b: end -> nothing
            answer 503 -> nothing
            end -> forget v1 (no change), #rolled_back, report now
            page s -> bound w1/5 v1
            report -> [slot w1/5 failed x1: Connection, committed r2 w1/5 v1, failed r1 hold 9] load []
        "#]],
    );
}

#[test]
fn a_joiner_that_leaves_leaves_the_hold_to_its_owner() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; b: head session=s; b: end; c: head session=s; answer 200; end;
         page s",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: head session=s -> continue, #joined, to worker-w1 rank 5
            b: end -> #rolled_back, report now
            c: head session=s -> continue, #joined, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            page s -> bound w1/5 v1
        "#]],
    );
}

#[test]
fn a_hold_nobody_ended_is_believed_for_ten_seconds() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; @11999; b: head session=s; b: end; @1000;
         c: head session=s; c: route held w1 rank 5 v1 hold 9; @12000; d: head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: head session=s -> continue, #joined, to worker-w1 rank 5
            b: end -> #rolled_back, report now
            c: head session=s -> continue, #joined, to worker-w1 rank 5
            c: route held w1 rank 5 v1 hold 9 -> #ignored_late_route
            d: head session=s -> pause, ask unsent [failed r2]
        "#]],
    );
}
