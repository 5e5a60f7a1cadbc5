//! A slot's blocks as another replica may take them over: by segment, under the engine's handles. Reads a bounded part at a time.
//!
//! What is put in finds its place like what events store: a block that another slot holds already is the same block. A block of which
//! nobody knows what came before it begins a segment of its own; should it lie elsewhere already, it is not found there: a miss, never
//! a hit that is none.

use super::super::kv_event::{EngineHash, Tier};
use super::handles::Handles;
use super::segments::{Lane, Place};
use super::{BlockIndex, Ignored, KvCounters, SlotId, at};
use std::collections::BTreeSet;

/// One block that a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Which of its piece's blocks.
    pub at: u8,
    /// Where it is kept.
    pub tier: Tier,
    /// The engine's name for it.
    pub handle: EngineHash,
    /// Copies beyond the first.
    pub copies: u16,
}

/// Consecutive blocks of a chain, at most 64, the last of which the slot holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Seed of the chain's namespace (adapter and salt).
    pub seed: u64,
    /// Their chained hashes.
    pub hashes: Vec<u64>,
    /// What the slot holds of them, by place.
    pub held: Vec<Held>,
}

/// Where a block is, for as long as its slot holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot(Place);

impl Spot {
    /// Equal for blocks of one segment.
    #[must_use]
    pub const fn segment(self) -> usize {
        self.0.segment()
    }

    /// Which block of it.
    #[must_use]
    pub const fn at(self) -> u8 {
        self.0.offset() as u8
    }
}

impl BlockIndex {
    /// The handles of a slot in a tier in `max` places of their table from one on, and the place to go on from. Nothing of the slot
    /// may change in between.
    #[must_use]
    pub fn handles_from(
        &self,
        slot: SlotId,
        tier: Tier,
        from: usize,
        max: usize,
    ) -> (Vec<(Spot, Held)>, Option<usize>) {
        let tiers = self.slots.get(at(slot)).filter(|slot| slot.live).map(|slot| &slot.tiers);
        let Some(handles) = tiers.and_then(|tiers| tiers.get(tier as usize)) else {
            return (Vec::new(), None);
        };
        let (found, next) = handles.from(from, max);
        let held = |(handle, place, copies): (EngineHash, Place, u16)| {
            let spot = Spot(place);
            (spot, Held { at: spot.at(), tier, handle, copies })
        };
        (found.into_iter().map(held).collect(), next)
    }

    /// Seed and hashes of a segment up to a block that is held.
    #[must_use]
    pub fn up_to(&self, spot: Spot) -> Option<(u64, Vec<u64>)> {
        self.segments.up_to(spot.0)
    }

    /// The cache group that is scored there.
    #[must_use]
    pub fn scored_group(&self, slot: SlotId) -> Option<u32> {
        self.slots.get(at(slot)).and_then(|slot| slot.group)
    }

    /// Says which cache group is scored there. The slot must be empty.
    pub fn set_group(&mut self, slot: SlotId, group: Option<u32>) {
        if let Some(slot) = self.slots.get_mut(at(slot)).filter(|slot| slot.live) {
            slot.group = group;
        }
    }

    /// Puts blocks into a slot. Handles that it knows already are left out.
    pub fn put(&mut self, slot: SlotId, piece: &Piece, counters: &mut KvCounters) {
        if !self.slots.get(at(slot)).is_some_and(|slot| slot.live) {
            return counters.ignore(Ignored::UnknownSlot, piece.held.len());
        }
        let held = self.news(slot, piece);
        if self.room(Lane::new(slot, Tier::Gpu), 0) < held.len() {
            return counters.ignore(Ignored::OverLimit, held.len());
        }
        let (mut done, mut previous) = (0, None);
        while let Some(hash) = piece.hashes.get(done).copied() {
            let is_held = |block: &usize| held.binary_search_by_key(block, |held| held.at.into()).is_ok();
            let run = (done..piece.hashes.len()).take_while(is_held).count();
            if run == 0 {
                previous = self.segments.known(previous, hash);
                done += 1;
                continue;
            }
            let hashes = piece.hashes.get(done..done + run).unwrap_or_default();
            let Some((first, count)) = self.segments.stretch(previous, hashes, piece.seed, 0) else {
                return counters.ignore(Ignored::OverLimit, held.len());
            };
            for (offset, block) in (done..done + count).enumerate() {
                self.put_block(slot, first.plus(offset), &held, block, counters);
            }
            done += count;
            previous = Some(first.plus(count - 1));
        }
    }

    /// What is not held yet of a piece, each handle once, by place.
    fn news(&self, slot: SlotId, piece: &Piece) -> Vec<Held> {
        let mut seen = BTreeSet::new();
        let tiers = self.slots.get(at(slot)).map(|slot| &slot.tiers);
        let known = |held: &Held| {
            tiers
                .and_then(|tiers| tiers.get(held.tier as usize))
                .is_some_and(|tier| tier.get(held.handle).is_some())
        };
        let mut news: Vec<Held> = piece.held.iter().copied().filter(|held| !known(held)).collect();
        news.retain(|held| seen.insert((held.tier, held.handle)));
        news.sort_unstable();
        news
    }

    fn put_block(
        &mut self,
        slot: SlotId,
        place: Place,
        held: &[Held],
        block: usize,
        counters: &mut KvCounters,
    ) {
        let from = held.partition_point(|held| usize::from(held.at) < block);
        let here = held.iter().skip(from).take_while(|held| usize::from(held.at) == block);
        for Held { tier, handle, copies, .. } in here {
            let lane = Lane::new(slot, *tier);
            let Some(mut handles) = self.handles_mut(lane).map(std::mem::take) else { return };
            self.announce(lane, &mut handles, &[*handle], place, counters);
            handles.set_copies(*handle, *copies);
            if let Some(back) = self.handles_mut(lane) {
                *back = handles;
            }
        }
    }
}

impl Handles {
    fn from(&self, from: usize, max: usize) -> (Vec<(EngineHash, Place, u16)>, Option<usize>) {
        let (found, next) = self.places.from(from, max);
        let copies = |handle| self.copies.get(&handle).copied().unwrap_or(0);
        let each = found
            .into_iter()
            .map(|(handle, place)| (EngineHash(handle), Place::from_bits(place), copies(handle)));
        (each.collect(), next)
    }

    fn set_copies(&mut self, handle: EngineHash, copies: u16) {
        if copies > 0 {
            self.copies.insert(handle.0, copies);
        }
    }
}
