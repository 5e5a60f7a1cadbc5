//! Bound turns that wait for their overloaded slot: first come, first served, bounded, and gone without a trace.

use super::overload::pool_with;
use super::world::{World, route_request, session, worker_id};
use crate::state::{Command, Effect, Later, Reply, Ticket};
use routing::contract::{InFlight, OnOverload, Outcome, RouteReply, RouteRequest, Target};
use routing::time::Millis;

fn waiting_pool() -> World {
    pool_with(|pool| pool.on_overload = OnOverload::Wait)
}

/// Requests in flight on both workers, reported by a VM of its own.
fn busy(world: &mut World, w1: u32, w2: u32) -> Vec<(Ticket, RouteReply)> {
    let slot = |worker, count| InFlight { target: Target { worker: worker_id(worker), rank: None }, count };
    let seq = world.state.counters().reports + 1;
    let report = routing::contract::Report {
        caller: super::world::caller("busy"),
        seq,
        in_flight: vec![slot("w1", w1), slot("w2", w2)],
        entries: vec![],
        upstream_role_missing: 0,
    };
    answers(world, Command::Report(report))
}

fn answers(world: &mut World, command: Command) -> Vec<(Ticket, RouteReply)> {
    let answer = |effect| match effect {
        Effect::Answer { ticket, reply } => Some((ticket, *reply)),
        _ => None,
    };
    world.effects(command).into_iter().filter_map(answer).collect()
}

fn asks(name: &str, request: u64, wait_ms: u64) -> RouteRequest {
    RouteRequest { wait_ms: Millis(wait_ms), ..route_request(name, request, "A") }
}

fn ask(world: &mut World, request: RouteRequest) -> Reply {
    world.apply(Command::Route { request, prompt: None, draw: 0 })
}

fn wait(world: &mut World, request: RouteRequest) -> Later {
    match ask(world, request) {
        Reply::Later(later) => later,
        other => panic!("{other:?}"),
    }
}

