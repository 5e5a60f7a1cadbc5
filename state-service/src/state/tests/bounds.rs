//! Nothing grows without a bound, and what happens at each bound.

use super::world::{World, caller, check, pool, route_request, session, worker_id};
use crate::state::sessions::{Hold, Session};
use crate::state::{Command, Limits, Reply, XdsResource};
use expect_test::expect;
use routing::contract::{Entry, InFlight, Outcome, Report, SessionRef, Target};
use routing::id::{RankHash, RequestId, SessionId, Version};
use routing::time::Millis;
use std::mem::size_of;

fn small(sessions_max: usize) -> World {
    let mut world = World::new(Limits { sessions_max, tombstones_max: 2, ..Limits::SERVICE });
    world.play("worker w1; worker w2");
    world
}

#[test]
fn the_oldest_idle_session_gives_way() {
    let mut world = small(3);
    let said = world.play(
        "route a r1; commit a r1; wait 1s; route b r2; commit b r2; wait 1s; route c r3; wait 1s; touch a v=1;
         route d r4; show b; show a; show c; route e r5; show a; route f r6; show f; commit g r7 alone=1/5 on=w1;
         count sessions_evicted; count unpinned_table_full; count commit_table_full; fail c r3; route f r8; commit f r8; route g r9",
    );
    expect![[r#"
        route a r1 -> held w1 v1 least_loaded
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        wait 1s -> 1 sessions, 0 held, 1 vms
        route b r2 -> held w1 v2 least_loaded
        commit b r2 -> Bound w1 v2 [holds_committed merge_inserted]
        wait 1s -> 2 sessions, 0 held, 1 vms
        route c r3 -> held w1 v3 least_loaded
        wait 1s -> 3 sessions, 1 held, 1 vms
        touch a v=1 -> Bound w1 v1 []
        route d r4 -> held w1 v4 least_loaded
        show b -> none
        show a -> Bound w1 v1
        show c -> Held { owners: 1 } w1 v3
        route e r5 -> held w2 v5 least_loaded
        show a -> none
        route f r6 -> unpinned w1 v0 table_full
        show f -> none
        commit g r7 alone=1/5 on=w1 -> none [commit_table_full]
        count sessions_evicted -> 2
        count unpinned_table_full -> 1
        count commit_table_full -> 1
        fail c r3 -> none [holds_rolled_back]
        route f r8 -> held w1 v6 least_loaded
        commit f r8 -> Bound w1 v6 [holds_committed merge_inserted]
        route g r9 -> held w1 v7 least_loaded
    "#]]
    .assert_eq(&said);
    assert_eq!(world.state.sizes().sessions, 3);
}

#[test]
fn tombstones_are_bounded_on_their_own() {
    let mut world = small(8);
    for i in 0..5 {
        world.play(&format!("route s{i} r{i}; commit s{i} r{i}; delete s{i}; wait 1s"));
    }
    assert_eq!(world.state.sizes().tombstones, 2);
    assert_eq!(world.state.counters().tombstones_evicted, 3);
    assert_eq!(world.state.session(world.now, session("s0").id), None);
}

#[test]
fn a_million_distinct_sessions_stay_within_the_table() {
    let limits = Limits { sessions_max: 16_384, ..Limits::SERVICE };
    let mut world = World::new(limits);
    world.play("worker w1 ranks=0..8; worker w2 ranks=0..8");
    let target = Target { worker: worker_id("w1"), rank: None };
    for batch in 0..250u64 {
        let commit = |i: u64| {
            let n = u128::from(batch * 4000 + i);
            let id = SessionId(n.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
            Entry::Committed {
                session: SessionRef { id, rank_hash: RankHash(i) },
                pool: pool(),
                request: RequestId(i),
                hold: None,
                target: target.clone(),
                version: Version { seq: 1, writer: 3 },
            }
        };
        world.now += Millis(10);
        let entries = (0..4000).map(commit).collect();
        world.apply(Command::Report(Report {
            caller: caller("A"),
            seq: batch + 1,
            in_flight: vec![],
            entries,
            upstream_role_missing: 0,
        }));
    }
    assert_eq!(world.state.sizes().sessions, 16_384);
    assert_eq!(world.state.counters().sessions_evicted, 1_000_000 - 16_384);
    assert_eq!(world.state.sizes().moves, 0);
}

#[test]
fn forgetting_is_spread_over_ticks_and_reading_does_not_wait_for_it() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1");
    for i in 0..20_000 {
        world.route(route_request(&format!("s{i}"), i, &format!("vm{}", i % 200)), i);
    }
    world.play("wait 31s");
    assert_eq!(world.state.sizes().holds, 0, "their VM is dead");
    for i in 0..20_000 {
        world.play(&format!("commit s{i} r{i} alone=1/5 on=w1"));
    }
    world.now += Millis::from_secs(1801);
    assert_eq!(world.state.session(world.now, session("s19999").id), None);
    world.apply(Command::Expire);
    assert_eq!(world.state.sizes().sessions, 20_000 - 16_384);
    world.apply(Command::Expire);
    assert_eq!(world.state.sizes().sessions, 0);
}

#[test]
fn vms_past_the_limit_are_served_unpinned() {
    let mut world = World::new(Limits { vms_max: 1, ..Limits::SERVICE });
    let said = world.play("worker w1; route a r1@A; route b r2@B; commit b r2@B alone=1/5 on=w1; route b r3@B; wait 31s; route c r4@B");
    expect![[r#"
        worker w1 -> Created
        route a r1@A -> held w1 v1 least_loaded
        route b r2@B -> unpinned w1 v0 vms_full
        commit b r2@B alone=1/5 on=w1 -> Bound w1 v1/5 [merge_inserted vms_refused]
        route b r3@B -> bound w1 v1/5 bound
        wait 31s -> 1 sessions, 0 held, 0 vms
        route c r4@B -> held w1 v2 least_loaded
    "#]]
    .assert_eq(&said);
}

#[test]
fn workers_pools_and_nodes_past_the_limit() {
    let limits = Limits { workers_max: 2, pools_max: 2, nodes_max: 2, ..Limits::SERVICE };
    let mut world = World::new(limits);
    let said = world.play(
        "worker w1 pool=p; worker w2 pool=q; worker w2; worker w3; worker w2 weight=2; worker w1;
         ack n1 cds 1; wait 1s; ack n2 cds 1; wait 1s; ack n1 cds 1; ack n3 cds 1; sees n2; sees n1; count nodes_evicted",
    );
    expect![[r#"
        worker w1 pool=p -> Created
        worker w2 pool=q -> refused: there are 2 pools already, no more are taken
        worker w2 -> Created
        worker w3 -> refused: 2 workers are declared already, no more are taken
        worker w2 weight=2 -> Replaced
        worker w1 -> Replaced
        ack n1 cds 1 -> [] [Changed]
        wait 1s -> 0 sessions, 0 held, 0 vms
        ack n2 cds 1 -> [] [Changed]
        wait 1s -> 0 sessions, 0 held, 0 vms
        ack n1 cds 1 -> [] []
        ack n3 cds 1 -> [] [Changed]
        sees n2 -> [w1(0+1) w2(0+1)]
        sees n1 -> []
        count nodes_evicted -> 1
    "#]]
    .assert_eq(&said);
    let long = Command::NodeAck { node: "n".repeat(257), resource: XdsResource::Cluster, version: 0 };
    world.apply(long);
    assert_eq!(world.state.sizes().nodes, 2);
}

#[test]
fn owners_reservations_and_slots_of_one_vm_are_bounded() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1");
    for i in 0..5000 {
        assert_eq!(world.route(route_request("a", i, "A"), 0).outcome, Outcome::Held);
    }
    let counters = world.state.counters();
    assert_eq!((counters.hold_owners_full, counters.reservations_dropped), (5000 - 1024, 5000 - 4096));
    assert_eq!(world.state.worker(&worker_id("w1")).unwrap().reserved(), 4096);
    let slot =
        |i: u32| InFlight { target: Target { worker: worker_id(&format!("x{i}")), rank: None }, count: 1 };
    world.report("A", vec![], (0..20_000).map(slot).collect());
    assert_eq!(world.state.counters().in_flight_dropped, 20_000 - 16_384);
    assert_eq!(world.state.worker(&worker_id("w1")).unwrap().reserved(), 0, "the report covers them");
}

#[test]
fn absurd_counts_do_not_break_the_sum() {
    check(
        "worker w1; report A w1=4294967295; report B w1=4294967295; report A w1=0; report B w1=1; report B",
        &expect![[r#"
            worker w1 -> Created
            report A w1=4294967295 -> w1=4294967295+0
            report B w1=4294967295 -> w1=4294967295+0
            report A w1=0 -> w1=4294967295+0
            report B w1=1 -> w1=1+0
            report B -> w1=0+0
        "#]],
    );
}

#[test]
fn garbage_is_counted_not_believed() {
    check(
        "worker w1; touch a v=1; release a v=1; fail a r1; commit a r1 alone=9223372036854775807/1 on=w1; route a r2; show a",
        &expect![[r#"
            worker w1 -> Created
            touch a v=1 -> none [touch_unknown]
            release a v=1 -> none [release_unknown]
            fail a r1 -> none [failed_late]
            commit a r1 alone=9223372036854775807/1 on=w1 -> none [version_implausible]
            route a r2 -> held w1 v1 least_loaded
            show a -> Held { owners: 1 } w1 v1
        "#]],
    );
}

/// What one bound session costs: its entry and its place in the order of forgetting, in B-trees two thirds full.
#[test]
fn a_session_stays_small() {
    let entry = size_of::<SessionId>() + size_of::<Session>();
    let order = size_of::<(routing::time::Timestamp, SessionId)>();
    let bound = (entry + order) * 3 / 2;
    assert!(
        bound <= 200,
        "session {} + id, order {order}, hold {}: {bound} bytes a bound session",
        size_of::<Session>(),
        size_of::<Hold>()
    );
}

#[test]
fn a_long_lease_of_nothing_is_never_an_error() {
    let mut world = World::new(Limits::SERVICE);
    world.now += Millis(u64::MAX);
    assert_eq!(world.apply(Command::Expire), Reply::Done);
    world.play("worker w1; route a r1; commit a r1; wait 1s");
}
