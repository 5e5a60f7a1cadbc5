//! One rank's prefix cache: a bounded set of full token blocks, found by a chained hash, evicted least
//! recently used and leaf first. Owns residency and references; does not know requests, time or tokens' text.
//!
//! Freed blocks go to the young end of one list in reverse order of their chain, so an unreferenced block
//! always stands before its ancestors: taking from the old end never orphans a block.
//!
//! A vLLM keeps copies: what is computed again gets a place of its own beside the block of the same hash, and each
//! copy is evicted, and announced, by itself. The other engines keep one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A block's identity: its tokens, everything before them, and the namespace they live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockHash(u64);

/// A block that came to be cached, as a publisher of cache events would announce it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredBlock {
    /// The block.
    pub(crate) hash: BlockHash,
    /// The block before it; `None` at the start of a prompt.
    pub(crate) parent: Option<BlockHash>,
    /// Its place in the request's chain: its tokens are `index * block_size..(index + 1) * block_size`.
    pub(crate) index: usize,
}

/// What one operation did to the cache, in the order an engine announces it: removals first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheChange {
    /// Blocks evicted or cleared.
    pub(crate) removed: Vec<BlockHash>,
    /// Blocks newly held.
    pub(crate) stored: Vec<StoredBlock>,
}

impl BlockHash {
    /// The start of every chain of one model, or adapter, and salt; no block has it.
    #[must_use]
    pub(crate) fn root(model: &str, salt: Option<&str>) -> Self {
        let named = mix_bytes(0x6d6f_6465_6c00_0001, model.as_bytes());
        Self(salt.map_or(named, |salt| mix_bytes(named ^ 0x7361_6c74, salt.as_bytes())))
    }

    /// The block of these tokens after this one.
    #[must_use]
    pub(crate) fn chain(self, tokens: &[u32]) -> Self {
        Self(tokens.iter().fold(mix(self.0, tokens.len() as u64), |hash, &token| mix(hash, u64::from(token))))
    }

    /// Hashes of the full blocks of `tokens` after `self`, to the end of `into`.
    pub(crate) fn chain_blocks(self, tokens: &[u32], block_size: usize, into: &mut Vec<Self>) {
        let mut parent = self;
        for block in tokens.chunks_exact(block_size) {
            parent = parent.chain(block);
            into.push(parent);
        }
    }

    /// The bare number, for seeds and listings.
    #[must_use]
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    let x = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

fn mix_bytes(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(mix(seed, bytes.len() as u64), |hash, &byte| mix(hash, u64::from(byte)))
}

/// The keys are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix_bytes(self.0, bytes);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    hash: BlockHash,
    refs: u32,
    older: u32,
    younger: u32,
    /// The next copy of the same block.
    twin: u32,
}

/// Where a held block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

/// Whether a block that is computed again is kept twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Each in a place of its own, as vLLM's.
    Kept,
    /// The one that is there serves, as in a radix tree.
    Merged,
}

/// The cache of one rank. Capacity is in blocks; a block somebody computes with is never evicted.
pub(crate) struct PrefixCache {
    capacity: usize,
    copies: Copies,
    /// The oldest copy of each block.
    places: HashMap<BlockHash, u32, BuildHasherDefault<Identity>>,
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    oldest: u32,
    youngest: u32,
    referenced: usize,
}

