//! A prompt as the slots of its pool find it: what each holds of it, and what each has to do besides.
//!
//! Owns how events, bookings and expectations become the terms of a cost. Changes nothing.

use super::super::State;
use super::super::binding::Slot;
use super::super::blocks::{self, Overlaps};
use super::super::workers::Worker;
use super::runs::{Depth, Depths, Marks, marks};
use super::seats::Sums;
use super::{BLOCK_SIZE_DEFAULT, Key, Kv};
use routing::block::Chain;
use routing::contract::{Overlap, Policy, PoolInfo};
use routing::id::{PoolName, Rank};
use routing::policy::kv::{Size, Terms};
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;

/// One prompt, looked up once for all slots.
#[derive(Debug)]
pub(in crate::state) struct Looked {
    /// Its blocks; none where they are not known.
    pub(super) chain: Chain,
    pub(super) marks: Marks,
    /// Whether there is a prompt at all.
    pub(super) has_prompt: bool,
    pub(super) size: Size,
    /// Blocks it takes.
    pub(super) blocks: u64,
    /// Blocks of it that a cache can serve: all full ones, but for the last if nothing comes after it.
    servable: u32,
    found: Found,
}

/// What was found of it. Kept and used again.
#[derive(Debug, Default)]
pub(in crate::state) struct Found {
    events: Overlaps,
    depths: Depths,
    /// Under `approximate` tokens: where it was sent, seat by seat.
    placed: Option<BTreeMap<u32, u32>>,
}

/// What one slot holds of it: what was told, then what is expected besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::state) struct Holds {
    pub(super) gpu: u32,
    pub(super) host: u32,
    pub(super) disk: u32,
    pub(super) expected: u32,
    /// Of what is active there.
    pub(super) active: u32,
    /// Of what is being prefilled there, and nobody told of yet.
    pub(super) computing: u32,
}

impl Holds {
    /// Blocks it is known to hold, in whichever tier.
    pub(super) const fn known(self) -> u32 {
        self.gpu + self.host + self.disk
    }

    /// What engines never reuse is not held: at least one token is always computed.
    const fn within(self, most: u32) -> Self {
        let gpu = least(self.gpu, most);
        let host = least(self.host, most - gpu);
        let disk = least(self.disk, most - gpu - host);
        let expected = least(self.expected, most - gpu - host - disk);
        Self { gpu, host, disk, expected, ..self }
    }
}

fn servable(chain: &Chain, block_size: u32) -> u32 {
    let last = chain.tokens.saturating_sub(1) / block_size.max(1);
    last.min(u32::try_from(chain.hashes.len()).unwrap_or(u32::MAX))
}

const fn least(left: u32, right: u32) -> u32 {
    if left < right { left } else { right }
}

/// One slot as a prompt finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) holds: Holds,
    pub(super) sums: Sums,
    /// Ranks it stands for.
    pub(super) share: u32,
}

/// Ranks of one worker, asked for once.
#[derive(Clone, Copy)]
struct Ranks {
    start: u32,
    count: u32,
}

impl Ranks {
    fn of(worker: &Worker) -> Self {
        Self { start: worker.spec.rank_start(), count: worker.spec.rank_count() }
    }

    fn slots(self, worker: u64) -> impl Iterator<Item = Slot> {
        let ranks = self.start..self.start.saturating_add(self.count);
        ranks.map(move |rank| Slot::new(worker, Some(Rank(rank))))
    }
}

impl Looked {
    pub(super) fn overlap(&self, holds: Holds) -> Overlap {
        let of = u32::try_from(self.chain.hashes.len()).unwrap_or(u32::MAX);
        Overlap { blocks: holds.known(), of }
    }

    fn depth(&self, seat: Option<u32>) -> Depth {
        seat.map_or_else(Depth::default, |seat| self.found.depths.of(seat))
    }

