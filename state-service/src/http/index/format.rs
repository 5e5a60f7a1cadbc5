//! The bytes of an index snapshot. Numbers are little-endian.
//!
//! ```text
//!   RPKV · u32 version · u64 how blocks are hashed · u64 the replica's life
//!   then records: u8 kind · u32 length · so many bytes
//!     1 a slot: u32 length of its head, as JSON · pieces:
//!         u64 seed of the namespace · u8 blocks · u64 hash of each · u32 handles, for each
//!         u8 block · u8 tier · u16 further copies · u64 the engine's name
//!     2 the end, as JSON: slots told, slots left out
//! ```
//! Kinds that are not known are left out. Nothing is read that is longer than said, or than its limit.

use crate::state::SlotHead;
use crate::state::blocks::{Held, Piece};
use crate::state::kv_event::{EngineHash, Tier};
use crate::state::kv_stream::Reach;
use routing::block::{self, Namespace};
use routing::id::{PoolName, WorkerId};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

const MAGIC: &[u8; 4] = b"RPKV";
/// Of the format.
const VERSION: u32 = 1;
const SLOT: u8 = 1;
const END: u8 = 2;
/// Longest record: more than what the largest slot takes.
const RECORD_BYTES_MAX: usize = 256 << 20;
/// Blocks of a piece.
const BLOCKS_MAX: usize = 64;

/// Why a snapshot is of no use, or of none from here on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    /// It does not begin like one.
    #[error("it is no index snapshot")]
    NotASnapshot,
    /// Another release's.
    #[error("its format is {0}, ours is {VERSION}")]
    Version(u32),
    /// Another release's, too.
    #[error("its blocks are hashed in another way")]
    OtherHashes,
    /// Longer than anything we send.
    #[error("a record of {0} bytes is too long (allowed: {RECORD_BYTES_MAX})")]
    TooLong(usize),
    /// It contradicts itself.
    #[error("a record is malformed: {0}")]
    Malformed(&'static str),
}

/// One record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Slot(SlotHead, Vec<Piece>),
    End(End),
    Other,
}

/// What became of all slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) slots: u32,
    pub(crate) left_out: u32,
}

#[derive(Serialize, Deserialize)]
struct Head {
    pool: PoolName,
    worker: WorkerId,
    rank: u32,
    address: String,
    block_size: NonZeroU32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    next: u64,
    recent: Vec<(u64, u64)>,
    cold: bool,
}

/// Two replicas whose hashes of this differ know blocks by different names.
fn hashing() -> u64 {
    let seed = block::seed(Namespace { lora: Some("adapter"), salt: Some("salt") });
    let first = block::first(seed, &[1, 2, 3]);
    block::with_extra(block::next(first, seed, &[4, 5, 6]), 7).0
}

/// How one begins.
pub(crate) fn begin(life: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(hashing().to_le_bytes());
    bytes.extend(life.to_le_bytes());
    bytes
}

/// A slot's record; `None`: it is too long.
pub(crate) fn slot(head: &SlotHead, pieces: &[Piece]) -> Option<Vec<u8>> {
    let SlotHead { pool, worker, rank, address, block_size, group, reach } = head.clone();
    let Reach { next, recent, cold } = reach;
    let head = Head { pool, worker, rank, address, block_size, group, next, recent, cold };
    let head = serde_json::to_vec(&head).ok()?;
    let mut body = u32::try_from(head.len()).ok()?.to_le_bytes().to_vec();
    body.extend(head);
    for piece in pieces {
        body.extend(piece.seed.to_le_bytes());
        body.push(u8::try_from(piece.hashes.len()).ok()?);
        piece.hashes.iter().for_each(|hash| body.extend(hash.to_le_bytes()));
        body.extend(u32::try_from(piece.held.len()).ok()?.to_le_bytes());
        for held in &piece.held {
            body.extend([held.at, held.tier as u8]);
            body.extend(held.copies.to_le_bytes());
            body.extend(held.handle.0.to_le_bytes());
        }
    }
    record(SLOT, &body)
}

