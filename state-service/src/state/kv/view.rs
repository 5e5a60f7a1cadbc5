//! What is known of engines' caches and of bookings, for those who look. Changes nothing.

use super::super::State;
use super::super::binding::Slot;
use super::super::blocks::{BlockIndex, KvCounters, SlotId};
use super::super::kv_stream;
use super::super::workers::Worker;
use super::{Key, KvView, key_of};
use routing::contract::{Policy, Target};
use routing::id::PoolName;
use routing::time::Timestamp;

/// What is booked on a slot, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    /// Requests that were placed with their prompt and are not over, reservations included.
    pub requests: u64,
    /// Of these, reservations of hosts.
    pub by_hosts: u64,
    /// Tokens that wait for prefill, or are prefilled now.
    pub prefill_tokens: u64,
    /// Blocks they hold, shared ones once.
    pub blocks: u64,
}

impl Booked {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            by_hosts: self.by_hosts + other.by_hosts,
            prefill_tokens: self.prefill_tokens + other.prefill_tokens,
            blocks: self.blocks + other.blocks,
        }
    }
}

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

    /// Changes whenever whoever listens to a worker's ranks must begin anew.
    #[must_use]
    pub fn kv_source_number(&self, worker: &Worker) -> u64 {
        self.kv.source_number(worker)
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

    /// What is booked on a slot now; `None` where nothing ever is.
    #[must_use]
    pub fn kv_booked_on(&self, target: &Target) -> Option<Booked> {
        let worker = self.workers.by_id(&target.worker)?;
        self.pools.get(&worker.spec.pool).filter(|pool| pool.policy == Policy::KvAware)?;
        let seat = self.kv.bookings.seat_of(Slot::new(worker.hash, target.rank));
        let sums = self.kv.bookings.sums(seat);
        Some(Booked {
            requests: sums.booked,
            by_hosts: sums.by_hosts,
            prefill_tokens: sums.prefill_tokens,
            blocks: sums.decode_blocks,
        })
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
