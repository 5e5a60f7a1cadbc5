//! What a step did to a rank's cache, as events, with hashes as they are told. Does not know how they are written.

use std::sync::Arc;

use crate::space::Space;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Blocks that follow each other came.
    Stored(Stored),
    /// Blocks went, in this order.
    Removed(Vec<u64>),
    /// All went.
    Cleared,
}

/// Blocks that follow each other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) hashes: Vec<u64>,
    /// The block before the first; none at the start of a prompt.
    pub(crate) parent: Option<u64>,
    /// Whether the first is the first of its prompt.
    pub(crate) is_start: bool,
    /// Of all of them.
    pub(crate) tokens: Vec<u32>,
    pub(crate) space: Arc<Space>,
}

impl Stored {
    /// Each block by itself.
    pub(crate) fn pages(&self, block_size: usize) -> impl Iterator<Item = Self> {
        let page = move |(index, tokens): (usize, &[u32])| Self {
            hashes: vec![self.hashes[index]],
            parent: if index == 0 { self.parent } else { Some(self.hashes[index - 1]) },
            is_start: self.is_start && index == 0,
            tokens: tokens.to_vec(),
            space: Arc::clone(&self.space),
        };
        self.tokens.chunks_exact(block_size).enumerate().map(page)
    }
}
