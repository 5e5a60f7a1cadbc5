//! A turn that runs keeps its binding alive, and its session is idle from its end on.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::expect;
use world::World;

fn bound() -> World {
    let mut world = World::new();
    world.run("head session=s; route bound w1 rank 5 v3; end; report");
    world
}

/// The pool's ttl is half an hour: told of each eighth of it, and at the end.
#[test]
fn a_pinned_turn_is_told_of_while_it_runs() {
    expect![[r#"
        head session=s -> continue, #pinned, to worker-w1 rank 5
        tick -> nothing
        tick -> put bound w1/5 v3
        report -> [touched v3] load [w1/5x1]
        tick -> nothing
        tick -> nothing
        tick -> put bound w1/5 v3
        report -> [touched v3] load [w1/5x1]
        tick -> nothing
        end -> nothing
        report -> [] load []
        head session=s -> continue, put bound w1/5 v3, #pinned, to worker-w1 rank 5
        end -> nothing
        tick -> nothing
        report -> [touched v3] load []
    "#]].assert_eq(&bound().run(
        "head session=s; @225000; tick; @227000; tick; report; tick; @400000; tick; @452500; tick; report; @600000; tick; end; report;
         @677600; head session=s; @677700; end; @910000; tick; report",
    ));
}

/// Its binding is its own from the moment that it is committed.
#[test]
fn a_first_turn_is_told_of_once_it_is_bound() {
    expect![[r#"
        head session=s -> pause, ask
        route held w1 rank 5 v3 hold 9 -> put held w1/5 v3, #routed_held, resume, to worker-w1 rank 5
        tick -> nothing
        answer 200 -> put bound w1/5 v3, #committed, report now
        tick -> nothing
        tick -> put bound w1/5 v3
        report -> [committed r1 hold 9 w1/5 v3, touched v3] load [w1/5x1]
        end -> put bound w1/5 v3
        report -> [touched v3] load []
    "#]].assert_eq(&World::new().run(
        "head session=s; route held w1 rank 5 v3 hold 9; @301000; tick; answer 200; @302000; tick; @600000; tick; report; @900000; end; report",
    ));
}

/// What was released meanwhile, or moved, is not raised.
#[test]
fn what_ended_meanwhile_stays_ended() {
    expect![[r#"
        head session=s -> continue, #pinned, to worker-w1 rank 5
        b: head session=s x-session-final=true -> continue, #pinned, to worker-w1 rank 5
        b: answer 200 -> nothing
        b: end -> put gone v3, #released, report now
        report -> [released v3] load [w1/5x1]
        tick -> put bound w1/5 v3 (no change)
        page s -> gone v3
        end -> nothing
        page s -> gone v3
        c: head session=t -> pause, ask
        c: route bound w0 rank 2 v4 -> put bound w0/2 v4 g7, #routed_bound, resume, to worker-w0 rank 2
        tick -> nothing
        report -> [touched v3, touched v4] load [w0/2x1]
        c: end -> nothing
    "#]].assert_eq(&bound().run(
        "head session=s; @2000; b: head session=s x-session-final=true; b: answer 200; b: end; report; @400000; tick; page s; end; page s;
         generation 7; c: head session=t; c: route bound w0 rank 2 v4; generation 8; @800000; tick; report; c: end",
    ));
}

/// One that spilled runs elsewhere than its session is bound.
#[test]
fn a_spilled_turn_keeps_nothing() {
    expect![[r#"
        head session=s -> continue, #spilled, to worker-w0 rank 3
        tick -> nothing
        report -> [] load [w0/3x1]
        end -> nothing
    "#]]
    .assert_eq(&bound().run("overload w1 5; head session=s; @400000; tick; report; end"));
}
