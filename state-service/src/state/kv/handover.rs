//! Slots handed from one replica to another: read here in bounded parts, or taken over and filled in bounded parts.
//!
//! While that goes on, what the rank publishes waits, so that the blocks are those of one moment. It waits up to a weight; past it, or
//! when the slot is emptied meanwhile, the handing over is off and nothing waits any more. Knows no bytes and no peers.

use super::super::State;
use super::super::blocks::{Held, Piece, SlotId, Spot};
use super::super::command::Effect;
use super::super::kv_event::{KvBatch, Tier};
use super::super::kv_stream::{KvStream, Link, Reach, Unfit, weight};
use super::super::workers::Worker;
use super::{Key, Kv, has_rank};
use routing::contract::Engine;
use routing::id::{PoolName, WorkerId};
use routing::time::Timestamp;
use std::num::NonZeroU32;

/// What may wait for one slot, in tokens and hashes.
pub(super) const WAITING_WEIGHT_MAX: usize = 1 << 19;
/// Buckets of handles looked at under one lock.
const BUCKETS_AT_ONCE: usize = 8192;
/// Pieces read or put in under one lock: at most 64 blocks each.
pub const PIECES_AT_ONCE: usize = 32;

/// What is to be known of a slot beside its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHead {
    /// The pool whose index it is of.
    pub pool: PoolName,
    /// The worker.
    pub worker: WorkerId,
    /// Its global rank.
    pub rank: u32,
    /// Where that rank serves, as declared.
    pub address: String,
    /// Tokens of a block.
    pub block_size: NonZeroU32,
    /// The cache group that is scored.
    pub group: Option<u32>,
    /// How far it is.
    pub reach: Reach,
}

/// Some of a slot's blocks, and where to go on from.
type Part = (Vec<(Spot, Held)>, Option<usize>);

/// A slot that is being handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    key: Key,
    number: u64,
    slot: SlotId,
}

/// What waits for it.
#[derive(Debug)]
pub(super) struct Waits {
    number: u64,
    batches: Vec<KvBatch>,
    weight: usize,
    /// It is being filled.
    filling: bool,
    /// Its index is another by now.
    broken: bool,
}

impl Waits {
    const fn is_of(&self, hand: Hand) -> bool {
        self.number == hand.number && !self.broken
    }
}

impl Kv {
    /// Applies a batch, or has it wait.
    pub(super) fn apply_or_wait(&mut self, key: Key, batch: KvBatch) {
        let Some(waits) = self.handing.get_mut(&key) else { return self.apply(key, &batch) };
        waits.weight += weight(&batch);
        waits.batches.push(batch);
        if waits.weight > WAITING_WEIGHT_MAX {
            self.let_go(key);
        }
    }

    /// Nothing waits for the slot any more; what waited is applied.
    fn let_go(&mut self, key: Key) {
        let Some(waits) = self.handing.remove(&key) else { return };
        if waits.filling
            && let Some(rank) = self.ranks.get_mut(&key)
        {
            rank.stream.lacks();
        }
        waits.batches.iter().for_each(|batch| self.apply(key, batch));
    }

    /// The pool's index begins anew: no slot of it is what it was.
    pub(super) fn break_hands(&mut self, pool: &PoolName) {
        let (ranks, handing) = (&self.ranks, &mut self.handing);
        let of_pool = |key: &Key| ranks.get(key).is_some_and(|rank| rank.pool == *pool);
        handing.iter_mut().filter(|(key, _)| of_pool(key)).for_each(|(_, waits)| waits.broken = true);
    }

    fn hand_over(&mut self, key: Key, batches: Vec<KvBatch>, filling: bool) -> Option<Hand> {
        let slot = *self.slots.get(&key)?;
        self.hands += 1;
        let (number, weight) = (self.hands, batches.iter().map(weight).sum());
        self.handing.insert(key, Waits { number, batches, weight, filling, broken: false });
        Some(Hand { key, number, slot })
    }

    /// Whether it goes on.
    fn goes_on(&self, hand: Hand) -> bool {
        let same = self.handing.get(&hand.key).is_some_and(|waits| waits.is_of(hand));
        same && self.slots.get(&hand.key) == Some(&hand.slot)
    }

