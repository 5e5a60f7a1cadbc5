//! What makes equal tokens different blocks: vLLM's `extra_keys` and TensorRT-LLM's `mm_keys`, a list for each block of a store.
//!
//! vLLM writes them untagged and in order: the adapter's name, images as `(id, offset)`, on a sequence's first block the
//! `cache_salt`, digests of embeddings as bytes. Adapter and salt name the namespace and go into fields of their own; the rest
//! becomes one hash a block. Such hashes are compared between slots, never with anything of ours, so bytes are hashed as they came.

use super::event::{Left, Raw};
use crate::kv_events::msgpack::{Reader, Unreadable};
use crate::state::kv_event::{EngineHash, KvEvent};
use xxhash_rust::xxh3::Xxh3;

/// Most events one store is split into; each costs two allocations, and a few bytes on the wire could ask for one.
const SPLITS_MAX: usize = 4096;

/// The two lists, unread.
#[derive(Debug, Default)]
pub(super) struct Keys<'a> {
    pub(super) extra: Option<Reader<'a>>,
    pub(super) mm: Option<Reader<'a>>,
}

/// What they say.
#[derive(Debug, Default)]
pub(super) struct Extras<'a> {
    /// The sequence's salt.
    pub(super) salt: Option<&'a str>,
    /// A hash for each block, 0 where nothing is said; empty when nothing is said of any.
    pub(super) of_block: Vec<u64>,
}

pub(super) fn of_blocks<'a>(raw: &Raw<'a>, blocks: usize) -> Result<Extras<'a>, Left> {
    let mut extras = Extras::default();
    if let Some(mut lists) = raw.keys.extra {
        for block in 0..lists.array()? {
            let first = block == 0 && raw.parent.is_none();
            let hash = extra_keys(&mut lists, raw.lora, first.then_some(&mut extras.salt))?;
            note(&mut extras.of_block, block, blocks, hash);
        }
    }
    if let Some(mut lists) = raw.keys.mm {
        for block in 0..lists.array()? {
            let hash = mm_keys(&mut lists)?;
            note(&mut extras.of_block, block, blocks, hash);
        }
    }
    Ok(extras)
}

/// Lists longer than the blocks are possible with hostile bytes only; what is too much says nothing.
fn note(of_block: &mut Vec<u64>, block: usize, blocks: usize, hash: u64) {
    if hash != 0 && of_block.is_empty() {
        of_block.resize(blocks, 0);
    }
    if let Some(place) = of_block.get_mut(block) {
        *place ^= hash.rotate_left(u32::from(*place != 0));
    }
}

/// One block's keys. `salt` is given where a salt may stand: it is the last text there.
fn extra_keys<'a>(
    lists: &mut Reader<'a>,
    lora: Option<&str>,
    salt: Option<&mut Option<&'a str>>,
) -> Result<u64, Unreadable> {
    if lists.nil() {
        return Ok(0);
    }
    let (mut rest, mut last_text) = (Hash::default(), None);
    for _ in 0..lists.array()? {
        let start = *lists;
        let text = lists.text().ok();
        if text.is_some() && text == lora {
            continue;
        }
        if text.is_none() {
            *lists = start;
            lists.skip()?;
        }
        let bytes = lists.since(start);
        match text {
            Some(text) if salt.is_some() => {
                let before = last_text.replace((text, bytes));
                before.into_iter().for_each(|(_, bytes)| rest.add(bytes));
            }
            _ => rest.add(bytes),
        }
    }
    if let (Some(salt), Some((text, _))) = (salt, last_text) {
        *salt = Some(text);
    }
    Ok(rest.finish())
}

fn mm_keys(lists: &mut Reader<'_>) -> Result<u64, Unreadable> {
    if lists.nil() {
        return Ok(0);
    }
    let mut hash = Hash::default();
    for _ in 0..lists.array()? {
        let start = *lists;
        lists.skip()?;
        hash.add(lists.since(start));
    }
    Ok(hash.finish())
}

/// 0 of nothing, never 0 of something.
#[derive(Default)]
struct Hash(Option<Xxh3>);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        self.0.get_or_insert_default().update(bytes);
    }

    fn finish(self) -> u64 {
        self.0.map_or(0, |hash| hash.digest().max(1))
    }
}

/// Gives a store to `out` as it is, or in parts of equal extra: an event has one for all its blocks.
pub(super) fn split(whole: KvEvent, of_block: &[u64], out: &mut Vec<KvEvent>) -> Result<(), Left> {
    let runs = of_block.chunk_by(|a, b| a == b);
    let count = runs.clone().count();
    if count > SPLITS_MAX {
        return Err(Left::NotIndexable);
    }
    let KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, group, kind_ok, .. } = whole
    else {
        return Ok(());
    };
    // Without a block's tokens for each hash nothing says which tokens are whose; the index leaves such a store out.
    let size = usize::try_from(block_size).unwrap_or(usize::MAX);
    if count <= 1 || hashes.len().checked_mul(size) != Some(tokens.len()) {
        let extra = of_block.iter().copied().find(|extra| *extra != 0).unwrap_or(0);
        out.push(KvEvent::Stored {
            hashes,
            parent,
            tokens,
            block_size,
            tier,
            lora,
            salt,
            extra,
            group,
            kind_ok,
        });
        return Ok(());
    }
    let (mut hashes, mut tokens, mut parent) = (hashes.into_iter(), tokens.into_iter(), parent);
    for run in runs {
        let hashes: Vec<EngineHash> = hashes.by_ref().take(run.len()).collect();
        let last = hashes.last().copied();
        out.push(KvEvent::Stored {
            hashes,
            parent,
            tokens: tokens.by_ref().take(run.len() * size).collect(),
            block_size,
            tier,
            lora: lora.clone(),
            salt: salt.clone(),
            extra: run.first().copied().unwrap_or(0),
            group,
            kind_ok,
        });
        parent = last;
    }
    Ok(())
}
