//! Tokens of a block: what each rank publishes, and which of it its pool's index goes by.
//!
//! An index has one size: what its pool's config says, or that of most ranks that publish now. So an odd rank empties nobody else, and
//! a size that nobody publishes any more is replaced by what comes. Whose blocks go with an old index is cold; whose blocks were
//! ignored before is replayed. Knows the votes; what an index is stays `blocks`' business.

use super::super::blocks::{BlockIndex, IndexLimits};
use super::super::kv_event::{KvEvent, Tier};
use super::super::workers::Worker;
use super::{Key, Kv, RankKv};
use routing::id::PoolName;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// A rank is known by its size after so many blocks of it: the first may be short tails.
const LEARNED: usize = 16;

/// What one rank publishes; what is counted, since its slot was cleared.
#[derive(Debug, Default)]
pub(super) struct RankSize {
    /// As its engine says; events may come of larger ones, and of shorter tails.
    told: Option<NonZeroU32>,
    vote: Option<NonZeroU32>,
    /// Blocks of that size.
    seen: usize,
    /// Blocks that the index did not take for their size.
    ignored: usize,
}

impl RankSize {
    pub(super) fn told_by(worker: &Worker) -> Self {
        Self { told: worker.spec.block_size.and_then(NonZeroU32::new), ..Self::default() }
    }

    fn note(&mut self, size: NonZeroU32, blocks: usize) {
        let is_tail = self.told.is_some_and(|told| size < told) && self.ignored < LEARNED;
        match self.vote {
            Some(vote) if vote == size => self.seen = self.seen.saturating_add(blocks),
            _ if is_tail => {}
            Some(vote) if self.seen > 0 && (size < vote || self.seen >= LEARNED) => {}
            Some(_) | None => (self.vote, self.seen) = (Some(size), blocks),
        }
    }

    /// Whether its blocks are of another size than the index's.
    fn is_odd(&self, known: Option<u32>) -> bool {
        self.ignored > 0 && self.vote.map(NonZeroU32::get) != known
    }
}

/// How many ranks publish blocks of each size, by pool.
#[derive(Debug, Default)]
pub(super) struct Votes(BTreeMap<PoolName, BTreeMap<NonZeroU32, u32>>);

impl Votes {
    fn change(&mut self, pool: &PoolName, before: Option<NonZeroU32>, now: Option<NonZeroU32>) {
        if before == now {
            return;
        }
        let votes = self.0.entry(pool.clone()).or_default();
        if let Some(now) = now {
            *votes.entry(now).or_default() += 1;
        }
        if let Some(count) = before.and_then(|before| votes.get_mut(&before)) {
            *count = count.saturating_sub(1);
        }
        votes.retain(|_, count| *count > 0);
        if votes.is_empty() {
            self.0.remove(pool);
        }
    }

    /// The size of most; of as many the one that is `known`, or else the largest.
    fn most(&self, pool: &PoolName, known: Option<u32>) -> Option<NonZeroU32> {
        let votes = self.0.get(pool)?;
        let best = votes.iter().max_by_key(|(size, count)| (**count, Some(size.get()) == known, **size));
        best.map(|(size, _)| *size)
    }
}

/// An index began anew: what becomes of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped {
    pub(super) key: Key,
    /// What it published is wanted again.
    pub(super) again: bool,
}

/// Size and number of an event's blocks, if they are whole.
fn whole(event: &KvEvent) -> Option<(NonZeroU32, usize)> {
    let KvEvent::Stored { hashes, tokens, block_size, kind_ok: true, .. } = event else { return None };
    let size = NonZeroU32::new(*block_size)?;
    let whole = usize::try_from(size.get()).ok()?.checked_mul(hashes.len())?;
    (whole == tokens.len()).then_some((size, hashes.len()))
}

impl Kv {
    /// Takes note of an event's size before the event is applied.
    pub(super) fn learn_size(&mut self, key: Key, event: &KvEvent) {
        let Some((size, blocks)) = whole(event) else { return };
        if !self.has_size(key, size, blocks)
            && let Some(rank) = self.ranks.get_mut(&key)
        {
            rank.size.ignored = rank.size.ignored.saturating_add(blocks);
        }
    }

    /// A rank publishes so many blocks of a size. Whether its pool's index goes by that.
    pub(super) fn has_size(&mut self, key: Key, size: NonZeroU32, blocks: usize) -> bool {
        let Some(rank) = self.ranks.get_mut(&key) else { return true };
        let before = rank.size.vote;
        rank.size.note(size, blocks);
        let known = self.indexes.get(&rank.pool).map(BlockIndex::block_size);
        if known == Some(size.get()) && before == rank.size.vote {
            return true;
        }
        self.votes.change(&rank.pool, before, rank.size.vote);
        let pool = rank.pool.clone();
        self.elect(&pool, known, size) == Some(size.get())
    }

    /// Which size the index has from now on; while nobody's counts, that of the first event.
    fn elect(&mut self, pool: &PoolName, known: Option<u32>, first: NonZeroU32) -> Option<u32> {
        let set = self.settings(pool).block_size;
        let wanted = set.or_else(|| self.votes.most(pool, known));
        let wanted = wanted.or_else(|| known.is_none().then_some(first))?;
        if known != Some(wanted.get()) {
            self.begin_index(pool, wanted);
        }
        Some(wanted.get())
    }

    fn begin_index(&mut self, pool: &PoolName, size: NonZeroU32) {
        self.break_hands(pool);
        let old = self.indexes.insert(pool.clone(), BlockIndex::new(size, IndexLimits::default()));
        self.resized += u64::from(old.is_some());
        for (key, rank) in self.ranks.iter().filter(|(_, rank)| rank.pool == *pool) {
            let slot = self.slots.remove(key).zip(old.as_ref());
            let held = slot.is_some_and(|(slot, index)| {
                [Tier::Gpu, Tier::Host, Tier::Disk].into_iter().any(|tier| index.handles(slot, tier) > 0)
            });
            let (its_own, ignored) = (rank.size.vote == Some(size), rank.size.ignored > 0);
            match (its_own, ignored, held) {
                (true, true, _) => self.dropped.push(Dropped { key: *key, again: true }),
                (false, _, true) => self.dropped.push(Dropped { key: *key, again: false }),
                // Short tails of its own at most.
                (true, false, _) | (false, _, false) => {}
            }
        }
    }

    /// A slot was cleared: its rank may come with another size. One that is not listened to any more has no say.
    pub(super) fn relearn_size(&mut self, key: Key) {
        let Some(rank) = self.ranks.get_mut(&key) else { return };
        (rank.size.seen, rank.size.ignored) = (0, 0);
        if !rank.stream.is_listened_to() {
            self.forget_vote(key);
        }
    }

    pub(super) fn forget_vote(&mut self, key: Key) {
        let Some(rank) = self.ranks.get_mut(&key) else { return };
        self.votes.change(&rank.pool, rank.size.vote.take(), None);
    }

    /// Its engine may have told another size.
    pub(super) fn settle_sizes(&mut self, worker: &Worker) {
        let told = RankSize::told_by(worker).told;
        let of_worker = self.ranks.range_mut((worker.hash, 0)..=(worker.hash, u32::MAX));
        of_worker.for_each(|(_, rank)| rank.size.told = told);
    }

    /// Whether the blocks of a rank are ignored for their size.
    pub(super) fn is_odd(&self, rank: &RankKv) -> bool {
        rank.size.is_odd(self.indexes.get(&rank.pool).map(BlockIndex::block_size))
    }
}
