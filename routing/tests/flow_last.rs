//! The last turn of a session: its binding is released when the turn ends, and nobody else is.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use world::World;

fn bound() -> World {
    let mut world = World::new();
    world.run("head session=s; route bound w1 rank 5 v3; end");
    world
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_last_turn_releases_its_binding_when_it_ends_and_not_before() {
    check(
        bound(),
        "head session=s x-session-final=true; answer 200; page s; report; end; page s; report; load;
         b: head session=s; b: route held w0 rank 3 v4 hold 9; b: answer 200; b: end; page s",
        expect![[r#"
            head session=s x-session-final=true -> continue, #pinned, to worker-w1 rank 5
            answer 200 -> nothing
            page s -> bound w1/5 v3
            report -> [] load [w1/5x1]
            end -> put gone v3, #released, report now
            page s -> gone v3
            report -> [released v3] load []
            load -> 0
            b: head session=s -> pause, ask
            b: route held w0 rank 3 v4 hold 9 -> put held w0/3 v4, #routed_held, resume, to worker-w0 rank 3
            b: answer 200 -> put bound w0/3 v4, #committed, report now
            b: end -> nothing
            page s -> bound w0/3 v4
        "#]],
    );
}

#[test]
fn however_it_ends() {
    for ending in
        ["end", "answer 200; end", "answer 500; end", "answer envoy 503; end", "answer 200; end broken"]
    {
        let trace = bound().run(&format!("head session=s x-session-final=1; {ending}; page s; report"));
        assert!(trace.contains("page s -> gone v3\n") && trace.contains("released v3"), "{ending}: {trace}");
    }
}

#[test]
fn each_of_the_headers_says_so_and_only_with_yes() {
    for (words, last) in [
        ("x-session-final=true", true),
        ("x-session-final=1", true),
        ("x-dynamo-session-final=True", true),
        ("x-session-final=false", false),
        ("x-session-final=0", false),
        ("x-session-final=", false),
        ("x-other-final=1", false),
    ] {
        let trace = bound().run(&format!("head session=s {words}; answer 200; end; page s"));
        assert_eq!(trace.ends_with("page s -> gone v3\n"), last, "{words}: {trace}");
    }
    let mut world = World::configured(r#"{"session": {"final_headers": ["x-bye"]}}"#);
    let trace = world.run("head session=s x-bye=1; route bound w1 rank 5 v3; end; head session=t x-session-final=1; route bound w1 rank 5 v3; end; page s; page t");
    assert!(trace.ends_with("page s -> gone v3\npage t -> bound w1/5 v3\n"), "{trace}");
}

#[test]
fn a_binding_that_moved_meanwhile_stays() {
    let mut world = bound();
    world.run("head session=s x-session-final=1; answer 200; generation 4; b: head session=s; b: route held w0 rank 3 v4 hold 9; b: answer 200; b: end; report");
    check(
        world,
        "end; page s; report",
        expect![[r#"
        end -> put gone v3 (no change), #released, report now
        page s -> bound w0/3 v4 g4
        report -> [released v3] load []
    "#]],
    );
}

#[test]
fn a_first_turn_may_be_the_last() {
    check(
        World::new(),
        "head session=s x-session-final=1; route held w1 rank 5 v1 hold 9; answer 200; end; page s; report;
         b: head session=t x-session-final=1; b: route held w1 rank 5 v2 hold 8; b: answer 503; b: end; page t; report;
         c: head session=u x-session-final=1; c: route timeout; c: answer 200; c: end; page u; report;
         d: head session=v x-session-final=1; d: route unpinned w1; d: answer 200; d: end; page v; report",
        expect![[r#"
            head session=s x-session-final=1 -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> put gone v1, #released, report now
            page s -> gone v1
            report -> [committed r1 hold 9 w1/5 v1, released v1] load []
            b: head session=t x-session-final=1 -> pause, ask
            b: route held w1 rank 5 v2 hold 8 -> put held w1/5 v2, #routed_held, resume, to worker-w1 rank 5
            b: answer 503 -> nothing
            b: end -> forget v2, #rolled_back, report now
            page t -> empty
            report -> [slot w1/5 failed x1: Connection, failed r2 hold 8] load []
            c: head session=u x-session-final=1 -> pause, ask
            c: route timeout -> #route_timeout, #placed_alone, resume, to worker-w1 rank 6
            c: answer 200 -> put bound w1/6 v1@101, #committed
            c: end -> put gone v1@101, #released, report now
            page u -> gone v1@101
            report -> [slot w1/6 answered, committed r3 w1/6 v1@101, released v1@101] load []
            d: head session=v x-session-final=1 -> pause, ask
            d: route unpinned w1 -> #routed_unpinned, resume, to worker-w1 rank 4
            d: answer 200 -> nothing
            d: end -> nothing
            page v -> empty
            report -> [slot w1/4 answered] load []
        "#]],
    );
}

#[test]
fn beside_a_turn_that_still_runs_it_releases_all_the_same_and_the_other_brings_nothing_back() {
    check(
        World::new(),
        "head session=s; route held w1 rank 5 v1 hold 9; b: head session=s x-session-final=1; b: answer 200; b: end; page s; answer 200; end; page s; report",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: head session=s x-session-final=1 -> continue, #joined, to worker-w1 rank 5
            b: answer 200 -> put bound w1/5 v1, #committed
            b: end -> put gone v1, #released, report now
            page s -> gone v1
            answer 200 -> put bound w1/5 v1 (no change), #committed
            end -> nothing
            page s -> gone v1
            report -> [committed r2 w1/5 v1, released v1, committed r1 hold 9 w1/5 v1] load []
        "#]],
    );
}

#[test]
fn a_last_turn_that_is_served_elsewhere_releases_its_home() {
    check(
        bound(),
        "overload w1; overload w2; head session=s x-session-final=1; answer 200; end; page s; report",
        expect![[r#"
            head session=s x-session-final=1 -> continue, #spilled, to worker-w0 rank 3
            answer 200 -> nothing
            end -> put gone v3, #released, report now
            page s -> gone v3
            report -> [released v3] load []
        "#]],
    );
}

/// Nothing of it is in the page: the service says which binding ends.
#[test]
fn a_last_turn_that_the_service_serves_elsewhere_releases_what_it_is_told_of() {
    check(
        World::new(),
        "head session=s x-session-final=1; route unpinned w0 rank 1 v3 reason spilled; answer 200; end; page s; report;
         b: head session=t; b: route unpinned w0 rank 1 v4 reason spilled; b: answer 200; b: end; page t; report",
        expect![[r#"
            head session=s x-session-final=1 -> pause, ask
            route unpinned w0 rank 1 v3 reason spilled -> #spilled, resume, to worker-w0 rank 1
            answer 200 -> nothing
            end -> put gone v3, #released, report now
            page s -> gone v3
            report -> [released v3] load []
            b: head session=t -> pause, ask
            b: route unpinned w0 rank 1 v4 reason spilled -> #spilled, resume, to worker-w0 rank 1
            b: answer 200 -> nothing
            b: end -> nothing
            page t -> empty
            report -> [] load []
        "#]],
    );
    check(
        World::split(),
        "head session=s x-session-final=1; route unpinned wd0 rank 3 v3 reason spilled + unpinned wp1 rank 7 v4 reason spilled; answer 200; end; page s@decode; page s@prefill; report; load",
        expect![[r#"
            head session=s x-session-final=1 -> pause, ask + prefill r2
            route unpinned wd0 rank 3 v3 reason spilled + unpinned wp1 rank 7 v4 reason spilled -> #spilled, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            answer 200 -> nothing
            end -> put gone v3, #released, report now, put gone v4, #released, report now
            page s@decode -> gone v3
            page s@prefill -> gone v4
            report -> [released v3, released v4] load []
            load -> 0
        "#]],
    );
}

#[test]
fn both_halves_of_a_split_pool_are_released() {
    check(
        World::split(),
        "head session=s; route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10; answer 200; end; report;
         head session=s x-session-final=1; answer 200; page s@prefill; end; page s@decode; page s@prefill; report;
         b: head session=t x-session-final=1; b: route held wd0 rank 3 v3 hold 11 + bound wp1 rank 7 v4; b: answer 500; b: end; page t@decode; page t@prefill; report;
         c: head session=u x-session-final=1; c: route held wd0 rank 3 v5 hold 12 + held wp1 rank 7 v6 hold 13; c: answer 200; c: end; page u@decode; page u@prefill; report; load",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10 -> put held wp1/7 v2, put held wd0/3 v1, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            answer 200 -> put bound wp1/7 v2, #committed, report now, put bound wd0/3 v1, #committed
            end -> nothing
            report -> [committed r2 hold 10 wp1/7 v2, committed r1 hold 9 wd0/3 v1] load []
            head session=s x-session-final=1 -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            answer 200 -> nothing
            page s@prefill -> bound wp1/7 v2
            end -> put gone v1, #released, report now, put gone v2, #released, report now
            page s@decode -> gone v1
            page s@prefill -> gone v2
            report -> [released v1, released v2] load []
            b: head session=t x-session-final=1 -> pause, ask + prefill r4
            b: route held wd0 rank 3 v3 hold 11 + bound wp1 rank 7 v4 -> put bound wp1/7 v4, put held wd0/3 v3, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            b: answer 500 -> nothing
            b: end -> forget v3, #rolled_back, report now, put gone v4, #released, report now
            page t@decode -> empty
            page t@prefill -> gone v4
            report -> [slot wd0/3 failed x1: Status5xx, failed r3 hold 11, released v4] load []
            c: head session=u x-session-final=1 -> pause, ask + prefill r6
            c: route held wd0 rank 3 v5 hold 12 + held wp1 rank 7 v6 hold 13 -> put held wp1/7 v6, put held wd0/3 v5, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            c: answer 200 -> put bound wp1/7 v6, #committed, report now, put bound wd0/3 v5, #committed, report now
            c: end -> put gone v5, #released, report now, put gone v6, #released, report now
            page u@decode -> gone v5
            page u@prefill -> gone v6
            report -> [slot wd0/3 answered, committed r6 hold 13 wp1/7 v6, committed r5 hold 12 wd0/3 v5, released v5, released v6] load []
            load -> 0
        "#]],
    );
}

#[test]
fn without_a_binding_there_is_nothing_to_release() {
    check(
        World::session_hash(),
        "head session=s x-session-final=1; answer 200; end; report",
        expect![[r#"
        head session=s x-session-final=1 -> continue, #session_hash, to worker-w0 rank 3
        answer 200 -> nothing
        end -> nothing
        report -> [] load []
    "#]],
    );
    check(
        World::new(),
        "head x-session-final=1; answer 200; end; report",
        expect![[r#"
        head x-session-final=1 -> continue, #session_key_missing, to worker-w1
        answer 200 -> nothing
        end -> nothing
        report -> [] load []
    "#]],
    );
}
