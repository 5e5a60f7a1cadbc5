//! An index of blocks of four tokens, events in a few words, and what a prompt finds. Knows no test.

use routing::block::{Chain, Namespace};
use state_service::state::blocks::{BlockIndex, IndexLimits, KvCounters, Overlaps, SlotId};
use state_service::state::kv_event::{EngineHash, KvEvent, Tier};
use std::num::NonZeroU32;

pub(crate) const BLOCK_SIZE: u32 = 4;

pub(crate) struct World {
    pub(crate) index: BlockIndex,
    pub(crate) counters: KvCounters,
    pub(crate) slots: Vec<SlotId>,
}

impl World {
    /// With three slots.
    pub(crate) fn new() -> Self {
        Self::with_limits(IndexLimits::default())
    }

    pub(crate) fn with_limits(limits: IndexLimits) -> Self {
        let mut index = BlockIndex::new(NonZeroU32::new(BLOCK_SIZE).unwrap(), limits);
        let slots = (0..3).map(|_| index.new_slot().unwrap()).collect();
        Self { index, counters: KvCounters::default(), slots }
    }

    pub(crate) fn apply(&mut self, slot: usize, event: &KvEvent) {
        self.index.apply(self.slots[slot], event, &mut self.counters);
    }

    pub(crate) fn store(&mut self, slot: usize, parent: Option<u64>, hashes: &[u64]) {
        self.apply(slot, &stored(parent, hashes));
    }

    pub(crate) fn remove(&mut self, slot: usize, hashes: &[u64]) {
        self.apply(slot, &removed(hashes));
    }

    /// Leading blocks each of the slots holds of the prompt whose blocks are `names`: on the device, then host, then disk.
    pub(crate) fn find_tiers(&self, namespace: Namespace<'_>, names: &[u64]) -> Vec<[u32; 3]> {
        let chain = Chain::of(namespace, BLOCK_SIZE, &tokens(names));
        let mut found = Overlaps::default();
        self.index.find(&chain.hashes, &mut found);
        let of = |slot: &SlotId| {
            let found = found.of(*slot);
            [found.gpu, found.host, found.disk]
        };
        self.slots.iter().map(of).collect()
    }

    /// The same on the device alone.
    pub(crate) fn find(&self, names: &[u64]) -> Vec<u32> {
        self.find_tiers(Namespace::default(), names).into_iter().map(|[gpu, ..]| gpu).collect()
    }
}

/// The tokens of blocks named so: a block's own, whatever comes before it.
pub(crate) fn tokens(names: &[u64]) -> Vec<u32> {
    names.iter().flat_map(|name| (0..BLOCK_SIZE).map(move |n| *name as u32 * 10 + n)).collect()
}

pub(crate) fn handles(names: &[u64]) -> Vec<EngineHash> {
    names.iter().copied().map(EngineHash).collect()
}

/// Blocks whose names are the engine's handles and say their tokens.
pub(crate) fn stored(parent: Option<u64>, names: &[u64]) -> KvEvent {
    KvEvent::Stored {
        hashes: handles(names),
        parent: parent.map(EngineHash),
        tokens: tokens(names),
        block_size: BLOCK_SIZE,
        tier: Tier::Gpu,
        lora: None,
        salt: None,
        extra: 0,
        group: 0,
        kind_ok: true,
    }
}

pub(crate) fn removed(names: &[u64]) -> KvEvent {
    KvEvent::Removed { hashes: handles(names), tier: Tier::Gpu, group: 0 }
}
