//! A new life of the service: what it leaves to the filters, and whose topology it does not touch.

use super::world::{World, check, route_request};
use crate::state::{Command, Effect, Limits, Reply, Sharing};
use expect_test::expect;
use routing::contract::{Outcome, WatchQuery, WatchReply};
use routing::time::Millis;
use std::net::SocketAddr;

#[test]
fn unknown_sessions_are_the_filters_for_two_seconds_after_a_restart() {
    check(
        "worker w1 at=10.0.0.1:1; worker w2; earlier all; route a r1; route - r2; upload b v=3/9 on=w1; route b r3; route c r4 cached=w2,5/9;
         commit d r1 alone=1/9 on=w2; route d r5; delete b; route b r6; wait 1999ms; route a r7; wait 1ms; route a r8; count route_unsure",
        &expect![[r#"
            worker w1 at=10.0.0.1:1 -> Created
            worker w2 -> Created
            earlier all -> done
            route a r1 -> unsure - v0 settling
            route - r2 -> unpinned w1 v0 least_loaded
            upload b v=3/9 on=w1 -> Bound w1 v3/9 [merge_inserted]
            route b r3 -> bound w1 v3/9 bound
            route c r4 cached=w2,5/9 -> bound w2 v5/9 adopted
            commit d r1 alone=1/9 on=w2 -> Bound w2 v1/9 [merge_inserted]
            route d r5 -> bound w2 v1/9 bound
            delete b -> done
            route b r6 -> held w1 v5 least_loaded
            wait 1999ms -> 3 sessions, 1 held, 1 vms
            route a r7 -> unsure - v0 settling
            wait 1ms -> 3 sessions, 1 held, 1 vms
            route a r8 -> held w1 v6 least_loaded
            count route_unsure -> 2
        "#]],
    );
}

#[test]
fn the_first_life_is_sure_from_the_start() {
    check(
        "route a r1; worker w1; route a r2; route b r3 pool=p",
        &expect![[r#"
            route a r1 -> noworker - v0 no_worker
            worker w1 -> Created
            route a r2 -> held w1 v1 least_loaded
            route b r3 pool=p -> unknownpool - v0 unknown_pool
        "#]],
    );
}

#[test]
fn until_all_workers_are_told_nobody_moves() {
    check(
        "worker w1 at=10.0.0.1:1; earlier some; route a r1; route - r2; route b r3 cached=w1,5/9; route c r4 cached=w2,5/9; route d r5 pool=p;
         wait 900ms; worker w2 at=10.0.0.2:1; route c r6 cached=w2,5/9; wait 999ms; route a r7; wait 1ms; route e r8; wait 1s; route e r9",
        &expect![[r#"
            worker w1 at=10.0.0.1:1 -> Created
            earlier some -> done
            route a r1 -> unsure - v0 settling
            route - r2 -> unsure - v0 settling
            route b r3 cached=w1,5/9 -> bound w1 v5/9 adopted
            route c r4 cached=w2,5/9 -> unsure - v0 settling
            route d r5 pool=p -> unsure - v0 settling
            wait 900ms -> 1 sessions, 0 held, 1 vms
            worker w2 at=10.0.0.2:1 -> Created
            route c r6 cached=w2,5/9 -> bound w2 v5/9 adopted
            wait 999ms -> 2 sessions, 0 held, 1 vms
            route a r7 -> unsure - v0 settling
            wait 1ms -> 2 sessions, 0 held, 1 vms
            route e r8 -> unsure - v0 settling
            wait 1s -> 2 sessions, 0 held, 1 vms
            route e r9 -> held w1 v1 least_loaded
        "#]],
    );
}

#[test]
fn a_named_turn_waits_for_its_worker_to_be_declared() {
    use routing::contract::Target;
    let mut world = World::new(Limits::SERVICE);
    world.play("earlier some; worker w1 at=10.0.0.1:1");
    let named = |worker: &str| {
        let target = Target { worker: super::world::worker_id(worker), rank: None };
        let mut request = route_request("a", 1, "A");
        request.named = Some(target);
        request
    };
    assert_eq!(world.route(named("w2"), 0).outcome, Outcome::Unsure, "not 404");
    world.play("wait 1s");
    assert_eq!(world.route(named("w1"), 0).outcome, Outcome::Unsure, "its binding may be elsewhere");
    world.play("wait 1s");
    assert_eq!(world.route(named("w2"), 0).outcome, Outcome::Refused);
    assert_eq!(world.route(named("w1"), 0).outcome, Outcome::Held);
}

fn watch(world: &mut World, query: &WatchQuery) -> Option<WatchReply> {
    match world.apply(Command::Watch { query: query.clone(), salt: 9 }) {
        Reply::Watch(reply) => reply.map(|reply| *reply),
        other => panic!("{other:?}"),
    }
}

/// What a watcher asks after an answer; it keeps the version of a topology it was not given another of.
fn next(reply: &WatchReply, held: &WatchQuery) -> WatchQuery {
    WatchQuery {
        epoch: reply.epoch.0,
        after: reply.cursor.0,
        topology: reply.topology.as_ref().map_or(held.topology, |t| t.version),
        fleet: reply.fleet.as_ref().map_or(held.fleet, |f| f.version),
        ..held.clone()
    }
}

/// An Envoy that remembers another life, whatever numbers that one gave.
fn of_another_life(topology: u64) -> WatchQuery {
    WatchQuery { node: "n".to_owned(), epoch: 99, after: 4, topology, fleet: 3, wait_ms: 0 }
}

fn seen(reply: Option<WatchReply>) -> Option<Vec<String>> {
    let topology = reply?.topology?;
    Some(topology.workers.iter().map(|worker| worker.id.to_string()).collect())
}

#[test]
fn a_service_without_its_file_empties_nobodys_topology() {
    let mut world = World::new(Limits::SERVICE);
    let first = watch(&mut world, &of_another_life(1)).unwrap();
    assert!(first.upload && first.gap && first.topology.is_none());
    let waits = next(&first, &of_another_life(1));
    assert_eq!(watch(&mut world, &waits), None, "told of this life, it still has the other's topology");
    world.play("worker w1 at=10.0.0.1:1; wait 900ms; worker w2 at=10.0.0.2:1; wait 999ms");
    assert_eq!(seen(watch(&mut world, &waits)), None);
    assert_eq!(seen(watch(&mut world, &of_another_life(7))), None);
    world.now += Millis(1);
    assert_eq!(world.effects(Command::Expire), [Effect::Changed], "watchers are woken");
    assert_eq!(seen(watch(&mut world, &waits)).unwrap(), ["w1", "w2"]);
    assert_eq!(seen(watch(&mut world, &of_another_life(7))).unwrap(), ["w1", "w2"]);
    world.play("remove w1; remove w2");
    assert_eq!(seen(watch(&mut world, &waits)).unwrap(), [""; 0], "an operator may empty it");
}

#[test]
fn a_fresh_envoy_is_served_at_once_and_goes_on_being_served() {
    let mut world = World::new(Limits::SERVICE);
    let fresh = WatchQuery { node: "n".to_owned(), ..WatchQuery::default() };
    let first = watch(&mut world, &fresh).unwrap();
    assert!(!first.upload && first.topology.is_some());
    let query = next(&first, &fresh);
    assert_eq!(watch(&mut world, &query), None);
    world.play("worker w1");
    assert_eq!(seen(watch(&mut world, &query)).unwrap(), ["w1"]);
}

#[test]
fn workers_that_keep_coming_are_waited_for_half_a_minute() {
    let mut world = World::new(Limits::SERVICE);
    for i in 0..60 {
        world.play(&format!("worker w{i} at=10.0.0.1:{}; wait 499ms", i + 1));
        assert!(world.state.is_gathering(), "{i}");
    }
    world.play("worker w60 at=10.0.0.1:61; wait 60ms");
    assert!(!world.state.is_gathering());
}

/// Of a replica that was never told what the others know, one declared worker is not all there are.
#[test]
fn a_replica_that_hears_nothing_waits_half_a_minute_for_more_workers() {
    let mut world = World::new(Limits::SERVICE);
    world.apply(Command::Sharing(Sharing::Apart));
    world.play("worker w1 at=10.0.0.1:1; wait 29999ms");
    assert!(world.state.is_gathering());
    assert_eq!(seen(watch(&mut world, &of_another_life(7))), None);
    world.play("wait 1ms");
    assert_eq!(seen(watch(&mut world, &of_another_life(7))).unwrap(), ["w1"]);

    let mut world = World::new(Limits::SERVICE);
    world.apply(Command::Sharing(Sharing::Apart));
    world.play("worker w1 at=10.0.0.1:1; wait 5s");
    assert!(world.state.is_gathering());
    world.apply(Command::Sharing(Sharing::Together));
    assert!(!world.state.is_gathering(), "the others' workers are told before");
}

#[test]
fn restored_workers_are_all_there_are_once_their_names_resolve() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; worker w2 at=10.0.0.2:1; earlier all");
    assert!(world.state.is_gathering(), "w1 is a name");
    let address = "10.0.0.1:1".parse::<SocketAddr>().ok();
    let worker = super::world::worker_id("w1");
    world.apply(Command::Resolved { worker, endpoint: 0, address });
    assert!(!world.state.is_gathering());
    assert_eq!(seen(watch(&mut world, &of_another_life(1))).unwrap(), ["w1", "w2"]);

    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; earlier all; wait 4999ms");
    assert!(world.state.is_gathering());
    world.play("wait 1ms");
    assert!(!world.state.is_gathering(), "a name that resolves to nothing is not waited for");

    let mut world = World::new(Limits::SERVICE);
    world.play("earlier all");
    assert!(!world.state.is_gathering(), "a file without workers says that there are none");
}

#[test]
fn a_node_that_returned_too_early_sees_all_that_is_told_by_then() {
    check(
        "returns n cds; worker w1 at=10.0.0.1:1; returns n cds; returns n eds:default; worker w2 at=10.0.0.2:1; wait 1s; sees n;
         returns n cds; returns n eds:default; worker w3; sees n; ack n cds latest; ack n eds:default latest; route a r1",
        &expect![[r#"
            returns n cds -> []
            worker w1 at=10.0.0.1:1 -> Created
            returns n cds -> [w1(0+1)]
            returns n eds:default -> [w1(0+1)]
            worker w2 at=10.0.0.2:1 -> Created
            wait 1s -> 0 sessions, 0 held, 0 vms
            sees n -> [w1(0+1) w2(0+1)]
            returns n cds -> [w1(0+1) w2(0+1)]
            returns n eds:default -> [w1(0+1) w2(0+1)]
            worker w3 -> Created
            sees n -> [w1(0+1) w2(0+1)]
            ack n cds latest -> [w1(0+1) w2(0+1)] []
            ack n eds:default latest -> [w1(0+1) w2(0+1) w3(0+1)] [Changed]
            route a r1 -> unsure - v0 settling
        "#]],
    );
}

#[test]
fn versions_of_topologies_differ_from_life_to_life() {
    use crate::state::settling::first_view;
    use routing::id::Epoch;
    let firsts: std::collections::BTreeSet<u64> = (1..10_000).map(|n| first_view(Epoch(n)) >> 20).collect();
    assert!(firsts.len() > 9_900, "{}", firsts.len());
    assert!((1..10_000).all(|n| first_view(Epoch(n)) < 1 << 52));
}

/// Workers told one by one with pauses: Envoys have bindings to the one that is still missing.
#[test]
fn a_worker_that_envoys_have_bindings_to_is_waited_for() {
    check(
        "earlier some; worker w1 at=10.0.0.1:1; upload a v=3/9 on=w2; wait 5s; route b r1; worker w2 at=10.0.0.2:1; route b r2; wait 1s;
         route b r3; route a r4",
        &expect![[r#"
            earlier some -> done
            worker w1 at=10.0.0.1:1 -> Created
            upload a v=3/9 on=w2 -> none [upload_parked]
            wait 5s -> 0 sessions, 0 held, 0 vms
            route b r1 -> unsure - v0 settling
            worker w2 at=10.0.0.2:1 -> Created
            route b r2 -> unsure - v0 settling
            wait 1s -> 1 sessions, 0 held, 1 vms
            route b r3 -> held w1 v1 least_loaded
            route a r4 -> bound w2 v3/9 bound
        "#]],
    );
    check(
        "earlier some; worker w1 at=10.0.0.1:1; upload a v=3/9 on=gone; wait 29999ms; route b r1; wait 1ms; route b r2",
        &expect![[r#"
            earlier some -> done
            worker w1 at=10.0.0.1:1 -> Created
            upload a v=3/9 on=gone -> none [upload_parked]
            wait 29999ms -> 0 sessions, 0 held, 0 vms
            route b r1 -> unsure - v0 settling
            wait 1ms -> 0 sessions, 0 held, 1 vms
            route b r2 -> held w1 v1 least_loaded
        "#]],
    );
}

/// Two Envoys commit what they placed alone while no worker is declared: news without a target would read as a release.
#[test]
fn a_binding_to_a_worker_not_declared_yet_is_not_published() {
    check(
        "earlier some; commit a r1 alone=1/9 on=w1; commit a r2@B alone=1/8 on=w1; commit a r3@B alone=2/8 on=w1; moves; count moves_untold;
         worker w1; touch a v=2/8; moves",
        &expect![[r#"
            earlier some -> done
            commit a r1 alone=1/9 on=w1 -> Bound - v1/9 [merge_inserted commit_unknown_worker]
            commit a r2@B alone=1/8 on=w1 -> Bound - v1/9 [merge_ignored_conflict commit_unknown_worker moves_untold]
            commit a r3@B alone=2/8 on=w1 -> Bound - v2/8 [merge_replaced_newer commit_unknown_worker moves_untold]
            moves -> nothing
            count moves_untold -> 2
            worker w1 -> Created
            touch a v=2/8 -> Bound w1 v2/8 []
            moves -> nothing
        "#]],
    );
}
