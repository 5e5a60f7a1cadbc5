//! Sequences of events that engines really send, each with what must be known afterwards.

use super::world::{BLOCK_SIZE, World, handles, stored, tokens};
use routing::block::Namespace;
use state_service::state::blocks::KvCounters;
use state_service::state::kv_event::{EngineHash, KvEvent, Tier};

#[test]
fn each_slot_is_known_by_its_longest_run_from_the_first_block() {
    let mut world = World::new();
    world.store(0, None, &[1, 2, 3, 4]);
    world.store(1, None, &[1, 2]);
    world.store(1, Some(2), &[3]);
    world.store(2, None, &[2, 3, 4]);
    assert_eq!(world.find(&[1, 2, 3, 4, 5]), [4, 3, 0]);
    assert_eq!(world.find(&[1, 2, 9]), [2, 2, 0]);
    assert_eq!(world.find(&[2, 3, 4]), [0, 0, 3], "the same blocks elsewhere are other blocks");
    assert_eq!(world.find(&[]), [0, 0, 0]);
    assert_eq!(world.index.resident(), 4 + 3 + 3);
}

#[test]
fn a_hole_ends_the_run_until_it_is_filled() {
    let mut world = World::new();
    world.store(0, None, &[1, 2, 3, 4, 5]);
    world.store(1, None, &[1, 2, 3, 4, 5]);
    world.remove(0, &[3]);
    assert_eq!(world.find(&[1, 2, 3, 4, 5]), [2, 5, 0]);
    world.store(0, Some(2), &[3]);
    assert_eq!(world.find(&[1, 2, 3, 4, 5]), [5, 5, 0]);
    world.remove(0, &[1]);
    assert_eq!(world.find(&[1, 2, 3, 4, 5]), [0, 5, 0]);
}

#[test]
fn chains_longer_than_any_piece_of_them_part_anywhere() {
    let names: Vec<u64> = (1..=300).collect();
    for part in [1, 63, 64, 65, 127, 128, 129, 299] {
        let mut world = World::new();
        world.store(0, None, &names);
        let mut other = names[..part].to_vec();
        other.extend(1001..1001 + (300 - part as u64));
        world.store(1, None, &names[..part]);
        world.store(1, Some(part as u64), &other[part..]);
        let shared = part as u32;
        assert_eq!(world.find(&names), [300, shared, 0], "{part}");
        assert_eq!(world.find(&other), [shared, 300, 0], "{part}");
        world.remove(0, &names[part - 1..part]);
        assert_eq!(world.find(&names), [shared - 1, shared, 0], "{part}");
        assert_eq!(world.find(&other), [shared - 1, 300, 0], "{part}");
    }
}

#[test]
fn decoding_adds_a_block_at_a_time() {
    let mut world = World::new();
    world.store(0, None, &[1]);
    for name in 2..=200 {
        world.store(0, Some(name - 1), &[name]);
    }
    assert_eq!(world.find(&(1..=250).collect::<Vec<_>>()), [200, 0, 0]);
    assert_eq!(world.counters.stored, 200);
}

/// E3: the engine restarted: the slot is cleared, and the stream goes on.
#[test]
fn a_slot_goes_on_after_it_was_cleared() {
    let mut world = World::new();
    world.store(0, None, &[1, 2, 3]);
    world.index.clear(world.slots[0]);
    assert_eq!((world.find(&[1, 2, 3]), world.index.resident()), (vec![0, 0, 0], 0));
    world.store(0, Some(2), &[3]);
    assert_eq!(world.counters.unknown_parent, 1, "nothing of before is known");
    world.store(0, None, &[1, 2]);
    assert_eq!(world.find(&[1, 2, 3]), [2, 0, 0]);
}

/// E5: cleared, alone or first in a batch: that slot only, and what follows in the batch counts.
#[test]
fn cleared_is_for_one_slot() {
    let mut world = World::new();
    (0..3).for_each(|slot| world.store(slot, None, &[1, 2, 3]));
    world.apply(1, &KvEvent::Cleared);
    assert_eq!(world.find(&[1, 2, 3]), [3, 0, 3]);
    world.apply(2, &KvEvent::Cleared);
    world.apply(2, &stored(None, &[1, 2]));
    assert_eq!(world.find(&[1, 2, 3]), [3, 0, 2]);
    assert_eq!((world.counters.clears, world.index.resident()), (2, 5));
}

