//! Our block index as the bench uses it.

use std::num::NonZeroU32;

use routing::block::{Chain, Namespace};
use state_service::state::blocks::{BlockIndex, IndexLimits, KvCounters, Overlaps, SlotId};
use state_service::state::kv_event::{EngineHash, KvEvent, Tier};

use super::Contender;
use super::shape::{BLOCK_TOKENS, Step};

/// The index with a slot for each worker.
#[derive(Debug)]
pub(crate) struct Ours {
    index: BlockIndex,
    slots: Vec<SlotId>,
    counters: KvCounters,
    overlaps: Overlaps,
}

impl Contender for Ours {
    type Event = (u32, KvEvent);
    type Prompt = Chain;

    fn event(step: &Step) -> Self::Event {
        let event = KvEvent::Stored {
            hashes: step.hashes.iter().copied().map(EngineHash).collect(),
            parent: step.parent.map(EngineHash),
            tokens: step.tokens.clone(),
            block_size: BLOCK_TOKENS,
            tier: Tier::Gpu,
            lora: None,
            salt: None,
            extra: 0,
            group: 0,
            kind_ok: true,
        };
        (step.worker, event)
    }

    fn prompt(tokens: &[u32]) -> Chain {
        Chain::of(Namespace::default(), BLOCK_TOKENS, tokens)
    }

    fn new(workers: u32) -> Self {
        let block_size = NonZeroU32::new(BLOCK_TOKENS).unwrap_or(NonZeroU32::MIN);
        let mut index = BlockIndex::new(block_size, IndexLimits::default());
        let slots = (0..workers).filter_map(|_| index.new_slot()).collect();
        Self { index, slots, counters: KvCounters::default(), overlaps: Overlaps::default() }
    }

    fn apply(&mut self, (worker, event): &Self::Event) {
        self.index.apply(self.slots[*worker as usize], event, &mut self.counters);
    }

    fn find(&mut self, prompt: &Chain) -> u64 {
        self.index.find(&prompt.hashes, &mut self.overlaps);
        self.overlaps.iter().map(|overlap| u64::from(overlap.gpu)).sum()
    }

    fn bytes(&self) -> usize {
        self.index.bytes()
    }
}