/// How one ends.
pub(crate) fn end(slots: u32, left_out: u32) -> Vec<u8> {
    let said = serde_json::to_vec(&End { slots, left_out }).unwrap_or_default();
    record(END, &said).unwrap_or_default()
}

fn record(kind: u8, body: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= RECORD_BYTES_MAX)?;
    let mut bytes = vec![kind];
    bytes.extend(length.to_le_bytes());
    bytes.extend(body);
    Some(bytes)
}

/// Reads one as it comes.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
    life: Option<u64>,
}

impl Reader {
    /// Takes what came.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Of the replica it is of, once that is known.
    pub(crate) const fn life(&self) -> Option<u64> {
        self.life
    }

    /// The next record, once it has come.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, FormatError> {
        if self.life.is_none() && !self.begin()? {
            return Ok(None);
        }
        let mut rest = Rest(&self.bytes);
        let (Some(kind), Some(length)) = (rest.u8(), rest.u32()) else { return Ok(None) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > RECORD_BYTES_MAX {
            return Err(FormatError::TooLong(length));
        }
        let Some(body) = rest.take(length) else { return Ok(None) };
        let record = match kind {
            SLOT => read_slot(body)?,
            END => Record::End(serde_json::from_slice(body).map_err(|_| FormatError::Malformed("its end"))?),
            _ => Record::Other,
        };
        let left = rest.0.len();
        self.bytes.drain(..self.bytes.len() - left);
        Ok(Some(record))
    }

    fn begin(&mut self) -> Result<bool, FormatError> {
        let mut rest = Rest(&self.bytes);
        let begun = self.bytes.len().min(MAGIC.len());
        if self.bytes.get(..begun) != MAGIC.get(..begun) {
            return Err(FormatError::NotASnapshot);
        }
        rest.take(MAGIC.len());
        let version = rest.u32();
        if let Some(version) = version.filter(|version| *version != VERSION) {
            return Err(FormatError::Version(version));
        }
        let (Some(hashes), Some(life)) = (rest.u64(), rest.u64()) else { return Ok(false) };
        if hashes != hashing() {
            return Err(FormatError::OtherHashes);
        }
        let left = rest.0.len();
        self.bytes.drain(..self.bytes.len() - left);
        self.life = Some(life);
        Ok(true)
    }
}

fn read_slot(body: &[u8]) -> Result<Record, FormatError> {
    let mut rest = Rest(body);
    let head = rest.u32().and_then(|length| rest.take(usize::try_from(length).ok()?));
    let head = head.ok_or(FormatError::Malformed("a head's length"))?;
    let head: Head = serde_json::from_slice(head).map_err(|_| FormatError::Malformed("a head"))?;
    let Head { pool, worker, rank, address, block_size, group, next, recent, cold } = head;
    let reach = Reach { next, recent, cold };
    let head = SlotHead { pool, worker, rank, address, block_size, group, reach };
    let mut pieces = Vec::new();
    while !rest.0.is_empty() {
        pieces.push(read_piece(&mut rest).ok_or(FormatError::Malformed("blocks"))?);
    }
    Ok(Record::Slot(head, pieces))
}

fn read_piece(rest: &mut Rest<'_>) -> Option<Piece> {
    let seed = rest.u64()?;
    let blocks = usize::from(rest.u8()?);
    if !(1..=BLOCKS_MAX).contains(&blocks) {
        return None;
    }
    let hashes = (0..blocks).map(|_| rest.u64()).collect::<Option<Vec<u64>>>()?;
    let count = rest.u32()?;
    let mut held = Vec::new();
    for _ in 0..count {
        let (at, tier) = (rest.u8()?, rest.u8()?);
        let copies = u16::from_le_bytes(rest.array()?);
        let tier = [Tier::Gpu, Tier::Host, Tier::Disk].into_iter().find(|known| *known as u8 == tier)?;
        hashes.get(usize::from(at))?;
        held.push(Held { at, tier, handle: EngineHash(rest.u64()?), copies });
    }
    Some(Piece { seed, hashes, held })
}

/// What is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
