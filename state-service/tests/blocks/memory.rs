//! Memory follows what is held, not what ever was. `bench index` does the same with ten million blocks and looks at the process.

use super::world::World;

const CHAIN: u64 = 50;

/// E9: blocks come and go, a hundred times as many as are ever held.
#[test]
fn churn_leaves_nothing_behind() {
    let live = 200;
    let mut world = World::new();
    let names = |chain: u64| (0..CHAIN).map(|n| chain * CHAIN + n + 1).collect::<Vec<u64>>();
    let mut base = 0;
    for chain in 0..live * 101 {
        world.store((chain % 3) as usize, None, &names(chain));
        if chain >= live {
            let mut oldest = names(chain - live);
            oldest.reverse();
            world.remove(((chain - live) % 3) as usize, &oldest);
        }
        if chain == 2 * live {
            base = world.index.bytes();
        }
    }
    let held = live * CHAIN;
    assert_eq!((world.index.resident() as u64, world.counters.unknown_removed), (held, 0));
    assert!(world.index.bytes() <= base, "{} bytes after {base}", world.index.bytes());
    assert!(world.index.bytes() as u64 <= held * 48, "{} bytes for {held} blocks", world.index.bytes());
    (0..3).for_each(|slot| world.index.clear(world.slots[slot]));
    assert!(world.index.bytes() < 8192, "{} bytes for nothing", world.index.bytes());
}

/// Evicted from the front, in the middle, at random: what is left of a chain does not keep all of it.
#[test]
fn remains_are_bounded() {
    let mut world = World::new();
    let names: Vec<u64> = (1..=64_000).collect();
    world.store(0, None, &names);
    let full = world.index.bytes();
    let most: Vec<u64> = names.iter().copied().filter(|name| name % 64 != 1).collect();
    world.remove(0, &most);
    assert_eq!(world.index.resident(), 1000);
    assert!(world.index.bytes() < full / 5, "{} of {full}", world.index.bytes());
}

#[test]
fn ten_thousand_blocks_shared_by_sixteen_slots_cost_little_each() {
    let mut world = World::new();
    world.slots.extend((3..16).map(|_| world.index.new_slot().unwrap()));
    let names: Vec<u64> = (1..=10_000).collect();
    (0..16).for_each(|slot| world.store(slot, None, &names));
    let each = world.index.bytes() / world.index.resident();
    assert!((16..=36).contains(&each), "{each} bytes");
}
