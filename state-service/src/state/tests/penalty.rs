//! Recent failures: as load, as runs, and as a reason to look at once.

use super::world::{World, worker_id};
use crate::state::{Command, Effect, Limits};
use expect_test::expect;
use routing::contract::{Entry, Report, SlotFailure, Target};
use routing::time::Millis;

fn two() -> World {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1 ranks=0..8; worker w2; probe w1 +; probe w2 +");
    world
}

fn told(world: &World) -> Vec<u32> {
    world.state.fleet().workers.iter().map(|status| status.penalty).collect()
}

#[test]
fn a_worker_that_fails_fast_does_not_look_idle() {
    let mut world = two();
    let said = world.play("slot w1 5xx rank=3; report B w2=3; route a r1; report B w2=5; route b r2; slot w1 answered rank=3; report B w2=3; route c r3");
    expect![[r#"
        slot w1 5xx rank=3 -> Ready
        report B w2=3 -> w1=0+0 w2=3+0
        route a r1 -> held w2 v1 least_loaded
        report B w2=5 -> w1=0+0 w2=5+1
        route b r2 -> held w1:7 v2 least_loaded
        slot w1 answered rank=3 -> Ready
        report B w2=3 -> w1=0+0 w2=3+0
        route c r3 -> held w1:3 v3 least_loaded
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_penalty_is_told_and_fades_to_nothing_by_itself() {
    let mut world = two();
    world.play("slot w1 5xx count=2; wait 100ms");
    assert_eq!(told(&world), [8, 0]);
    let (mut seen, mut version) = (vec![8], world.state.fleet().version);
    // Nothing happens but time: 8 requests halve five times within 25 s, and a quarter of one is none.
    for _ in 0..300 {
        world.now += Millis(100);
        let effects = world.effects(Command::Expire);
        let now = world.state.fleet().version;
        assert_eq!(now > version, told(&world) != [*seen.last().unwrap(), 0], "told when it changes");
        assert_eq!(effects.contains(&Effect::Changed), now > version);
        if now > version {
            seen.push(told(&world)[0]);
        }
        version = now;
    }
    assert_eq!(seen, [8, 7, 6, 5, 4, 3, 2, 1, 0]);
    let mut world = two();
    world.play("slot w1 5xx count=2; slot w1 answered; slot w1 answered; wait 100ms");
    assert_eq!(told(&world), [2, 0], "each good answer halves");
    world.play("slot w2 5xx count=4294967295; wait 100ms");
    assert_eq!(told(&world)[1], 1014, "at most 1024, of which 100 ms took their part");
}

#[test]
fn a_penalty_stays_with_the_address_it_was_earned_at() {
    let mut world = two();
    world.play("slot w1 5xx; worker w1 ranks=0..8 weight=2; wait 100ms");
    assert_eq!(told(&world), [4, 0]);
    world.play("worker w1 ranks=0..8 at=elsewhere.test:1; wait 100ms");
    assert_eq!(told(&world), [0, 0]);
}

#[test]
fn failures_far_apart_are_no_run_but_a_suspect_stays_one() {
    let mut world = two();
    let said = world.play(
        "slot w1 refused; wait 10s; slot w1 refused; slot w1 answered;
         slot w1 refused; wait 10001ms; slot w1 refused; slot w1 5xx; slot w1 5xx; wait 10001ms; slot w1 5xx; slot w1 5xx; slot w1 5xx;
         wait 60s; slot w1 5xx; slot w1 refused rank=1; slot w1 answered",
    );
    expect![[r#"
        slot w1 refused -> Ready
        wait 10s -> 0 sessions, 0 held, 1 vms
        slot w1 refused -> Suspect
        slot w1 answered -> Ready
        slot w1 refused -> Ready
        wait 10001ms -> 0 sessions, 0 held, 1 vms
        slot w1 refused -> Ready
        slot w1 5xx -> Ready
        slot w1 5xx -> Ready
        wait 10001ms -> 0 sessions, 0 held, 1 vms
        slot w1 5xx -> Ready
        slot w1 5xx -> Ready
        slot w1 5xx -> Suspect
        wait 60s -> 0 sessions, 0 held, 0 vms
        slot w1 5xx -> Suspect
        slot w1 refused rank=1 -> Suspect
        slot w1 answered -> Ready
    "#]]
    .assert_eq(&said);
}

fn entry(worker: &str, failure: SlotFailure, count: u32) -> Entry {
    Entry::SlotFailed { target: Target { worker: worker_id(worker), rank: None }, failure, count }
}

fn probes_wanted(world: &mut World, seq: u64, entries: Vec<Entry>) -> Vec<Effect> {
    let report = Report {
        caller: super::world::caller("A"),
        seq,
        in_flight: vec![],
        entries,
        upstream_role_missing: 0,
    };
    let mut effects = world.effects(Command::Report(report));
    effects.retain(|effect| matches!(effect, Effect::ProbeNow(_)));
    effects
}

#[test]
fn refused_connections_are_looked_into_at_once() {
    let mut world = two();
    let now = |ids: &[&str]| ids.iter().map(|id| Effect::ProbeNow(worker_id(id))).collect::<Vec<_>>();
    let refused = |worker| entry(worker, SlotFailure::Connection, 1);
    assert_eq!(probes_wanted(&mut world, 1, vec![entry("w1", SlotFailure::Status5xx, 9)]), []);
    let all = vec![refused("w2"), refused("w1"), refused("w2"), refused("w9")];
    assert_eq!(
        probes_wanted(&mut world, 2, all.clone()),
        now(&["w1", "w2"]),
        "each once, those that are declared"
    );
    assert_eq!(probes_wanted(&mut world, 2, all), [], "the same report twice");
    assert_eq!(probes_wanted(&mut world, 3, vec![]), []);
    world.play("drain w1; probe w2 ---");
    assert_eq!(probes_wanted(&mut world, 4, vec![refused("w1"), refused("w2")]), now(&["w1"]), "w2 is down");
}