/// E6: an unknown hash in the middle of ten: nine are removed, one is counted.
#[test]
fn an_unknown_removal_costs_nothing_else() {
    let mut world = World::new();
    let names: Vec<u64> = (1..=12).collect();
    world.store(0, None, &names);
    world.remove(0, &[12, 11, 10, 9, 8, 777, 7, 6, 5, 4]);
    assert_eq!((world.counters.removed, world.counters.unknown_removed), (9, 1));
    assert_eq!((world.find(&names), world.index.resident()), (vec![3, 0, 0], 3));
    world.remove(1, &[1]);
    assert_eq!(world.counters.unknown_removed, 2, "another slot's handle is nobody's here");
}

/// E7: other block sizes, tails, placeholders of size 0, masked ranges: ignored and counted, and their batch goes on.
#[test]
fn what_is_no_block_of_the_pool_is_ignored() {
    let mut world = World::new();
    let odd = |hashes: &[u64], tokens: Vec<u32>, block_size| KvEvent::Stored {
        hashes: handles(hashes),
        parent: None,
        tokens,
        block_size,
        tier: Tier::Gpu,
        lora: None,
        salt: None,
        extra: 0,
        group: 0,
        kind_ok: true,
    };
    world.apply(0, &odd(&[1], tokens(&[1, 2]), 2 * BLOCK_SIZE));
    world.apply(0, &odd(&[2], vec![1, 2, 3], 3));
    world.apply(0, &odd(&[3, 4], vec![], 0));
    world.apply(0, &odd(&[5], tokens(&[5]), 0));
    world.apply(0, &odd(&[6], vec![], BLOCK_SIZE));
    world.apply(0, &odd(&[7, 8], tokens(&[7, 8, 9]), BLOCK_SIZE));
    world.apply(0, &odd(&[7, 8], vec![1, 2, 3, 4, 5], BLOCK_SIZE));
    world.apply(0, &odd(&[], tokens(&[7]), BLOCK_SIZE));
    world.apply(0, &odd(&[], vec![], BLOCK_SIZE));
    world.apply(0, &odd(&[9], vec![1; 100], u32::MAX));
    assert_eq!(world.index.resident(), 0);
    let expected = KvCounters { other_block_size: 3, placeholder: 5, misshapen: 5, ..KvCounters::default() };
    assert_eq!(world.counters, expected);
    world.store(0, None, &[1, 2]);
    assert_eq!(world.find(&[1, 2]), [2, 0, 0]);
}

/// E8: whatever number the wire carried is a handle like another.
#[test]
fn any_number_is_a_handle() {
    let mut world = World::new();
    let names = [0, u64::MAX, 1 << 63, i64::MAX as u64];
    for (at, name) in names.iter().enumerate() {
        let mut event = stored(at.checked_sub(1).map(|before| names[before]), &[at as u64 + 1]);
        if let KvEvent::Stored { hashes, .. } = &mut event {
            *hashes = vec![EngineHash(*name)];
        }
        world.apply(0, &event);
    }
    assert_eq!(world.find(&[1, 2, 3, 4]), [4, 0, 0]);
    world.remove(0, &[u64::MAX, 0]);
    assert_eq!((world.find(&[1, 2, 3, 4]), world.index.resident()), (vec![0, 0, 0], 2));
}

/// E10: groups of a hybrid model share hashes; one of them is scored, whatever the others do.
#[test]
fn one_group_is_scored() {
    let mut world = World::new();
    let of = |event: KvEvent, n: u32, ok: bool| match event {
        KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, extra, .. } => {
            let (group, kind_ok) = (n, ok);
            KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, extra, group, kind_ok }
        }
        KvEvent::Removed { hashes, tier, .. } => KvEvent::Removed { hashes, tier, group: n },
        KvEvent::Cleared => KvEvent::Cleared,
    };
    world.apply(0, &of(stored(None, &[1, 2, 3]), 2, false));
    assert_eq!(world.find(&[1, 2, 3]), [0, 0, 0], "sliding windows are no prefix");
    world.apply(0, &of(stored(None, &[1, 2, 3]), 1, true));
    world.apply(0, &of(stored(None, &[1, 2, 3, 4]), 0, true));
    world.apply(0, &of(super::world::removed(&[1, 2, 3]), 2, false));
    world.apply(0, &of(super::world::removed(&[1, 2, 3]), 0, false));
    assert_eq!(world.find(&[1, 2, 3, 4]), [3, 0, 0]);
    assert_eq!(world.counters.other_group, 3 + 4 + 3 + 3);
    world.apply(0, &of(super::world::removed(&[3]), 1, false));
    assert_eq!(world.find(&[1, 2, 3, 4]), [2, 0, 0]);
    world.apply(0, &KvEvent::Cleared);
    world.apply(0, &of(stored(None, &[1, 2, 3, 4]), 0, true));
    assert_eq!(world.find(&[1, 2, 3, 4]), [4, 0, 0], "another life may have other groups");
}

