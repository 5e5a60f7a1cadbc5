//! What a request demands of its worker: who is left, and what becomes of a session that is bound where it may not be.

use super::world::{World, worker_id};
use crate::declare;
use crate::state::{Command, Reply};
use expect_test::{Expect, expect};
use routing::contract::{Affinity, Policy, PoolInfo};

/// Four workers: two kinds of GPU, one tainted, one that serves a model of its own.
fn world(set: impl FnOnce(&mut PoolInfo)) -> World {
    let mut world = World::of(set);
    world.play(
        "worker a at=10.0.0.1:80 labels=gpu:h100,zone:x; worker b at=10.0.0.2:80 labels=gpu:a100,zone:y;
         worker c at=10.0.0.3:80 labels=gpu:h100,!spot:yes; worker d at=10.0.0.4:80 models=m1 labels=lora:l1,gpu:a100",
    );
    world
}

fn played(mut world: World, script: &str, expected: &Expect) {
    expected.assert_eq(&world.play(script));
}

#[test]
fn the_policy_chooses_among_those_that_meet_the_demands() {
    played(
        world(|_| ()),
        "report B a=1 b=2 c=0 d=3; route s1 r1; route s2 r2 require=gpu:a100; route s3 r3 require=gpu; route s4 r4 require=spot;
         route s5 r5 require=spot:no; route s6 r6 require=zone:y,gpu:a100; route s7 r7 allow=10.0.0.4:80,10.0.0.2:80;
         route s8 r8 allow=10.0.0.9:80; route - r9 require=zone:y; route - r10 allow=10.0.0.3:80; route s9 r11 model=m1:l1 require=lora;
         route s10 r12 model=m1:l2 require=lora; route s11 r13 model=m2 require=lora",
        &expect![[r#"
            report B a=1 b=2 c=0 d=3 -> a=1+0 b=2+0 c=0+0 d=3+0
            route s1 r1 -> held a v1 least_loaded
            route s2 r2 require=gpu:a100 -> held b v2 least_loaded
            route s3 r3 require=gpu -> held a v3 least_loaded
            route s4 r4 require=spot -> held c v4 least_loaded
            route s5 r5 require=spot:no -> refused - v0 unmet
            route s6 r6 require=zone:y,gpu:a100 -> held b v5 least_loaded
            route s7 r7 allow=10.0.0.4:80,10.0.0.2:80 -> held d v6 least_loaded
            route s8 r8 allow=10.0.0.9:80 -> refused - v0 unmet
            route - r9 require=zone:y -> unpinned b v0 least_loaded
            route - r10 allow=10.0.0.3:80 -> refused - v0 unmet
            route s9 r11 model=m1:l1 require=lora -> held d v7 least_loaded
            route s10 r12 model=m1:l2 require=lora -> refused - v0 unmet
            route s11 r13 model=m2 require=lora -> refused - v0 unmet
        "#]],
    );
}

#[test]
fn every_policy_respects_the_demands() {
    let all = [
        Policy::LeastLoaded,
        Policy::RoundRobin,
        Policy::Random,
        Policy::PowerOfTwo,
        Policy::DeviceAware,
        Policy::SessionHash,
    ];
    for policy in all {
        let mut world = world(|pool| pool.policy = policy);
        for i in 0..20 {
            let said = world.play(&format!("route s{i} r{i} require=zone:y; route - r{}", 100 + i));
            assert!(said.lines().next().unwrap().contains(" b v"), "{policy:?}: {said}");
            assert!(!said.contains(" c v"), "a taint repels: {policy:?}: {said}");
        }
    }
}

#[test]
fn preferred_labels_choose_among_candidates_and_yield_to_overload() {
    played(
        world(|pool| pool.in_flight_limit = Some(5)),
        "report B a=4 b=0 d=0; route s1 r1 prefer=gpu:h100; fail s1 r1; route s1 r1 prefer=gpu:h100,zone:y,gpu:a100; fail s1 r1;
         route s1 r1 prefer=nothing; fail s1 r1; route s1 r1 prefer=gpu:h100 require=zone:y; fail s1 r1; report B a=5; route s1 r1 prefer=gpu:h100",
        &expect![[r#"
            report B a=4 b=0 d=0 -> a=4+0 b=0+0 c=0+0 d=0+0
            route s1 r1 prefer=gpu:h100 -> held a v1 least_loaded
            fail s1 r1 -> none [holds_rolled_back]
            route s1 r1 prefer=gpu:h100,zone:y,gpu:a100 -> held b v2 least_loaded
            fail s1 r1 -> none [holds_rolled_back]
            route s1 r1 prefer=nothing -> held b v3 least_loaded
            fail s1 r1 -> none [holds_rolled_back]
            route s1 r1 prefer=gpu:h100 require=zone:y -> held b v4 least_loaded
            fail s1 r1 -> none [holds_rolled_back]
            report B a=5 -> a=5+0 b=0+0 c=0+0 d=0+0
            route s1 r1 prefer=gpu:h100 -> held b v5 least_loaded
        "#]],
    );
}

#[test]
fn s6_an_excluded_bound_slot_hard_403_and_the_binding_unchanged() {
    played(
        world(|_| ()),
        "route s r1 require=zone:x; commit s r1; route s r2 require=zone:y; route s r3 allow=10.0.0.2:80; route s r4 prefer=zone:y;
         route s r5 require=zone:x allow=10.0.0.1:80; show s; count refused_excluded; moves;
         route t r6; route t r7@B require=zone:y; route t r8@B; fail t r6; fail t r8@B; show t",
        &expect![[r#"
            route s r1 require=zone:x -> held a v1 least_loaded
            commit s r1 -> Bound a v1 [holds_committed merge_inserted]
            route s r2 require=zone:y -> refused - v0 excluded
            route s r3 allow=10.0.0.2:80 -> refused - v0 excluded
            route s r4 prefer=zone:y -> bound a v1 bound
            route s r5 require=zone:x allow=10.0.0.1:80 -> bound a v1 bound
            show s -> Bound a v1
            count refused_excluded -> 2
            moves -> nothing
            route t r6 -> held b v2 least_loaded
            route t r7@B require=zone:y -> held b v2 joined
            route t r8@B -> held b v2 joined
            fail t r6 -> Held { owners: 2 } b v2 []
            fail t r8@B -> Held { owners: 1 } b v2 []
            show t -> Held { owners: 1 } b v2
        "#]],
    );
}

#[test]
fn s6_an_excluded_bound_slot_soft_re_binds_inside_the_list() {
    played(
        world(|pool| pool.affinity = Affinity::Soft),
        "route s r1 require=zone:x; commit s r1; route s r2 require=zone:y; show s; fail s r2; show s; route s r3 allow=10.0.0.2:80;
         commit s r3; moves; count route_excluded; route s r4 allow=10.0.0.9:80; show s;
         route t r5 require=zone:x; route t r6@B require=zone:y; show t; count unpinned_excluded",
        &expect![[r#"
            route s r1 require=zone:x -> held a v1 least_loaded
            commit s r1 -> Bound a v1 [holds_committed merge_inserted]
            route s r2 require=zone:y -> held b v2 excluded
            show s -> Held { owners: 1 } b v2
            fail s r2 -> Bound a v1 [holds_rolled_back]
            show s -> Bound a v1
            route s r3 allow=10.0.0.2:80 -> held b v3 excluded
            commit s r3 -> Bound b v3 [holds_committed merge_replaced_newer]
            moves -> b v3
            count route_excluded -> 2
            route s r4 allow=10.0.0.9:80 -> refused - v0 unmet
            show s -> Bound b v3
            route t r5 require=zone:x -> held a v4 least_loaded
            route t r6@B require=zone:y -> unpinned b v0 excluded
            show t -> Held { owners: 1 } a v4
            count unpinned_excluded -> 1
        "#]],
    );
}

#[test]
fn a_hold_where_the_demands_exclude_it_refuses_a_hard_session() {
    played(
        world(|_| ()),
        "route s r1 require=zone:x; route s r2@B require=zone:y; show s",
        &expect![[r#"
            route s r1 require=zone:x -> held a v1 least_loaded
            route s r2@B require=zone:y -> refused - v0 excluded
            show s -> Held { owners: 1 } a v1
        "#]],
    );
}

#[test]
fn a_taint_repels_newcomers_and_keeps_its_sessions() {
    played(
        world(|_| ()),
        "route s r1 require=zone:x; commit s r1; worker a at=10.0.0.1:80 labels=gpu:h100,zone:x,!gone:soon; route s r2; route s r3 require=zone:x;
         route t r4 require=zone:x; route t r4 require=zone:x,gone; route u r5 named=a",
        &expect![[r#"
            route s r1 require=zone:x -> held a v1 least_loaded
            commit s r1 -> Bound a v1 [holds_committed merge_inserted]
            worker a at=10.0.0.1:80 labels=gpu:h100,zone:x,!gone:soon -> Replaced
            route s r2 -> bound a v1 bound
            route s r3 require=zone:x -> bound a v1 bound
            route t r4 require=zone:x -> refused - v0 unmet
            route t r4 require=zone:x,gone -> held a v2 least_loaded
            route u r5 named=a -> held a v3 named
        "#]],
    );
}

#[test]
fn a_named_target_that_the_demands_exclude_is_refused() {
    played(
        world(|_| ()),
        "route s r1 named=a require=zone:y; route - r2 named=b allow=10.0.0.1:80; route s r3 named=b require=zone:y; show s",
        &expect![[r#"
            route s r1 named=a require=zone:y -> refused - v0 excluded
            route - r2 named=b allow=10.0.0.1:80 -> refused - v0 excluded
            route s r3 named=b require=zone:y -> held b v1 named
            show s -> Held { owners: 1 } b v1
        "#]],
    );
}

#[test]
fn alternates_meet_the_demands_too() {
    for name in ["s", "-"] {
        let mut world = world(|_| ());
        let mut request = super::world::route_request(name, 1, "A");
        request.session = request.session.filter(|_| name != "-");
        request.demands.require = routing::demand::Label::parse_list("gpu=a100").unwrap();
        request.demands.prefer = routing::demand::Label::parse_list("zone").unwrap();
        let reply = world.route(request, 0);
        assert_eq!((reply.target.unwrap().worker, reply.alternates), (worker_id("b"), vec![worker_id("d")]));
    }
}

#[test]
fn nobody_up_is_no_worker_and_nobody_fit_is_unmet() {
    played(
        world(|_| ()),
        "probe b ---; route s r1 require=zone:y; probe a ---; probe d ---; probe c ---; route s r1 require=zone:y; route s r1; count refused_unmet",
        &expect![[r#"
            probe b --- -> Down
            route s r1 require=zone:y -> refused - v0 unmet
            probe a --- -> Down
            probe d --- -> Down
            probe c --- -> Down
            route s r1 require=zone:y -> noworker - v0 no_worker
            route s r1 -> noworker - v0 no_worker
            count refused_unmet -> 1
        "#]],
    );
}

/// `session-1` has rank 5 of 4..8: behind the first endpoint.
#[test]
fn an_allow_list_is_about_the_address_of_the_rank() {
    let mut world = World::of(|_| ());
    let body = r#"{"endpoints": [{"address": "10.0.0.1:80", "dp_start": 4, "dp_size": 2},
        {"address": "10.0.0.2:80", "dp_start": 6, "dp_size": 2}]}"#;
    let spec = declare::parse(body.as_bytes(), Some("w")).unwrap();
    assert!(matches!(world.apply(Command::PutWorker { spec }), Reply::Declared(_)));
    expect![[r#"
        route session-1 r1 allow=10.0.0.2:80 -> refused - v0 unmet
        route conv-42 r2 allow=10.0.0.2:80 -> held w:6 v1 least_loaded
        route session-1 r3 allow=10.0.0.1:80 -> held w:5 v2 least_loaded
        commit session-1 r3 -> Bound w:5 v2 [holds_committed merge_inserted]
        route session-1 r4 allow=10.0.0.2:80 -> refused - v0 excluded
        route - r5 allow=10.0.0.1:80 -> refused - v0 unmet
        route - r6 allow=10.0.0.1:80,10.0.0.2:80 -> unpinned w v0 least_loaded
        route session-1 r7 named=w allow=10.0.0.1:80 -> bound w:5 v2 bound
        route s r8 named=w:7 allow=10.0.0.1:80 -> refused - v0 excluded
    "#]]
    .assert_eq(&world.play(
        "route session-1 r1 allow=10.0.0.2:80; route conv-42 r2 allow=10.0.0.2:80; route session-1 r3 allow=10.0.0.1:80; commit session-1 r3;
         route session-1 r4 allow=10.0.0.2:80; route - r5 allow=10.0.0.1:80; route - r6 allow=10.0.0.1:80,10.0.0.2:80;
         route session-1 r7 named=w allow=10.0.0.1:80; route s r8 named=w:7 allow=10.0.0.1:80",
    ));
}
