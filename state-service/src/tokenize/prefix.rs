//! Block chains of prompts' beginnings, so that a next turn tokenises only what is new.
//!
//! A node is a beginning that ends at a cut: it holds the blocks that the piece before the cut completes, the tokens past the
//! last full block, and the node before it. Named by a 128-bit hash of namespace, block size and all text before the cut.
//! Bounded in bytes. Knows no tokenizer.

use super::generations::Generations;
use routing::block::{self, BlockHash, Chain};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::Xxh3;

/// Names a beginning.
pub(crate) type Key = u128;

/// What keeps equal texts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// [`block::seed`] of the namespace.
    pub(crate) seed: u64,
    pub(crate) block_size: u32,
    /// Whether the tokenizer's own marks stand around the text.
    pub(crate) marks: bool,
}

/// The keys of beginnings that end at `places`, in order.
pub(crate) fn keys(room: Room, text: &str, places: impl Iterator<Item = usize>) -> Vec<Key> {
    let mut hash = Xxh3::with_seed(room.seed);
    hash.update(&room.block_size.to_le_bytes());
    hash.update(&[u8::from(room.marks)]);
    let mut from = 0;
    let mut keys = Vec::new();
    for place in places {
        hash.update(text.as_bytes().get(from..place).unwrap_or_default());
        from = place;
        keys.push(hash.digest128());
    }
    keys
}

/// A known beginning.
#[derive(Debug)]
pub(crate) struct Node {
    key: Key,
    before: Option<Arc<Node>>,
    /// Blocks completed since the node before.
    hashes: Box<[BlockHash]>,
    /// Tokens past the last full block.
    rest: Box<[u32]>,
    /// The last full block of all.
    last: Option<BlockHash>,
    /// Tokens of the whole beginning.
    tokens: usize,
}

impl Node {
    fn bytes(&self) -> usize {
        size_of::<Self>() + 16 + size_of_val(&*self.hashes) + size_of_val(&*self.rest)
    }
}

impl Drop for Node {
    /// One after the other: a conversation has more nodes than a stack has room.
    fn drop(&mut self) {
        let mut before = self.before.take();
        while let Some(node) = before {
            before = Arc::into_inner(node).and_then(|mut node| node.before.take());
        }
    }
}

/// A prompt being chained.
pub(crate) struct Chaining {
    room: Room,
    before: Option<Arc<Node>>,
    hashes: Vec<BlockHash>,
    rest: Vec<u32>,
    last: Option<BlockHash>,
    tokens: usize,
}

impl Chaining {
    /// Goes on from a known beginning, or begins.
    pub(crate) fn from(room: Room, before: Option<Arc<Node>>) -> Self {
        let rest = before.as_ref().map(|node| node.rest.to_vec()).unwrap_or_default();
        let (last, tokens) = before.as_ref().map_or((None, 0), |node| (node.last, node.tokens));
        Self { room, before, hashes: Vec::new(), rest, last, tokens }
    }

    /// Adds tokens at the end.
    pub(crate) fn add(&mut self, tokens: &[u32]) {
        self.tokens += tokens.len();
        let size = self.room.block_size as usize;
        self.rest.extend_from_slice(tokens);
        if size == 0 {
            return self.rest.clear();
        }
        let blocks = self.rest.chunks_exact(size);
        let left = blocks.remainder().to_vec();
        for tokens in blocks {
            let hash = match self.last {
                None => block::first(self.room.seed, tokens),
                Some(last) => block::next(last, self.room.seed, tokens),
            };
            self.hashes.push(hash);
            self.last = Some(hash);
        }
        self.rest = left;
    }

    /// Names what there is so far, and goes on from it.
    pub(crate) fn node(&mut self, key: Key) -> Arc<Node> {
        let node = Arc::new(Node {
            key,
            before: self.before.take(),
            hashes: std::mem::take(&mut self.hashes).into_boxed_slice(),
            rest: self.rest.clone().into_boxed_slice(),
            last: self.last,
            tokens: self.tokens,
        });
        self.before = Some(Arc::clone(&node));
        node
    }

    /// The chain of everything added.
    pub(crate) fn finish(self) -> Chain {
        let mut parts: Vec<&[BlockHash]> = vec![&self.hashes];
        let mut node = self.before.as_deref();
        while let Some(here) = node {
            parts.push(&here.hashes);
            node = here.before.as_deref();
        }
        parts.reverse();
        let tokens = u32::try_from(self.tokens).unwrap_or(u32::MAX);
        Chain { hashes: parts.concat(), block_size: self.room.block_size, tokens }
    }
}

/// All known beginnings of a pool.
pub(crate) struct Prefixes {
    nodes: Mutex<Generations<Key, Arc<Node>>>,
}

impl Prefixes {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { nodes: Mutex::new(Generations::new(bytes_max)) }
    }

    /// The longest of these beginnings that is known, with its place among them.
    pub(crate) fn longest(&self, keys: &[Key]) -> Option<(usize, Arc<Node>)> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().enumerate().rev().find_map(|(place, key)| Some((place, Arc::clone(nodes.peek(key)?))))
    }

    /// Keeps a beginning and all before it, as they hold each other's memory anyway.
    pub(crate) fn keep(&self, node: &Arc<Node>) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut here = Some(node);
        while let Some(node) = here.filter(|node| nodes.keep(node.key, node, node.bytes())) {
            here = node.before.as_ref();
        }
        nodes.turn();
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }
}
