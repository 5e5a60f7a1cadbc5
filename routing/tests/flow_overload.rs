//! Overloaded slots: what becomes of bound turns, of those that may go anywhere, and of the alternates.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::contract::{Affinity, OnAllOverloaded, OnOverload, Policy};
use world::World;

/// `session-1` is bound to `w1`, rank 5.
fn bound(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::with(change);
    world.run("head session=session-1; route bound w1 rank 5 v3; end");
    world
}

fn on(on_overload: OnOverload) -> World {
    bound(|world| world.topology.pools[0].on_overload = on_overload)
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_turn_is_spilled_and_the_next_comes_home() {
    check(
        on(OnOverload::Spill),
        "overload w1 5; overload w2; head session=session-1; answer 200; end; page session-1; clear w1; head session=session-1; end; report",
        expect![[r#"
            head session=session-1 -> continue, #spilled, to worker-w0 rank 1
            answer 200 -> nothing
            end -> nothing
            page session-1 -> bound w1/5 v3
            head session=session-1 -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            report -> [] load []
        "#]],
    );
}

#[test]
fn a_turn_is_refused_and_nothing_changes() {
    check(
        on(OnOverload::Refuse),
        "overload w1 5; head session=session-1; end; page session-1; load; report; b: head session=t; b: end",
        expect![[r#"
            head session=session-1 -> pause, #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            end -> nothing
            page session-1 -> bound w1/5 v3
            load -> 0
            report -> [] load []
            b: head session=t -> pause, ask
            b: end -> #rolled_back, report now
        "#]],
    );
}

#[test]
fn a_turn_waits_at_the_service_and_goes_home_or_elsewhere() {
    check(
        on(OnOverload::Wait),
        "overload w1 5; head session=session-1; route bound w1 rank 5 v3; answer 200; end;
         b: head session=session-1; b: route unpinned w0 rank 1 reason spilled; b: answer 200; b: end; page session-1; report",
        expect![[r#"
            head session=session-1 -> pause, ask cached w1/5 v3 wait 2000
            route bound w1 rank 5 v3 -> put bound w1/5 v3 (no change), #routed_bound, resume, to worker-w1 rank 5
            answer 200 -> nothing
            end -> nothing
            b: head session=session-1 -> pause, ask cached w1/5 v3 wait 2000
            b: route unpinned w0 rank 1 reason spilled -> #spilled, resume, to worker-w0 rank 1
            b: answer 200 -> nothing
            b: end -> nothing
            page session-1 -> bound w1/5 v3
            report -> [] load []
        "#]],
    );
}

/// What the page has is older than the binding, so that the next turn must not ask for that slot again.
#[test]
fn a_turn_that_is_spilled_from_a_newer_binding_forgets_the_older_one() {
    check(
        on(OnOverload::Wait),
        "overload w1 5; head session=session-1; route unpinned w0 rank 1 v3 reason spilled; end; page session-1;
         b: head session=session-1; b: route unpinned w0 rank 1 v4 reason spilled; b: answer 200; b: end; page session-1; clear w1;
         c: head session=session-1; c: route bound w2 v4; c: end; page session-1; report",
        expect![[r#"
            head session=session-1 -> pause, ask cached w1/5 v3 wait 2000
            route unpinned w0 rank 1 v3 reason spilled -> #spilled, resume, to worker-w0 rank 1
            end -> nothing
            page session-1 -> bound w1/5 v3
            b: head session=session-1 -> pause, ask cached w1/5 v3 wait 2000
            b: route unpinned w0 rank 1 v4 reason spilled -> put gone v3, #spilled, resume, to worker-w0 rank 1
            b: answer 200 -> nothing
            b: end -> nothing
            page session-1 -> gone v3
            c: head session=session-1 -> pause, ask
            c: route bound w2 v4 -> put bound w2 v4, #routed_bound, resume, to worker-w2
            c: end -> nothing
            page session-1 -> bound w2 v4
            report -> [] load []
        "#]],
    );
    check(
        World::split(),
        "head session=s; route bound wd0 rank 3 v1 + bound wp1 rank 7 v2; end; generation 4;
         head session=s; route unpinned wd1 v3 reason spilled + unpinned wp0 v4 reason spilled; page s@decode; page s@prefill; end; report",
        expect![[r#"
            head session=s -> pause, ask + prefill r2
            route bound wd0 rank 3 v1 + bound wp1 rank 7 v2 -> put bound wp1/7 v2, put bound wd0/3 v1, #routed_bound, resume, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            head session=s -> pause, ask cached wd0/3 v1 + prefill r4 cached wp1/7 v2
            route unpinned wd1 v3 reason spilled + unpinned wp0 v4 reason spilled -> put gone v2, put gone v1, #spilled, resume, to worker-wd1 rank 7, prefill at 10.0.1.1:80 rank 3
            page s@decode -> gone v1
            page s@prefill -> gone v2
            end -> nothing
            report -> [] load []
        "#]],
    );
}

#[test]
fn a_turn_that_waits_in_vain_or_cannot_ask_is_spilled_here() {
    check(
        on(OnOverload::Wait),
        "overload w1 5; overload w2; head session=session-1; route timeout; answer 200; end; page session-1; report;
         b: head session=session-1; clear w1; b: route timeout; b: end;
         overload w1 5; c: head session=session-1; c: end; load; report",
        expect![[r#"
            head session=session-1 -> pause, ask cached w1/5 v3 wait 2000
            route timeout -> #route_timeout, #spilled, resume, to worker-w0 rank 1
            answer 200 -> nothing
            end -> nothing
            page session-1 -> bound w1/5 v3
            report -> [failed r2] load []
            b: head session=session-1 -> pause, ask cached w1/5 v3 wait 2000
            b: route timeout -> #route_timeout, #placed_alone, resume, to worker-w1 rank 5
            b: end -> nothing
            c: head session=session-1 -> pause, ask cached w1/5 v3 unsent [failed r3] wait 2000
            c: end -> #rolled_back, report now
            load -> 0
            report -> [failed r3, failed r4] load []
        "#]],
    );
    let mut world = on(OnOverload::Wait);
    for _ in 0..5 {
        world.run("x: head session=x; x: route failed; x: end");
    }
    world.run("report");
    check(
        world,
        "overload w1 5; overload w2; head session=session-1; answer 200; end; page session-1; report",
        expect![[r#"
            head session=session-1 -> continue, #breaker_open, #spilled, to worker-w0 rank 1
            answer 200 -> nothing
            end -> nothing
            page session-1 -> bound w1/5 v3
            report -> [] load []
        "#]],
    );
}

#[test]
fn the_wait_is_the_pools() {
    let mut world = bound(|world| {
        world.topology.pools[0].on_overload = OnOverload::Wait;
        world.topology.pools[0].wait_ms = routing::time::Millis(300);
    });
    let trace = world.run("overload w1; head session=session-1");
    assert!(trace.ends_with("pause, ask cached w1/5 v3 wait 300\n"), "{trace}");
}

#[test]
fn where_all_are_overloaded_it_stays_or_is_refused() {
    let all = "overload w0; overload w1; overload w2; ";
    check(
        on(OnOverload::Spill),
        &format!(
            "{all} head session=session-1; end; b: head; b: end; c: head session=t; c: route timeout; c: end"
        ),
        expect![[r#"
            head session=session-1 -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            b: head -> continue, #session_key_missing, to worker-w1
            b: end -> nothing
            c: head session=t -> pause, ask
            c: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            c: end -> #rolled_back, report now
        "#]],
    );
    check(
        bound(|world| world.topology.pools[0].on_all_overloaded = OnAllOverloaded::Refuse),
        &format!(
            "{all} head session=session-1; end; b: head; b: end; c: head session=t; c: route refused overloaded; c: end; load; report"
        ),
        expect![[r#"
            head session=session-1 -> pause, #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            end -> nothing
            b: head -> pause, #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            b: end -> nothing
            c: head session=t -> pause, ask
            c: route refused overloaded -> #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            c: end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
}

#[test]
fn an_engine_that_says_how_long_it_is_busy_is_repeated_where_the_pool_refuses() {
    check(
        on(OnOverload::Refuse),
        "head session=session-1; answer 429 7; end; @4500; head session=session-1; end; @8001; head session=session-1; end",
        expect![[r#"
            head session=session-1 -> continue, #pinned, to worker-w1 rank 5
            answer 429 7 -> nothing
            end -> nothing
            head session=session-1 -> pause, #overload_refused, respond 429 retry-after 4 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            end -> nothing
            head session=session-1 -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
        "#]],
    );
    check(
        on(OnOverload::Spill),
        "overload w2; head session=session-1; answer 503 7; end; head session=session-1; end; page session-1",
        expect![[r#"
            head session=session-1 -> continue, #pinned, to worker-w1 rank 5
            answer 503 7 -> nothing
            end -> nothing
            head session=session-1 -> continue, #spilled, to worker-w0 rank 1
            end -> nothing
            page session-1 -> bound w1/5 v3
        "#]],
    );
}

#[test]
fn overload_is_of_a_slot_and_not_of_its_worker() {
    check(
        on(OnOverload::Spill),
        "overload w1 4; head session=session-1; end; overload w1 5; overload w0 2; overload w2; head session=session-1; end",
        expect![[r#"
            head session=session-1 -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            head session=session-1 -> continue, #spilled, to worker-w0 rank 1
            end -> nothing
        "#]],
    );
    let mut world = on(OnOverload::Spill);
    world.run("overload w1 5; overload w0 1");
    for _ in 0..20 {
        let trace = world.run("head session=session-1; end");
        assert!(trace.contains("#spilled, to worker-w2\n"), "its rank there is overloaded: {trace}");
    }
}

#[test]
fn a_slot_that_said_it_is_busy_takes_no_spilled_turn_of_its_rank() {
    let mut world = on(OnOverload::Spill);
    world.run("b: head session=t; b: route bound w0 rank 1 v4; b: answer 429 9; b: end; overload w1 5");
    for _ in 0..20 {
        let trace = world.run("head session=session-1; end");
        assert!(trace.contains("#spilled, to worker-w2\n"), "{trace}");
    }
}

#[test]
fn session_hash_spills_and_comes_home_without_asking() {
    let mut world = World::session_hash();
    let home = world.run("head session=session-1; end");
    assert!(home.contains("to worker-w2\n"), "{home}");
    check(
        world,
        "overload w2; overload w0 1; head session=session-1; end; clear w2; head session=session-1; end; report",
        expect![[r#"
            head session=session-1 -> continue, #spilled, to worker-w1 rank 5
            end -> nothing
            head session=session-1 -> continue, #session_hash, to worker-w2
            end -> nothing
            report -> [] load []
        "#]],
    );
}

#[test]
fn a_soft_session_asks_instead_and_moves() {
    check(
        bound(|world| world.topology.pools[0].affinity = Affinity::Soft),
        "overload w1 5; head session=session-1; route held w0 v4 hold 9; answer 200; end; page session-1;
         overload w0; head session=session-1; route timeout; end; page session-1",
        expect![[r#"
            head session=session-1 -> pause, ask cached w1/5 v3
            route held w0 v4 hold 9 -> put held w0 v4, #routed_held, resume, to worker-w0
            answer 200 -> put bound w0 v4, #committed, report now
            end -> nothing
            page session-1 -> bound w0 v4
            head session=session-1 -> pause, ask cached w0 v4 unsent [committed r2 hold 9 w0 v4]
            route timeout -> #route_timeout, #spilled, resume, to worker-w1
            end -> nothing
            page session-1 -> bound w0 v4
        "#]],
    );
}

#[test]
fn a_named_target_is_served_however_loaded_it_is() {
    check(
        bound(|world| world.topology.pools[0].policy = Policy::Direct),
        "overload w1; head session=session-1; end",
        expect![[r#"
            head session=session-1 -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
        "#]],
    );
    check(
        on(OnOverload::Refuse).trusted(),
        "overload w1; head session=session-1 worker=w1; end; b: head worker=w1 rank=6; b: end",
        expect![[r#"
            head session=session-1 worker=w1 -> continue, #named, to worker-w1 rank 5
            end -> nothing
            b: head worker=w1 rank=6 -> continue, #named, to worker-w1 rank 6
            b: end -> nothing
        "#]],
    );
}

/// What this VM has in flight itself it need not be told.
#[test]
fn a_burst_does_not_wait_for_the_news() {
    let world = bound(|world| {
        let pool = &mut world.topology.pools[0];
        (pool.on_overload, pool.in_flight_limit) = (OnOverload::Refuse, Some(2));
    });
    check(
        world,
        "head session=session-1 path=/v1/chat/completions; b: head session=session-1 path=/v1/chat/completions;
         c: head session=session-1 path=/v1/chat/completions; c: end; end; d: head session=session-1 path=/v1/chat/completions",
        expect![[r#"
            head session=session-1 path=/v1/chat/completions -> continue, #pinned, to worker-w1 rank 5
            b: head session=session-1 path=/v1/chat/completions -> continue, #pinned, to worker-w1 rank 5
            c: head session=session-1 path=/v1/chat/completions -> pause, #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            c: end -> nothing
            end -> nothing
            d: head session=session-1 path=/v1/chat/completions -> continue, #pinned, to worker-w1 rank 5
        "#]],
    );
}
