//! Overload in a choice: who is left out, and what becomes of a bound turn whose slot is overloaded.

use super::world::World;
use expect_test::{Expect, expect};
use routing::contract::{Affinity, OnAllOverloaded, OnOverload, Policy, PoolInfo, RankPick};

fn world(set: impl FnOnce(&mut PoolInfo)) -> World {
    let mut world = World::of(|pool| {
        pool.in_flight_limit = Some(10);
        set(pool);
    });
    world.play("worker w1; worker w2; worker w3");
    world
}

fn played(mut world: World, script: &str, expected: &Expect) {
    expected.assert_eq(&world.play(script));
}

#[test]
fn overloaded_ones_are_left_out_while_others_are_not() {
    played(
        world(|pool| pool.policy = Policy::RoundRobin),
        "report A w2=10; route a r1; route b r2; route c r3; route d r4; report A w2=9; route e r5; route f r6; report A w1=10 w2=12 w3=11; route g r7;
         count chosen_all_overloaded",
        &expect![[r#"
            report A w2=10 -> w1=0+0 w2=10+0 w3=0+0
            route a r1 -> held w3 v1 round_robin
            route b r2 -> held w1 v2 round_robin
            route c r3 -> held w3 v3 round_robin
            route d r4 -> held w1 v4 round_robin
            report A w2=9 -> w1=0+0 w2=9+0 w3=0+0
            route e r5 -> held w3 v5 round_robin
            route f r6 -> held w1 v6 round_robin
            report A w1=10 w2=12 w3=11 -> w1=10+0 w2=12+0 w3=11+0
            route g r7 -> held w1 v7 least_loaded
            count chosen_all_overloaded -> 1
        "#]],
    );
}

#[test]
fn s4_hard_and_overloaded_spill_serves_elsewhere_and_comes_home() {
    for on_overload in [OnOverload::Spill, OnOverload::Wait] {
        played(
            world(|pool| pool.on_overload = on_overload),
            "route a r1; commit a r1; report A w1=10 w2=3; route a r2; show a; moves; fail a r2; show a; report A w1=9; route a r3;
             count unpinned_spilled; report A w1=10; wait 1000s alive=A; report A w1=10; route a r4; wait 1000s alive=A; show a",
            &expect![[r#"
                route a r1 -> held w1 v1 least_loaded
                commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
                report A w1=10 w2=3 -> w1=10+0 w2=3+0 w3=0+0
                route a r2 -> unpinned w3 v1 spilled
                show a -> Bound w1 v1
                moves -> nothing
                fail a r2 -> Bound w1 v1 [failed_late]
                show a -> Bound w1 v1
                report A w1=9 -> w1=9+0 w2=0+0 w3=0+0
                route a r3 -> bound w1 v1 bound
                count unpinned_spilled -> 1
                report A w1=10 -> w1=10+0 w2=0+0 w3=0+0
                wait 1000s alive=A -> 1 sessions, 0 held, 1 vms
                report A w1=10 -> w1=10+0 w2=0+0 w3=0+0
                route a r4 -> unpinned w2 v1 spilled
                wait 1000s alive=A -> 1 sessions, 0 held, 1 vms
                show a -> Bound w1 v1
            "#]],
        );
    }
}

#[test]
fn s4_hard_and_overloaded_refuse_is_429_and_the_binding_stays() {
    played(
        world(|pool| pool.on_overload = OnOverload::Refuse),
        "route a r1; commit a r1; report A w1=10; route a r2; show a; route a r3 named=w1; count refused_overloaded; report A; route a r4",
        &expect![[r#"
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=10 -> w1=10+0 w2=0+0 w3=0+0
            route a r2 -> refused - v0 overloaded
            show a -> Bound w1 v1
            route a r3 named=w1 -> bound w1 v1 bound
            count refused_overloaded -> 1
            report A -> w1=0+0 w2=0+0 w3=0+0
            route a r4 -> bound w1 v1 bound
        "#]],
    );
}

#[test]
fn s4_all_candidates_overloaded_least_loaded_or_refused() {
    let script = "route a r1; commit a r1; report A w1=12 w2=11 w3=10; route a r2; route b r3; route - r4; show a; show b";
    played(
        world(|_| ()),
        script,
        &expect![[r#"
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=12 w2=11 w3=10 -> w1=12+0 w2=11+0 w3=10+0
            route a r2 -> bound w1 v1 bound
            route b r3 -> held w3 v2 least_loaded
            route - r4 -> unpinned w2 v0 least_loaded
            show a -> Bound w1 v1
            show b -> Held { owners: 1 } w3 v2
        "#]],
    );
    played(
        world(|pool| pool.on_all_overloaded = OnAllOverloaded::Refuse),
        script,
        &expect![[r#"
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=12 w2=11 w3=10 -> w1=12+0 w2=11+0 w3=10+0
            route a r2 -> refused - v0 overloaded
            route b r3 -> refused - v0 overloaded
            route - r4 -> refused - v0 overloaded
            show a -> Bound w1 v1
            show b -> none
        "#]],
    );
}

#[test]
fn s4_soft_leaves_an_overloaded_slot_while_others_are_not() {
    played(
        world(|pool| (pool.affinity, pool.soft_margin_percent) = (Affinity::Soft, 10_000)),
        "route a r1; commit a r1; report A w1=9 w2=9 w3=9; route a r2; report A w1=10 w2=9 w3=10; route a r3; commit a r3; moves;
         report A w1=10 w2=10 w3=10; route a r4; show a",
        &expect![[r#"
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=9 w2=9 w3=9 -> w1=9+0 w2=9+0 w3=9+0
            route a r2 -> bound w1 v1 bound
            report A w1=10 w2=9 w3=10 -> w1=10+0 w2=9+0 w3=10+0
            route a r3 -> held w2 v2 moved
            commit a r3 -> Bound w2 v2 [holds_committed merge_replaced_newer]
            moves -> w2 v2
            report A w1=10 w2=10 w3=10 -> w1=10+0 w2=10+0 w3=10+0
            route a r4 -> bound w2 v2 bound
            show a -> Bound w2 v2
        "#]],
    );
}

/// `session-1` has rank 5 of 4..8, `conv-42` rank 6.
#[test]
fn s9_one_busy_rank_does_not_shut_its_worker_and_one_idle_rank_does_not_hide_it() {
    let mut world = world(|_| ());
    world.play("remove w1; remove w2; remove w3; worker u1 ranks=4..8; worker u2 ranks=4..8");
    expect![[r#"
        report B u1:5=10 u2=30 u2:5=1 -> u1=10+0 u2=31+0
        route session-1 r1 -> held u2:5 v1 least_loaded
        fail session-1 r1 -> none [holds_rolled_back]
        route conv-42 r2 -> held u1:6 v2 least_loaded
        commit conv-42 r2 -> Bound u1:6 v2 [holds_committed merge_inserted]
        route - r3 -> unpinned u1 v0 least_loaded
        report B u1:6=10 -> u1=10+1 u2=0+0
        route conv-42 r4 -> unpinned u2:6 v2 spilled
        route - r5 -> unpinned u2 v0 least_loaded
        report B u1=40 -> u1=40+1 u2=0+2
        route - r6 -> unpinned u2 v0 least_loaded
    "#]]
    .assert_eq(&world.play(
        "report B u1:5=10 u2=30 u2:5=1; route session-1 r1; fail session-1 r1; route conv-42 r2; commit conv-42 r2; route - r3; report B u1:6=10; route conv-42 r4;
         route - r5; report B u1=40; route - r6",
    ));
}

#[test]
fn the_idlest_rank_is_none_that_is_overloaded() {
    let mut world = world(|pool| pool.rank_pick = RankPick::LeastLoaded);
    world.play("remove w1; remove w2; remove w3; worker u1 ranks=4..8 limit=2");
    expect![[r#"
        report B u1:5=2 u1:4=1 u1:6=2 u1:7=1 -> u1=6+0
        route session-1 r1 -> held u1:7 v1 least_loaded
    "#]]
    .assert_eq(&world.play("report B u1:5=2 u1:4=1 u1:6=2 u1:7=1; route session-1 r1"));
}

#[test]
fn nobody_but_the_caller_chooses_where_a_direct_turn_spills() {
    played(
        world(|pool| pool.policy = Policy::Direct),
        "route a r1 named=w1; commit a r1; report A w1=10; route a r2; route a r3 named=w1; route b r4 named=w1",
        &expect![[r#"
            route a r1 named=w1 -> held w1 v1 named
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=10 -> w1=10+0 w2=0+0 w3=0+0
            route a r2 -> bound w1 v1 bound
            route a r3 named=w1 -> bound w1 v1 bound
            route b r4 named=w1 -> held w1 v2 named
        "#]],
    );
}

#[test]
fn a_spilled_turn_meets_its_demands() {
    played(
        world(|_| ()),
        "worker w1 labels=z; worker w3 labels=z; route a r1 require=z; commit a r1; report A w1=10 w3=5; route a r2 require=z; route a r3;
         report A w1=10 w3=10; route a r4 require=z",
        &expect![[r#"
            worker w1 labels=z -> Replaced
            worker w3 labels=z -> Replaced
            route a r1 require=z -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=10 w3=5 -> w1=10+0 w2=0+0 w3=5+0
            route a r2 require=z -> unpinned w3 v1 spilled
            route a r3 -> unpinned w2 v1 spilled
            report A w1=10 w3=10 -> w1=10+0 w2=0+0 w3=10+0
            route a r4 require=z -> bound w1 v1 bound
        "#]],
    );
}

/// An Envoy that knows an older one forgets it, and one that knows none can release it.
#[test]
fn a_spilled_turn_is_told_the_version_of_its_binding() {
    played(
        world(|_| ()),
        "route a r1; commit a r1; report A w1=10; route a r2@B; route - r3",
        &expect![[r#"
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=10 -> w1=10+0 w2=0+0 w3=0+0
            route a r2@B -> unpinned w2 v1 spilled
            route - r3 -> unpinned w3 v0 least_loaded
        "#]],
    );
}
