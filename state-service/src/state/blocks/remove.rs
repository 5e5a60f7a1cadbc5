//! Removing: blocks by their handles, a slot's all, a slot. What is not known is counted and nothing else happens.

use super::super::kv_event::{EngineHash, Tier};
use super::handles::Forgotten;
use super::segments::{Lane, Place};
use super::{BlockIndex, Ignored, KvCounters, Slot, SlotId, at};

impl BlockIndex {
    pub(super) fn remove(
        &mut self,
        lane: Lane,
        hashes: &[EngineHash],
        group: u32,
        counters: &mut KvCounters,
    ) {
        let scored = self.slots.get(at(lane.slot())).and_then(|slot| slot.group);
        if scored.is_some_and(|scored| scored != group) {
            return counters.ignore(Ignored::OtherGroup, hashes.len());
        }
        if let Some(handles) = self.handles_mut(lane) {
            handles.touch(hashes);
        }
        for hash in hashes {
            let Some(handles) = self.handles_mut(lane) else { return };
            match handles.forget(*hash) {
                Forgotten::Unknown => counters.ignore(Ignored::UnknownRemoved, 1),
                Forgotten::Copy => counters.copies_removed += 1,
                Forgotten::Last(place) => {
                    counters.removed += 1;
                    self.release(lane, place);
                }
            }
        }
    }

    /// One handle of the lane no longer stands for the block.
    pub(super) fn release(&mut self, lane: Lane, place: Place) {
        if !self.twins.is_empty()
            && let Some(twins) = self.twins.get_mut(&(lane, place))
        {
            *twins -= 1;
            if *twins == 0 {
                self.twins.remove(&(lane, place));
            }
            return;
        }
        if self.segments.release(place, lane) {
            self.released(lane, 1);
        }
    }

    fn released(&mut self, lane: Lane, blocks: usize) {
        self.resident -= blocks;
        if lane.tier() != Tier::Gpu as usize {
            self.below -= blocks;
        }
    }

    /// Forgets all a slot holds, in every tier, and which group is scored there. The slot stays.
    pub fn clear(&mut self, slot: SlotId) {
        let Some(entry) = self.slots.get_mut(at(slot)) else { return };
        let before = std::mem::replace(entry, Slot { live: entry.live, ..Slot::default() });
        for (lane, handles) in Lane::of(slot).into_iter().zip(&before.tiers) {
            for place in handles.places() {
                let blocks = self.segments.release_all(place, lane);
                self.released(lane, blocks);
            }
            self.drop_twins(lane);
        }
    }

    fn drop_twins(&mut self, lane: Lane) {
        let range = (lane, Place::from_bits(0))..=(lane, Place::from_bits(u32::MAX));
        let gone: Vec<_> = self.twins.range(range).map(|(key, _)| *key).collect();
        for key in gone {
            self.twins.remove(&key);
        }
    }

    /// Forgets a slot; its id goes to the next that asks. Whatever still comes for it before that is counted as unknown.
    pub fn drop_slot(&mut self, slot: SlotId) {
        self.clear(slot);
        if let Some(entry) = self.slots.get_mut(at(slot)).filter(|entry| entry.live) {
            entry.live = false;
            self.free.push(slot);
        }
    }
}
