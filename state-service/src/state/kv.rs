//! What the fleet's ranks cache: a stream and an index slot for each rank, an index for each pool.
//!
//! Owns which rank has which slot, and what becomes of both when workers change. Order is `kv_stream.rs`'s, blocks are `blocks`',
//! what an overlap is worth is the policy's. What requests load slots with, and the choice by both, is in the modules beneath.

mod book;
mod bookings;
mod choose;
mod counts;
mod elsewhere;
mod handover;
mod intake;
mod look;
mod recent;
mod reserve;
mod runs;
mod seats;
mod sizes;
mod sources;
mod spread;
#[cfg(test)]
mod tests;
mod view;

pub(super) use choose::{Compared, slots_of};
pub use elsewhere::Carried;
pub use handover::{Hand, PIECES_AT_ONCE, SlotHead};
pub(super) use look::{Found, Looked};
pub use view::Booked;

use super::binding::Slot;
use super::blocks::{BlockIndex, KvCounters, SlotId};
use super::command::Effect;
use super::kv_event::{KvBatch, KvEvent, Tier};
use super::kv_stream::{self, Cause, Input, KvStream, Link, Trouble};
use super::workers::{Worker, Workers};
use crate::config::{KvSettings, ServiceConfig};
use crate::declare::kv_events::KvEvents;
use crate::tokenize::approximate::Placements;
use bookings::Bookings;
use handover::Waits;
use routing::id::{PoolName, Rank, WorkerId};
use routing::time::{Millis, Timestamp};
use sizes::{Dropped, RankSize, Votes};
use sources::Source;
use spread::Spread;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Ranks with a stream, over all workers. Past it a rank's events are refused, and counted.
pub(super) const RANKS_MAX: usize = 8192;
/// Tokens of a block of a pool of which nothing is known yet.
const BLOCK_SIZE_DEFAULT: u32 = 16;
/// Chunks of text remembered of one pool under `approximate` tokens, half of them at least.
const CHUNKS_MAX: usize = 262_144;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kv {
    settings: BTreeMap<PoolName, KvSettings>,
    bookings: Bookings,
    /// What others have booked.
    elsewhere: elsewhere::Elsewhere,
    /// Of pools under `approximate` tokens.
    placements: BTreeMap<PoolName, Placements>,
    /// What the last question had allocated.
    pub(super) found: Found,
    ranks: BTreeMap<Key, RankKv>,
    /// The index slots of those that cache anything. Asked for each slot at each choice; never walked.
    slots: HashMap<Key, SlotId, Spread>,
    indexes: BTreeMap<PoolName, BlockIndex>,
    counters: KvCounters,
    counts: BTreeMap<kv_stream::Count, u64>,
    refused: u64,
    /// Times that a rank's source took the place of another.
    sources: u64,
    votes: Votes,
    /// Times a pool's block size changed.
    resized: u64,
    /// Ranks whose streams do not know yet that their blocks went.
    dropped: Vec<Dropped>,
    /// Slots that are read, or filled: what their ranks publish waits.
    handing: BTreeMap<Key, Waits>,
    /// How many there have been.
    hands: u64,
    /// What is applied is kept beside, as others' slots may be taken over.
    joining: bool,
}

/// A worker by its hash, and a global rank.
type Key = (u64, u32);

#[derive(Debug)]
struct RankKv {
    stream: KvStream,
    link: Link,
    pool: PoolName,
    source: Source,
    /// Which of all the sources that took the place of another.
    source_number: u64,
    size: RankSize,
}

/// How a rank's events do, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvView {
    /// How they reach us.
    pub link: Link,
    /// Events taken, live and replayed.
    pub events: u64,
    /// Number of the last batch applied.
    pub last_seq: Option<u64>,
    /// Since the last live batch.
    pub heard_ago: Option<Millis>,
    /// Whether something may be missing.
    pub cold: bool,
    /// Why nothing is heard although it serves.
    pub silent: Option<Cause>,
    /// Why it may be known to cache less than it does.
    pub trouble: Option<Trouble>,
    /// Blocks held: device, host, disk.
    pub blocks: [usize; 3],
}

impl Kv {
    pub(super) fn new(config: &ServiceConfig) -> Self {
        let approximate = config.tokens.iter().filter(|(_, tokens)| tokens.is_approximate());
        let ttl = |pool| config.kv.get(pool).copied().unwrap_or_default().placement_ttl;
        Self {
            settings: config.kv.clone(),
            placements: approximate
                .map(|(pool, _)| (pool.clone(), Placements::new(CHUNKS_MAX, ttl(pool))))
                .collect(),
            ..Self::default()
        }
    }

    fn settings(&self, pool: &PoolName) -> KvSettings {
        self.settings.get(pool).copied().unwrap_or_default()
    }

    fn step(&mut self, now: Timestamp, key: Key, input: Input) -> Vec<kv_stream::Effect> {
        let mut effects = Vec::new();
        if let Some(rank) = self.ranks.get_mut(&key) {
            rank.stream.step(now, input, &mut effects);
        }
        effects
    }

