//! Every hash that must be the same in each filter, replica and language: session ids, rank hash, rendezvous.

use crate::id::{Rank, RankHash, SessionId, WorkerId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

/// Which half of a request a worker does; part of a session's id, as each half has a binding of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Prefill half of a split pool.
    Prefill,
    /// Decode half of a split pool.
    Decode,
    /// Prefills and decodes. Also how a phase this build does not know is read.
    #[default]
    #[serde(other)]
    Aggregated,
}

impl Phase {
    /// The word hashed and written on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// xxh3_128 over length-prefixed (u32 LE) secret, scope, pool, phase and key, so that no two splits of the same bytes meet.
#[must_use]
pub fn session_id(secret: &[u8], scope: &[u8], pool: &str, phase: Phase, key: &[u8]) -> SessionId {
    hash_parts(&[secret, scope, pool.as_bytes(), phase.as_str().as_bytes(), key])
}

fn hash_parts(parts: &[&[u8]]) -> SessionId {
    let mut bytes = Vec::with_capacity(parts.iter().map(|p| p.len() + 4).sum());
    for part in parts {
        let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(part);
    }
    SessionId(xxh3_128(&bytes))
}

/// Names an engine's response id as a session names a key: what one tenant learned no other can use. The pool is no part of it:
/// a request for a stored answer names none.
#[must_use]
pub fn response_id(secret: &[u8], scope: &[u8], response: &[u8]) -> SessionId {
    hash_parts(&[secret, scope, b"", b"response", response])
}

/// xxh3_64, seed 0, of the trimmed key.
#[must_use]
pub fn rank_hash(key: &[u8]) -> RankHash {
    RankHash(xxh3_64(key))
}

/// `dp_start + rank_hash % dp_size`; `None` for a single rank, which takes no header.
#[must_use]
pub fn hashed_rank(hash: RankHash, dp_start: u32, dp_size: u32) -> Option<Rank> {
    let size = u64::from(dp_size);
    let offset = (size > 1).then(|| u32::try_from(hash.0 % size).ok()).flatten()?;
    dp_start.checked_add(offset).map(Rank)
}

/// Names a worker in a cached binding without keeping its text: xxh3_64 of the id.
#[must_use]
pub fn worker_hash(id: &WorkerId) -> u64 {
    xxh3_64(id.as_str().as_bytes())
}

/// One draw of a session for a worker; the worker with the lowest [`rendezvous_cost`] wins.
#[must_use]
pub fn rendezvous_draw(session: SessionId, worker_hash: u64) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&session.0.to_le_bytes());
    hasher.update(&worker_hash.to_le_bytes());
    hasher.digest()
}

/// `-log2(draw / 2^64)` as a 32-bit fixed-point number: weighted rendezvous takes the least `cost / weight`.
///
/// Integers only, since a floating `ln` may differ between native and wasm.
#[must_use]
pub fn rendezvous_cost(draw: u64) -> u64 {
    let draw = draw.max(1);
    let exponent = 63 - u64::from(draw.leading_zeros());
    // Mantissa in 1.0 ..< 2.0 with 63 fractional bits; squaring it yields one bit of the logarithm a step.
    let mut mantissa = u128::from(draw << draw.leading_zeros());
    let mut fraction = 0u64;
    for _ in 0..FRACTION_BITS {
        mantissa = (mantissa * mantissa) >> 63;
        fraction <<= 1;
        if mantissa >> 64 != 0 {
            fraction |= 1;
            mantissa >>= 1;
        }
    }
    ((64 - exponent) << FRACTION_BITS) - fraction
}

const FRACTION_BITS: u32 = 32;

/// Whether `a` (cost, weight) beats `b`: `cost_a / weight_a < cost_b / weight_b`, without dividing.
#[must_use]
pub fn rendezvous_beats(a: (u64, u32), b: (u64, u32)) -> bool {
    u128::from(a.0) * u128::from(b.1) < u128::from(b.0) * u128::from(a.1)
}
