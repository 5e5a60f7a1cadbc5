//! Hashes of blocks of tokens: what a prompt's prefix is called, here and in what is indexed of the engines' events.
//!
//! A block's own hash is xxh3_64 over its tokens (u32 LE) with the seed of its namespace; a chained hash is xxh3_64 over the
//! previous chained hash and the block's own (both u64 LE) with the same seed, so it names the block *and all before it*. It is
//! never an engine's hash: those differ between versions and processes. Knows no tokenizer, no events, no index.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Seed of the namespace without LoRA and salt.
const SEED: u64 = 1337;
/// Seeds of the hashes that make other namespaces and contents.
const LORA: u64 = 0;
const SALT: u64 = 1;
const EXTRA: u64 = 2;
/// Longest block hashed without streaming; a power of two that fits the usual sizes.
const STACK_TOKENS: usize = 256;
const TOKEN_BYTES: usize = size_of::<u32>();

/// Names a block together with all blocks before it. Equal in every process and on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// What keeps equal tokens apart: their cached keys and values differ (LoRA) or must not be shared (salt).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespace<'a> {
    /// Name of the adapter, as the engine calls it.
    pub lora: Option<&'a str>,
    /// `cache_salt` of the request.
    pub salt: Option<&'a str>,
}

/// The seed of everything hashed in a namespace.
#[must_use]
pub fn seed(namespace: Namespace<'_>) -> u64 {
    let part = |text: Option<&str>, seed| text.map_or(0, |text| xxh3_64_with_seed(text.as_bytes(), seed));
    SEED.wrapping_add(part(namespace.lora, LORA)).wrapping_add(part(namespace.salt, SALT))
}

/// The chained hash of a first block.
#[must_use]
#[inline]
pub fn first(seed: u64, tokens: &[u32]) -> BlockHash {
    BlockHash(own(seed, tokens))
}

/// The chained hash of a block after `prev`.
#[must_use]
#[inline]
pub fn next(prev: BlockHash, seed: u64, tokens: &[u32]) -> BlockHash {
    link(prev, seed, own(seed, tokens))
}

/// A block whose tokens do not say all of its content (images and the like): `extra` is a hash of the rest, 0 when there is none.
/// Applies to that block alone; what follows it differs by being chained to it.
#[must_use]
#[inline]
pub fn with_extra(hash: BlockHash, extra: u64) -> BlockHash {
    if extra == 0 { hash } else { link(hash, EXTRA, extra) }
}

/// The blocks of one prompt: full ones only, as engines cache no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Chained hash of each full block, in order.
    pub hashes: Vec<BlockHash>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Tokens of the prompt, those past the last full block included; capped at `u32::MAX`.
    pub tokens: u32,
}

impl Chain {
    /// Chains a prompt. A block size of 0 makes no blocks.
    #[must_use]
    pub fn of(namespace: Namespace<'_>, block_size: u32, tokens: &[u32]) -> Self {
        let (seed, size) = (seed(namespace), usize::try_from(block_size).unwrap_or(usize::MAX));
        let mut hashes: Vec<BlockHash> = Vec::new();
        if let Some(blocks) = tokens.len().checked_div(size) {
            hashes.reserve_exact(blocks);
            for block in tokens.chunks_exact(size) {
                let hash = hashes.last().map_or_else(|| first(seed, block), |prev| next(*prev, seed, block));
                hashes.push(hash);
            }
        }
        Self { hashes, block_size, tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX) }
    }
}

fn link(prev: BlockHash, seed: u64, own: u64) -> BlockHash {
    let mut bytes = [0; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&prev.0.to_le_bytes());
    right.copy_from_slice(&own.to_le_bytes());
    BlockHash(xxh3_64_with_seed(&bytes, seed))
}

/// The hash of a block alone. The common size has code of its own: everything about it is known when it is compiled.
fn own(seed: u64, tokens: &[u32]) -> u64 {
    if let Ok(block) = <&[u32; 16]>::try_from(tokens) {
        let mut bytes = [0; 16 * TOKEN_BYTES];
        copy(&mut bytes, block);
        return xxh3_64_with_seed(&bytes, seed);
    }
    let mut room = [0; STACK_TOKENS * TOKEN_BYTES];
    match room.get_mut(..tokens.len().saturating_mul(TOKEN_BYTES)) {
        Some(bytes) => {
            copy(bytes, tokens);
            xxh3_64_with_seed(bytes, seed)
        }
        None => streamed(seed, tokens),
    }
}

fn copy(bytes: &mut [u8], tokens: &[u32]) {
    let (places, _) = bytes.as_chunks_mut::<TOKEN_BYTES>();
    for (place, token) in places.iter_mut().zip(tokens) {
        *place = token.to_le_bytes();
    }
}

fn streamed(seed: u64, tokens: &[u32]) -> u64 {
    let mut hash = Xxh3::with_seed(seed);
    for token in tokens {
        hash.update(&token.to_le_bytes());
    }
    hash.digest()
}
