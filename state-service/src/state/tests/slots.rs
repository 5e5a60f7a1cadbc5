//! Numbers of gauges: contiguous, apart, kept, given again, bounded.

use super::world::{World, worker_id};
use crate::state::Limits;
use crate::state::slots::{Slots, needed};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn first(world: &World, id: &str) -> Option<u32> {
    let topology = world.state.topology_for("");
    topology.workers.iter().find(|worker| worker.id == worker_id(id)).unwrap().first_slot
}

#[test]
fn each_worker_has_its_ranks_and_one_more_where_there_are_several() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; worker w2 ranks=4..8; worker w3");
    assert_eq!(["w1", "w2", "w3"].map(|id| first(&world, id)), [Some(0), Some(1), Some(6)]);
    let slots: Vec<_> = world.state.worker(&worker_id("w2")).unwrap().slots().collect();
    let said: Vec<_> = slots.iter().map(|(target, n)| (target.rank.map(|rank| rank.0), *n)).collect();
    let expected = [(Some(4), 1), (Some(5), 2), (Some(6), 3), (Some(7), 4), (None, 5)];
    assert_eq!(said, expected.map(|(rank, n)| (rank, Some(n))));
    let single: Vec<_> = world.state.worker(&worker_id("w1")).unwrap().slots().collect();
    assert_eq!((single.len(), single[0].0.rank, single[0].1), (1, None, Some(0)));
}

#[test]
fn a_new_declaration_keeps_its_numbers_while_they_do() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1 ranks=0..8; worker w2; worker w1 ranks=0..4 weight=2");
    assert_eq!((first(&world, "w1"), first(&world, "w2")), (Some(0), Some(9)), "shrunk where it was");
    world.play("worker w3 ranks=0..3");
    assert_eq!(first(&world, "w3"), Some(5), "what w1 gave back");
    world.play("worker w1 ranks=0..8");
    assert_eq!(first(&world, "w1"), Some(10), "too long for its place");
    world.play("worker w2 ranks=0..8");
    assert_eq!((first(&world, "w1"), first(&world, "w2")), (Some(10), Some(19)));
    world.play("remove w1; worker w3 ranks=0..14");
    assert_eq!(first(&world, "w3"), Some(0), "first fit");
}

#[test]
fn a_thousand_workers_that_come_and_go_leave_the_highest_number_flat() {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker stays ranks=0..8");
    let mut highest = 0;
    for i in 0..1000 {
        world.play(&format!("worker w{i} ranks=0..{}", i % 8 + 1));
        highest = highest.max(world.state.slots.end());
        world.play(&format!("remove w{i}"));
    }
    assert_eq!((highest, world.state.slots.end()), (18, 9));
}

#[test]
fn a_worker_for_which_no_number_is_left_has_none() {
    let mut slots = Slots::default();
    let full: Vec<_> = (0..64).map(|_| slots.take(1024)).collect();
    assert!(full.iter().all(Option::is_some));
    assert_eq!((slots.end(), slots.take(1)), (65_536, None));
    slots.give_back(full[3]);
    assert_eq!((slots.take(1025), slots.take(1024)), (None, full[3]));
    assert_eq!(slots.resize(full[3], 1025), None);
    assert_eq!(slots.resize(None, 1024), full[3], "the one that grew in vain has given up its own");
}

proptest! {
    #[test]
    fn runs_never_overlap(steps in prop::collection::vec((0..12u8, 0..20u32), 1..200)) {
        let mut slots = Slots::default();
        let mut given: BTreeMap<u8, (u32, u32)> = BTreeMap::new();
        for (worker, ranks) in steps {
            let known = given.remove(&worker).map(|(first, _)| first);
            if ranks == 0 {
                slots.give_back(known);
                continue;
            }
            let len = needed(ranks);
            let first = slots.resize(known, len).unwrap();
            for (other, taken) in given.values() {
                prop_assert!(first + len <= *other || other + taken <= first);
            }
            given.insert(worker, (first, len));
        }
        let in_use: u32 = given.values().map(|(_, len)| len).sum();
        prop_assert!(slots.end() >= in_use);
    }
}
