//! The question the index is for: how many leading blocks of a prompt does each slot hold? One pass over the prompt, whatever the
//! number of slots.

use super::segments::{Holder, Segment};
use super::{BlockIndex, SlotId, TIERS};
use routing::block::BlockHash;

/// How far into a prompt one slot's cache reaches, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Whose.
    pub slot: SlotId,
    /// Leading blocks held on the device, without a gap.
    pub gpu: u32,
    /// Blocks right after these, without a gap, held on the device or the host.
    pub host: u32,
    /// Blocks right after those, without a gap, held anywhere.
    pub disk: u32,
}

/// The answer to [`BlockIndex::find`]: an overlap for each slot that has any. Kept and used again, it allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Overlaps {
    /// By slot: blocks reached on the device, with the host, with everything. Zero but for those of `reached`.
    depths: Vec<[u32; TIERS]>,
    /// Slots that hold some of the first segment, ascending.
    reached: Vec<u32>,
    tiered: bool,
}

impl Overlaps {
    /// Of each slot that holds at least the first block, by slot.
    pub fn iter(&self) -> impl Iterator<Item = Overlap> {
        self.reached
            .iter()
            .map(|slot| self.of(SlotId(*slot)))
            .filter(|found| found.gpu + found.host + found.disk > 0)
    }

    /// Of one slot; zeros if it holds nothing of the prompt.
    #[must_use]
    pub fn of(&self, slot: SlotId) -> Overlap {
        let depths = self.depths.get(slot.0 as usize).copied().unwrap_or_default();
        let [gpu, host, disk] = if self.tiered { depths } else { [depths[0]; TIERS] };
        Overlap { slot, gpu, host: host.saturating_sub(gpu), disk: disk.saturating_sub(host) }
    }

    fn begin(&mut self, slots: usize, tiered: bool) {
        for slot in self.reached.drain(..) {
            if let Some(depths) = self.depths.get_mut(slot as usize) {
                *depths = [0; TIERS];
            }
        }
        self.depths.resize(slots, [0; TIERS]);
        self.tiered = tiered;
    }

    /// The first `matched` blocks of the first segment are the prompt's. Whether anybody holds all of these.
    fn enter(&mut self, matched: u32, holders: &[Holder]) -> bool {
        let mut through = false;
        for holder in holders {
            let slot = holder.lane.slot().0;
            let run = holder.mask().trailing_ones().min(matched);
            if let Some([depth, ..]) = self.depths.get_mut(slot as usize) {
                *depth = run;
                self.reached.push(slot);
                through |= run == matched;
            }
        }
        through
    }

    /// The same for a segment that begins at block `at`, for the slots that reached it.
    fn advance(&mut self, at: u32, matched: u32, holders: &[Holder]) -> bool {
        let mut through = false;
        for holder in holders {
            if let Some([depth, ..]) = self.depths.get_mut(holder.lane.slot().0 as usize)
                && *depth == at
            {
                let run = holder.mask().trailing_ones().min(matched);
                *depth = at + run;
                through |= run == matched;
            }
        }
        through
    }

    /// The same where blocks may be in several tiers: each tier's depth counts those nearer too.
    fn advance_tiers(&mut self, at: u32, matched: u32, holders: &[Holder]) -> bool {
        let mut through = false;
        for group in holders.chunk_by(|left, right| left.lane.slot() == right.lane.slot()) {
            let Some(slot) = group.first().map(|holder| holder.lane.slot().0) else { continue };
            let Some(depths) = self.depths.get_mut(slot as usize) else { continue };
            if at == 0 {
                self.reached.push(slot);
            }
            for (tier, depth) in depths.iter_mut().enumerate().filter(|(_, depth)| **depth == at) {
                let held = group.iter().filter(|holder| holder.lane.tier() <= tier);
                let mask = held.fold(0, |mask, holder| mask | holder.mask());
                let run = mask.trailing_ones().min(matched);
                *depth = at + run;
                through |= run == matched;
            }
        }
        through
    }
}

impl BlockIndex {
    /// How many leading blocks of a prompt each slot holds.
    pub fn find(&self, chain: &[BlockHash], out: &mut Overlaps) {
        out.begin(self.slots.len(), self.below > 0);
        let mut rest = chain;
        let mut at = 0;
        while let Some(segment) = rest.first().and_then(|first| self.segments.beginning_with(first.0)) {
            let matched = matching(segment, rest);
            let holders = segment.holders();
            let through = match (out.tiered, at) {
                (true, _) => out.advance_tiers(at, matched as u32, holders),
                (false, 0) => out.enter(matched as u32, holders),
                (false, _) => out.advance(at, matched as u32, holders),
            };
            if !through {
                break;
            }
            at += matched as u32;
            rest = rest.get(matched..).unwrap_or_default();
        }
    }
}

/// Blocks of a segment that are the prompt's next, at least its first. Hashes are chained: where one is equal, all before it are.
#[inline]
fn matching(segment: &Segment, rest: &[BlockHash]) -> usize {
    let hashes = segment.hashes();
    let both = hashes.len().min(rest.len());
    let is_equal = |at: usize| hashes.get(at) == rest.get(at).map(|hash| &hash.0);
    let last = both.saturating_sub(1);
    if is_equal(last) {
        return last + 1;
    }
    let (mut equal, mut different) = (0, last);
    while different - equal > 1 {
        let middle = (equal + different) / 2;
        if is_equal(middle) { equal = middle } else { different = middle }
    }
    equal + 1
}
