//! What becomes of a request when the service is slow, away, or its answer fits nothing.

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
fn after_a_timeout_the_filter_decides_alone_and_commits() {
    check(
        "head session=session-1; route timeout; page session-1; answer 200; page session-1; end; report;
         head session=session-1",
        expect![[r#"
            head session=session-1 -> pause, ask
            route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            page session-1 -> empty
            answer 200 -> put bound w2 v1@101, #committed
            page session-1 -> bound w2 v1@101
            end -> nothing
            report -> [committed r1 w2 v1@101] load []
            head session=session-1 -> continue, #pinned, to worker-w2
        "#]],
    );
}

#[test]
fn a_failed_turn_placed_alone_leaves_nothing() {
    check(
        "head session=s; route failed; answer 503; end; page s; report; head session=s; route malformed; end; page s; load",
        expect![[r#"
            head session=s -> pause, ask
            route failed -> #route_failed, #placed_alone, resume, to worker-w0 rank 3
            answer 503 -> nothing
            end -> #rolled_back, report now
            page s -> empty
            report -> [slot w0/3 failed x1: Connection, failed r1] load []
            head session=s -> pause, ask
            route malformed -> #route_malformed, #placed_alone, resume, to worker-w0 rank 3
            end -> #rolled_back, report now
            page s -> empty
            load -> 0
        "#]],
    );
}

#[test]
fn a_timeout_looks_at_the_page_again() {
    check(
        "head session=s; b: head session=s vm=1; b: route held w0 rank 1 v1 hold 9; route timeout;
         b: answer 200; b: end; c: head session=t; d: head session=t vm=1; d: route bound w0 rank 2 v5;
         c: route timeout; answer 200; end; page s; report",
        expect![[r#"
            head session=s -> pause, ask
            b: head session=s vm=1 -> pause, ask
            b: route held w0 rank 1 v1 hold 9 -> put held w0/1 v1, #routed_held, resume, to worker-w0 rank 1
            route timeout -> #route_timeout, #joined, resume, to worker-w0 rank 1
            b: answer 200 -> put bound w0/1 v1, #committed
            b: end -> nothing
            c: head session=t -> pause, ask
            d: head session=t vm=1 -> pause, ask
            d: route bound w0 rank 2 v5 -> put bound w0/2 v5, #routed_bound, resume, to worker-w0 rank 2
            c: route timeout -> #route_timeout, #pinned, resume, to worker-w0 rank 2
            answer 200 -> put bound w0/1 v1 (no change), #committed
            end -> nothing
            page s -> bound w0/1 v1
            report -> [failed r2, committed r1 w0/1 v1] load [w0/2x1]
        "#]],
    );
}

/// Where a request went.
fn placed(trace: &str) -> String {
    trace.rsplit_once("to ").unwrap().1.trim().to_owned()
}

#[test]
fn without_the_service_every_vm_and_envoy_gives_the_same_answer() {
    let mut world = World::new();
    let mut used = std::collections::BTreeSet::new();
    for n in 0..60 {
        world.vms.iter_mut().for_each(|vm| vm.breaker = routing::vm::Breaker::default());
        let all: Vec<String> = (0..4)
            .map(|vm| {
                placed(&world.run(&format!("r{n}.{vm}: head session=k{n} vm={vm}; r{n}.{vm}: route timeout")))
            })
            .collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        used.insert(all[0].clone());
    }
    assert_eq!(used.len(), 9, "4 + 4 + 1 slots: {used:?}");
}

#[test]
fn after_five_failures_in_a_row_the_service_is_left_alone_for_a_second() {
    check(
        "a1: head session=k1; a1: route timeout; a2: head session=k2; a2: route failed;
         a3: head session=k3; a3: route malformed; a4: head session=k4; a4: route timeout;
         ok: head session=ok; ok: route bound w0 rank 1 v1;
         b1: head session=k1; b1: route timeout; b2: head session=k2; b2: route timeout;
         b3: head session=k3; b3: route timeout; b4: head session=k4; b4: route timeout;
         b5: head session=k5; b5: route timeout;
         c1: head session=k1; other: head session=k1 vm=1; @1999; c2: head session=k2;
         @2000; probe: head session=k3; c3: head session=k4; probe: route timeout; @2999; c4: head session=k5;
         @3000; probe2: head session=k6; probe2: route bound w0 rank 1 v1; c5: head session=k7",
        expect![[r#"
            a1: head session=k1 -> pause, ask
            a1: route timeout -> #route_timeout, #placed_alone, resume, to worker-w0 rank 1
            a2: head session=k2 -> pause, ask
            a2: route failed -> #route_failed, #placed_alone, resume, to worker-w2
            a3: head session=k3 -> pause, ask
            a3: route malformed -> #route_malformed, #placed_alone, resume, to worker-w2
            a4: head session=k4 -> pause, ask
            a4: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            ok: head session=ok -> pause, ask
            ok: route bound w0 rank 1 v1 -> put bound w0/1 v1, #routed_bound, resume, to worker-w0 rank 1
            b1: head session=k1 -> pause, ask
            b1: route timeout -> #route_timeout, #placed_alone, resume, to worker-w0 rank 1
            b2: head session=k2 -> pause, ask
            b2: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            b3: head session=k3 -> pause, ask
            b3: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            b4: head session=k4 -> pause, ask
            b4: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            b5: head session=k5 -> pause, ask
            b5: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            c1: head session=k1 -> continue, #breaker_open, #placed_alone, to worker-w0 rank 1
            other: head session=k1 vm=1 -> pause, ask
            c2: head session=k2 -> continue, #breaker_open, #placed_alone, to worker-w2
            probe: head session=k3 -> pause, ask
            c3: head session=k4 -> continue, #breaker_open, #placed_alone, to worker-w2
            probe: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            c4: head session=k5 -> continue, #breaker_open, #placed_alone, to worker-w2
            probe2: head session=k6 -> pause, ask
            probe2: route bound w0 rank 1 v1 -> put bound w0/1 v1, #routed_bound, resume, to worker-w0 rank 1
            c5: head session=k7 -> pause, ask
        "#]],
    );
}

#[test]
fn pinned_turns_do_not_need_the_service() {
    check(
        "head session=s; route bound w1 rank 5 v3; end;
         b1: head session=k1; b1: route timeout; b2: head session=k2; b2: route timeout;
         b3: head session=k3; b3: route timeout; b4: head session=k4; b4: route timeout;
         b5: head session=k5; b5: route timeout; head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            b1: head session=k1 -> pause, ask
            b1: route timeout -> #route_timeout, #placed_alone, resume, to worker-w0 rank 1
            b2: head session=k2 -> pause, ask
            b2: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            b3: head session=k3 -> pause, ask
            b3: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            b4: head session=k4 -> pause, ask
            b4: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            b5: head session=k5 -> pause, ask
            b5: route timeout -> #route_timeout, #placed_alone, resume, to worker-w2
            head session=s -> continue, #pinned, to worker-w1 rank 5
        "#]],
    );
}

#[test]
fn outcomes_without_a_target_are_decided_alone() {
    for outcome in ["no_worker", "unsure", "unknown_pool"] {
        let trace = World::new().run(&format!("head session=session-1; route {outcome}"));
        let alone = World::new().run("head session=session-1; route timeout");
        assert!(trace.contains("#placed_alone"), "{trace}");
        assert_eq!(placed(&trace), placed(&alone), "{outcome}");
    }
}

#[test]
fn a_target_this_vm_does_not_know_is_decided_alone() {
    check(
        "head session=s; route held w9 v4 hold 9; answer 200; end; page s; report;
         b: head session=t; b: route held w1 rank 8 v4 hold 10; c: head session=u; c: route bound; load",
        expect![[r#"
            head session=s -> pause, ask
            route held w9 v4 hold 9 -> #placed_alone, resume, to worker-w0 rank 3
            answer 200 -> put bound w0/3 v5@101, #committed
            end -> nothing
            page s -> bound w0/3 v5@101
            report -> [committed r1 w0/3 v5@101] load []
            b: head session=t -> pause, ask
            b: route held w1 rank 8 v4 hold 10 -> #placed_alone, resume, to worker-w2
            c: head session=u -> pause, ask
            c: route bound -> #placed_alone, resume, to worker-w1 rank 6
            load -> 2
        "#]],
    );
}

#[test]
fn a_worker_that_is_removed_and_the_service_away_moves_the_session_once() {
    check(
        "head session=s; route bound w1 rank 5 v3; end; remove w1; head session=s; route timeout; answer 200; end;
         page s; report; head session=s vm=1",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            head session=s -> pause, ask cached (gone)/5 v3
            route timeout -> #route_timeout, #placed_alone, resume, to worker-w0 rank 3
            answer 200 -> put bound w0/3 v4@101, #committed
            end -> nothing
            page s -> bound w0/3 v4@101
            report -> [committed r2 w0/3 v4@101] load []
            head session=s vm=1 -> continue, #pinned, to worker-w0 rank 3
        "#]],
    );
}

#[test]
fn a_tombstone_is_not_offered_as_cached_but_its_version_is_passed() {
    let mut world = World::new();
    world.run("head session=s; route bound w1 rank 5 v3; end");
    let gone = routing::page::Record {
        id: world.session("s"),
        rank_hash: routing::id::RankHash(0),
        version: routing::id::Version { seq: 8, writer: 0 },
        worker_hash: 0,
        rank: None,
        touched_s: 1,
        generation: 0,
        certainty: routing::page::Certainty::Gone,
    };
    world.put(gone);
    expect![[r#"
        head session=s -> pause, ask
        route timeout -> #route_timeout, #placed_alone, resume, to worker-w0 rank 3
        answer 200 -> put bound w0/3 v9@101, #committed
        end -> nothing
        page s -> bound w0/3 v9@101
        b: head session=s -> continue, #pinned, to worker-w0 rank 3
    "#]]
    .assert_eq(&world.run("head session=s; route timeout; answer 200; end; page s; b: head session=s"));
}

#[test]
fn with_no_worker_to_serve_the_default_route_gets_it_and_nothing_is_held() {
    check(
        "fleet w0 down; fleet w1 down; fleet w2 draining; head session=s; route no_worker; end; load;
         b: head session=t; b: route timeout; b: end; c: head; c: end; load; report",
        expect![[r#"
            head session=s -> pause, ask
            route no_worker -> #no_worker, resume, to default
            end -> nothing
            load -> 0
            b: head session=t -> pause, ask
            b: route timeout -> #route_timeout, #no_worker, #rolled_back, report now, resume, to default
            b: end -> nothing
            c: head -> continue, #no_worker, to default
            c: end -> nothing
            load -> 0
            report -> [failed r2] load []
        "#]],
    );
}

#[test]
fn a_pool_that_vanished_while_asking_is_no_way_around_the_filter() {
    check(
        "head session=s; remove-pool; route held w1 rank 5 v1 hold 9; end; load; report",
        expect![[r#"
        head session=s -> pause, ask
        route held w1 rank 5 v1 hold 9 -> #no_topology, #rolled_back, report now, resume, to default
        end -> nothing
        load -> 0
        report -> [failed r1] load []
    "#]],
    );
}

#[test]
fn without_the_service_an_old_hold_is_still_where_its_session_goes() {
    let mut world = World::new();
    // Held far from where rendezvous would put it; its first turn generates for a minute.
    let elsewhere = world.run("x: head session=s; x: route timeout; x: end");
    let held = if elsewhere.contains("worker-w0") { "w1 rank 5" } else { "w0 rank 2" };
    world.run(&format!("head session=s; route held {held} v9 hold 9"));
    let trace = world.run("@60000; b: head session=s; b: route timeout");
    assert!(trace.contains(&format!("#placed_alone, resume, to worker-{held}")), "{trace}");
}

#[test]
fn a_turn_at_home_without_the_service_makes_no_new_version_and_no_news() {
    let mut world = World::new();
    world.run("head session=s; route bound w1 rank 5 v3; end; generation 2; report");
    let asked = world.run("head session=s; route unsure; answer 200; end; page s; report");
    assert!(asked.contains("#placed_alone, resume, to worker-w1 rank 5"), "{asked}");
    assert!(asked.contains("page s -> bound w1/5 v3"), "{asked}");
    assert!(
        !asked.contains("committed"),
        "two Envoys would disagree about versions of the same place: {asked}"
    );
    let trip: String = (0..5).map(|_| "t: head session=t; t: route timeout; t: end;").collect();
    world.run(&format!("{trip} report"));
    let untold = world.run("head session=s; end; b: head session=s; b: end; report");
    assert_eq!(untold.matches("#breaker_open").count(), 2, "{untold}");
    assert!(untold.ends_with("report -> [] load []\n"), "never asked, so nothing to take back: {untold}");
}
