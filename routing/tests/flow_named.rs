//! Targets that trusted callers name: exactly there or refused, in every state a binding can be in.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::config::{Steering, Trust};
use routing::contract::{Affinity, Policy};
use world::World;

fn trusted(change: impl FnOnce(&mut World)) -> World {
    World::with(|world| {
        world.config.trust = Trust::Callers;
        change(world);
    })
}

fn direct() -> World {
    trusted(|world| world.topology.pools[0].policy = Policy::Direct)
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_first_turn_names_its_target_and_the_next_ones_stay_there() {
    check(
        direct(),
        "head session=s worker=w1 rank=6; route held w1 rank 6 v1 hold 9; answer 200; end; page s;
         b: head session=s; b: end; c: head session=s worker=w1; c: end; d: head session=s worker=w1 rank=6; d: end; report",
        expect![[r#"
            head session=s worker=w1 rank=6 -> pause, ask
            route held w1 rank 6 v1 hold 9 -> put held w1/6 v1, #routed_held, resume, to worker-w1 rank 6
            answer 200 -> put bound w1/6 v1, #committed
            end -> nothing
            page s -> bound w1/6 v1
            b: head session=s -> continue, #pinned, to worker-w1 rank 6
            b: end -> nothing
            c: head session=s worker=w1 -> continue, #named, to worker-w1 rank 6
            c: end -> nothing
            d: head session=s worker=w1 rank=6 -> continue, #named, to worker-w1 rank 6
            d: end -> nothing
            report -> [committed r1 hold 9 w1/6 v1] load []
        "#]],
    );
}

#[test]
fn what_disagrees_with_the_binding_is_refused_and_changes_nothing() {
    check(
        direct(),
        "head session=s worker=w1 rank=6; route held w1 rank 6 v1 hold 9; answer 200; end;
         b: head session=s worker=w0; b: route refused bound_elsewhere; b: end; c: head session=s worker=w1 rank=5; c: route timeout; c: end; page s; load",
        expect![[r#"
            head session=s worker=w1 rank=6 -> pause, ask
            route held w1 rank 6 v1 hold 9 -> put held w1/6 v1, #routed_held, resume, to worker-w1 rank 6
            answer 200 -> put bound w1/6 v1, #committed
            end -> nothing
            b: head session=s worker=w0 -> pause, ask cached w1/6 v1 unsent [committed r1 hold 9 w1/6 v1]
            b: route refused bound_elsewhere -> #named_refused, respond 400 {"error":{"message":"the session is bound to another target; name that one, or none","type":"invalid_request_error","param":null,"code":"session_bound_elsewhere"}}
            b: end -> nothing
            c: head session=s worker=w1 rank=5 -> pause, ask cached w1/6 v1 unsent [committed r1 hold 9 w1/6 v1]
            c: route timeout -> #route_timeout, #named_refused, respond 400 {"error":{"message":"the session is bound to another target; name that one, or none","type":"invalid_request_error","param":null,"code":"session_bound_elsewhere"}}
            c: end -> nothing
            page s -> bound w1/6 v1
            load -> 0
        "#]],
    );
}

#[test]
fn a_worker_only_binding_takes_its_hashed_rank_and_no_other() {
    let mut world = direct();
    world.run("head session=session-1; route bound w1 v1; end");
    check(
        world,
        "head session=session-1 worker=w1 rank=5; end; b: head session=session-1 worker=w1 rank=6; b: route timeout; b: end",
        expect![[r#"
            head session=session-1 worker=w1 rank=5 -> continue, #named, to worker-w1 rank 5
            end -> nothing
            b: head session=session-1 worker=w1 rank=6 -> pause, ask cached w1 v1
            b: route timeout -> #route_timeout, #named_refused, respond 400 {"error":{"message":"the session is bound to another target; name that one, or none","type":"invalid_request_error","param":null,"code":"session_bound_elsewhere"}}
            b: end -> nothing
        "#]],
    );
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    for (target, status, code) in [
        ("worker=nobody", 404, "worker_unknown"),
        ("worker=%", 404, "worker_unknown"),
        ("worker=w1 rank=3", 400, "rank_undeclared"),
        ("worker=w1 rank=x", 400, "rank_undeclared"),
        ("worker=w1 rank=99999999999", 400, "rank_undeclared"),
        ("rank=5", 400, "worker_id_required"),
        ("session=s rank=5", 400, "worker_id_required"),
        ("worker=w0", 503, "worker_unavailable"),
        ("session=s worker=w0", 503, "worker_unavailable"),
        ("worker=w2", 503, "worker_unavailable"),
    ] {
        for world in [direct(), trusted(|_| ())] {
            let mut world = world;
            let trace =
                world.run(&format!("fleet w0 down; fleet w2 draining; head {target}; end; load; report"));
            assert!(trace.contains(&format!("{status}")) && trace.contains(code), "{target}: {trace}");
            assert!(
                trace.contains("load -> 0") && trace.contains("report -> [] load []"),
                "{target}: {trace}"
            );
        }
    }
}

#[test]
fn a_direct_pool_serves_nobody_without_a_target() {
    check(
        direct(),
        "head; end; b: head session=s; b: route timeout; b: end; c: head session=s; c: route no_worker; c: end; page s; load; report",
        expect![[r#"
            head -> pause, #named_refused, respond 400 {"error":{"message":"worker id required","type":"invalid_request_error","param":null,"code":"worker_id_required"}}
            end -> nothing
            b: head session=s -> pause, ask
            b: route timeout -> #route_timeout, #named_refused, respond 400 {"error":{"message":"worker id required","type":"invalid_request_error","param":null,"code":"worker_id_required"}}, #rolled_back, report now
            b: end -> nothing
            c: head session=s -> pause, ask unsent [failed r1]
            c: route no_worker -> #named_refused, respond 400 {"error":{"message":"worker id required","type":"invalid_request_error","param":null,"code":"worker_id_required"}}
            c: end -> nothing
            page s -> empty
            load -> 0
            report -> [failed r1] load []
        "#]],
    );
}

#[test]
fn the_service_may_refuse() {
    for (reply, status) in [
        ("refused bound_elsewhere", 400),
        ("refused worker_required", 400),
        ("refused worker_unknown", 404),
        ("refused rank_undeclared", 400),
        ("refused worker_unavailable", 503),
        ("refused", 503),
    ] {
        let trace =
            direct().run(&format!("head session=s worker=w1; route {reply}; end; page s; load; report"));
        assert!(trace.contains(&format!("{status}")), "{reply}: {trace}");
        assert!(!trace.contains("resume") && trace.contains("report -> [] load []"), "{reply}: {trace}");
    }
}

#[test]
fn another_target_than_the_named_one_is_not_believed() {
    check(
        direct(),
        "head session=s worker=w1 rank=6; route held w0 rank 2 v1 hold 9; answer 200; end; page s",
        expect![[r#"
            head session=s worker=w1 rank=6 -> pause, ask
            route held w0 rank 2 v1 hold 9 -> #placed_alone, resume, to worker-w1 rank 6
            answer 200 -> put bound w1/6 v2@101, #committed
            end -> nothing
            page s -> bound w1/6 v2@101
        "#]],
    );
}

#[test]
fn without_the_service_a_named_target_is_served_exactly() {
    check(
        direct(),
        "head session=s worker=w1; route failed; answer 200; end; page s; report;
         fleet w1 draining; b: head session=t worker=w1; b: route failed; b: end; report",
        expect![[r#"
            head session=s worker=w1 -> pause, ask
            route failed -> #route_failed, #placed_alone, resume, to worker-w1 rank 7
            answer 200 -> put bound w1/7 v1@101, #committed
            end -> nothing
            page s -> bound w1/7 v1@101
            report -> [committed r1 w1/7 v1@101] load []
            b: head session=t worker=w1 -> pause, ask
            b: route failed -> #route_failed, #named_refused, respond 503 retry-after 1 {"error":{"message":"the named worker is not available","type":"server_error","param":null,"code":"worker_unavailable"}}, #rolled_back, report now
            b: end -> nothing
            report -> [failed r2] load []
        "#]],
    );
}

#[test]
fn a_failed_first_turn_leaves_nothing() {
    check(
        direct(),
        "head session=s worker=w1; route held w1 rank 6 v1 hold 9; answer envoy 503; end; page s; load; report",
        expect![[r#"
            head session=s worker=w1 -> pause, ask
            route held w1 rank 6 v1 hold 9 -> put held w1/6 v1, #routed_held, resume, to worker-w1 rank 6
            answer envoy 503 -> nothing
            end -> forget v1, #rolled_back, report now
            page s -> empty
            load -> 0
            report -> [slot w1/6 failed x1: Connection, failed r1 hold 9] load []
        "#]],
    );
}

#[test]
fn without_a_session_or_affinity_nothing_is_kept() {
    check(
        direct(),
        "head worker=w1 rank=7; answer 200; end; b: head worker=w1; b: answer 200; b: end; report",
        expect![[r#"
            head worker=w1 rank=7 -> continue, #named, to worker-w1 rank 7
            answer 200 -> nothing
            end -> nothing
            b: head worker=w1 -> continue, #named, to worker-w1
            b: answer 200 -> nothing
            b: end -> nothing
            report -> [] load []
        "#]],
    );
    let off = trusted(|world| world.topology.pools[0].affinity = Affinity::Off);
    check(
        off,
        "head session=s worker=w1; answer 200; end; page s; report",
        expect![[r#"
        head session=s worker=w1 -> continue, #named, to worker-w1
        answer 200 -> nothing
        end -> nothing
        page s -> empty
        report -> [] load []
    "#]],
    );
}

#[test]
fn an_exact_turn_has_no_alternates_and_no_other_host_serves_it() {
    let world = trusted(|world| {
        world.topology.pools[0].policy = Policy::Direct;
        world.config.steering = Steering::Endpoints;
    });
    check(
        world,
        "head session=s worker=w1; route held w1 rank 6 v1 hold 9; try w1; try w0; answer envoy 503; end; page s; load;
         b: head session=s worker=w1; b: route held w1 rank 6 v1 hold 9; b: try w1 200; b: answer 200; b: end; page s; load",
        expect![[r#"
            head session=s worker=w1 -> pause, ask
            route held w1 rank 6 v1 hold 9 -> put held w1/6 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.2:80,10.0.0.2:80]
            try w1 -> rank 6
            try w0 -> refused 503
            answer envoy 503 -> nothing
            end -> forget v1, #rolled_back, report now
            page s -> empty
            load -> 0
            b: head session=s worker=w1 -> pause, ask unsent [failed r1 hold 9]
            b: route held w1 rank 6 v1 hold 9 -> put held w1/6 v1, #routed_held, resume, to pool-chat [10.0.0.2:80,10.0.0.2:80,10.0.0.2:80]
            b: try w1 200 -> rank 6
            b: answer 200 -> put bound w1/6 v1, #committed
            b: end -> nothing
            page s -> bound w1/6 v1
            load -> 0
        "#]],
    );
}

#[test]
fn nobody_is_trusted_by_default() {
    let trace = World::new().run("head worker=w1 rank=6; end");
    assert!(trace.contains("#session_key_missing") && !trace.contains("rank 6"), "{trace}");
}

#[test]
fn who_served_is_told_after_an_accepting_answer_only() {
    let told = |script: &str| {
        let mut world = trusted(|world| world.config.served_header = true);
        world.run(script).contains("x-rankpin-served")
    };
    let first = "head session=s; route held w1 rank 6 v1 hold 9;";
    assert!(told(&format!("{first} answer 200")));
    for answer in ["500", "503", "400", "envoy 503", "envoy 413", "429"] {
        assert!(!told(&format!("{first} answer {answer}")), "{answer}");
    }
    let mut world = trusted(|world| world.config.served_header = true);
    let trace = world.run("head session=s; route held w1 rank 6 v1 hold 9; answer 200");
    assert!(trace.contains("[x-rankpin-served: w1;rank=6;reason=routed_held]"), "{trace}");
}

#[test]
fn a_stale_cache_does_not_refuse_what_the_service_allows() {
    check(
        direct(),
        "head session=s; route bound w1 rank 6 v1; end; b: head session=s worker=w0; b: route bound w0 rank 2 v5; b: answer 200; b: end; page s",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 6 v1 -> put bound w1/6 v1, #routed_bound, resume, to worker-w1 rank 6
            end -> nothing
            b: head session=s worker=w0 -> pause, ask cached w1/6 v1
            b: route bound w0 rank 2 v5 -> put bound w0/2 v5, #routed_bound, resume, to worker-w0 rank 2
            b: answer 200 -> nothing
            b: end -> nothing
            page s -> bound w0/2 v5
        "#]],
    );
}
