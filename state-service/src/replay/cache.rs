//! What one fake engine caches: whole blocks, the longest run from a prompt's first block found, the least recently used evicted.
//!
//! Owns residency. Blocks of requests under way are pinned; those of a request that ended become evictable last block first, so that
//! what is left of a prompt is a run from its start. A prompt that finds no room is computed all the same, and its rest not cached.
//! Knows no time and no events.

use super::trace::Node;
use std::collections::HashMap;

/// See the module.
#[derive(Debug)]
pub(super) enum Cache {
    /// Never evicts: a bit a block.
    Unbounded(Bits),
    /// Evicts.
    Bounded(Lru),
}

/// Blocks that are held, one bit each.
#[derive(Debug, Default)]
pub(super) struct Bits(Vec<u64>);

/// Blocks by their last use.
#[derive(Debug)]
pub(super) struct Lru {
    capacity: usize,
    places: HashMap<Node, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Evictable blocks: the next to go, and the last.
    oldest: Option<u32>,
    newest: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    node: Node,
    /// Requests under way that use it; in the list only at 0.
    pins: u32,
    older: Option<u32>,
    newer: Option<u32>,
}

impl Cache {
    /// An empty cache of so many blocks; `None`: of any number.
    pub(super) fn new(capacity: Option<usize>) -> Self {
        capacity.map_or_else(|| Self::Unbounded(Bits::default()), |blocks| Self::Bounded(Lru::new(blocks)))
    }

    pub(super) fn holds(&self, node: Node) -> bool {
        match self {
            Self::Unbounded(bits) => bits.has(node),
            Self::Bounded(lru) => lru.places.contains_key(&node),
        }
    }

    /// Leading blocks of a prompt that are held.
    pub(super) fn run(&self, path: &[Node]) -> usize {
        path.iter().take_while(|node| self.holds(**node)).count()
    }

    /// A request that is under way uses these: they stay. All must be held.
    pub(super) fn pin(&mut self, path: &[Node]) {
        if let Self::Bounded(lru) = self {
            path.iter().for_each(|node| lru.pin(*node));
        }
    }

    /// Takes a block in and pins it; false when there is no room. What had to go for it is appended to `evicted`.
    pub(super) fn store(&mut self, node: Node, evicted: &mut Vec<Node>) -> bool {
        match self {
            Self::Unbounded(bits) => bits.add(node),
            Self::Bounded(lru) => return lru.store(node, evicted),
        }
        true
    }

    /// The request that pinned these is over.
    pub(super) fn release(&mut self, path: &[Node]) {
        if let Self::Bounded(lru) = self {
            path.iter().rev().for_each(|node| lru.unpin(*node));
        }
    }
}

impl Bits {
    fn has(&self, Node(node): Node) -> bool {
        self.0.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    fn add(&mut self, Node(node): Node) {
        let at = node as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        if let Some(word) = self.0.get_mut(at) {
            *word |= 1 << (node % 64);
        }
    }
}

impl Lru {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            places: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            oldest: None,
            newest: None,
        }
    }

    fn pin(&mut self, node: Node) {
        let Some(at) = self.places.get(&node).copied() else { return };
        if self.entry(at).is_some_and(|entry| entry.pins == 0) {
            self.unlink(at);
        }
        if let Some(entry) = self.entry_mut(at) {
            entry.pins += 1;
        }
    }

    fn unpin(&mut self, node: Node) {
        let Some(at) = self.places.get(&node).copied() else { return };
        let Some(entry) = self.entry_mut(at) else { return };
        entry.pins = entry.pins.saturating_sub(1);
        if entry.pins == 0 {
            self.link_newest(at);
        }
    }

    fn store(&mut self, node: Node, evicted: &mut Vec<Node>) -> bool {
        if self.places.contains_key(&node) {
            self.pin(node);
            return true;
        }
        if self.places.len() >= self.capacity {
            let Some(gone) = self.evict() else { return false };
            evicted.push(gone);
        }
        let entry = Entry { node, pins: 1, older: None, newer: None };
        let at = self.free.pop().unwrap_or_else(|| u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        match self.entry_mut(at) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.places.insert(node, at);
        true
    }

    fn evict(&mut self) -> Option<Node> {
        let at = self.oldest?;
        let node = self.entry(at)?.node;
        self.unlink(at);
        self.places.remove(&node);
        self.free.push(at);
        Some(node)
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)
    }

    fn link_newest(&mut self, at: u32) {
        let before = self.newest.replace(at);
        if let Some(entry) = self.entry_mut(at) {
            (entry.older, entry.newer) = (before, None);
        }
        match before.and_then(|before| self.entry_mut(before)) {
            Some(before) => before.newer = Some(at),
            None => self.oldest = Some(at),
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(Entry { older, newer, .. }) = self.entry(at).copied() else { return };
        match older.and_then(|older| self.entry_mut(older)) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match newer.and_then(|newer| self.entry_mut(newer)) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }
}
