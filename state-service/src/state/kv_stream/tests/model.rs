//! A slot as the index keeps it (copies of each block), and frames to fill it.

use crate::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use crate::state::kv_stream::Frame;
use std::collections::BTreeMap;

pub(super) fn frame(life: u64, seq: u64, events: Vec<KvEvent>) -> Frame {
    Frame { seq, stamp: life.wrapping_mul(1_000_003).wrapping_add(seq), batch: KvBatch { events } }
}

pub(super) fn stored(block: u64) -> KvEvent {
    KvEvent::Stored {
        hashes: vec![EngineHash(block)],
        parent: None,
        tokens: vec![1],
        block_size: 1,
        tier: Tier::Gpu,
        lora: None,
        salt: None,
        extra: 0,
        group: 0,
        kind_ok: true,
    }
}

pub(super) fn removed(block: u64) -> KvEvent {
    KvEvent::Removed { hashes: vec![EngineHash(block)], tier: Tier::Gpu, group: 0 }
}

pub(super) const fn cleared() -> KvEvent {
    KvEvent::Cleared
}

/// Copies of each block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot(BTreeMap<u64, usize>);

impl Slot {
    pub(super) fn apply(&mut self, batch: &KvBatch) {
        for event in &batch.events {
            match event {
                KvEvent::Stored { hashes, .. } => {
                    hashes.iter().for_each(|hash| *self.0.entry(hash.0).or_default() += 1)
                }
                KvEvent::Removed { hashes, .. } => hashes.iter().for_each(|hash| self.remove(hash.0)),
                KvEvent::Cleared => self.clear(),
            }
        }
    }

    fn remove(&mut self, block: u64) {
        let Some(copies) = self.0.get_mut(&block) else { return };
        *copies -= 1;
        if *copies == 0 {
            self.0.remove(&block);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn held(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    pub(super) fn copies(&self, block: u64) -> usize {
        self.0.get(&block).copied().unwrap_or(0)
    }

    /// Whether nothing is held here that is not held there, copy by copy.
    pub(super) fn is_within(&self, truth: &Self) -> bool {
        self.0.iter().all(|(block, copies)| *copies <= truth.copies(*block))
    }
}