    /// Ranks whose slots may be handed over: those heard from a publisher, whose numbers all replicas hear.
    fn handable(worker: &Worker, link: Link) -> bool {
        link == Link::Up && worker.spec.engine != Engine::Trtllm
    }

    fn whose(&self, worker: &Worker, rank: u32) -> Option<(Key, String)> {
        let key = (worker.hash, rank);
        let known = self.ranks.get(&key).filter(|known| known.pool == worker.spec.pool)?;
        Some((key, known.source.address()))
    }

    /// A replica joins: what ranks publish is kept beside, or is no longer.
    fn keep(&mut self, keep: bool) {
        self.joining = keep;
        self.ranks.values_mut().for_each(|rank| rank.stream.keep(keep));
    }

    pub(super) fn new_stream(&self) -> KvStream {
        let mut stream = KvStream::default();
        stream.keep(self.joining);
        stream
    }
}

impl State {
    /// Whether this replica joins others, and may take over what they hold.
    pub fn kv_joining(&mut self, joining: bool) {
        self.kv.keep(joining);
    }

    /// Ranks whose events reach us, whose blocks may be read.
    #[must_use]
    pub fn kv_handable(&self) -> Vec<(WorkerId, u32)> {
        let slots = self.kv.ranks.iter().filter(|(key, _)| self.kv.slots.contains_key(key));
        let named = slots.filter_map(|(key, rank)| {
            let worker = self.workers.by_hash(key.0).filter(|worker| Kv::handable(worker, rank.link))?;
            Some((worker.spec.id.clone(), key.1))
        });
        named.collect()
    }

    /// Begins to read a slot. No batch may be under way in parts.
    ///
    /// # Errors
    /// [`Unfit`]: there is nothing to be read, or it is in doubt.
    pub fn kv_read(&mut self, worker: &WorkerId, rank: u32) -> Result<(Hand, SlotHead), Unfit> {
        let worker = self.workers.by_id(worker).ok_or(Unfit::Unknown)?;
        let (key, address) = self.kv.whose(worker, rank).ok_or(Unfit::Unknown)?;
        let known = self.kv.ranks.get(&key).filter(|known| Kv::handable(worker, known.link));
        let reach = known.and_then(|known| known.stream.reach()).ok_or(Unfit::NotConnected)?;
        if self.kv.handing.contains_key(&key) {
            return Err(Unfit::Busy);
        }
        let index = self.kv.indexes.get(&worker.spec.pool).ok_or(Unfit::Unknown)?;
        let slot = self.kv.slots.get(&key).ok_or(Unfit::Unknown)?;
        let head = SlotHead {
            pool: worker.spec.pool.clone(),
            worker: worker.spec.id.clone(),
            rank,
            address,
            block_size: NonZeroU32::new(index.block_size()).ok_or(Unfit::Unknown)?,
            group: index.scored_group(*slot),
            reach,
        };
        let hand = self.kv.hand_over(key, Vec::new(), false).ok_or(Unfit::Unknown)?;
        Ok((hand, head))
    }

    /// Handles of a slot that is read, from a place of their table on, and the next place.
    ///
    /// # Errors
    /// [`Unfit::Busy`]: it changed.
    pub fn kv_handles(&self, hand: Hand, tier: Tier, from: usize) -> Result<Part, Unfit> {
        let index = self.kv.index_of(hand)?;
        Ok(index.handles_from(hand.slot, tier, from, BUCKETS_AT_ONCE))
    }

    /// Seeds and hashes of segments up to these blocks.
    ///
    /// # Errors
    /// [`Unfit::Busy`]: it changed.
    pub fn kv_hashes(&self, hand: Hand, spots: &[Spot]) -> Result<Vec<(u64, Vec<u64>)>, Unfit> {
        let index = self.kv.index_of(hand)?;
        spots.iter().map(|spot| index.up_to(*spot).ok_or(Unfit::Busy)).collect()
    }

