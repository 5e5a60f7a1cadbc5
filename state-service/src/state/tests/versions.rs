//! What each Envoy may see, and when: acknowledgements, versions, gaps, the pace of load.

use super::world::{World, check, session, worker_id};
use crate::state::{Command, Effect, Limits, Reply};
use expect_test::expect;
use routing::contract::{WatchQuery, WatchReply};
use routing::time::Millis;
use std::net::SocketAddr;

#[test]
fn a_node_sees_a_worker_once_all_it_polls_has_it() {
    check(
        "worker w1; sees n; ack n cds 0; ack n eds:default 0; ack n cds latest; ack n eds:default latest;
         worker w2; sees n; sees other; ack n cds latest; ack n eds:default latest; ack n eds:default latest",
        &expect![[r#"
            worker w1 -> Created
            sees n -> [w1(0+1)]
            ack n cds 0 -> [] [Changed]
            ack n eds:default 0 -> [] []
            ack n cds latest -> [] []
            ack n eds:default latest -> [w1(0+1)] [Changed]
            worker w2 -> Created
            sees n -> [w1(0+1)]
            sees other -> [w1(0+1) w2(0+1)]
            ack n cds latest -> [w1(0+1)] []
            ack n eds:default latest -> [w1(0+1) w2(0+1)] [Changed]
            ack n eds:default latest -> [w1(0+1) w2(0+1)] []
        "#]],
    );
}

#[test]
fn a_changed_worker_is_seen_as_it_was_until_acknowledged() {
    check(
        "worker w1 ranks=0..8; ack n cds latest; worker w1 ranks=0..4 at=10.9.9.9:8000; sees n; ack n cds latest; remove w1; sees n",
        &expect![[r#"
            worker w1 ranks=0..8 -> Created
            ack n cds latest -> [w1(0+8)] []
            worker w1 ranks=0..4 at=10.9.9.9:8000 -> Replaced
            sees n -> [w1(0+8)]
            ack n cds latest -> [w1(0+4)] [Changed]
            remove w1 -> done
            sees n -> []
        "#]],
    );
}

/// A rank that is gone must not be on the wire until an Envoy polls again: what it dials is the same.
#[test]
fn ranks_at_the_same_address_change_at_once() {
    check(
        "worker w1 ranks=0..8; ack n cds latest; worker w1 ranks=0..4; sees n; worker w1 ranks=0..16; sees n",
        &expect![[r#"
            worker w1 ranks=0..8 -> Created
            ack n cds latest -> [w1(0+8)] []
            worker w1 ranks=0..4 -> Replaced
            sees n -> [w1(0+4)]
            worker w1 ranks=0..16 -> Replaced
            sees n -> [w1(0+16)]
        "#]],
    );
}

#[test]
fn endpoints_are_acknowledged_pool_by_pool() {
    check(
        "worker w1; worker w2 pool=p; ack n eds:default latest; worker w3 pool=p; worker w4; sees n; ack n eds:p latest;
         ack n eds:default latest; ack n cds 99; count acks_from_the_future",
        &expect![[r#"
            worker w1 -> Created
            worker w2 pool=p -> Created
            ack n eds:default latest -> [w1(0+1) w2(0+1)] []
            worker w3 pool=p -> Created
            worker w4 -> Created
            sees n -> [w1(0+1) w2(0+1) w3(0+1)]
            ack n eds:p latest -> [w1(0+1) w2(0+1) w3(0+1)] []
            ack n eds:default latest -> [w1(0+1) w2(0+1) w3(0+1) w4(0+1)] [Changed]
            ack n cds 99 -> [] [Changed]
            count acks_from_the_future -> 1
        "#]],
    );
}

#[test]
fn a_silent_node_is_forgotten_and_sees_everything() {
    check(
        "worker w1; ack n cds 0; wait 601s; sees n; count nodes_expired",
        &expect![[r#"
        worker w1 -> Created
        ack n cds 0 -> [] [Changed]
        wait 601s -> 0 sessions, 0 held, 0 vms
        sees n -> [w1(0+1)]
        count nodes_expired -> 1
    "#]],
    );
}

#[test]
fn a_restart_of_the_service_hides_nothing_from_envoys_that_were_there() {
    check(
        "worker w1; wait 6s; returns n cds; returns n eds:default; worker w2; sees n; returns n cds; sees n; ack n cds latest;
         ack n eds:default latest; ack new cds 0",
        &expect![[r#"
            worker w1 -> Created
            wait 6s -> 0 sessions, 0 held, 0 vms
            returns n cds -> [w1(0+1)]
            returns n eds:default -> [w1(0+1)]
            worker w2 -> Created
            sees n -> [w1(0+1)]
            returns n cds -> [w1(0+1)]
            sees n -> [w1(0+1)]
            ack n cds latest -> [w1(0+1)] []
            ack n eds:default latest -> [w1(0+1) w2(0+1)] [Changed]
            ack new cds 0 -> [] [Changed]
        "#]],
    );
}

fn watch(world: &mut World, query: WatchQuery) -> Option<WatchReply> {
    match world.apply(Command::Watch { query, salt: 9 }) {
        Reply::Watch(reply) => reply.map(|reply| *reply),
        other => panic!("{other:?}"),
    }
}

fn caught_up(reply: &WatchReply, held: &WatchQuery) -> WatchQuery {
    WatchQuery {
        node: held.node.clone(),
        epoch: reply.epoch.0,
        after: reply.cursor.0,
        topology: reply.topology.as_ref().map_or(held.topology, |t| t.version),
        fleet: reply.fleet.as_ref().map_or(held.fleet, |f| f.version),
        wait_ms: 0,
    }
}

#[test]
fn a_watcher_is_answered_once_for_each_change() {
    let mut world = World::new(Limits::SERVICE);
    let first = watch(&mut world, WatchQuery::default()).unwrap();
    assert!(first.gap && first.topology.is_some() && first.fleet.is_some() && first.salt == 9);
    let query = caught_up(&first, &WatchQuery::default());
    assert_eq!(watch(&mut world, query.clone()), None);
    world.play("worker w1");
    let second = watch(&mut world, query.clone()).unwrap();
    assert!(!second.gap && second.topology.is_some() && second.fleet.is_some());
    let query = caught_up(&second, &query);
    assert_eq!(watch(&mut world, query.clone()), None);
    world.play("route a r1; commit a r1");
    assert_eq!(watch(&mut world, query.clone()), None, "new bindings are not told");
    world.play("release a v=1");
    let third = watch(&mut world, query).unwrap();
    assert_eq!(third.moves.len(), 1);
    assert_eq!((third.moves[0].session, third.moves[0].target.clone()), (session("a"), None));
}

#[test]
fn a_view_that_an_acknowledgement_opens_has_a_version_of_its_own() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; ack n cds 0");
    let query = WatchQuery { node: "n".to_owned(), ..WatchQuery::default() };
    let hidden = watch(&mut world, query.clone()).unwrap();
    assert!(hidden.topology.as_ref().unwrap().workers.is_empty());
    let query = caught_up(&hidden, &query);
    assert_eq!(watch(&mut world, query.clone()), None);
    world.play("ack n cds latest");
    let shown = watch(&mut world, query).unwrap().topology.unwrap();
    assert_eq!(shown.workers.len(), 1);
}

#[test]
fn a_lost_or_foreign_cursor_is_a_gap() {
    let mut world = World::new(Limits { moves_max: 4, ..Limits::SERVICE });
    world.play("worker w1");
    let start = watch(&mut world, WatchQuery::default()).unwrap();
    let query = caught_up(&start, &WatchQuery::default());
    for i in 0..5 {
        world.play(&format!("route s{i} r{i}; commit s{i} r{i}; delete s{i}"));
    }
    assert_eq!(world.state.sizes().moves, 4);
    let reply = watch(&mut world, query.clone()).unwrap();
    assert!(reply.gap && reply.moves.is_empty());
    assert_eq!(reply.cursor.0, 5);
    let kept = watch(&mut world, WatchQuery { after: 1, ..query.clone() }).unwrap();
    assert!(!kept.gap && kept.moves.len() == 4);
    assert!(watch(&mut world, WatchQuery { after: 6, ..query.clone() }).unwrap().gap, "from the future");
    assert!(watch(&mut world, WatchQuery { epoch: 8, after: 5, ..query }).unwrap().gap, "another life");
}

#[test]
fn many_moves_are_told_in_parts_and_none_is_lost() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1");
    let start = watch(&mut world, WatchQuery::default()).unwrap();
    let mut query = caught_up(&start, &WatchQuery::default());
    for i in 0..5000 {
        world.play(&format!("route s{i} r{i}; commit s{i} r{i}; delete s{i}"));
    }
    let mut told = 0;
    while let Some(reply) = watch(&mut world, query.clone()) {
        assert!(!reply.gap && reply.moves.len() <= 4096);
        told += reply.moves.len();
        query = caught_up(&reply, &query);
    }
    assert_eq!(told, 5000);
}

#[test]
fn states_are_told_at_once_and_load_ten_times_a_second() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1");
    let start = world.state.fleet().version;
    world.play("report A w1=1; report A w1=2");
    assert_eq!(world.state.fleet().version, start, "too soon");
    world.play("wait 100ms");
    assert_eq!(world.state.fleet().version, start + 1);
    assert_eq!(world.state.fleet().workers[0].in_flight, 2);
    world.play("report A w1=2; wait 100ms");
    assert_eq!(world.state.fleet().version, start + 1, "nothing differs");
    world.play("probe w1 ---");
    assert_eq!(world.state.fleet().version, start + 2);
}

#[test]
fn effects_name_what_the_shell_must_do() {
    let mut world = World::new(Limits::SERVICE);
    let spec = crate::declare::parse(br#"{"endpoints":[{"address":"a:1"}]}"#, Some("w1")).unwrap();
    let put = world.effects(Command::PutWorker { spec: spec.clone() });
    assert_eq!(put, [Effect::PersistWorkers, Effect::WorkerUp(worker_id("w1")), Effect::Changed]);
    assert_eq!(world.effects(Command::PutWorker { spec }), []);
    assert_eq!(world.effects(Command::Expire), []);
    let removed = world.effects(Command::RemoveWorker { id: worker_id("w1") });
    assert_eq!(removed, [Effect::PersistWorkers, Effect::WorkerGone(worker_id("w1")), Effect::Changed]);
}

#[test]
fn a_name_that_does_not_resolve_travels_without_an_address() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; worker w2 at=10.0.0.2:8000");
    let address = |world: &World| {
        world
            .state
            .topology_for("")
            .workers
            .iter()
            .map(|w| w.endpoints[0].address.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(address(&world), ["", "10.0.0.2:8000"]);
    let before = world.state.xds_version();
    let resolved = |world: &mut World, text: &str| {
        let address = text.parse::<SocketAddr>().ok();
        world.apply(Command::Resolved { worker: worker_id("w1"), endpoint: 0, address })
    };
    assert_eq!(resolved(&mut world, "[fd00::1]:8000"), Reply::Done);
    assert_eq!(address(&world), ["[fd00::1]:8000", "10.0.0.2:8000"]);
    assert_eq!(world.state.xds_version(), before + 1);
    assert_eq!(resolved(&mut world, "[fd00::1]:8000"), Reply::Done);
    assert_eq!(world.state.xds_version(), before + 1, "nothing new");
    assert!(matches!(resolved(&mut world, "10.0.0.2:8000"), Reply::Refused(_)), "another worker's address");
    assert_eq!(address(&world), ["", "10.0.0.2:8000"]);
    world.now += Millis(1);
    assert!(matches!(
        world.apply(Command::Resolved { worker: worker_id("w1"), endpoint: 1, address: None }),
        Reply::Refused(_)
    ));
}