    /// Whether there is anything to be looked for.
    pub(in crate::state) const fn has_blocks(&self) -> bool {
        !self.chain.hashes.is_empty()
    }

    /// Gives what was allocated back.
    pub(in crate::state) fn into_found(self) -> Found {
        self.found
    }
}

impl Kv {
    /// Tokens of a block of a pool.
    pub(in crate::state) fn block_size(&self, pool: &PoolName) -> u32 {
        self.known_block_size(pool).unwrap_or(BLOCK_SIZE_DEFAULT)
    }

    fn known_block_size(&self, pool: &PoolName) -> Option<u32> {
        let set = self.settings(pool).block_size.map(std::num::NonZeroU32::get);
        set.or_else(|| self.indexes.get(pool).map(blocks::BlockIndex::block_size))
    }

    /// Looks a prompt up. `None` in pools that do not choose by it.
    pub(in crate::state) fn look(
        &self,
        now: Timestamp,
        pool: &PoolInfo,
        chain: Option<Chain>,
        mut found: Found,
    ) -> Option<Looked> {
        if pool.policy != Policy::KvAware {
            return None;
        }
        let has_prompt = chain.as_ref().is_some_and(|chain| chain.tokens > 0);
        let chain = chain.unwrap_or_default();
        let block_size = if chain.block_size > 0 { chain.block_size } else { self.block_size(&pool.name) };
        let marks = marks(&chain.hashes);
        self.bookings.find(&marks, now, &mut found.depths);
        let placements = self.placements.get(&pool.name);
        found.placed = placements.map(|placements| placements.find(&chain.hashes, Millis(now.0)));
        let nothing = BlockIndexOrNone(self.indexes.get(&pool.name).filter(|_| placements.is_none()));
        nothing.find(&chain, &mut found.events);
        let size = Size { tokens: chain.tokens.into(), block_size };
        let (blocks, servable) = (size.blocks(), servable(&chain, block_size));
        Some(Looked { chain, marks, has_prompt, size, blocks, servable, found })
    }

    /// What a slot of a worker holds of it: of a slot without a rank what its ranks hold in the mean.
    pub(super) fn holds(&self, looked: &Looked, worker: &Worker, slot: Slot) -> Holds {
        self.held(looked, Ranks::of(worker), slot, self.bookings.seat_of(slot))
    }

    fn held(&self, looked: &Looked, ranks: Ranks, slot: Slot, seat: Option<u32>) -> Holds {
        if slot.rank().is_some() || ranks.count == 1 {
            let rank = slot.rank().map_or(ranks.start, |rank| rank.0);
            return self.held_by(looked, (slot.worker, rank), seat);
        }
        let each = ranks.slots(slot.worker).zip(ranks.start..);
        let each =
            each.map(|(slot, rank)| self.held_by(looked, (slot.worker, rank), self.bookings.seat_of(slot)));
        mean(each, ranks.count, looked.depth(seat))
    }

    fn held_by(&self, looked: &Looked, key: Key, seat: Option<u32>) -> Holds {
        let depth = looked.depth(seat);
        let known = match &looked.found.placed {
            Some(placed) => {
                let run = seat.and_then(|seat| placed.get(&seat).copied());
                Holds { gpu: run.unwrap_or(0), ..Holds::default() }
            }
            None => self.slots.get(&key).map_or_else(Holds::default, |slot| {
                let blocks::Overlap { gpu, host, disk, .. } = looked.found.events.of(*slot);
                Holds { gpu, host, disk, ..Holds::default() }
            }),
        };
        let expected = depth.expected.saturating_sub(known.known());
        // What is only known to have been sent there may still be computed.
        let told = if looked.found.placed.is_some() { 0 } else { known.known() };
        let computing = depth.prefilling.saturating_sub(told);
        Holds { expected, active: depth.active, computing, ..known }.within(looked.servable)
    }

