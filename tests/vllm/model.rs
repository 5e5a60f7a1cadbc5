//! What a rank must hold, by the naive rule: every full block of every prompt and answer, until it is cleared. Never evicts: the
//! checks fill a thousandth of the real cache. Shares no code with the service's index.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use crate::engine::BLOCK_SIZE;

/// One rank's blocks, each by the hash of everything up to its end.
#[derive(Debug, Default)]
pub(crate) struct Cache(HashSet<u64>);

impl Cache {
    /// Leading blocks of a prompt that are held. An engine computes at least the last token anew, so it never hits all of a
    /// prompt of whole blocks.
    pub(crate) fn hit(&self, prompt: &[u32]) -> u64 {
        let usable = prompt.len().saturating_sub(1) / BLOCK_SIZE as usize;
        blocks(prompt).take(usable).take_while(|block| self.0.contains(block)).count() as u64
    }

    /// Takes everything computed. The last token of an answer was not: nothing came after it.
    pub(crate) fn take(&mut self, prompt: &[u32], answer: &[u32]) {
        let computed = [prompt, answer.split_last().map_or(&[][..], |(_, before)| before)].concat();
        self.0.extend(blocks(&computed));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

fn blocks(tokens: &[u32]) -> impl Iterator<Item = u64> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let size = BLOCK_SIZE as usize;
    (1..=tokens.len() / size).map(move |count| hasher.hash_one(&tokens[..count * size]))
}
