//! Bindings that Envoys upload to a service that lost its memory: merged like any other news of a session.
//!
//! Owns what becomes of a binding whose worker is not declared here yet: it is parked, in bounds, until the worker is.
//! Which records win is `binding.rs`'s to say.

use super::State;
use super::binding::{Place, Record, Slot};
use super::choice::pins;
use super::limits::{EXPIRED_PER_TICK_MAX, PARKED_MAX, PARKED_TTL};
use routing::contract::{KeptBinding, PageUpload, UPLOAD_BINDINGS_MAX};
use routing::id::SessionId;
use routing::time::Timestamp;
use std::collections::BTreeMap;

/// Hash of the worker, and the session.
type Key = (u64, SessionId);

/// Bindings of workers that are not declared yet; the oldest goes when there is no room.
#[derive(Debug, Default)]
pub(super) struct Parked {
    bindings: BTreeMap<Key, Waiting>,
    by_age: BTreeMap<u64, Key>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u64,
    since: Timestamp,
    binding: KeptBinding,
}

/// Whether parking cost another one its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parking {
    Free,
    OldestWent,
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Of two of one session on one worker the newer stays, and waits from when the first came.
    fn park(&mut self, now: Timestamp, binding: KeptBinding) -> Parking {
        let key = (binding.slot.worker_hash, binding.session.id);
        if let Some(waiting) = self.bindings.get_mut(&key) {
            if binding.version > waiting.binding.version {
                waiting.binding = binding;
            }
            return Parking::Free;
        }
        let full = self.bindings.len() >= PARKED_MAX;
        if full && let Some((_, oldest)) = self.by_age.pop_first() {
            self.bindings.remove(&oldest);
        }
        self.next += 1;
        self.by_age.insert(self.next, key);
        self.bindings.insert(key, Waiting { number: self.next, since: now, binding });
        if full { Parking::OldestWent } else { Parking::Free }
    }

    /// Those of a worker, by session.
    fn take_of(&mut self, worker: u64) -> Vec<Waiting> {
        let range = (worker, SessionId(0))..=(worker, SessionId(u128::MAX));
        let keys: Vec<Key> = self.bindings.range(range).map(|(key, _)| *key).collect();
        let taken: Vec<Waiting> = keys.iter().filter_map(|key| self.bindings.remove(key)).collect();
        for waiting in &taken {
            self.by_age.remove(&waiting.number);
        }
        taken
    }

    /// Forgets those that waited too long; how many.
    fn expire(&mut self, now: Timestamp) -> u64 {
        let mut forgotten = 0;
        while forgotten < EXPIRED_PER_TICK_MAX {
            let Some((number, key)) = self.by_age.first_key_value().map(|(n, key)| (*n, *key)) else { break };
            let since = self.bindings.get(&key).map_or(Timestamp(0), |waiting| waiting.since);
            if now.since(since) <= PARKED_TTL {
                break;
            }
            self.by_age.remove(&number);
            self.bindings.remove(&key);
            forgotten += 1;
        }
        u64::try_from(forgotten).unwrap_or(u64::MAX)
    }
}

impl State {
    pub(super) fn take_pages(&mut self, now: Timestamp, upload: PageUpload) {
        self.counters.uploads += 1;
        let dropped = upload.bindings.len().saturating_sub(UPLOAD_BINDINGS_MAX);
        self.counters.upload_bindings_dropped += u64::try_from(dropped).unwrap_or(u64::MAX);
        for binding in upload.bindings.into_iter().take(UPLOAD_BINDINGS_MAX) {
            self.take_binding(now, binding);
        }
    }

    fn take_binding(&mut self, now: Timestamp, binding: KeptBinding) {
        if !self.plausible(binding.version) {
            return;
        }
        if self.workers.by_hash(binding.slot.worker_hash).is_some() {
            return self.merge_binding(now, now, &binding);
        }
        self.counters.upload_parked += 1;
        let parking = self.parked.park(now, binding);
        self.counters.parked_dropped += u64::from(parking == Parking::OldestWent);
    }

    /// Joins a binding uploaded at `since` into the table. Its pool is that of its worker.
    fn merge_binding(&mut self, now: Timestamp, since: Timestamp, binding: &KeptBinding) {
        let Some(worker) = self.workers.by_hash(binding.slot.worker_hash) else { return };
        let Some(pool) = self.pools.get(&worker.spec.pool).filter(|pool| pins(pool)) else {
            self.counters.upload_unstored += 1;
            return;
        };
        let left = pool.ttl_ms.0.checked_sub(binding.idle_ms.0).filter(|left| *left > 0);
        let deadline = left.map(|left| since + routing::time::Millis(left)).filter(|until| *until >= now);
        let Some(deadline) = deadline else {
            self.counters.upload_expired += 1;
            return;
        };
        let slot: Slot = worker.slot_of(binding.slot.rank);
        let record = Record { version: binding.version, place: Place::Bound(slot), deadline };
        self.take_kept(binding.session, record);
    }

    /// A worker is declared: what was parked for it counts now.
    pub(super) fn unpark(&mut self, now: Timestamp, worker: u64) {
        for waiting in self.parked.take_of(worker) {
            self.counters.unparked += 1;
            self.merge_binding(now, waiting.since, &waiting.binding);
        }
    }

    pub(super) fn expire_parked(&mut self, now: Timestamp) {
        self.counters.parked_expired += self.parked.expire(now);
    }
}