fn at_once(world: &mut World, request: RouteRequest) -> RouteReply {
    match ask(world, request) {
        Reply::Route(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn says(reply: &RouteReply) -> (Outcome, &str, &str) {
    (reply.outcome, reply.target.as_ref().map_or("-", |target| target.worker.as_str()), &reply.reason)
}

#[test]
fn a_turn_waits_for_its_slot_and_is_served_there() {
    let mut world = waiting_pool();
    assert_eq!(busy(&mut world, 2, 0), []);
    let later = wait(&mut world, asks("a", 2, 500));
    assert_eq!((later.within, world.state.sizes().waiting), (Millis(500), 1));
    assert_eq!(busy(&mut world, 2, 1), [], "not yet");
    let answered = busy(&mut world, 1, 0);
    let [(ticket, reply)] = answered.as_slice() else { panic!("{answered:?}") };
    assert_eq!((*ticket, says(reply)), (later.ticket, (Outcome::Bound, "w1", "bound")));
    assert_eq!(world.state.sizes().waiting, 0);
}

#[test]
fn who_need_not_wait_does_not() {
    let mut world = waiting_pool();
    assert_eq!(
        says(&at_once(&mut world, asks("a", 2, 500))),
        (Outcome::Bound, "w1", "bound"),
        "a slot that is fine"
    );
    busy(&mut world, 2, 0);
    assert_eq!(
        says(&at_once(&mut world, asks("a", 3, 0))),
        (Outcome::Unpinned, "w2", "spilled"),
        "no wish to wait"
    );
    let first = at_once(&mut world, asks("fresh", 4, 500));
    assert_eq!(says(&first), (Outcome::Held, "w2", "least_loaded"), "bound nowhere");
    let named = Target { worker: worker_id("w2"), rank: None };
    let elsewhere = at_once(&mut world, RouteRequest { named: Some(named), ..asks("a", 5, 500) });
    assert_eq!(says(&elsewhere), (Outcome::Refused, "-", "bound_elsewhere"), "to be refused anyhow");
    assert_eq!(world.state.counters().wait_begun, 0);

    let mut refusing = pool_with(|pool| pool.on_overload = OnOverload::Refuse);
    busy(&mut refusing, 2, 0);
    assert_eq!(says(&at_once(&mut refusing, asks("a", 2, 500))), (Outcome::Refused, "-", "overloaded"));
}

#[test]
fn when_the_time_is_up_the_turn_is_spilled_and_stays_bound() {
    let mut world = waiting_pool();
    busy(&mut world, 2, 0);
    let later = wait(&mut world, asks("a", 2, 300));
    world.now += Millis(299);
    assert_eq!(answers(&mut world, Command::Due), []);
    world.now += Millis(1);
    let answered = answers(&mut world, Command::Due);
    let [(ticket, reply)] = answered.as_slice() else { panic!("{answered:?}") };
    assert_eq!((*ticket, says(reply)), (later.ticket, (Outcome::Unpinned, "w2", "spilled")));
    assert_eq!(world.play("show a; count wait_over"), "show a -> Bound w1 v1\ncount wait_over -> 1\n");
}

#[test]
fn nobody_waits_longer_than_the_pool_allows() {
    let mut world = waiting_pool();
    busy(&mut world, 2, 0);
    assert_eq!(wait(&mut world, asks("a", 2, 60_000)).within, Millis(2000));
    let mut short = pool_with(|pool| {
        pool.on_overload = OnOverload::Wait;
        pool.wait_ms = Millis(100);
    });
    busy(&mut short, 2, 0);
    assert_eq!(wait(&mut short, asks("a", 2, 60_000)).within, Millis(100));
}

#[test]
fn the_first_to_come_is_the_first_to_be_served_one_for_each_place() {
    let mut world = waiting_pool();
    world.play("route b r10; commit b r10 on=w1; route c r11; commit c r11 on=w1; report A w1=0 w2=0");
    busy(&mut world, 2, 0);
    let tickets: Vec<Ticket> = ["b", "a", "c", "a"]
        .into_iter()
        .zip(20..)
        .map(|(name, request)| wait(&mut world, asks(name, request, 2000)).ticket)
        .collect();
    let served = |answers: Vec<(Ticket, RouteReply)>| answers.into_iter().map(|(t, _)| t).collect::<Vec<_>>();
    assert_eq!(served(busy(&mut world, 1, 0)), tickets[..1], "one place, and it is taken");
    assert_eq!(served(busy(&mut world, 1, 0)), [], "its turn counts though no report has it");
    world.report("A", vec![], vec![]);
    assert_eq!(world.state.sizes().waiting, 2, "the second was served by the report that covers the first");
    assert_eq!(served(busy(&mut world, 0, 0)), tickets[2..3]);
}

#[test]
fn slots_do_not_wait_for_each_other() {
    let mut world = waiting_pool();
    world.play("route b r10; commit b r10 on=w2; report A w1=0 w2=0");
    busy(&mut world, 2, 2);
    let (a, b) = (wait(&mut world, asks("a", 2, 2000)), wait(&mut world, asks("b", 3, 2000)));
    let answered = busy(&mut world, 2, 1);
    assert_eq!(answered.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [b.ticket]);
    let answered = busy(&mut world, 1, 2);
    assert_eq!(answered.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [a.ticket]);
}

#[test]
fn a_slot_that_goes_away_ends_the_wait() {
    for gone in ["remove w1", "probe w1 ---"] {
        let mut world = waiting_pool();
        busy(&mut world, 2, 0);
        wait(&mut world, asks("a", 2, 2000));
        world.play(gone);
        assert_eq!(world.state.sizes().waiting, 0, "{gone}");
        assert_eq!(world.play("show a"), "show a -> Held { owners: 1 } w2 v2\n", "{gone}: bound anew");
    }
}

#[test]
fn a_client_that_is_gone_leaves_nothing() {
    let mut world = waiting_pool();
    busy(&mut world, 2, 0);
    let before = world.play("show a; report B w1=0");
    let later = wait(&mut world, asks("a", 2, 2000));
    assert_eq!(world.apply(Command::Leave { ticket: later.ticket }), Reply::Done);
    assert_eq!((world.state.sizes().waiting, busy(&mut world, 0, 0)), (0, vec![]));
    assert_eq!(world.play("show a; report B w1=0").replace("w1=0+0", "w1=2+0"), before, "no load, no hold");
    world.apply(Command::Leave { ticket: later.ticket });
    assert_eq!(world.play("count wait_left"), "count wait_left -> 1\n", "once");
}

#[test]
fn the_queue_is_bounded_and_what_is_past_it_is_spilled() {
    let mut world = waiting_pool();
    busy(&mut world, 2, 0);
    for request in 0..1024 {
        wait(&mut world, asks("a", 100 + request, 2000));
    }
    let reply = at_once(&mut world, asks("a", 5000, 2000));
    assert_eq!(says(&reply), (Outcome::Unpinned, "w2", "spilled"));
    assert_eq!((world.state.sizes().waiting, world.state.counters().wait_queue_full), (1024, 1));
    world.now += Millis(2000);
    assert_eq!(answers(&mut world, Command::Expire).len(), 1024, "the tick ends what nobody else did");
    assert_eq!(world.state.sizes().waiting, 0);
}

#[test]
fn a_binding_does_not_expire_while_its_turn_waits() {
    let mut world = waiting_pool();
    busy(&mut world, 2, 0);
    let left = |world: &World| world.state.session(world.now, session("a").id).unwrap().expires_in;
    world.now += Millis::from_secs(20);
    wait(&mut world, asks("a", 2, 2000));
    assert_eq!(left(&world), Millis::from_secs(1800));
}
