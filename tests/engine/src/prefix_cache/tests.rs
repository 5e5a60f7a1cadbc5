//! Residency, order of eviction, references, namespaces.

use super::{BlockHash, CacheChange, Copies, Place, PrefixCache};

const SIZE: usize = 4;

fn chain(salt: Option<&str>, tokens: &[u32]) -> Vec<BlockHash> {
    let mut hashes = Vec::new();
    BlockHash::root("tiny", salt).chain_blocks(tokens, SIZE, &mut hashes);
    hashes
}

fn run(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}

/// Holds and releases, as a request that ends at once; returns the hit before it.
fn turn(cache: &mut PrefixCache, hashes: &[BlockHash]) -> usize {
    let hit = cache.hit(hashes);
    let (held, _) = hold(cache, hashes, hit);
    cache.release(&held);
    hit
}

fn hold(cache: &mut PrefixCache, hashes: &[BlockHash], found: usize) -> (Vec<Place>, CacheChange) {
    let mut held = Vec::new();
    let change = cache.hold(hashes, found, &mut held);
    (held, change)
}

fn cache(capacity: usize) -> PrefixCache {
    PrefixCache::new(capacity, Copies::Kept)
}

#[test]
fn only_full_blocks_have_a_hash() {
    assert_eq!(chain(None, &run(0, 3)).len(), 0);
    assert_eq!(chain(None, &run(0, 4)).len(), 1);
    assert_eq!(chain(None, &run(0, 11)).len(), 2);
}

#[test]
fn a_longer_prompt_hits_what_the_shorter_stored() {
    let mut cache = cache(16);
    assert_eq!(turn(&mut cache, &chain(None, &run(0, 8))), 0);
    assert_eq!(turn(&mut cache, &chain(None, &run(0, 16))), 2);
    assert_eq!(turn(&mut cache, &chain(None, &run(0, 16))), 4);
}

#[test]
fn a_hole_ends_the_hit() {
    let mut cache = cache(16);
    turn(&mut cache, &chain(None, &run(0, 16)));
    let mut other = run(0, 16);
    other[5] = 99;
    assert_eq!(
        cache.hit(&chain(None, &other)),
        1,
        "the same later tokens behind another block are another block"
    );
}

#[test]
fn a_salt_is_a_namespace() {
    let mut cache = cache(16);
    turn(&mut cache, &chain(None, &run(0, 8)));
    assert_eq!(cache.hit(&chain(Some("tenant-a"), &run(0, 8))), 0);
    assert_ne!(BlockHash::root("tiny", None), BlockHash::root("other", None));
    assert_ne!(BlockHash::root("tiny", None), BlockHash::root("tiny", Some("")));
}

#[test]
fn the_oldest_goes_first_and_leaves_before_their_parents() {
    let mut cache = cache(4);
    let (a, b) = (chain(None, &run(0, 12)), chain(None, &run(100, 8)));
    turn(&mut cache, &a);
    let (held, change) = hold(&mut cache, &b, 0);
    cache.release(&held);
    assert_eq!(change.removed, vec![a[2]], "one place short: only the tail of the older chain goes");
    assert_eq!(cache.hit(&a), 2);
    assert_eq!(change.stored.iter().map(|block| block.parent).collect::<Vec<_>>(), vec![None, Some(b[0])]);
}

#[test]
fn use_makes_young() {
    let mut cache = cache(4);
    let (a, b, c) = (chain(None, &run(0, 8)), chain(None, &run(100, 8)), chain(None, &run(200, 8)));
    turn(&mut cache, &a);
    turn(&mut cache, &b);
    turn(&mut cache, &a);
    turn(&mut cache, &c);
    assert_eq!((cache.hit(&a), cache.hit(&b), cache.hit(&c)), (2, 0, 2));
}

#[test]
fn what_is_in_use_is_not_evicted_and_a_full_cache_stores_no_more() {
    let mut cache = cache(3);
    let (a, b) = (chain(None, &run(0, 8)), chain(None, &run(100, 12)));
    let (first, _) = hold(&mut cache, &a, 0);
    let (second, change) = hold(&mut cache, &b, 0);
    assert_eq!((second.len(), change.stored.len(), change.removed.len()), (1, 1, 0));
    assert_eq!((cache.referenced(), cache.len()), (3, 3));
    cache.release(&second);
    cache.release(&first);
    assert_eq!((cache.referenced(), cache.len()), (0, 3));
}

#[test]
fn clear_forgets_what_nobody_uses() {
    let mut cache = cache(8);
    let (a, b) = (chain(None, &run(0, 8)), chain(None, &run(100, 8)));
    turn(&mut cache, &a);
    hold(&mut cache, &b, 0);
    assert_eq!(cache.clear().removed.len(), 2);
    assert_eq!((cache.hit(&a), cache.hit(&b)), (0, 2));
}

#[test]
fn what_is_computed_again_is_a_copy_and_each_goes_by_itself() {
    let mut cache = cache(4);
    let a = chain(None, &run(0, 8));
    turn(&mut cache, &a);
    let (held, change) = hold(&mut cache, &a, 1);
    cache.release(&held);
    let stored: Vec<_> = change.stored.iter().map(|block| (block.hash, block.parent)).collect();
    assert_eq!((stored, cache.len()), (vec![(a[1], Some(a[0]))], 3));
    let b = chain(None, &run(100, 12));
    let (held, change) = hold(&mut cache, &b, 0);
    cache.release(&held);
    assert_eq!((change.removed, cache.hit(&a)), (vec![a[1], a[1]], 1), "first one copy, then the other");

    let mut merged = PrefixCache::new(4, Copies::Merged);
    turn(&mut merged, &a);
    assert_eq!((hold(&mut merged, &a, 1).1, merged.len()), (CacheChange::default(), 2));
}

/// Against a model: whatever is done, no held block has an absent ancestor, and the bound holds.
#[test]
fn no_block_is_ever_orphaned() {
    let mut cache = cache(12);
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut chains = Vec::new();
    let mut holding: Vec<Vec<Place>> = Vec::new();
    for _ in 0..3000 {
        let tokens: Vec<u32> = (0..random(6) + 1).flat_map(|_| [random(2) as u32; SIZE]).collect();
        let hashes = chain(None, &tokens);
        // What ends with its last block computes that again, and now and then a copy of more.
        let found = cache.hit(&hashes).min(hashes.len() - 1).saturating_sub(random(8) as usize / 7);
        holding.push(hold(&mut cache, &hashes, found).0);
        chains.push(hashes);
        if holding.len() > 1 {
            let ended = holding.swap_remove(random(holding.len() as u64) as usize);
            cache.release(&ended);
        }
        assert!(cache.len() <= 12);
        for hashes in chains.iter().rev().take(40) {
            let held = hashes.iter().filter(|hash| cache.contains(**hash)).count();
            assert_eq!(held, cache.hit(hashes), "a block without its ancestor");
        }
    }
}
