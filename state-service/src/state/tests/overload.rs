//! Overload and the gauges of engines: judged per slot, with hysteresis, told at once, and believed for ten seconds.

use super::world::{World, caller, pool, session, worker_id};
use crate::declare;
use crate::state::{Command, Effect, Reply, SlotGauges, SlotView};
use routing::contract::InFlight;
use routing::contract::{Outcome, PoolInfo, Report, RouteRequest, Target, WorkerStatus};
use routing::id::{Rank, RequestId};
use routing::time::Millis;
use serde_json::json;

fn limited(limit: u32) -> World {
    World::of(|pool| pool.in_flight_limit = Some(limit))
}

fn on(worker: &str, rank: Option<u32>) -> Target {
    Target { worker: worker_id(worker), rank: rank.map(Rank) }
}

/// Declares a worker with ranks `0..ranks` and something more.
fn declare(world: &mut World, id: &str, ranks: u32, more: &serde_json::Value) {
    let mut json = json!({"endpoints": [{"address": format!("{id}.test:1"), "dp_size": ranks}]});
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec = declare::parse(json.to_string().as_bytes(), Some(id)).unwrap();
    assert!(matches!(world.apply(Command::PutWorker { spec }), Reply::Declared(_)));
}

/// What VM `A` has in flight from now on, and nothing else.
fn in_flight(world: &mut World, slots: &[(&str, Option<u32>, u32)]) {
    let slot = |(worker, rank, count): &(&str, Option<u32>, u32)| InFlight {
        target: on(worker, *rank),
        count: *count,
    };
    world.report("A", vec![], slots.iter().map(slot).collect());
}

fn told(rank: Option<u32>, waiting: u32, kv_permille: u32) -> SlotGauges {
    SlotGauges { rank: rank.map(Rank), running: 1, waiting, kv_permille: Some(kv_permille) }
}

fn scrape(world: &mut World, worker: &str, slots: &[SlotGauges]) {
    let command =
        Command::Gauges { worker: worker_id(worker), endpoint: 0, slots: slots.to_vec(), strays: 0 };
    assert_eq!(world.apply(command), Reply::Done);
}

fn status(world: &World, worker: &str) -> WorkerStatus {
    world.state.fleet().workers.iter().find(|status| status.id == worker_id(worker)).unwrap().clone()
}

/// Overloaded ranks, and whether all are.
fn overload(world: &World, worker: &str) -> (Vec<u32>, bool) {
    let status = status(world, worker);
    (status.overloaded.iter().map(|rank| rank.0).collect(), status.all_overloaded)
}

#[test]
fn a_slot_is_overloaded_at_its_limit_until_a_tenth_below() {
    let mut world = limited(10);
    world.play("worker w1 ranks=0..4");
    for (count, expected) in
        [(9, false), (10, true), (12, true), (10, true), (9, false), (9, false), (10, true)]
    {
        in_flight(&mut world, &[("w1", Some(2), count)]);
        let ranks = if expected { vec![2] } else { vec![] };
        assert_eq!(overload(&world, "w1"), (ranks, false), "{count}");
    }
    assert_eq!(world.state.counters().slots_overloaded, 2);
}

#[test]
fn a_report_of_the_same_number_changes_nothing() {
    let mut world = limited(20);
    world.play("worker w1 ranks=0..2");
    in_flight(&mut world, &[("w1", Some(0), 20)]);
    let version = world.state.fleet().version;
    // 19 is between 18 and 20: a slot whose requests were taken out and put in again in two steps would look cleared.
    in_flight(&mut world, &[("w1", Some(0), 19)]);
    assert_eq!(overload(&world, "w1"), (vec![0], false));
    assert_eq!(world.state.fleet().version, version, "load alone is told later");
}

#[test]
fn a_change_is_told_at_once() {
    let mut world = limited(1);
    world.play("worker w1; wait 1s");
    let report = |seq, count| {
        let in_flight = vec![InFlight { target: on("w1", None), count }];
        Command::Report(Report {
            caller: caller("A"),
            seq,
            in_flight,
            entries: vec![],
            upstream_role_missing: 0,
        })
    };
    world.apply(report(1, 0));
    for (seq, count) in [(2, 1), (3, 0), (4, 1)] {
        let version = world.state.fleet().version;
        assert!(world.effects(report(seq, count)).contains(&Effect::Changed));
        assert_eq!(
            (world.state.fleet().version, status(&world, "w1").all_overloaded),
            (version + 1, count == 1)
        );
    }
}