    /// Does what a stream wants; what the shell must do goes to `out`.
    fn carry_out(
        &mut self,
        key: Key,
        worker: &WorkerId,
        effects: Vec<kv_stream::Effect>,
        out: &mut Vec<Effect>,
    ) {
        for effect in effects {
            match effect {
                kv_stream::Effect::Apply(batch) => self.apply_or_wait(key, batch),
                kv_stream::Effect::Clear => self.clear(key),
                kv_stream::Effect::Count(count) => *self.counts.entry(count).or_default() += 1,
                kv_stream::Effect::AskReplay { attempt, from } => {
                    out.push(Effect::Replay { worker: worker.clone(), rank: key.1, attempt, from });
                }
            }
        }
    }

    fn apply(&mut self, key: Key, batch: &KvBatch) {
        for event in &batch.events {
            if *event == KvEvent::Cleared {
                self.expect_nothing(key);
            }
            self.learn_size(key, event);
            let Some(slot) = self.slot_of(key) else { continue };
            let index = self.ranks.get(&key).and_then(|rank| self.indexes.get_mut(&rank.pool));
            if let Some(index) = index {
                index.apply(slot, event, &mut self.counters);
            }
        }
    }

    /// A rank's slot, new if it has none.
    fn slot_of(&mut self, key: Key) -> Option<SlotId> {
        let index = self.ranks.get(&key).and_then(|rank| self.indexes.get_mut(&rank.pool))?;
        match self.slots.entry(key) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(place) => index.new_slot().map(|slot| *place.insert(slot)),
        }
    }

    fn clear(&mut self, key: Key) {
        // What waits is older.
        self.handing.remove(&key);
        let Some(rank) = self.ranks.get(&key) else { return };
        if let (Some(slot), Some(index)) = (self.slots.get(&key), self.indexes.get_mut(&rank.pool)) {
            index.clear(*slot);
        }
        self.relearn_size(key);
        self.expect_nothing(key);
    }

    /// What was sent to a rank before its cache was emptied is not there.
    fn expect_nothing(&mut self, key: Key) {
        self.bookings.forget_expected(Slot::new(key.0, Some(Rank(key.1))));
        self.bookings.forget_expected(Slot::new(key.0, None));
    }

    fn drop_rank(&mut self, key: Key) {
        self.forget_vote(key);
        self.handing.remove(&key);
        let Some(rank) = self.ranks.remove(&key) else { return };
        if let (Some(slot), Some(index)) = (self.slots.remove(&key), self.indexes.get_mut(&rank.pool)) {
            index.drop_slot(slot);
        }
        if !self.ranks.values().any(|other| other.pool == rank.pool) {
            self.indexes.remove(&rank.pool);
        }
    }

    /// Forgets the ranks of a worker that are not declared any more, or are in another pool now.
    fn settle(&mut self, now: Timestamp, hash: u64, worker: Option<&Worker>, by_events: bool) {
        let stays = |rank: u32, pool: &PoolName| {
            worker.is_some_and(|worker| worker.spec.pool == *pool && has_rank(worker, rank))
        };
        let of_worker = self.ranks.range((hash, 0)..=(hash, u32::MAX));
        let gone: Vec<Key> =
            of_worker.filter(|(key, rank)| !stays(key.1, &rank.pool)).map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|key| self.drop_rank(key));
        if let Some(worker) = worker {
            self.settle_sources(now, worker, by_events);
            self.settle_sizes(worker);
        }
        self.settle_bookings(hash, worker);
    }

    fn rank(&mut self, worker: &Worker, rank: u32) -> Option<&mut RankKv> {
        let key = (worker.hash, rank);
        if !has_rank(worker, rank) || (self.ranks.len() >= RANKS_MAX && !self.ranks.contains_key(&key)) {
            self.refused += 1;
            return None;
        }
        let (pool, source) = (worker.spec.pool.clone(), Source::of(worker, rank)?);
        let link = if worker.spec.kv_events == KvEvents::Off { Link::Off } else { Link::default() };
        let size = RankSize::told_by(worker);
        let stream = self.new_stream();
        let new = || RankKv { stream, link, pool, source, source_number: 0, size };
        Some(self.ranks.entry(key).or_insert_with(new))
    }

    fn view(&self, now: Timestamp, key: Key) -> Option<KvView> {
        let rank = self.ranks.get(&key)?;
        let is_odd = self.is_odd(rank);
        let blocks = |tier| {
            let (slot, index) = self.slots.get(&key).zip(self.indexes.get(&rank.pool))?;
            Some(index.handles(*slot, tier))
        };
        Some(KvView {
            link: rank.link,
            events: rank.stream.events(),
            last_seq: rank.stream.last_seq(),
            heard_ago: rank.stream.heard_at().map(|at| now.since(at)),
            cold: rank.stream.is_cold() || is_odd,
            silent: rank.stream.silence(now, rank.link),
            trouble: is_odd.then_some(Trouble::OtherBlockSize).or_else(|| rank.stream.trouble(now)),
            blocks: [Tier::Gpu, Tier::Host, Tier::Disk].map(|tier| blocks(tier).unwrap_or(0)),
        })
    }
}

fn has_rank(worker: &Worker, rank: u32) -> bool {
    let start = worker.spec.rank_start();
    (start..start.saturating_add(worker.spec.rank_count())).contains(&rank)
}

/// A worker with one rank is addressed without it; of several none is meant then.
fn key_of(workers: &Workers, slot: Slot) -> Option<Key> {
    let worker = workers.by_hash(slot.worker)?;
    let only = || (worker.spec.rank_count() == 1).then(|| worker.spec.rank_start());
    Some((slot.worker, slot.rank().map(|Rank(rank)| rank).or_else(only)?))
}
