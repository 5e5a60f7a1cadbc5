//! A hundred thousand requests that end before any answer leave nothing behind.

use super::world::{World, pool, route_request, session, worker_id};
use crate::state::Command;
use routing::contract::{
    Affinity, Caller, Entry, Outcome, Policy, PoolInfo, RankChoice, RankPick, Report, Target,
};
use routing::policy::mix;

const ALL: u64 = 100_000;
/// Enough for another kind of pool.
const SOME: u64 = 10_000;
/// Requests open at once.
const OPEN: u64 = 64;

/// Some name a target, some are bound, some move, some join; each fails, with the hold it was told of or without.
fn abort_all(requests: u64, set: impl FnOnce(&mut PoolInfo)) -> World {
    let mut world = World::of(set);
    world.play("worker w1 ranks=0..8; worker w2 ranks=0..8; worker w3; commit s1 r1 alone=1/5 on=w1; commit s2 r1 alone=1/5 on=w2:3");
    let mut open = std::collections::VecDeque::new();
    for i in 0..requests {
        let draw = mix(17, i);
        let name = format!("s{}", draw % 40);
        let mut request = route_request(&name, i + 10, ["A", "B", "C"][usize::try_from(i % 3).unwrap()]);
        request.named = draw.is_multiple_of(7).then(|| Target { worker: worker_id("w2"), rank: None });
        let (vm, id) = (request.caller.clone(), request.request);
        let reply = world.route(request, draw);
        assert!(reply.outcome != Outcome::NoWorker);
        let hold = reply.hold.filter(|_| !draw.is_multiple_of(5));
        open.push_back((vm, Entry::Failed { session: session(&name), pool: pool(), request: id, hold }));
        if i >= OPEN {
            abort(&mut world, open.pop_front().unwrap());
        }
    }
    open.into_iter().for_each(|last| abort(&mut world, last));
    world
}

/// The absolute counts of a report would cover all choices: they come from an old one, so that only the entry ends them.
fn abort(world: &mut World, (caller, entry): (Caller, Entry)) {
    let report =
        Report { caller, seq: 0, in_flight: Vec::new(), entries: vec![entry], upstream_role_missing: 0 };
    world.apply(Command::Report(report));
}

fn nothing_is_left(world: &World, sessions: usize) {
    for worker in world.state.workers() {
        assert_eq!((worker.in_flight(), worker.reserved()), (0, 0), "{}", worker.id());
        assert_eq!(worker.load, super::super::load::WorkerLoad::default(), "no slot is remembered");
    }
    let sizes = world.state.sizes();
    assert_eq!((sizes.holds, sizes.sessions, sizes.tombstones), (0, sessions, 0));
    world.state.sessions.check();
}

#[test]
fn a_hundred_thousand_aborts_leave_no_load_no_hold_and_no_reservation() {
    let soft = |pool: &mut PoolInfo| {
        (pool.affinity, pool.rank, pool.rank_pick) =
            (Affinity::Soft, RankChoice::Pinned, RankPick::LeastLoaded);
        pool.soft_margin_percent = 100;
    };
    let moved = abort_all(ALL, soft);
    assert!(moved.state.counters().route_moved > 500, "{:?}", moved.state.counters());
    nothing_is_left(&moved, 2);
    nothing_is_left(&abort_all(SOME, |_| ()), 2);
    nothing_is_left(&abort_all(SOME, |pool| pool.policy = Policy::Direct), 2);
    nothing_is_left(&abort_all(SOME, |pool| pool.affinity = Affinity::Off), 0);
}

#[test]
fn a_vm_that_dies_takes_its_choices_along() {
    let mut world = World::of(|pool| pool.affinity = Affinity::Soft);
    world.play("worker w1; worker w2; commit s r1 alone=1/5 on=w1; report B w1=9; route s r2@A; route t r3@A; wait 31s alive=B");
    let sizes = world.state.sizes();
    assert_eq!((sizes.holds, sizes.sessions, sizes.vms), (0, 1, 1));
    assert!(world.state.workers().all(|worker| worker.reserved() == 0));
}