    /// What is told of the slot that was chosen.
    pub(in crate::state) fn overlap(&self, looked: &Looked, worker: &Worker, slot: Slot) -> Overlap {
        looked.overlap(self.holds(looked, worker, slot))
    }

    /// One slot as the prompt finds it.
    pub(super) fn at(&self, looked: &Looked, worker: &Worker, slot: Slot) -> At {
        let ranks = Ranks::of(worker);
        let seat = self.bookings.seat_of(slot);
        let share = if slot.rank().is_some() { 1 } else { ranks.count.max(1) };
        At { holds: self.held(looked, ranks, slot, seat), sums: self.booked(ranks, slot, seat), share }
    }

    /// Sums over all replicas' bookings of a slot, with its part of those of its worker as a whole. Of a slot without a rank: the mean.
    fn booked(&self, ranks: Ranks, slot: Slot, seat: Option<u32>) -> Sums {
        let own = self.bookings.sums(seat).plus(self.elsewhere.on(slot));
        if ranks.count <= 1 {
            return own;
        }
        let of = |slot| self.bookings.sums(self.bookings.seat_of(slot)).plus(self.elsewhere.on(slot));
        let count = u64::from(ranks.count);
        if slot.rank().is_some() {
            return own.plus(of(Slot::new(slot.worker, None)).divided(count));
        }
        let each = ranks.slots(slot.worker).map(of);
        each.fold(Sums::default(), Sums::plus).divided(count).plus(own.divided(count))
    }
}

impl At {
    /// The terms of a cost; `others` are requests of which no prompt is known, `typical` the blocks of one.
    pub(super) fn terms(&self, looked: &Looked, others: u64, typical: u64) -> Terms {
        let At { holds, sums, .. } = self;
        let computing = u64::from(holds.computing).saturating_mul(looked.size.block_size.into());
        Terms {
            active_prefill_tokens: sums.prefill_tokens.saturating_sub(computing),
            active_decode_blocks: sums.decode_blocks.saturating_add(others.saturating_mul(typical)),
            added_blocks: looked.blocks.saturating_sub(holds.active.into()),
            gpu: holds.gpu,
            host: holds.host,
            disk: holds.disk,
            predicted: holds.expected,
        }
    }
}

/// An index, or none yet: then nobody holds anything.
struct BlockIndexOrNone<'a>(Option<&'a blocks::BlockIndex>);

impl BlockIndexOrNone<'_> {
    fn find(&self, chain: &Chain, out: &mut Overlaps) {
        match self.0 {
            Some(index) => index.find(&chain.hashes, out),
            None => *out = Overlaps::default(),
        }
    }
}

fn add<const N: usize>(mut left: [u64; N], right: [u64; N]) -> [u64; N] {
    left.iter_mut().zip(right).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    left
}

fn mean(each: impl Iterator<Item = Holds>, count: u32, whole: Depth) -> Holds {
    let mut sums = [0u64; 6];
    for held in each {
        let of = [held.gpu, held.host, held.disk, held.expected, held.active, held.computing];
        sums = add(sums, of.map(u64::from));
    }
    let [gpu, host, disk, expected, active, computing] =
        sums.map(|sum| u32::try_from(sum / u64::from(count.max(1))).unwrap_or(u32::MAX));
    Holds {
        gpu,
        host,
        disk,
        expected,
        active: active.max(whole.active),
        computing: computing.max(whole.prefilling),
    }
}

impl State {
    /// Tokens of a block of a pool, as its config, its engines' events or what an engine told of itself have it.
    #[must_use]
    pub fn kv_block_size(&self, pool: &PoolName) -> u32 {
        let told = || {
            let mut of_pool = self.workers.iter().filter(|worker| worker.spec.pool == *pool);
            of_pool.find_map(|worker| worker.spec.block_size).filter(|size| *size > 0)
        };
        self.kv.known_block_size(pool).or_else(told).unwrap_or(BLOCK_SIZE_DEFAULT)
    }
}
