//! Storing: from an event's tokens to places held under the engine's handles. Decides what is ignored, and why.

use super::super::kv_event::{EngineHash, Tier};
use super::handles::{Announced, Handles};
use super::segments::{Lane, Place, Stretch};
use super::{BlockIndex, Ignored, KvCounters, at};

use routing::block::{self, BlockHash, Namespace};

/// Blocks hashed before any is placed: enough that waiting for memory overlaps.
const GROUP: usize = 32;

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
        let Some(mut handles) = self.handles_mut(lane).map(std::mem::take) else { return };
        let room = self.room(lane, handles.len()).min(store.hashes.len());
        let mut more = room;
        let tokens = store.tokens.chunks(GROUP * self.block_size.get() as usize);
        for (group, tokens) in store.hashes.chunks(GROUP).zip(tokens) {
            let group = group.get(..more).unwrap_or(group);
            more -= group.len();
            handles.touch(group);
            let hashes = self.hashes(tip, tokens, store.extra);
            match self.group(lane, &mut handles, (group, &hashes), tip, more, counters) {
                Some(last) => tip.last = Some(last),
                None => break,
            }
        }
        counters.ignore(Ignored::OverLimit, store.hashes.len() - room);
        if let Some(place) = self.handles_mut(lane) {
            *place = handles;
        }
    }

    /// Takes in the blocks of a group, a stretch at a time; gives back the last. `None` when there is none, or no room for it.
    fn group(
        &mut self,
        lane: Lane,
        handles: &mut Handles,
        (group, hashes): (&[EngineHash], &[u64; GROUP]),
        mut tip: Tip,
        more: usize,
        counters: &mut KvCounters,
    ) -> Option<(Place, BlockHash)> {
        let mut done = 0;
        while let Some(rest) = hashes.get(done..group.len()).filter(|rest| !rest.is_empty()) {
            let previous = tip.last.map(|(place, _)| place);
            let Some((first, count)) = self.segments.stretch(previous, rest, tip.seed, more) else {
                counters.ignore(Ignored::OverLimit, rest.len() + more);
                return None;
            };
            let count = self.announce(lane, handles, group.get(done..done + count)?, first, counters);
            done += count;
            tip.last = Some((first.plus(count - 1), BlockHash(*hashes.get(done - 1)?)));
        }
        tip.last
    }

    /// Announces handles for blocks in a row; how many it came to. It stops after one that stood for another block, as leaving that may
    /// have taken places not held yet.
    pub(super) fn announce(
        &mut self,
        lane: Lane,
        handles: &mut Handles,
        names: &[EngineHash],
        first: Place,
        counters: &mut KvCounters,
    ) -> usize {
        let mut new = Stretch::none(first);
        for (at, name) in names.iter().enumerate() {
            let place = first.plus(at);
            match handles.announce(*name, place) {
                Announced::New => new.add(place),
                Announced::Again => counters.again += 1,
                Announced::Uncounted => counters.uncounted += 1,
                Announced::Moved(before) => {
                    counters.moved += 1;
                    new.add(place);
                    self.hold(lane, new, counters);
                    self.release(lane, before);
                    return at + 1;
                }
            }
        }
        self.hold(lane, new, counters);
        names.len()
    }

    /// The chained hashes of up to [`GROUP`] blocks.
    fn hashes(&self, tip: Tip, tokens: &[u32], extra: u64) -> [u64; GROUP] {
        let mut hashes = [0; GROUP];
        let mut last = tip.last.map(|(_, hash)| hash);
        for (hash, tokens) in hashes.iter_mut().zip(tokens.chunks_exact(self.block_size.get() as usize)) {
            let chained = match last {
                None => block::first(tip.seed, tokens),
                Some(last) => block::next(last, tip.seed, tokens),
            };
            let chained = block::with_extra(chained, extra);
            *hash = chained.0;
            last = Some(chained);
        }
        hashes
    }

    /// Blocks that may still be added in a lane which has `handles` now.
    pub(super) fn room(&self, lane: Lane, handles: usize) -> usize {
        let others =
            self.slots.get(at(lane.slot())).map_or(0, |slot| slot.tiers.iter().map(Handles::len).sum());
        let slot = self.limits.slot_max.saturating_sub(handles + others);
        slot.min(self.limits.resident_max.saturating_sub(self.resident))
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
