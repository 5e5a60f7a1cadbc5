//! Blocks on the host and on disk: they extend what the device holds, and no more.

use super::world::{World, handles, removed, stored};
use routing::block::Namespace;
use state_service::state::kv_event::{KvEvent, Tier};

fn on(event: KvEvent, to: Tier) -> KvEvent {
    match event {
        KvEvent::Stored { hashes, parent, tokens, block_size, lora, salt, extra, group, kind_ok, .. } => {
            let tier = to;
            KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, extra, group, kind_ok }
        }
        KvEvent::Removed { hashes, group, .. } => KvEvent::Removed { hashes, tier: to, group },
        KvEvent::Cleared => KvEvent::Cleared,
    }
}

fn find(world: &World, names: &[u64]) -> Vec<[u32; 3]> {
    world.find_tiers(Namespace::default(), names)
}

#[test]
fn a_block_that_moves_down_still_counts_there() {
    let mut world = World::new();
    let names: Vec<u64> = (1..=100).collect();
    world.store(0, None, &names);
    world.store(1, None, &names);
    world.apply(0, &on(stored(Some(80), &names[80..]), Tier::Host));
    world.apply(0, &removed(&names[80..]));
    assert_eq!(find(&world, &names), [[80, 20, 0], [100, 0, 0], [0, 0, 0]]);
    world.apply(0, &on(stored(Some(90), &names[90..]), Tier::Disk));
    world.apply(0, &on(removed(&names[90..]), Tier::Host));
    assert_eq!(find(&world, &names), [[80, 10, 10], [100, 0, 0], [0, 0, 0]]);
    world.apply(0, &on(removed(&names[85..86]), Tier::Host));
    assert_eq!(find(&world, &names), [[80, 5, 0], [100, 0, 0], [0, 0, 0]], "no run crosses a hole");
}

#[test]
fn the_device_before_the_host_is_no_hole() {
    let mut world = World::new();
    world.store(0, None, &[1, 2, 3, 4, 5]);
    world.apply(0, &on(stored(None, &[1, 2]), Tier::Host));
    world.apply(0, &removed(&[2]));
    // 1 on the device, 2 on the host, 3 to 5 on the device again.
    assert_eq!(find(&world, &[1, 2, 3, 4, 5]), [[1, 4, 0], [0, 0, 0], [0, 0, 0]]);
    assert_eq!(world.index.resident(), 6);
}

#[test]
fn only_below_is_an_overlap_too() {
    let mut world = World::new();
    world.apply(2, &on(stored(None, &[1, 2]), Tier::Disk));
    assert_eq!(find(&world, &[1, 2, 3]), [[0, 0, 0], [0, 0, 0], [0, 0, 2]]);
    world.apply(2, &KvEvent::Cleared);
    assert_eq!(find(&world, &[1, 2, 3]), [[0, 0, 0]; 3]);
    world.store(0, None, &[1]);
    assert_eq!(find(&world, &[1, 2, 3]), [[1, 0, 0], [0, 0, 0], [0, 0, 0]]);
}

#[test]
fn a_placeholder_of_a_lower_tier_is_nothing() {
    let mut world = World::new();
    let placeholder = KvEvent::Stored {
        hashes: handles(&[1]),
        parent: None,
        tokens: vec![],
        block_size: 0,
        tier: Tier::Host,
        lora: None,
        salt: None,
        extra: 0,
        group: 0,
        kind_ok: true,
    };
    world.apply(0, &placeholder);
    assert_eq!((find(&world, &[1]), world.counters.placeholder), (vec![[0; 3]; 3], 1));
    world.apply(0, &on(removed(&[1]), Tier::Host));
    assert_eq!(world.counters.unknown_removed, 1);
}
