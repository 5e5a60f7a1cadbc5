//! Prefill halves that are overloaded, or that nobody does; and those of pools that keep nothing.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::contract::{Affinity, OnOverload, Policy};
use world::World;

/// `s` is bound in both halves.
fn bound(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::split().but(change);
    world.run("head session=s; route bound wd0 rank 3 v1 + bound wp1 rank 7 v2; end; report");
    world
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_prefill_slot_that_is_overloaded_spills_or_refuses() {
    check(
        bound(|_| ()),
        "overload wp1 7; head session=s; answer 200; end; page s@prefill; clear wp1; head session=s; end; report",
        expect![[r#"
            head session=s -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.1:80 rank 3
            answer 200 -> nothing
            end -> nothing
            page s@prefill -> bound wp1/7 v2
            head session=s -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            report -> [] load []
        "#]],
    );
    let refuses = |world: &mut World| world.topology.pools[0].on_overload = OnOverload::Refuse;
    check(
        bound(refuses),
        "overload wp1 7; head session=s; end; load; report",
        expect![[r#"
        head session=s -> pause, #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
        end -> nothing
        load -> 0
        report -> [] load []
    "#]],
    );
    check(
        World::split(),
        "head session=s; route held wd0 rank 3 v1 hold 9 + refused overloaded; end; load; page s@decode; report",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route held wd0 rank 3 v1 hold 9 + refused overloaded -> #rolled_back, report now, #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            end -> nothing
            load -> 0
            page s@decode -> empty
            report -> [failed r1 hold 9] load []
        "#]],
    );
}

#[test]
fn a_decode_slot_that_spilled_does_so_although_the_page_says_home() {
    check(
        World::split(),
        "head session=s; route bound wd0 rank 3 v1 + unpinned wp1; end; overload wd0 3; head session=s;
         route unpinned wd1 rank 6 reason spilled + held wp1 rank 7 v2 hold 10; end; page s@decode",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route bound wd0 rank 3 v1 + unpinned wp1 -> put bound wd0/3 v1, #routed_bound, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            head session=s -> pause, ask cached wd0/3 v1 + prefill r4
            route unpinned wd1 rank 6 reason spilled + held wp1 rank 7 v2 hold 10 -> put held wp1/7 v2, #spilled, resume, to worker-wd1 rank 6, prefill at 10.0.1.2:80 rank 3
            end -> forget v2, #rolled_back, report now
            page s@decode -> bound wd0/3 v1
        "#]],
    );
}

#[test]
fn other_policies_choose_both_halves_too() {
    let with = |policy, affinity| {
        World::split().but(|world| {
            world.topology.pools[0].policy = policy;
            world.topology.pools[0].affinity = affinity;
        })
    };
    check(
        with(Policy::SessionHash, Affinity::Hard),
        "head session=s; answer 200; end; head session=s; end; report",
        expect![[r#"
            head session=s -> continue, #session_hash, to worker-wd1 rank 7, prefill at 10.0.1.2:80 rank 3
            answer 200 -> nothing
            end -> nothing
            head session=s -> continue, #session_hash, to worker-wd1 rank 7, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            report -> [] load []
        "#]],
    );
    check(
        with(Policy::RoundRobin, Affinity::Off),
        "head session=s; end; head session=s; end; head; end; report",
        expect![[r#"
            head session=s -> continue, #affinity_off, to worker-wd1, prefill at 10.0.1.2:80
            end -> nothing
            head session=s -> continue, #affinity_off, to worker-wd0, prefill at 10.0.1.1:80
            end -> nothing
            head -> continue, #session_key_missing, to worker-wd1, prefill at 10.0.1.2:80
            end -> nothing
            report -> [] load []
        "#]],
    );
}

#[test]
fn with_nobody_to_prefill_the_decode_worker_does_it_all() {
    check(
        World::split(),
        "fleet wp0 down; fleet wp1 draining; head session=s; route held wd0 rank 3 v1 hold 9 + no_worker; answer 200; end; load;
         b: head; b: end; c: head session=t; c: route timeout; c: end; report",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route held wd0 rank 3 v1 hold 9 + no_worker -> put held wd0/3 v1, #routed_held, resume, to worker-wd0 rank 3
            answer 200 -> put bound wd0/3 v1, #committed
            end -> nothing
            load -> 0
            b: head -> continue, #session_key_missing, to worker-wd0
            b: end -> nothing
            c: head session=t -> pause, ask + prefill r4
            c: route timeout -> #route_timeout, #placed_alone, resume, to worker-wd0 rank 1
            c: end -> #rolled_back, report now
            report -> [committed r1 hold 9 wd0/3 v1, failed r4, failed r3] load []
        "#]],
    );
}
