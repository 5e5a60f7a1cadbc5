//! How far into a prompt a slot is with what is active there, and with what was sent there just now.
//!
//! A chained hash names a block and all before it, so a prompt is known by a few of them: its marks, two blocks apart at first
//! and further on the longer it is, and its end. What two prompts share is seen to the last mark they share, never further than
//! it is. Knows neither requests nor events.

use super::spread::Spread;
use routing::block::BlockHash;
use routing::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// Most (mark, slot)s. Past it a prompt is not followed.
const HELD_MAX: usize = 4_000_000;

/// Marks of a prompt of some thousand blocks: room that is had at once.
const MARKS_USUAL: usize = 64;

/// One block of a prompt by which it is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) struct Mark {
    hash: u64,
    /// Blocks up to it, itself included.
    at: u32,
}

/// The marks of a prompt.
pub(in crate::state) type Marks = Arc<[Mark]>;

/// Blocks from one mark to the next. By position alone, so that all prompts have theirs at the same places.
const fn step(at: usize) -> usize {
    match at {
        0..16 => 2,
        16..128 => 8,
        128..512 => 16,
        512..4096 => 32,
        _ => 128,
    }
}

pub(in crate::state) fn marks(hashes: &[BlockHash]) -> Marks {
    let grid = std::iter::successors(Some(step(0)), |at| Some(at + step(*at)));
    let places = grid.take_while(|at| *at < hashes.len()).chain([hashes.len()]);
    let mark = |at: usize| {
        let hash = hashes.get(at.checked_sub(1)?)?.0;
        Some(Mark { hash, at: u32::try_from(at).ok()? })
    };
    let mut marks = Vec::with_capacity(MARKS_USUAL);
    marks.extend(places.filter_map(mark));
    marks.into()
}

/// What a slot has to do with a mark.
#[derive(Clone, Copy, Debug)]
struct Held {
    slot: u32,
    /// Active requests there that go through it.
    active: u32,
    /// Of these, not prefilled yet.
    prefilling: u32,
    /// One was sent there, and counts as cached until then; zero: none.
    until: Timestamp,
}

/// Marks of everything that is active or expected, over all slots.
#[derive(Debug, Default)]
pub(in crate::state) struct Runs {
    /// Each sorted by slot.
    held: HashMap<u64, Vec<Held>, Spread>,
    len: usize,
}

/// How far one slot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::state) struct Depth {
    /// Leading blocks that something active there holds.
    pub(in crate::state) active: u32,
    /// Leading blocks of something that is not prefilled yet.
    pub(in crate::state) prefilling: u32,
    /// Leading blocks that it has, or is about to.
    pub(in crate::state) expected: u32,
}

/// How far each slot is. Kept and used again, it allocates nothing.
#[derive(Debug, Default)]
pub(in crate::state) struct Depths(Vec<Depth>);

impl Depths {
    pub(in crate::state) fn of(&self, slot: u32) -> Depth {
        self.0.get(slot as usize).copied().unwrap_or_default()
    }

    /// Twelve bytes for each slot are zeroed sooner than it is noted which need be.
    fn begin(&mut self, slots: usize) {
        self.0.clear();
        self.0.resize(slots, Depth::default());
    }
}

impl Depth {
    /// Something at a slot goes through the mark at `at`.
    const fn reach(&mut self, at: u32, held: &Held, now: Timestamp) {
        let is_active = held.active > 0;
        self.active = if is_active { at } else { self.active };
        self.prefilling = if held.prefilling > 0 { at } else { self.prefilling };
        self.expected = if is_active | (held.until.0 > now.0) { at } else { self.expected };
    }
}

impl Runs {
    /// Whether one more prompt can be followed.
    pub(in crate::state) fn has_room(&self, marks: &[Mark]) -> bool {
        self.len + marks.len() <= HELD_MAX
    }

    /// (Mark, slot)s kept.
    pub(in crate::state) const fn len(&self) -> usize {
        self.len
    }

    /// A request becomes active, and is to be prefilled or not: how many blocks it adds to what is. Its prompt is expected to be
    /// cached there until then; zero: it is not.
    pub(in crate::state) fn enter(
        &mut self,
        slot: u32,
        marks: &[Mark],
        prefilling: bool,
        until: Timestamp,
    ) -> u64 {
        self.each(slot, marks, |held| {
            held.active += 1;
            held.prefilling += u32::from(prefilling);
            held.until = held.until.max(until);
            held.active == 1
        })
    }

    /// It is prefilled now.
    pub(in crate::state) fn computed(&mut self, slot: u32, marks: &[Mark]) {
        self.each(slot, marks, |held| {
            held.prefilling = held.prefilling.saturating_sub(1);
            false
        });
    }

    /// It ends, prefilled before or not: how many blocks nothing active holds any more.
    pub(in crate::state) fn leave(&mut self, slot: u32, marks: &[Mark], prefilling: bool) -> u64 {
        self.each(slot, marks, |held| {
            held.active = held.active.saturating_sub(1);
            held.prefilling = held.prefilling.saturating_sub(u32::from(prefilling));
            held.active == 0
        })
    }

    /// Nothing is expected of it any more, unless it was sent again.
    pub(in crate::state) fn forget(&mut self, slot: u32, marks: &[Mark], up_to: Timestamp) {
        self.each(slot, marks, |held| {
            if held.until <= up_to {
                held.until = Timestamp::default();
            }
            false
        });
    }

    /// How far each of the first `slots` is into a prompt.
    pub(in crate::state) fn find(&self, marks: &[Mark], (now, slots): (Timestamp, usize), out: &mut Depths) {
        out.begin(slots);
        for mark in marks {
            let Some(all) = self.held.get(&mark.hash) else { break };
            for held in all {
                if let Some(depth) = out.0.get_mut(held.slot as usize) {
                    depth.reach(mark.at, held, now);
                }
            }
        }
    }

    /// Changes what a slot has to do with each mark; sum of the blocks up to those for which `change` says so.
    fn each(&mut self, slot: u32, marks: &[Mark], mut change: impl FnMut(&mut Held) -> bool) -> u64 {
        let (mut before, mut blocks) = (0, 0);
        for mark in marks {
            let all = self.held.entry(mark.hash).or_default();
            let was = all.len();
            let place = all.binary_search_by_key(&slot, |held| held.slot);
            let at = place.unwrap_or_else(|at| {
                all.insert(at, Held { slot, active: 0, prefilling: 0, until: Timestamp::default() });
                at
            });
            if let Some(held) = all.get_mut(at) {
                if change(held) {
                    blocks += u64::from(mark.at - before);
                }
                if held.active == 0 && held.until == Timestamp::default() {
                    all.remove(at);
                }
            }
            self.len = self.len + all.len() - was;
            if all.is_empty() {
                self.held.remove(&mark.hash);
            }
            before = mark.at;
        }
        blocks
    }
}
