//! What an index is fed with in the bench: prompts of families that share a beginning, each cached by two workers, announced as engines
//! do (what is new only, in prefill chunks, the end block by block). Seeded: the same every time. Knows no index.

use std::collections::BTreeMap;

use routing::block::{Chain, Namespace};

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: u32 = 16;
/// Blocks of one prefill step.
const CHUNK_BLOCKS: usize = 128;
/// Workers that cache each prompt.
const COPIES: usize = 2;
const VOCABULARY: u64 = 150_000;
const SEED: u64 = 42;

/// How large.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) workers: u32,
    /// Blocks of a prompt.
    pub(crate) blocks: usize,
    /// (worker, block)s cached at least.
    pub(crate) resident: usize,
}

/// Blocks a worker cached in one step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) worker: u32,
    pub(crate) parent: Option<u64>,
    pub(crate) hashes: Vec<u64>,
    pub(crate) tokens: Vec<u32>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) steps: Vec<Step>,
    /// The tokens of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// (worker, block)s cached.
    pub(crate) resident: usize,
}

/// A seeded stream of numbers.
#[derive(Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % end
    }

    fn tokens(&mut self, blocks: usize) -> Vec<u32> {
        (0..blocks * BLOCK_TOKENS as usize).map(|_| self.below(VOCABULARY) as u32).collect()
    }
}

const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

impl Traffic {
    /// Families until enough is cached.
    pub(crate) fn of(shape: Shape) -> Self {
        let mut traffic = Self::default();
        let mut draws = Draws::new(SEED);
        let mut caches = vec![BTreeMap::new(); shape.workers as usize];
        while traffic.resident < shape.resident {
            let trunk = draws.tokens(shape.blocks);
            for _ in 0..(shape.workers as usize / COPIES).max(1) {
                traffic.prompt(shape, &trunk, &mut draws, &mut caches);
            }
            // Families share nothing: what they cached need not be remembered.
            caches.iter_mut().for_each(BTreeMap::clear);
        }
        traffic
    }

    /// One prompt: the trunk up to somewhere in the middle, then words of its own.
    fn prompt(&mut self, shape: Shape, trunk: &[u32], draws: &mut Draws, caches: &mut [BTreeMap<u64, ()>]) {
        let shared = shape.blocks / 5 + draws.below(shape.blocks as u64 * 2 / 5 + 1) as usize;
        let mut tokens = trunk[..shared * BLOCK_TOKENS as usize].to_vec();
        tokens.extend(draws.tokens(shape.blocks - shared));
        // Stands for the engines' own hashes: chained too, equal on all of them, unlike ours.
        let chain = Chain::of(Namespace::default(), BLOCK_TOKENS, &tokens);
        let hashes: Vec<u64> = chain.hashes.iter().map(|hash| mix(hash.0 ^ SEED)).collect();
        for _ in 0..COPIES {
            let worker = draws.below(u64::from(shape.workers)) as usize;
            self.cache(worker, &hashes, &tokens, &mut caches[worker]);
        }
        self.prompts.push(tokens);
    }

    fn cache(&mut self, worker: usize, hashes: &[u64], tokens: &[u32], cache: &mut BTreeMap<u64, ()>) {
        let mut at = hashes.iter().take_while(|hash| cache.contains_key(hash)).count();
        let decoded_from = hashes.len() - hashes.len() / 22;
        while at < hashes.len() {
            let end = if at < decoded_from { (at + CHUNK_BLOCKS).min(decoded_from) } else { at + 1 };
            let size = BLOCK_TOKENS as usize;
            self.steps.push(Step {
                worker: worker as u32,
                parent: at.checked_sub(1).map(|before| hashes[before]),
                hashes: hashes[at..end].to_vec(),
                tokens: tokens[at * size..end * size].to_vec(),
            });
            self.resident += end - at;
            at = end;
        }
        cache.extend(hashes.iter().map(|hash| (*hash, ())));
    }
}