#[test]
fn one_busy_rank_does_not_shut_its_worker_and_one_idle_rank_hides_no_busy_one() {
    let mut world = limited(4);
    world.play("worker w1 ranks=0..3");
    in_flight(&mut world, &[("w1", Some(0), 4), ("w1", Some(2), 4)]);
    assert_eq!(overload(&world, "w1"), (vec![0, 2], false));
    in_flight(&mut world, &[("w1", Some(0), 4), ("w1", Some(1), 4), ("w1", Some(2), 4)]);
    assert_eq!(overload(&world, "w1"), (vec![0, 1, 2], true));
    in_flight(&mut world, &[("w1", Some(0), 4), ("w1", Some(1), 3), ("w1", Some(2), 4)]);
    assert_eq!(overload(&world, "w1"), (vec![0, 2], false));
}

#[test]
fn requests_without_a_rank_fill_the_worker_as_a_whole() {
    let mut world = limited(4);
    world.play("worker w1 ranks=0..3");
    in_flight(&mut world, &[("w1", None, 11)]);
    assert_eq!(overload(&world, "w1"), (vec![], false));
    in_flight(&mut world, &[("w1", None, 8), ("w1", Some(1), 4)]);
    assert_eq!(overload(&world, "w1"), (vec![1], true), "three ranks take twelve");
    assert!(world.state.slot(&on("w1", Some(2))).overloaded, "the engine spreads them over all ranks");
}

#[test]
fn choices_count_before_any_report_of_them() {
    let mut world = limited(3);
    world.play("worker w1");
    for request in 0..3 {
        assert!(!status(&world, "w1").all_overloaded);
        let asked = RouteRequest::new(caller("A"), RequestId(request), pool(), Millis(30));
        assert_eq!(world.route(asked, 0).outcome, Outcome::Unpinned);
    }
    assert!(status(&world, "w1").all_overloaded);
}

#[test]
fn a_full_cache_is_overload_on_its_rank_alone() {
    let mut world = limited(1000);
    world.play("worker w1 ranks=0..2");
    for (kv, expected) in [(949, false), (950, true), (900, true), (856, true), (855, false), (949, false)] {
        scrape(&mut world, "w1", &[told(Some(0), 0, 0), told(Some(1), 0, kv)]);
        let ranks = if expected { vec![1] } else { vec![] };
        assert_eq!(overload(&world, "w1"), (ranks, false), "{kv}");
    }
}

#[test]
fn a_worker_may_have_a_limit_of_its_own() {
    let mut world = limited(2);
    declare(&mut world, "own", 1, &json!({"in_flight_limit": 5}));
    declare(&mut world, "pools", 1, &json!({}));
    in_flight(&mut world, &[("own", None, 4), ("pools", None, 2)]);
    let all = |world: &World| ["own", "pools"].map(|id| status(world, id).all_overloaded);
    assert_eq!(all(&world), [false, true]);
    declare(&mut world, "own", 1, &json!({"in_flight_limit": 4}));
    assert_eq!(all(&world), [true, true], "declared anew under load");
    declare(&mut world, "pools", 1, &json!({"in_flight_limit": 100}));
    assert_eq!(all(&world), [true, false]);
}

#[test]
fn a_shrink_takes_marks_and_gauges_of_ranks_that_are_gone() {
    let mut world = limited(4);
    world.play("worker w1 ranks=0..4");
    scrape(&mut world, "w1", &[told(Some(3), 7, 990)]);
    in_flight(&mut world, &[("w1", Some(0), 4), ("w1", Some(2), 4)]);
    assert_eq!((overload(&world, "w1"), status(&world, "w1").waiting), ((vec![0, 2, 3], false), 7));
    world.play("worker w1 ranks=0..2");
    assert_eq!(
        (overload(&world, "w1"), status(&world, "w1").waiting),
        ((vec![0], false), 0),
        "nothing is left of ranks 2 and 3"
    );
    world.play("worker w1 ranks=0..1");
    assert_eq!(overload(&world, "w1"), (vec![], true));
}

#[test]
fn requests_counted_when_there_were_more_ranks_leave_no_mark() {
    let mut world = limited(3);
    world.play("worker w1 ranks=0..3");
    in_flight(&mut world, &[("w1", Some(0), 1)]);
    world.play("worker w1 ranks=0..1");
    in_flight(&mut world, &[("w1", None, 3)]);
    assert_eq!(overload(&world, "w1"), (vec![], true));
    in_flight(&mut world, &[]);
    assert_eq!(overload(&world, "w1"), (vec![], false));
}

