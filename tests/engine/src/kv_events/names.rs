//! Blocks' hashes as they are told: each engine's own way to make them. Knows no events.

use std::collections::HashMap;

use super::dialect::Dialect;
use crate::prefix_cache::BlockHash;

/// The names of one rank's blocks.
#[derive(Default)]
pub(crate) struct Names {
    /// Changes the hashes of engines that make them anew in every process.
    seed: u64,
    /// Those that cannot be computed from the chain, by block.
    pages: HashMap<BlockHash, u64>,
}

impl Names {
    /// Those of a process just started.
    pub(crate) fn new(dialect: &Dialect, fresh: u64) -> Self {
        let seed = if dialect.is_seeded_per_process() { fresh | 1 } else { 0 };
        Self { seed, pages: HashMap::new() }
    }

    /// A new block's.
    pub(crate) fn make(&mut self, dialect: &Dialect, hash: BlockHash, tokens: &[u32]) -> u64 {
        if !dialect.is_unchained() {
            return mixed(hash.value() ^ self.seed);
        }
        let page = BlockHash::root("", None).chain(tokens).value();
        self.pages.insert(hash, page);
        page
    }

    /// That of a block made before; none where it has been forgotten.
    pub(crate) fn of(&self, dialect: &Dialect, hash: BlockHash) -> Option<u64> {
        match dialect.is_unchained() {
            true => self.pages.get(&hash).copied(),
            false => Some(mixed(hash.value() ^ self.seed)),
        }
    }

    /// That of a block that goes.
    pub(crate) fn forget(&mut self, dialect: &Dialect, hash: BlockHash) -> u64 {
        let name = self.of(dialect, hash).unwrap_or_default();
        self.pages.remove(&hash);
        name
    }
}

/// One to one, so that no two blocks share a name.
fn mixed(hash: u64) -> u64 {
    let x = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}
