//! What is known of engines' caches and of bookings, for those who look. Changes nothing.

use super::super::State;
use super::super::binding::Slot;
use super::super::blocks::{BlockIndex, KvCounters, SlotId};
use super::super::kv_stream;
use super::{Key, KvView, key_of};
use routing::contract::Target;
use routing::id::PoolName;
use routing::time::Timestamp;

impl State {
    /// How the events of a slot do; `None` of slots without.
    #[must_use]
    pub fn kv_view(&self, now: Timestamp, target: &Target) -> Option<KvView> {
        self.kv.view(now, self.kv_key(target)?)
    }

    fn kv_key(&self, target: &Target) -> Option<Key> {
        let worker = self.workers.by_id(&target.worker)?;
        key_of(&self.workers, Slot::new(worker.hash, target.rank))
    }

    /// A pool's index; `None` until its engines have stored a block.
    #[must_use]
    pub fn kv_index(&self, pool: &PoolName) -> Option<&BlockIndex> {
        self.kv.indexes.get(pool)
    }

    /// A slot's place in its pool's index; `None` while nothing is known of it.
    #[must_use]
    pub fn kv_slot(&self, target: &Target) -> Option<SlotId> {
        self.kv.slots.get(&self.kv_key(target)?).copied()
    }

    /// What streams and indexes counted, and the ranks refused.
    #[must_use]
    pub fn kv_counts(&self) -> (KvCounters, Vec<(&'static str, u64)>) {
        let counts = kv_stream::Count::ALL
            .map(|count| (count.word(), self.kv.counts.get(&count).copied().unwrap_or(0)));
        (
            self.kv.counters,
            counts
                .into_iter()
                .chain([("rank_refused", self.kv.refused), ("block_size_changed", self.kv.resized)])
                .collect(),
        )
    }

    /// What became of bookings.
    pub fn kv_bookings(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.kv.bookings.counts()
    }

    /// Bookings, prompts expected to be cached soon, and marks kept of both.
    #[must_use]
    pub fn kv_booked(&self) -> [usize; 3] {
        self.kv.bookings.sizes()
    }

    /// Resident blocks and bytes of each pool's index.
    pub fn kv_sizes(&self) -> impl Iterator<Item = (&PoolName, usize, usize)> {
        self.kv.indexes.iter().map(|(pool, index)| (pool, index.resident(), index.bytes()))
    }

    /// Ranks that serve and say nothing.
    #[must_use]
    pub fn kv_silent(&self, now: Timestamp) -> usize {
        self.kv.ranks.values().filter(|rank| rank.stream.silence(now, rank.link).is_some()).count()
    }
}