    /// Begins to fill a slot that was read from another replica. No batch may be under way in parts.
    ///
    /// # Errors
    /// [`Unfit`]; nothing changed but, it may be, the pool's block size.
    pub fn kv_take_over(
        &mut self,
        now: Timestamp,
        head: &SlotHead,
        blocks: usize,
        out: &mut Vec<Effect>,
    ) -> Result<Hand, Unfit> {
        let worker = self.workers.by_id(&head.worker).filter(|worker| has_rank(worker, head.rank));
        let worker = worker.filter(|worker| worker.spec.pool == head.pool).ok_or(Unfit::Unknown)?;
        let (key, address) = self.kv.whose(worker, head.rank).ok_or(Unfit::NotConnected)?;
        if address != head.address {
            return Err(Unfit::Unknown);
        }
        if !self.kv.ranks.get(&key).is_some_and(|known| Kv::handable(worker, known.link)) {
            return Err(Unfit::NotConnected);
        }
        if self.kv.handing.contains_key(&key) {
            return Err(Unfit::Busy);
        }
        let batches = self.kv.take_over(now, key, head, blocks);
        self.tell_dropped(now, out);
        let hand = batches.and_then(|batches| self.kv.hand_over(key, batches, true).ok_or(Unfit::Busy))?;
        Ok(hand)
    }

    /// Puts blocks into a slot that is filled.
    ///
    /// # Errors
    /// [`Unfit::Busy`]: it changed, and is what this replica heard of it.
    pub fn kv_put(&mut self, hand: Hand, pieces: &[Piece]) -> Result<(), Unfit> {
        self.kv.index_of(hand)?;
        let pool = self.kv.ranks.get(&hand.key).map(|rank| rank.pool.clone()).ok_or(Unfit::Busy)?;
        let index = self.kv.indexes.get_mut(&pool).ok_or(Unfit::Busy)?;
        pieces.iter().for_each(|piece| index.put(hand.slot, piece, &mut self.kv.counters));
        Ok(())
    }

    /// Everything was put in.
    ///
    /// # Errors
    /// [`Unfit::Busy`]: it changed.
    pub fn kv_filled(&mut self, hand: Hand) -> Result<(), Unfit> {
        let waits = self.kv.handing.get_mut(&hand.key).filter(|waits| waits.is_of(hand));
        waits.map(|waits| waits.filling = false).ok_or(Unfit::Busy)
    }

    /// Ends it: what waited is applied. A slot that was not filled up is cold.
    pub fn kv_let_go(&mut self, now: Timestamp, hand: Hand, out: &mut Vec<Effect>) {
        if self.kv.handing.get(&hand.key).is_some_and(|waits| waits.number == hand.number) {
            self.kv.let_go(hand.key);
            self.tell_dropped(now, out);
        }
    }
}

impl Kv {
    fn index_of(&self, hand: Hand) -> Result<&super::BlockIndex, Unfit> {
        let rank = self.ranks.get(&hand.key).filter(|_| self.goes_on(hand)).ok_or(Unfit::Busy)?;
        self.indexes.get(&rank.pool).ok_or(Unfit::Busy)
    }

    fn take_over(
        &mut self,
        now: Timestamp,
        key: Key,
        head: &SlotHead,
        blocks: usize,
    ) -> Result<Vec<KvBatch>, Unfit> {
        let rank = self.ranks.get(&key).ok_or(Unfit::Unknown)?;
        rank.stream.fits(&head.reach)?;
        if !self.has_size(key, head.block_size, blocks) {
            return Err(Unfit::OtherBlockSize);
        }
        let rank = self.ranks.get_mut(&key).ok_or(Unfit::Unknown)?;
        let batches = rank.stream.take_over(now, &head.reach)?;
        self.clear(key);
        // What was cleared has no say of its size; what comes has.
        self.has_size(key, head.block_size, blocks);
        let slot = self.slot_of(key);
        let rank = self.ranks.get_mut(&key).ok_or(Unfit::Unknown)?;
        match slot.zip(self.indexes.get_mut(&rank.pool)) {
            Some((slot, index)) => index.set_group(slot, head.group),
            // No room for one more slot.
            None => rank.stream.lacks(),
        }
        Ok(batches)
    }
}