impl PrefixCache {
    /// An empty cache of at most `capacity` blocks.
    #[must_use]
    pub(crate) fn new(capacity: usize, copies: Copies) -> Self {
        Self {
            capacity,
            copies,
            places: HashMap::default(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            oldest: NIL,
            youngest: NIL,
            referenced: 0,
        }
    }

    /// Blocks held, referenced or not, every copy.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// Blocks a request computes with right now.
    #[must_use]
    pub(crate) fn referenced(&self) -> usize {
        self.referenced
    }

    /// Whether this block is held.
    #[must_use]
    pub(crate) fn contains(&self, hash: BlockHash) -> bool {
        self.places.contains_key(&hash)
    }

    /// How many blocks from the root on are held, without a hole.
    #[must_use]
    pub(crate) fn hit(&self, chain: &[BlockHash]) -> usize {
        chain.iter().take_while(|hash| self.contains(**hash)).count()
    }

    /// Takes a reference on what follows the held beginning of `chain`, up to `found` on the blocks that are there, from there on
    /// on blocks computed now: stored, and others evicted for them. Holds less than the chain when every block is in use.
    pub(crate) fn hold(&mut self, chain: &[BlockHash], found: usize, held: &mut Vec<Place>) -> CacheChange {
        let mut change = CacheChange::default();
        for (index, &hash) in chain.iter().enumerate().skip(held.len()) {
            let there = self.places.get(&hash).copied();
            if let Some(place) = there.filter(|_| index < found || self.copies == Copies::Merged) {
                self.reference(place);
                held.push(Place(place));
                continue;
            }
            if !self.make_room(&mut change) {
                break;
            }
            held.push(Place(self.insert(hash)));
            let parent = index.checked_sub(1).map(|before| chain[before]);
            change.stored.push(StoredBlock { hash, parent, index });
        }
        change
    }

    /// Gives back the references [`Self::hold`] took; the blocks stay, evictable, the last one first.
    pub(crate) fn release(&mut self, held: &[Place]) {
        for &Place(place) in held.iter().rev() {
            let node = &mut self.nodes[place as usize];
            node.refs -= 1;
            if node.refs == 0 {
                self.referenced -= 1;
                self.link_youngest(place);
            }
        }
    }

    /// Forgets every block nobody computes with.
    pub(crate) fn clear(&mut self) -> CacheChange {
        let mut change = CacheChange::default();
        while self.oldest != NIL {
            self.evict(self.oldest, &mut change);
        }
        change
    }

    fn make_room(&mut self, change: &mut CacheChange) -> bool {
        if self.len() < self.capacity {
            return true;
        }
        if self.oldest == NIL {
            return false;
        }
        self.evict(self.oldest, change);
        true
    }

    fn evict(&mut self, place: u32, change: &mut CacheChange) {
        self.unlink(place);
        let Node { hash, twin, .. } = self.nodes[place as usize];
        match self.places.get(&hash) {
            Some(&first) if first != place => self.forget_twin(first, place, twin),
            _ if twin == NIL => drop(self.places.remove(&hash)),
            _ => drop(self.places.insert(hash, twin)),
        }
        self.vacant.push(place);
        change.removed.push(hash);
    }

    /// Takes a copy that is not the first out of its row.
    fn forget_twin(&mut self, first: u32, gone: u32, next: u32) {
        let mut at = first;
        while self.nodes[at as usize].twin != gone {
            at = self.nodes[at as usize].twin;
        }
        self.nodes[at as usize].twin = next;
    }

    fn insert(&mut self, hash: BlockHash) -> u32 {
        let node = Node { hash, refs: 1, older: NIL, younger: NIL, twin: NIL };
        let place = match self.vacant.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.referenced += 1;
        let Some(&first) = self.places.get(&hash) else {
            self.places.insert(hash, place);
            return place;
        };
        let mut last = first;
        while self.nodes[last as usize].twin != NIL {
            last = self.nodes[last as usize].twin;
        }
        self.nodes[last as usize].twin = place;
        place
    }

    fn reference(&mut self, place: u32) {
        if self.nodes[place as usize].refs == 0 {
            self.unlink(place);
            self.referenced += 1;
        }
        self.nodes[place as usize].refs += 1;
    }

    fn unlink(&mut self, place: u32) {
        let Node { older, younger, .. } = self.nodes[place as usize];
        match older {
            NIL => self.oldest = younger,
            _ => self.nodes[older as usize].younger = younger,
        }
        match younger {
            NIL => self.youngest = older,
            _ => self.nodes[younger as usize].older = older,
        }
    }

    fn link_youngest(&mut self, place: u32) {
        let node = &mut self.nodes[place as usize];
        node.older = self.youngest;
        node.younger = NIL;
        match self.youngest {
            NIL => self.oldest = place,
            before => self.nodes[before as usize].younger = place,
        }
        self.youngest = place;
    }
}

#[cfg(test)]
mod tests;