/// E12: one hash stored twice and removed once is still held.
#[test]
fn copies_are_counted() {
    let mut world = World::new();
    world.store(0, None, &[1, 2]);
    world.store(0, Some(1), &[2]);
    world.store(0, Some(1), &[2]);
    world.remove(0, &[2]);
    world.remove(0, &[2]);
    assert_eq!(world.find(&[1, 2]), [2, 0, 0]);
    world.remove(0, &[2]);
    assert_eq!(world.find(&[1, 2]), [1, 0, 0]);
    world.remove(0, &[2]);
    let expected = KvCounters {
        stored: 2,
        again: 2,
        copies_removed: 2,
        removed: 1,
        unknown_removed: 1,
        ..KvCounters::default()
    };
    assert_eq!(world.counters, expected);
}

#[test]
fn an_unknown_parent_is_counted_and_nothing_of_it_indexed() {
    let mut world = World::new();
    world.store(0, Some(7), &[8, 9]);
    world.store(1, None, &[7]);
    world.store(0, Some(7), &[8, 9]);
    world.store(0, Some(8), &[9]);
    assert_eq!((world.counters.unknown_parent, world.index.resident()), (5, 1));
    assert_eq!(world.find(&[8, 9]), [0, 0, 0]);
}

#[test]
fn a_handle_with_a_new_meaning_leaves_the_old_one() {
    let mut world = World::new();
    world.store(0, None, &[1, 2]);
    world.store(0, None, &[1, 2]);
    let mut event = stored(None, &[5]);
    if let KvEvent::Stored { hashes, .. } = &mut event {
        *hashes = handles(&[2]);
    }
    world.apply(0, &event);
    assert_eq!((world.find(&[1, 2]), world.find(&[5])), (vec![1, 0, 0], vec![1, 0, 0]));
    world.remove(0, &[2]);
    assert_eq!((world.find(&[5]), world.index.resident()), (vec![0, 0, 0], 1));
    assert_eq!(
        (world.counters.moved, world.counters.copies_removed),
        (1, 0),
        "its copies were of the old block"
    );
}

#[test]
fn two_handles_for_one_block_hold_it_together() {
    let mut world = World::new();
    world.store(0, None, &[1, 2]);
    let mut event = stored(Some(1), &[2]);
    if let KvEvent::Stored { hashes, .. } = &mut event {
        *hashes = handles(&[22]);
    }
    world.apply(0, &event);
    assert_eq!((world.counters.twins, world.index.resident()), (1, 2));
    world.remove(0, &[2]);
    assert_eq!(world.find(&[1, 2]), [2, 0, 0]);
    world.remove(0, &[22]);
    assert_eq!((world.find(&[1, 2]), world.index.resident()), (vec![1, 0, 0], 1));
}

#[test]
fn namespaces_are_apart_and_inherited() {
    let mut world = World::new();
    let named = |event: KvEvent, lora: Option<&str>, salt: Option<&str>| match event {
        KvEvent::Stored { hashes, parent, tokens, block_size, tier, extra, group, kind_ok, .. } => {
            let (lora, salt) = (lora.map(Box::from), salt.map(Box::from));
            KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, extra, group, kind_ok }
        }
        other => other,
    };
    world.apply(0, &named(stored(None, &[1, 2]), Some("adapter-a"), None));
    world.apply(1, &named(stored(None, &[1]), None, Some("tenant-a")));
    // As vLLM does: a salt is named on the first block only.
    world.apply(1, &stored(Some(1), &[2]));
    world.apply(2, &stored(None, &[1, 2]));
    let find = |lora, salt| -> Vec<u32> {
        world.find_tiers(Namespace { lora, salt }, &[1, 2]).into_iter().map(|[gpu, ..]| gpu).collect()
    };
    assert_eq!(find(Some("adapter-a"), None), [2, 0, 0]);
    assert_eq!(find(None, Some("tenant-a")), [0, 2, 0]);
    assert_eq!(find(None, None), [0, 0, 2]);
    assert_eq!(find(Some("adapter-a"), Some("tenant-a")), [0, 0, 0]);
}

#[test]
fn images_are_no_text() {
    let mut world = World::new();
    let mut event = stored(Some(1), &[2]);
    if let KvEvent::Stored { extra, .. } = &mut event {
        *extra = 99;
    }
    world.store(0, None, &[1]);
    world.apply(0, &event);
    world.store(0, Some(2), &[3]);
    assert_eq!(world.find(&[1, 2, 3]), [1, 0, 0]);
    assert_eq!(world.index.resident(), 3);
}
