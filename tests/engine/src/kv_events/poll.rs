//! TensorRT-LLM's events for one who asks: kept up to a number, given out once. A gap in the ids says that some were dropped.

use std::collections::VecDeque;

use super::event::{Event, Stored};
use crate::json::{Raw, object};

/// What the engine gives a block nobody set a priority for.
const PRIORITY: u32 = 35;

/// One rank's events that nobody has asked for yet.
pub(crate) struct Poll {
    max: usize,
    block_size: usize,
    /// Told where there is more than one.
    rank: Option<u32>,
    window: usize,
    next_id: u64,
    events: VecDeque<Raw>,
}

impl Poll {
    /// At most `max` events, the first of which says how many blocks there are.
    pub(crate) fn new(
        max: usize,
        block_size: usize,
        rank: Option<u32>,
        window: usize,
        blocks: usize,
    ) -> Self {
        let mut poll = Self { max, block_size, rank, window, next_id: 0, events: VecDeque::new() };
        poll.keep(&object! { "type": "created", "num_blocks_per_cache_level": [blocks, 0] });
        poll
    }

    /// What a step did.
    pub(crate) fn push(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Stored(stored) => {
                    let blocks: Vec<Raw> = stored.pages(self.block_size).map(|page| block(&page)).collect();
                    self.keep(&object! { "type": "stored", "parent_hash": stored.parent, "blocks": blocks });
                }
                Event::Removed(hashes) => self.keep(&object! { "type": "removed", "block_hashes": hashes }),
                Event::Cleared => {}
            }
        }
    }

    /// Everything kept, which is forgotten.
    pub(crate) fn drain(&mut self) -> Vec<Raw> {
        self.events.drain(..).collect()
    }

    fn keep(&mut self, data: &Raw) {
        let event = object! { "event_id": self.next_id, "data": data, "window_size": self.window };
        self.next_id += 1;
        self.events.push_back(match self.rank {
            Some(rank) => event.with("attention_dp_rank", rank),
            None => event,
        });
        if self.events.len() > self.max {
            self.events.pop_front();
        }
    }
}

fn block(page: &Stored) -> Raw {
    let token = |&token: &u32| object! { "type": "unique_token", "token_id": token, "token_extra_id": 0_u32 };
    let tokens: Vec<Raw> = page.tokens.iter().map(token).collect();
    object! {
        "type": "stored_block", "block_hash": page.hashes[0], "tokens": tokens, "cache_level": 0_u32,
        "priority": PRIORITY,
    }
}
