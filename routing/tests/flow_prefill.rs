//! The prefill half of a split pool: chosen, bound and ended on its own, and told to the engine that decodes.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use world::World;

/// `s` is bound in both halves.
fn bound() -> World {
    let mut world = World::split();
    world.run("head session=s; route bound wd0 rank 3 v1 + bound wp1 rank 7 v2; end; report");
    world
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn one_question_holds_both_halves_and_one_answer_commits_both() {
    check(
        World::split(),
        "head session=s; route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10; page s@decode; page s@prefill; load wp1; load wd0;
         answer 200; load wp1; load wd0; end; load; page s@decode; page s@prefill; page s; report;
         head session=s; answer 200; end; report",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10 -> put held wp1/7 v2, put held wd0/3 v1, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            page s@decode -> held wd0/3 v1
            page s@prefill -> held wp1/7 v2
            load wp1 -> 1
            load wd0 -> 1
            answer 200 -> put bound wp1/7 v2, #committed, report now, put bound wd0/3 v1, #committed
            load wp1 -> 0
            load wd0 -> 1
            end -> nothing
            load -> 0
            page s@decode -> bound wd0/3 v1
            page s@prefill -> bound wp1/7 v2
            page s -> empty
            report -> [committed r2 hold 10 wp1/7 v2, committed r1 hold 9 wd0/3 v1] load []
            head session=s -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            answer 200 -> nothing
            end -> nothing
            report -> [] load []
        "#]],
    );
}

#[test]
fn the_rank_is_told_as_its_endpoint_counts() {
    check(
        World::split(),
        "head session=s; route held wd0 rank 3 v1 + held wp0 rank 2 v2; b: head session=t; b: route held wd0 rank 3 v3 + held wp1 rank 5 v4;
         c: head session=u; c: route held wd0 rank 3 v5 + unpinned wp1",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route held wd0 rank 3 v1 + held wp0 rank 2 v2 -> put held wp0/2 v2, put held wd0/3 v1, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.1:80 rank 2
            b: head session=t -> pause, ask + prefill r4
            b: route held wd0 rank 3 v3 + held wp1 rank 5 v4 -> put held wp1/5 v4, put held wd0/3 v3, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 1
            c: head session=u -> pause, ask + prefill r6
            c: route held wd0 rank 3 v5 + unpinned wp1 -> put held wd0/3 v5, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 2
        "#]],
    );
}

#[test]
fn a_client_says_nothing_of_who_prefills() {
    for script in [
        "head session=s x-prefiller-host-port=6.6.6.6:66 x-prefill-dp-rank=9; route held wd0 v1 + unpinned wp0",
        "fleet wp0 down; fleet wp1 down; head x-prefiller-host-port=6.6.6.6:66 x-prefill-dp-rank=9",
    ] {
        let mut world = World::split();
        world.run(script);
        let told = world.header("a", "x-prefiller-host-port");
        assert!(told.is_none_or(|told| told.starts_with("10.0.1.")), "{script}");
        assert_ne!(world.header("a", "x-prefill-dp-rank").as_deref(), Some("9"), "{script}");
    }
}

#[test]
fn where_one_half_is_unknown_one_question_asks_what_is_needed() {
    let forget = |key: &str| {
        let mut world = bound();
        let id = world.session(key);
        world.forget(id);
        world
    };
    check(
        forget("s@prefill"),
        "head session=s; route bound wd0 rank 3 v1 + held wp0 rank 2 v5 hold 7; answer 200; end; report",
        expect![[r#"
            head session=s -> pause, ask cached wd0/3 v1 + prefill r4
            route bound wd0 rank 3 v1 + held wp0 rank 2 v5 hold 7 -> put held wp0/2 v5, put bound wd0/3 v1 (no change), #routed_bound, resume, to worker-wd0 rank 3, prefill at 10.0.1.1:80 rank 2
            answer 200 -> put bound wp0/2 v5, #committed, report now
            end -> nothing
            report -> [committed r4 hold 7 wp0/2 v5] load []
        "#]],
    );
    check(
        forget("s@decode"),
        "head session=s; route held wd1 rank 6 v5 hold 7; answer 200; end; report; page s@prefill",
        expect![[r#"
            head session=s -> pause, ask
            route held wd1 rank 6 v5 hold 7 -> put held wd1/6 v5, #routed_held, resume, to worker-wd1 rank 6, prefill at 10.0.1.2:80 rank 3
            answer 200 -> put bound wd1/6 v5, #committed, report now
            end -> nothing
            report -> [committed r3 hold 7 wd1/6 v5] load []
            page s@prefill -> bound wp1/7 v2
        "#]],
    );
}

#[test]
fn each_half_joins_commits_and_fails_on_its_own() {
    check(
        World::split(),
        "head session=s; route bound wd0 rank 3 v1 + held wp1 rank 7 v2 hold 10; b: head session=s; load wp1; b: answer 200; b: end;
         answer 503; end; page s@decode; page s@prefill; report; load",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route bound wd0 rank 3 v1 + held wp1 rank 7 v2 hold 10 -> put held wp1/7 v2, put bound wd0/3 v1, #routed_bound, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            b: head session=s -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            load wp1 -> 2
            b: answer 200 -> put bound wp1/7 v2, #committed
            b: end -> nothing
            answer 503 -> forget v2 (no change), #rolled_back, report now
            end -> nothing
            page s@decode -> bound wd0/3 v1
            page s@prefill -> bound wp1/7 v2
            report -> [slot wd0/3 failed x1: Connection, committed r3 wp1/7 v2, failed r2 hold 10] load []
            load -> 0
        "#]],
    );
    check(
        World::split(),
        "head session=s; route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10; answer 500; load; end; page s@decode; page s@prefill; report; load",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10 -> put held wp1/7 v2, put held wd0/3 v1, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            answer 500 -> forget v2, #rolled_back, report now
            load -> 1
            end -> forget v1, #rolled_back, report now
            page s@decode -> empty
            page s@prefill -> empty
            report -> [slot wd0/3 failed x1: Status5xx, failed r2 hold 10, failed r1 hold 9] load []
            load -> 0
        "#]],
    );
}

#[test]
fn behind_a_pools_cluster_a_pinned_answer_commits_the_prefill_half() {
    check(
        World::split().but(|world| world.config.steering = routing::config::Steering::Endpoints),
        "head session=s; route bound wd0 rank 3 v1 + held wp1 rank 7 v2 hold 10; try wd0 200; answer 200; load wp1; end; page s@prefill;
         head session=s; try wd0 200; load wp1; answer 200; load wp1; end; load",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route bound wd0 rank 3 v1 + held wp1 rank 7 v2 hold 10 -> put held wp1/7 v2, put bound wd0/3 v1, #routed_bound, resume, to pool-chat [10.0.0.1:80,10.0.0.2:80], prefill at 10.0.1.2:80 rank 3
            try wd0 200 -> rank 3
            answer 200 -> put bound wp1/7 v2, #committed, report now
            load wp1 -> 0
            end -> nothing
            page s@prefill -> bound wp1/7 v2
            head session=s -> continue, #pinned, to pool-chat [10.0.0.1:80,10.0.0.2:80], prefill at 10.0.1.2:80 rank 3
            try wd0 200 -> rank 3
            load wp1 -> 1
            answer 200 -> nothing
            load wp1 -> 0
            end -> nothing
            load -> 0
        "#]],
    );
}

#[test]
fn without_the_service_both_halves_go_by_rendezvous_and_are_told_later() {
    check(
        World::split(),
        "head session=s; route timeout; answer 200; end; page s@decode; page s@prefill; report; head session=s; end",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route timeout -> #route_timeout, #placed_alone, resume, to worker-wd1 rank 7, prefill at 10.0.1.2:80 rank 3
            answer 200 -> put bound wp1/7 v1@101, #committed, put bound wd1/7 v1@101, #committed
            end -> nothing
            page s@decode -> bound wd1/7 v1@101
            page s@prefill -> bound wp1/7 v1@101
            report -> [committed r2 wp1/7 v1@101, committed r1 wd1/7 v1@101] load []
            head session=s -> continue, #pinned, to worker-wd1 rank 7, prefill at 10.0.1.2:80 rank 3
            end -> nothing
        "#]],
    );
    check(
        World::split(),
        "head session=s; route failed; end; load; page s@prefill; report",
        expect![[r#"
        head session=s -> pause, ask + prefill r2
        route failed -> #route_failed, #placed_alone, resume, to worker-wd1 rank 7, prefill at 10.0.1.2:80 rank 3
        end -> #rolled_back, report now, #rolled_back, report now
        load -> 0
        page s@prefill -> empty
        report -> [failed r2, failed r1] load []
    "#]],
    );
    check(
        bound(),
        "generation 4; head session=s; route timeout; answer 200; end; report; page s@decode; page s@prefill",
        expect![[r#"
            head session=s -> pause, ask cached wd0/3 v1 + prefill r4 cached wp1/7 v2
            route timeout -> #route_timeout, #placed_alone, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            answer 200 -> nothing
            end -> nothing
            report -> [failed r4, failed r3] load []
            page s@decode -> bound wd0/3 v1
            page s@prefill -> bound wp1/7 v2
        "#]],
    );
}

#[test]
fn the_load_of_both_halves_is_given_back_on_every_ending() {
    for ending in [
        "end",
        "answer 200; end",
        "answer 500; end",
        "answer envoy 503; end",
        "end broken",
        "remove wp1; end",
        "remove-pool; end",
    ] {
        for start in [
            "head session=s; route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10",
            "head session=s; route bound wd0 rank 3 v1 + unpinned wp1",
            "head session=s; route timeout",
            "head",
        ] {
            let trace = World::split().run(&format!("{start}; load; {ending}; load"));
            assert!(
                trace.contains("load -> 2\n") && trace.ends_with("load -> 0\n"),
                "{start}; {ending}: {trace}"
            );
        }
    }
}

#[test]
fn a_client_that_leaves_while_both_halves_are_asked_for_gives_both_back() {
    check(
        World::split(),
        "head session=s; end; load; report; head session=s; remove-pool; route held wd0 rank 3 v1 + held wp1 rank 7 v2; end; load; report",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            end -> #rolled_back, report now, #rolled_back, report now
            load -> 0
            report -> [failed r2, failed r1] load []
            head session=s -> pause, ask + prefill r4
            route held wd0 rank 3 v1 + held wp1 rank 7 v2 -> #no_topology, #rolled_back, report now, #rolled_back, report now, resume, to default
            end -> nothing
            load -> 0
            report -> [failed r4, failed r3] load []
        "#]],
    );
}
