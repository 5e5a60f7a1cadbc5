//! What an index does when it is full, when slots come and go, and when an engine is hostile.

use super::world::{World, removed, stored};
use state_service::state::blocks::{IndexLimits, Overlaps, SLOTS_MAX};
use state_service::state::kv_event::Tier;

#[test]
fn a_full_index_ignores_and_counts_until_there_is_room() {
    let mut world = World::with_limits(IndexLimits { resident_max: 100, slot_max: 1000 });
    let names: Vec<u64> = (1..=90).collect();
    world.store(0, None, &names);
    world.store(1, None, &names);
    assert_eq!((world.index.resident(), world.counters.over_limit), (100, 80));
    assert_eq!(world.find(&names), [90, 10, 0]);
    world.store(1, Some(10), &[11]);
    assert_eq!((world.index.resident(), world.counters.over_limit), (100, 81));
    world.remove(0, &names[50..]);
    world.store(1, Some(10), &names[10..]);
    assert_eq!((world.find(&names), world.index.resident()), (vec![50, 50, 0], 100));
}

#[test]
fn a_slot_has_a_share_only() {
    let mut world = World::with_limits(IndexLimits { resident_max: 1000, slot_max: 20 });
    let names: Vec<u64> = (1..=90).collect();
    world.store(0, None, &names);
    world.store(1, None, &names);
    assert_eq!((world.find(&names), world.counters.over_limit), (vec![20, 20, 0], 140));
    assert_eq!(world.index.handles(world.slots[0], Tier::Gpu), 20);
}

#[test]
fn a_dropped_slot_is_forgotten_and_its_id_used_again() {
    let mut world = World::new();
    (0..3).for_each(|slot| world.store(slot, None, &[1, 2, 3]));
    world.index.drop_slot(world.slots[1]);
    world.index.drop_slot(world.slots[1]);
    assert_eq!((world.find(&[1, 2, 3]), world.index.resident()), (vec![3, 0, 3], 6));
    world.apply(1, &stored(None, &[1]));
    world.apply(1, &removed(&[1, 2]));
    assert_eq!((world.counters.unknown_slot, world.index.resident()), (3, 6));
    let again = world.index.new_slot().unwrap();
    assert_eq!(again, world.slots[1]);
    assert_ne!(world.index.new_slot().unwrap(), again, "dropped twice is free once");
    world.store(1, Some(1), &[2]);
    assert_eq!(world.counters.unknown_parent, 1, "nothing of its predecessor");
}

#[test]
fn there_are_so_many_slots_and_each_is_found() {
    let mut world = World::new();
    world.slots.extend((3..SLOTS_MAX).map(|_| world.index.new_slot().unwrap()));
    assert_eq!(world.index.new_slot(), None);
    let names: Vec<u64> = (1..=70).collect();
    for slot in 0..SLOTS_MAX as usize {
        world.store(slot, None, &names[..1 + slot % 70]);
    }
    let found = world.find(&names);
    assert!(found.iter().enumerate().all(|(slot, blocks)| *blocks == 1 + slot as u32 % 70));
}

#[test]
fn one_answer_does_not_show_in_the_next() {
    let mut world = World::new();
    world.store(0, None, &[1, 2, 3]);
    world.store(1, None, &[4, 5]);
    let mut found = Overlaps::default();
    let mut ask = |names: &[u64]| -> Vec<(u32, u32)> {
        let chain = routing::block::Chain::of(Default::default(), 4, &super::world::tokens(names));
        world.index.find(&chain.hashes, &mut found);
        found.iter().map(|overlap| (overlap.slot.index(), overlap.gpu)).collect()
    };
    assert_eq!(ask(&[1, 2, 3]), [(0, 3)]);
    assert_eq!(ask(&[4, 5, 6]), [(1, 2)]);
    assert_eq!(ask(&[7]), []);
}

/// An engine may say anything; it then knows nothing worth knowing, and no more.
#[test]
fn a_hash_that_is_its_own_parent_is_a_chain_like_another() {
    let mut world = World::new();
    world.store(0, None, &[1]);
    for _ in 0..1000 {
        world.store(0, Some(1), &[1]);
    }
    assert_eq!((world.index.resident(), world.counters.moved), (1, 1000));
    world.store(0, None, &[2, 2, 2, 2, 3, 3]);
    assert_eq!((world.index.resident(), world.index.handles(world.slots[0], Tier::Gpu)), (3, 3));
    world.remove(0, &[1, 2, 3]);
    assert_eq!(world.index.resident(), 0);
}

#[test]
fn a_hash_announced_for_ever_is_forgotten_at_last() {
    let mut world = World::new();
    for _ in 0..70_000 {
        world.store(0, None, &[1]);
    }
    assert_eq!((world.counters.again, world.counters.uncounted), (65_535, 4464));
    let names = vec![1; 65_536];
    world.remove(0, &names);
    assert_eq!((world.index.resident(), world.find(&[1])), (0, vec![0, 0, 0]));
}
