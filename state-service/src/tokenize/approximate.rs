//! Prompts without tokens: text in fixed chunks, and where such text was sent before.
//!
//! Four bytes stand for a token, so that a block of n tokens is a chunk of 4·n bytes and blocks count alike; the chain is
//! [`Chain::of`] over them. What slots hold is not known but guessed from own placements, each for a ttl. Pure: time is an
//! argument. Knows no prompt and no engine.

use routing::block::{BlockHash, Chain, Namespace};
use routing::time::Millis;
use std::collections::{BTreeMap, HashMap};

/// Bytes that stand for one token.
const TOKEN_BYTES: usize = 4;
/// Slots remembered for one chunk; the one whose memory ends first makes room.
const SLOTS_MAX: usize = 16;

/// The chunks of a text.
#[must_use]
pub fn chain(text: &str, namespace: Namespace<'_>, block_size: u32) -> Chain {
    let (whole, rest) = text.as_bytes().as_chunks::<TOKEN_BYTES>();
    let mut words: Vec<u32> = whole.iter().map(|word| u32::from_le_bytes(*word)).collect();
    if !rest.is_empty() {
        let mut word = [0; TOKEN_BYTES];
        word.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
        words.push(u32::from_le_bytes(word));
    }
    Chain::of(namespace, block_size, &words)
}

#[derive(Clone, Copy, Debug)]
struct Held {
    slot: u32,
    until: Millis,
}

/// Where chunks were sent. Holds at most `chunks_max`, in two generations: the older one goes when the younger has half.
#[derive(Debug)]
pub struct Placements {
    young: HashMap<BlockHash, Vec<Held>>,
    old: HashMap<BlockHash, Vec<Held>>,
    chunks_max: usize,
    ttl: Millis,
}

impl Placements {
    /// Empty, with its bound and how long a placement counts.
    #[must_use]
    pub fn new(chunks_max: usize, ttl: Millis) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), chunks_max, ttl }
    }

    /// A prompt was sent to `slot`.
    pub fn learn(&mut self, chain: &[BlockHash], slot: u32, now: Millis) {
        let until = Millis(now.0.saturating_add(self.ttl.0));
        for hash in chain.iter().take(self.chunks_max / 2) {
            if self.young.len() >= (self.chunks_max / 2).max(1) && !self.young.contains_key(hash) {
                self.old = std::mem::take(&mut self.young);
            }
            let old = self.old.remove(hash);
            let held = self.young.entry(*hash).or_insert_with(|| old.unwrap_or_default());
            held.retain(|held| held.until > now && held.slot != slot);
            if held.len() >= SLOTS_MAX {
                held.sort_unstable_by_key(|held| held.until);
                held.remove(0);
            }
            held.push(Held { slot, until });
        }
    }

    /// How many chunks from the beginning each slot was sent, without a gap; slots with none are left out.
    #[must_use]
    pub fn find(&self, chain: &[BlockHash], now: Millis) -> BTreeMap<u32, u32> {
        let mut runs: BTreeMap<u32, u32> = BTreeMap::new();
        for (depth, hash) in (0u32..).zip(chain) {
            let held =
                self.young.get(hash).or_else(|| self.old.get(hash)).map(Vec::as_slice).unwrap_or_default();
            let mut any = false;
            for held in held.iter().filter(|held| held.until > now) {
                let run = if depth == 0 {
                    Some(runs.entry(held.slot).or_default())
                } else {
                    runs.get_mut(&held.slot)
                };
                if let Some(run) = run.filter(|run| **run == depth) {
                    *run = depth + 1;
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        runs
    }

    /// A slot is gone, or lost its cache.
    pub fn forget(&mut self, slot: u32) {
        for held in self.young.values_mut().chain(self.old.values_mut()) {
            held.retain(|held| held.slot != slot);
        }
    }

    /// Chunks in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
