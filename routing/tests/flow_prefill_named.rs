//! Targets named by half of a split pool: exact, agreeing with the binding of their half, and refused under its name.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::contract::{Affinity, Policy};
use world::World;

/// `s` is bound in both halves.
fn bound() -> World {
    let mut world = World::split().trusted();
    world.run("head session=s; route bound wd0 rank 3 v1 + bound wp1 rank 7 v2; end; report");
    world
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_first_turn_names_one_half_or_both_and_is_served_exactly_there() {
    check(
        World::split().trusted(),
        "head session=s x-rankpin-prefill-worker=wp0 x-rankpin-prefill-rank=1; route held wd0 rank 3 v1 hold 9 + held wp0 rank 1 v2 hold 10; answer 200; end; page s@prefill;
         b: head session=t x-rankpin-prefill-worker=wp0 x-rankpin-decode-worker=wd1 x-rankpin-decode-rank=6;
         b: route held wd1 rank 6 v3 hold 11 + held wp1 rank 7 v4 hold 12; b: answer 200; b: end; load; report",
        expect![[r#"
            head session=s x-rankpin-prefill-worker=wp0 x-rankpin-prefill-rank=1 -> pause, ask + prefill r2 at wp0/1
            route held wd0 rank 3 v1 hold 9 + held wp0 rank 1 v2 hold 10 -> put held wp0/1 v2, put held wd0/3 v1, #routed_held, resume, to worker-wd0 rank 3, prefill at 10.0.1.1:80 rank 1
            answer 200 -> put bound wp0/1 v2, #committed, report now, put bound wd0/3 v1, #committed
            end -> nothing
            page s@prefill -> bound wp0/1 v2
            b: head session=t x-rankpin-prefill-worker=wp0 x-rankpin-decode-worker=wd1 x-rankpin-decode-rank=6 -> pause, ask + prefill r4 at wp0
            b: route held wd1 rank 6 v3 hold 11 + held wp1 rank 7 v4 hold 12 -> put held wd1/6 v3, #routed_held, resume, to worker-wd1 rank 6, prefill at 10.0.1.1:80 rank 1
            b: answer 200 -> put bound wp0/1 v5@101, #committed, put bound wd1/6 v3, #committed, report now
            b: end -> nothing
            load -> 0
            report -> [committed r2 hold 10 wp0/1 v2, committed r1 hold 9 wd0/3 v1, committed r4 wp0/1 v5@101, committed r3 hold 11 wd1/6 v3] load []
        "#]],
    );
}

#[test]
fn what_agrees_with_the_binding_goes_on_and_what_does_not_is_refused() {
    check(
        bound(),
        "head session=s x-rankpin-prefill-worker=wp1; end; head session=s x-rankpin-prefill-worker=wp1 x-rankpin-prefill-rank=7; end;
         head session=s x-rankpin-prefill-worker=wp1 x-rankpin-prefill-rank=6; route bound wd0 rank 3 v1 + refused bound_elsewhere; end;
         b: head session=s x-rankpin-prefill-worker=wp0; b: route timeout; b: end; page s@prefill; load; report",
        expect![[r#"
            head session=s x-rankpin-prefill-worker=wp1 -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            head session=s x-rankpin-prefill-worker=wp1 x-rankpin-prefill-rank=7 -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            head session=s x-rankpin-prefill-worker=wp1 x-rankpin-prefill-rank=6 -> pause, ask cached wd0/3 v1 + prefill r4 at wp1/6 cached wp1/7 v2
            route bound wd0 rank 3 v1 + refused bound_elsewhere -> #named_refused, respond 400 {"error":{"message":"prefill: the session is bound to another target; name that one, or none","type":"invalid_request_error","param":null,"code":"session_bound_elsewhere"}}
            end -> nothing
            b: head session=s x-rankpin-prefill-worker=wp0 -> pause, ask cached wd0/3 v1 + prefill r6 at wp0 cached wp1/7 v2
            b: route timeout -> #route_timeout, #rolled_back, report now, #named_refused, respond 400 {"error":{"message":"prefill: the session is bound to another target; name that one, or none","type":"invalid_request_error","param":null,"code":"session_bound_elsewhere"}}
            b: end -> nothing
            page s@prefill -> bound wp1/7 v2
            load -> 0
            report -> [failed r6, failed r5] load []
        "#]],
    );
}

#[test]
fn what_is_named_for_no_half_is_meant_for_the_half_it_works_for() {
    check(
        bound(),
        "head session=s worker=wp1; end; head session=s worker=wd0; end; head session=s worker=wp1 x-rankpin-decode-worker=wd0; end;
         b: head worker=wp0 rank=2; b: end; c: head worker=wd1 rank=6; c: end",
        expect![[r#"
            head session=s worker=wp1 -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            head session=s worker=wd0 -> continue, #named, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            head session=s worker=wp1 x-rankpin-decode-worker=wd0 -> continue, #named, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            b: head worker=wp0 rank=2 -> continue, #session_key_missing, to worker-wd0, prefill at 10.0.1.1:80 rank 2
            b: end -> nothing
            c: head worker=wd1 rank=6 -> continue, #named, to worker-wd1 rank 6, prefill at 10.0.1.1:80
            c: end -> nothing
        "#]],
    );
}

#[test]
fn a_refusal_names_its_half() {
    for (words, status, code, half) in [
        ("x-rankpin-prefill-worker=nobody", 404, "worker_unknown", "prefill: "),
        ("x-rankpin-prefill-worker=wd0", 404, "worker_unknown", "prefill: "),
        ("x-rankpin-decode-worker=wp0", 404, "worker_unknown", "decode: "),
        ("worker=wp0 x-rankpin-prefill-worker=wp1", 404, "worker_unknown", "decode: "),
        ("x-rankpin-prefill-worker=wp0 x-rankpin-prefill-rank=5", 400, "rank_undeclared", "prefill: "),
        ("x-rankpin-prefill-rank=5", 400, "worker_id_required", "prefill: "),
        ("x-rankpin-decode-rank=5", 400, "worker_id_required", "decode: "),
        ("x-rankpin-prefill-worker=wp1", 503, "worker_unavailable", "prefill: "),
        ("session=s x-rankpin-prefill-worker=wp1", 503, "worker_unavailable", "prefill: "),
    ] {
        let mut world = World::split().trusted();
        let trace = world.run(&format!("fleet wp1 down; head {words}; end; load; report"));
        let said = format!("respond {status}");
        assert!(trace.contains(&said) && trace.contains(code) && trace.contains(half), "{words}: {trace}");
        assert!(trace.ends_with("load -> 0\nreport -> [] load []\n"), "{words}: {trace}");
    }
    let trace = World::new().trusted().run("head x-rankpin-prefill-worker=w0");
    assert!(trace.contains("respond 404") && trace.contains("prefill: "), "nobody prefills there: {trace}");
}

#[test]
fn a_refused_half_gives_the_other_back() {
    check(
        World::split().trusted(),
        "head session=s x-rankpin-prefill-worker=wp0; route held wd0 rank 3 v1 hold 9 + refused worker_unavailable; end; load; page s@decode; report;
         fleet wp0 draining; b: head session=t x-rankpin-prefill-worker=wp0; b: route timeout; b: end; load; report",
        expect![[r#"
            head session=s x-rankpin-prefill-worker=wp0 -> pause, ask + prefill r2 at wp0
            route held wd0 rank 3 v1 hold 9 + refused worker_unavailable -> #rolled_back, report now, #named_refused, respond 503 retry-after 1 {"error":{"message":"prefill: the named worker is not available","type":"server_error","param":null,"code":"worker_unavailable"}}
            end -> nothing
            load -> 0
            page s@decode -> empty
            report -> [failed r1 hold 9] load []
            b: head session=t x-rankpin-prefill-worker=wp0 -> pause, ask + prefill r4 at wp0
            b: route timeout -> #route_timeout, #rolled_back, report now, #named_refused, respond 503 retry-after 1 {"error":{"message":"prefill: the named worker is not available","type":"server_error","param":null,"code":"worker_unavailable"}}
            b: end -> nothing
            load -> 0
            report -> [failed r4, failed r3] load []
        "#]],
    );
}

#[test]
fn a_direct_pool_wants_a_target_for_each_half() {
    let direct = || World::split().trusted().but(|world| world.topology.pools[0].policy = Policy::Direct);
    check(
        direct(),
        "head worker=wd0; end; head worker=wp0; end; head x-rankpin-decode-worker=wd0 x-rankpin-prefill-worker=wp1; end;
         b: head session=s worker=wd0; b: route held wd0 rank 3 v1 hold 9 + refused worker_required; b: end; load;
         c: head session=t worker=wd0; c: route timeout; c: end; report",
        expect![[r#"
            head worker=wd0 -> pause, #named_refused, respond 400 {"error":{"message":"prefill: worker id required","type":"invalid_request_error","param":null,"code":"worker_id_required"}}
            end -> nothing
            head worker=wp0 -> pause, #named_refused, respond 400 {"error":{"message":"decode: worker id required","type":"invalid_request_error","param":null,"code":"worker_id_required"}}
            end -> nothing
            head x-rankpin-decode-worker=wd0 x-rankpin-prefill-worker=wp1 -> continue, #named, to worker-wd0, prefill at 10.0.1.2:80
            end -> nothing
            b: head session=s worker=wd0 -> pause, ask + prefill r2
            b: route held wd0 rank 3 v1 hold 9 + refused worker_required -> #rolled_back, report now, #named_refused, respond 400 {"error":{"message":"prefill: worker id required","type":"invalid_request_error","param":null,"code":"worker_id_required"}}
            b: end -> nothing
            load -> 0
            c: head session=t worker=wd0 -> pause, ask + prefill r4
            c: route timeout -> #route_timeout, #rolled_back, report now, #named_refused, respond 400 {"error":{"message":"prefill: worker id required","type":"invalid_request_error","param":null,"code":"worker_id_required"}}
            c: end -> nothing
            report -> [failed r1 hold 9, failed r4, failed r3] load []
        "#]],
    );
}

#[test]
fn without_a_session_it_is_served_there_and_nothing_is_kept() {
    check(
        World::split().trusted().but(|world| world.topology.pools[0].affinity = Affinity::Off),
        "head session=s x-rankpin-prefill-worker=wp1 x-rankpin-prefill-rank=6; answer 200; end; page s@prefill; report;
         head x-rankpin-prefill-worker=wp0 x-rankpin-require=gpu; end",
        expect![[r#"
            head session=s x-rankpin-prefill-worker=wp1 x-rankpin-prefill-rank=6 -> continue, #affinity_off, to worker-wd0, prefill at 10.0.1.2:80 rank 2
            answer 200 -> nothing
            end -> nothing
            page s@prefill -> empty
            report -> [] load []
            head x-rankpin-prefill-worker=wp0 x-rankpin-require=gpu -> pause, #named_refused, respond 503 retry-after 1 {"error":{"message":"no worker of this pool meets the demands of the request","type":"server_error","param":null,"code":"demands_unmet"}}
            end -> nothing
        "#]],
    );
}
