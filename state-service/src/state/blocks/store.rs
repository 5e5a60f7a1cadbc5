//! Storing: from an event's tokens to places held under the engine's handles. Decides what is ignored, and why.

use super::super::kv_event::{EngineHash, Tier};
use super::handles::{Announced, Handles};
use super::segments::{Lane, Place, Stretch};
use super::{BlockIndex, Ignored, KvCounters, at};

use routing::block::{self, BlockHash, Namespace};

/// What an event says that stores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store<'a> {
    pub(super) hashes: &'a [EngineHash],
    pub(super) parent: Option<EngineHash>,
    pub(super) tokens: &'a [u32],
    pub(super) block_size: u32,
    pub(super) lora: Option<&'a str>,
    pub(super) salt: Option<&'a str>,
    pub(super) extra: u64,
    /// `None` when it is of a kind that is not scored.
    pub(super) group: Option<u32>,
}

/// The end of the chain so far.
#[derive(Clone, Copy, Debug)]
struct Tip {
    last: Option<(Place, BlockHash)>,
    seed: u64,
}

impl BlockIndex {
    pub(super) fn store(&mut self, lane: Lane, store: &Store<'_>, counters: &mut KvCounters) {
        let tip = self
            .check(store)
            .and_then(|()| self.settle_group(lane, store))
            .and_then(|()| self.tip(lane, store).ok_or(Ignored::UnknownParent));
        match tip {
            Ok(tip) => self.chain(lane, store, tip, counters),
            Err(reason) => counters.ignore(reason, store.hashes.len().max(1)),
        }
    }

    /// Whether each hash has its block of tokens.
    fn check(&self, store: &Store<'_>) -> Result<(), Ignored> {
        if store.block_size == 0 || store.tokens.is_empty() {
            return Err(Ignored::Placeholder);
        }
        if store.block_size != self.block_size() {
            return Err(Ignored::OtherBlockSize);
        }
        let size = self.block_size.get() as usize;
        let pairs = store.hashes.len().checked_mul(size) == Some(store.tokens.len());
        if pairs { Ok(()) } else { Err(Ignored::Misshapen) }
    }

    /// Hybrid models use one hash in several groups, each with blocks of its own; one of them is scored.
    fn settle_group(&mut self, lane: Lane, store: &Store<'_>) -> Result<(), Ignored> {
        let group = store.group.ok_or(Ignored::OtherGroup)?;
        let slot = self.slots.get_mut(at(lane.slot())).ok_or(Ignored::UnknownSlot)?;
        if *slot.group.get_or_insert(group) == group { Ok(()) } else { Err(Ignored::OtherGroup) }
    }

    /// Where the event's blocks begin. A chain's namespace is that of its first block: engines name a salt there only.
    fn tip(&self, lane: Lane, store: &Store<'_>) -> Option<Tip> {
        let Some(parent) = store.parent else {
            let seed = block::seed(Namespace { lora: store.lora, salt: store.salt });
            return Some(Tip { last: None, seed });
        };
        let place = self.place_of(lane, parent)?;
        let (hash, seed) = self.segments.block(place)?;
        Some(Tip { last: Some((place, BlockHash(hash))), seed })
    }

    fn chain(&mut self, lane: Lane, store: &Store<'_>, mut tip: Tip, counters: &mut KvCounters) {
        let size = self.block_size.get() as usize;
        let mut more = store.hashes.len();
        // New to the lane, but not yet given to it: one call does for all of a segment.
        let mut new = Stretch::default();
        if let Some(handles) = self.handles_mut(lane) {
            handles.touch(store.hashes);
        }
        for (handle, tokens) in store.hashes.iter().zip(store.tokens.chunks_exact(size)) {
            let hash = match tip.last {
                None => block::first(tip.seed, tokens),
                Some((_, last)) => block::next(last, tip.seed, tokens),
            };
            let hash = block::with_extra(hash, store.extra);
            let previous = tip.last.map(|(place, _)| place);
            let free = self.has_room(lane, new);
            let place = free.then(|| self.segments.place(previous, hash.0, tip.seed, more - 1)).flatten();
            let Some(place) = place else {
                counters.ignore(Ignored::OverLimit, more);
                break;
            };
            self.announce(lane, *handle, place, &mut new, counters);
            tip.last = Some((place, hash));
            more -= 1;
        }
        self.hold(lane, new, counters);
    }

    fn has_room(&self, lane: Lane, new: Stretch) -> bool {
        let slot = self.slots.get(at(lane.slot()));
        let handles = slot.map_or(0, |slot| slot.tiers.iter().map(Handles::len).sum::<usize>());
        self.resident + (new.len() as usize) < self.limits.resident_max && handles < self.limits.slot_max
    }

    fn announce(
        &mut self,
        lane: Lane,
        handle: EngineHash,
        place: Place,
        new: &mut Stretch,
        counters: &mut KvCounters,
    ) {
        let Some(handles) = self.handles_mut(lane) else { return };
        match handles.announce(handle, place) {
            Announced::New => {
                if !new.add(place) {
                    self.hold(lane, std::mem::replace(new, Stretch::of(place)), counters);
                }
            }
            Announced::Again => counters.again += 1,
            Announced::Uncounted => counters.uncounted += 1,
            Announced::Moved(before) => {
                counters.moved += 1;
                // In this order, so that the chain's last block cannot vanish under it.
                self.hold(lane, std::mem::take(new), counters);
                self.hold(lane, Stretch::of(place), counters);
                self.release(lane, before);
            }
        }
    }

    fn hold(&mut self, lane: Lane, blocks: Stretch, counters: &mut KvCounters) {
        if blocks.len() == 0 {
            return;
        }
        let twins = self.segments.hold(blocks, lane);
        counters.stored += u64::from(blocks.len());
        counters.twins += u64::from(twins.len());
        let fresh = (blocks.len() - twins.len()) as usize;
        self.resident += fresh;
        self.below += if lane.tier() == Tier::Gpu as usize { 0 } else { fresh };
        for twin in twins.places() {
            *self.twins.entry((lane, twin)).or_default() += 1;
        }
    }
}
