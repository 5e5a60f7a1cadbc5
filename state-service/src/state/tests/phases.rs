//! Split pools: prefill and decode are chosen, bound and given up each on its own.

use super::world::World;
use expect_test::{Expect, expect};
use routing::contract::{Policy, PoolInfo};

fn world(set: impl FnOnce(&mut PoolInfo)) -> World {
    let mut world = World::of(set);
    world.play(
        "worker d1 phase=decode; worker d2 phase=decode; worker p1 phase=prefill; worker p2 phase=prefill",
    );
    world
}

fn played(mut world: World, script: &str, expected: &Expect) {
    expected.assert_eq(&world.play(script));
}

#[test]
fn one_question_places_both_halves_and_each_is_committed_on_its_own() {
    played(
        world(|_| ()),
        "report B d1=3 p1=3; route a r1 prefill=pa,r2; show a; show pa; commit a r1; fail pa r2; show pa; route a r3 prefill=pa,r4; commit pa r4;
         route a r5@B prefill=pa,r6@B; moves; report B",
        &expect![[r#"
            report B d1=3 p1=3 -> d1=3+0 d2=0+0 p1=3+0 p2=0+0
            route a r1 prefill=pa,r2 -> held d2 v1 least_loaded + held p2 v2 least_loaded
            show a -> Held { owners: 1 } d2 v1
            show pa -> Held { owners: 1 } p2 v2
            commit a r1 -> Bound d2 v1 [holds_committed merge_inserted]
            fail pa r2 -> none [holds_rolled_back]
            show pa -> none
            route a r3 prefill=pa,r4 -> bound d2 v1 bound + held p2 v3 least_loaded
            commit pa r4 -> Bound p2 v3 [holds_committed merge_inserted]
            route a r5@B prefill=pa,r6@B -> bound d2 v1 bound + bound p2 v3 bound
            moves -> nothing
            report B -> d1=0+0 d2=0+0 p1=0+0 p2=0+0
        "#]],
    );
}

#[test]
fn a_decode_question_gets_no_prefill_worker_and_the_other_way_round() {
    played(
        world(|_| ()),
        "drain d1; drain d2; route a r1 prefill=pa,r2; show pa; resume d1; drain p1; drain p2; route a r3 prefill=pa,r4; show a; show pa; fail a r3;
         worker g1; drain d1; route a r5 prefill=pa,r6; count route_no_worker",
        &expect![[r#"
            drain d1 -> done
            drain d2 -> done
            route a r1 prefill=pa,r2 -> noworker - v0 no_worker
            show pa -> none
            resume d1 -> done
            drain p1 -> done
            drain p2 -> done
            route a r3 prefill=pa,r4 -> held d1 v1 least_loaded + noworker - v0 no_worker
            show a -> Held { owners: 1 } d1 v1
            show pa -> none
            fail a r3 -> none [holds_rolled_back]
            worker g1 -> Created
            drain d1 -> done
            route a r5 prefill=pa,r6 -> held g1 v2 least_loaded + noworker - v0 no_worker
            count route_no_worker -> 3
        "#]],
    );
}

#[test]
fn a_binding_to_a_worker_of_the_other_phase_is_bound_anew() {
    played(
        world(|_| ()),
        "commit a r1 alone=1/5 on=p1; commit pa r2 alone=1/5 on=d1; route a r3 prefill=pa,r4; fail a r3; fail pa r4;
         route a r5 cached=p2,9/5; route b r6 named=p1; route b r6 named=d1; route c r7 prefill=pc,r8 pnamed=d1; route c r9 prefill=pc,r10 pnamed=p2",
        &expect![[r#"
            commit a r1 alone=1/5 on=p1 -> Bound p1 v1/5 [merge_inserted]
            commit pa r2 alone=1/5 on=d1 -> Bound d1 v1/5 [merge_inserted]
            route a r3 prefill=pa,r4 -> held d1 v2 rebound + held p2 v3 rebound
            fail a r3 -> Bound p1 v1/5 [holds_rolled_back]
            fail pa r4 -> Bound d1 v1/5 [holds_rolled_back]
            route a r5 cached=p2,9/5 -> held d1 v10 rebound
            route b r6 named=p1 -> refused - v0 worker_unknown
            route b r6 named=d1 -> held d1 v11 named
            route c r7 prefill=pc,r8 pnamed=d1 -> held d2 v12 least_loaded + refused - v0 worker_unknown
            route c r9 prefill=pc,r10 pnamed=p2 -> held d2 v12 joined + held p2 v13 named
        "#]],
    );
}

#[test]
fn each_half_has_its_own_turn() {
    played(
        world(|pool| pool.policy = Policy::RoundRobin),
        "route - r1 prefill=-,r2; route - r3 prefill=-,r4; route - r5; route - r6 prefill=-,r7",
        &expect![[r#"
            route - r1 prefill=-,r2 -> unpinned d2 v0 round_robin + unpinned p2 v0 round_robin
            route - r3 prefill=-,r4 -> unpinned d1 v0 round_robin + unpinned p1 v0 round_robin
            route - r5 -> unpinned d2 v0 round_robin
            route - r6 prefill=-,r7 -> unpinned d1 v0 round_robin + unpinned p2 v0 round_robin
        "#]],
    );
}

#[test]
fn demands_are_those_of_both_halves() {
    let mut world = world(|_| ());
    world.play("worker d2 phase=decode labels=z; worker p2 phase=prefill labels=z; report B d2=9 p2=9");
    expect![[r#"
        route a r1 prefill=pa,r2 require=z -> held d2 v1 least_loaded + held p2 v2 least_loaded
    "#]]
    .assert_eq(&world.play("route a r1 prefill=pa,r2 require=z"));
}