#[test]
fn gauges_are_believed_for_ten_seconds() {
    let mut world = limited(1000);
    world.play("worker w1 ranks=0..2; worker w2");
    scrape(&mut world, "w1", &[told(Some(0), 3, 990), told(Some(1), 4, 100)]);
    scrape(&mut world, "w2", &[told(None, 9, 990)]);
    world.play("wait 6s");
    scrape(&mut world, "w1", &[told(Some(1), 5, 100)]);
    world.play("wait 4s");
    let seen =
        |world: &World| (status(world, "w1").waiting, overload(world, "w1").0, overload(world, "w2").1);
    assert_eq!(seen(&world), (8, vec![0], true));
    world.now += Millis(1);
    world.apply(Command::Expire);
    assert_eq!(seen(&world), (5, vec![], false), "the rank that was told of later stays");
    assert_eq!(world.state.slot(&on("w1", Some(0))).gauges, None);
    assert_eq!(world.state.counters().gauges_forgotten, 2);
}

#[test]
fn waiting_requests_are_load() {
    let mut world = World::of(|_| {});
    world.play("worker w1 ranks=0..2; worker w2");
    in_flight(&mut world, &[("w1", Some(1), 1), ("w2", None, 2)]);
    assert_eq!(world.play("route a r1"), "route a r1 -> held w1:1 v1 least_loaded\n");
    scrape(&mut world, "w1", &[told(Some(0), 0, 0), told(Some(1), 5, 0)]);
    assert_eq!(world.play("route b r2"), "route b r2 -> held w2 v2 least_loaded\n");
    let expected = SlotView { in_flight: 1, load: 7, gauges: Some(told(Some(1), 5, 0)), overloaded: false };
    assert_eq!(
        world.state.slot(&on("w1", Some(1))),
        expected,
        "in flight, the choice of a moment ago, and five waiting"
    );
}

#[test]
fn waiting_requests_move_a_soft_session() {
    let mut world = World::of(|pool| pool.affinity = routing::contract::Affinity::Soft);
    world.play("worker w1; worker w2; route a r1; commit a r1; report A w1=0 w2=0");
    scrape(&mut world, "w1", &[told(None, 2, 0)]);
    assert_eq!(world.play("route a r2"), "route a r2 -> bound w1 v1 bound\n");
    world.play("report A w1=0 w2=0");
    scrape(&mut world, "w1", &[told(None, 3, 0)]);
    assert_eq!(world.play("route a r3"), "route a r3 -> held w2 v2 moved\n");
}

#[test]
fn gauges_of_nobody_change_nothing() {
    let mut world = limited(4);
    world.play("worker w1 ranks=0..2");
    let gauges = |worker, endpoint, rank, strays| Command::Gauges {
        worker: worker_id(worker),
        endpoint,
        slots: vec![told(rank, 5, 990)],
        strays,
    };
    assert!(matches!(world.apply(gauges("w2", 0, None, 0)), Reply::Refused(_)));
    assert!(matches!(world.apply(gauges("w1", 1, None, 0)), Reply::Refused(_)));
    assert_eq!(world.apply(gauges("w1", 0, Some(2), 3)), Reply::Done);
    assert_eq!(status(&world, "w1"), WorkerStatus::idle(worker_id("w1"), status(&world, "w1").state));
    assert_eq!(world.state.counters().gauges_undeclared_rank, 4);
}

#[test]
fn a_thousand_waiting_on_each_of_many_ranks_does_not_overflow() {
    let mut world = World::of(|_| {});
    world.play("worker w1 ranks=0..1024; worker w2");
    let slots: Vec<SlotGauges> = (0..1024).map(|rank| told(Some(rank), u32::MAX, 1000)).collect();
    scrape(&mut world, "w1", &slots);
    assert_eq!((status(&world, "w1").waiting, status(&world, "w1").overloaded.len()), (u32::MAX, 1024));
    assert_eq!(world.play("route a r1"), "route a r1 -> held w2 v1 least_loaded\n");
}

/// The pool that the tests of turns use: sessions wait, spill or are refused.
pub(super) fn pool_with(set: impl FnOnce(&mut PoolInfo)) -> World {
    let mut world = World::of(|pool| {
        pool.in_flight_limit = Some(2);
        set(pool);
    });
    world.play("worker w1; worker w2; route a r1; commit a r1; report A w1=0 w2=0");
    assert_eq!(world.state.session(world.now, session("a").id).unwrap().target, Some(on("w1", None)));
    world
}
