//! The block index of one pool: which slot holds which blocks, and how far into a prompt each slot's cache reaches.
//!
//! Owns the handles engines use for their blocks (opaque, a map for each slot and tier), the chains of blocks under our own hashes
//! ([`segments`]), and the answer to a prompt ([`find`]). A block is resident in a (slot, tier) while at least one handle there stands
//! for it. Deliberately knows no wire, no sequence numbers, no workers, no load and no predictions: it believes each event it is given
//! and may lag an engine, never lead it, so whatever is doubtful is ignored and counted ([`counters`]).

mod copy;
mod counters;
mod find;
mod handles;
mod remove;
mod segments;
mod store;
mod table;

pub use copy::{Held, Piece, Spot};
pub use counters::{Ignored, KvCounters};
pub use find::{Overlap, Overlaps};

use super::kv_event::{EngineHash, KvEvent, Tier};
use handles::Handles;
use segments::{Lane, Place, Segments};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use store::Store;

/// Slots of a pool; 1,024 workers with 8 ranks each.
pub const SLOTS_MAX: u32 = 8192;
/// Tiers a slot may keep blocks in.
const TIERS: usize = 3;

/// A (worker, rank) as the index knows it: small, dense, and given to another once dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(u32);

impl SlotId {
    /// Below [`SLOTS_MAX`].
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// How much an index may hold. At a limit blocks are ignored and counted, until others are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLimits {
    /// Resident blocks of all slots.
    pub resident_max: usize,
    /// Handles of one slot, all tiers together.
    pub slot_max: usize,
}

impl Default for IndexLimits {
    /// What 8,192 slots need in the largest fleet designed for, and a slot's own cache many times over.
    fn default() -> Self {
        Self { resident_max: 50_000_000, slot_max: 8_000_000 }
    }
}

/// Who holds which blocks. One for each pool, as a pool has one block size.
#[derive(Debug)]
pub struct BlockIndex {
    block_size: NonZeroU32,
    limits: IndexLimits,
    slots: Vec<Slot>,
    /// Dropped slots, to be handed out again.
    free: Vec<SlotId>,
    segments: Segments,
    /// Handles beyond the first that stand for the same block of the same lane.
    twins: BTreeMap<(Lane, Place), u32>,
    resident: usize,
    /// Of these, on host or disk: while there are none, a search need not look at tiers.
    below: usize,
}

#[derive(Debug, Default)]
struct Slot {
    live: bool,
    /// The group that is scored: the first one of the right kind that stored something.
    group: Option<u32>,
    tiers: [Handles; TIERS],
}

impl BlockIndex {
    /// An empty index of blocks of `block_size` tokens.
    #[must_use]
    pub const fn new(block_size: NonZeroU32, limits: IndexLimits) -> Self {
        Self {
            block_size,
            limits,
            slots: Vec::new(),
            free: Vec::new(),
            segments: Segments::new(),
            twins: BTreeMap::new(),
            resident: 0,
            below: 0,
        }
    }

    /// A slot that holds nothing; `None` at [`SLOTS_MAX`].
    pub fn new_slot(&mut self) -> Option<SlotId> {
        let fresh = || u32::try_from(self.slots.len()).ok().filter(|n| *n < SLOTS_MAX).map(SlotId);
        let id = self.free.pop().or_else(fresh)?;
        let slot = Slot { live: true, ..Slot::default() };
        match self.slots.get_mut(at(id)) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        Some(id)
    }

    /// Takes in one event of a slot. Events of slots that were dropped are counted.
    pub fn apply(&mut self, slot: SlotId, event: &KvEvent, counters: &mut KvCounters) {
        if !self.slots.get(at(slot)).is_some_and(|slot| slot.live) {
            return counters.ignore(Ignored::UnknownSlot, weight(event));
        }
        match event {
            KvEvent::Stored {
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
            } => {
                let (lora, salt) = (lora.as_deref(), salt.as_deref());
                let (parent, extra, group) = (*parent, *extra, kind_ok.then_some(*group));
                let (hashes, tokens, block_size) = (hashes.as_slice(), tokens.as_slice(), *block_size);
                let store = Store { hashes, parent, tokens, block_size, lora, salt, extra, group };
                self.store(Lane::new(slot, *tier), &store, counters);
            }
            KvEvent::Removed { hashes, tier, group } => {
                self.remove(Lane::new(slot, *tier), hashes, *group, counters);
            }
            KvEvent::Cleared => {
                counters.clears += 1;
                self.clear(slot);
            }
        }
    }

    /// Resident (slot, tier, block)s.
    #[must_use]
    pub const fn resident(&self) -> usize {
        self.resident
    }

    /// Handles of a slot in a tier: its resident blocks, twins counted apart.
    #[must_use]
    pub fn handles(&self, slot: SlotId, tier: Tier) -> usize {
        self.slots.get(at(slot)).and_then(|slot| slot.tiers.get(tier as usize)).map_or(0, Handles::len)
    }

    /// Bytes allocated, but for what the allocator adds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let handles = self.slots.iter().flat_map(|slot| &slot.tiers).map(Handles::bytes).sum::<usize>();
        let twins = self.twins.len() * size_of::<((Lane, Place), u32)>();
        handles + twins + self.slots.capacity() * size_of::<Slot>() + self.segments.bytes()
    }

    /// Tokens of a block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size.get()
    }

    fn handles_mut(&mut self, lane: Lane) -> Option<&mut Handles> {
        self.slots.get_mut(at(lane.slot()))?.tiers.get_mut(lane.tier())
    }

    /// Where the block is that a slot calls `hash`, in the lane's own tier or else the nearest.
    fn place_of(&self, lane: Lane, hash: EngineHash) -> Option<Place> {
        let tiers = &self.slots.get(at(lane.slot()))?.tiers;
        let own = tiers.get(lane.tier()).and_then(|tier| tier.get(hash));
        own.or_else(|| tiers.iter().find_map(|tier| tier.get(hash)))
    }
}

/// Blocks an event speaks of, at least one.
fn weight(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, .. } | KvEvent::Removed { hashes, .. } => hashes.len().max(1),
        KvEvent::Cleared => 1,
    }
}

const fn at(slot: SlotId) -> usize {
    slot.0 as usize
}
