//! What the state is told of ranks' events: inputs and links of their streams, time, declarations, and that they serve.

use super::super::State;
use super::super::binding::Slot;
use super::super::command::Effect;
use super::super::error::StateError;
use super::super::kv_stream::{Input, Link};
use super::sizes::Dropped;
use super::{Key, Kv, RankKv, key_of};
use routing::contract::Policy;
use routing::id::{PoolName, WorkerId};
use routing::time::Timestamp;

impl State {
    /// Takes what happened to a rank's events.
    pub(in crate::state) fn kv(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        rank: u32,
        inputs: Vec<Input>,
        out: &mut Vec<Effect>,
    ) -> Result<(), StateError> {
        let worker = self.workers.by_id(id).ok_or_else(|| StateError::UnknownWorker { id: id.clone() })?;
        let key = (worker.hash, rank);
        if self.kv.rank(worker, rank).is_none() {
            return Err(StateError::UnknownRank { worker: id.clone(), rank });
        }
        for input in inputs {
            let effects = self.kv.step(now, key, input);
            self.kv.carry_out(key, id, effects, out);
        }
        self.tell_dropped(now, out);
        Ok(())
    }

    /// Takes how a rank's events reach us now.
    pub(in crate::state) fn kv_link(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        rank: u32,
        link: Link,
        out: &mut Vec<Effect>,
    ) -> Result<(), StateError> {
        let worker = self.workers.by_id(id).ok_or_else(|| StateError::UnknownWorker { id: id.clone() })?;
        let key = (worker.hash, rank);
        if Kv::is_unasked(worker, rank, link) {
            return Ok(());
        }
        let known = self.kv.rank(worker, rank);
        let known = known.ok_or_else(|| StateError::UnknownRank { worker: id.clone(), rank })?;
        known.link = link;
        let effects = self.kv.step(now, key, Input::Link(link));
        self.kv.carry_out(key, id, effects, out);
        Ok(())
    }

    pub(in crate::state) fn tick_kv(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        self.kv.bookings.expire(now);
        self.kv.elsewhere.expire(now);
        let keys: Vec<Key> = self.kv.ranks.keys().copied().collect();
        for key in keys {
            let effects = self.kv.step(now, key, Input::Tick);
            if effects.is_empty() {
                continue;
            }
            let Some(id) = self.workers.by_hash(key.0).map(|worker| worker.spec.id.clone()) else { continue };
            self.kv.carry_out(key, &id, effects, out);
        }
        self.tell_dropped(now, out);
    }

    /// Streams whose blocks went with an index hear of it.
    pub(super) fn tell_dropped(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        while let Some(Dropped { key, again }) = self.kv.dropped.pop() {
            let Some(id) = self.workers.by_hash(key.0).map(|worker| worker.spec.id.clone()) else { continue };
            let effects = self.kv.step(now, key, Input::Dropped { again });
            self.kv.carry_out(key, &id, effects, out);
        }
    }

    pub(in crate::state) fn settle_kv(&mut self, now: Timestamp, hash: u64) {
        let worker = self.workers.by_hash(hash);
        let by_events = worker.is_some_and(|worker| self.places_by_events(&worker.spec.pool));
        self.kv.settle(now, hash, worker, by_events);
    }

    fn places_by_events(&self, pool: &PoolName) -> bool {
        self.pools.get(pool).is_some_and(|pool| pool.policy == Policy::KvAware)
    }

    /// A rank answered a request: if it does so again and again, its events should be heard.
    pub(in crate::state) fn kv_served(&mut self, now: Timestamp, slot: Slot) {
        let Some(key) = key_of(&self.workers, slot) else { return };
        // Where nobody chooses by them, nobody misses the events of a rank that is declared off.
        let missed = |rank: &RankKv| rank.link != Link::Off || self.places_by_events(&rank.pool);
        if self.kv.ranks.get(&key).is_some_and(missed) {
            self.kv.step(now, key, Input::Served(1));
        }
    }
}
