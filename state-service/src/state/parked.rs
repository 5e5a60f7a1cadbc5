//! Bindings whose slot is not known here yet: they wait, in bounds, until it is.
//!
//! Owns how many, how long, and which goes when there is no room. Knows nothing of what is right for a session meanwhile.

use super::limits::{EXPIRED_PER_TICK_MAX, PARKED_MAX, PARKED_TTL};
use routing::contract::{KeptSlot, SessionRef};
use routing::id::{SessionId, Version};
use routing::time::{Millis, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Hash of the worker, and the session.
type Key = (u64, SessionId);

/// A binding that came before its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) session: SessionRef,
    pub(super) version: Version,
    pub(super) slot: KeptSlot,
    pub(super) life: Life,
    pub(super) told: Told,
}

/// How long a binding lives, from when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Its pool's ttl less this.
    Idle(Millis),
    /// This.
    Left(Millis),
}

/// Who told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// An Envoy has it cached: what it cached may be long over.
    Envoy,
    /// Another writer, that keeps what is, and knew this declaration of the worker: its session is not to be placed anew here.
    Writer { writer: u64, generation: u64 },
}

/// The oldest goes when there is no room.
#[derive(Debug, Default)]
pub(super) struct Parked {
    bindings: BTreeMap<Key, Waiting>,
    by_age: BTreeMap<u64, Key>,
    /// Those that other writers told of, by session.
    told: BTreeSet<(SessionId, u64)>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    number: u64,
    pub(super) since: Timestamp,
    pub(super) kept: Kept,
}

/// Whether parking cost another one its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parking {
    Free,
    OldestWent,
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Whether another writer bound the session to a slot that is not known here yet.
    pub(super) fn awaits(&self, session: SessionId) -> bool {
        self.told.range((session, 0)..=(session, u64::MAX)).next().is_some()
    }

    /// Of two of one session on one worker the newer stays, and waits from when the first came.
    pub(super) fn park(&mut self, now: Timestamp, kept: Kept) -> Parking {
        let key = (kept.slot.worker_hash, kept.session.id);
        if let Some(waiting) = self.bindings.get(&key).copied() {
            if kept.version > waiting.kept.version {
                self.put(key, Waiting { kept, ..waiting });
            }
            return Parking::Free;
        }
        let full = self.bindings.len() >= PARKED_MAX;
        if full && let Some((_, oldest)) = self.by_age.first_key_value().map(|(n, key)| (*n, *key)) {
            self.take(oldest);
        }
        self.next += 1;
        self.put(key, Waiting { number: self.next, since: now, kept });
        if full { Parking::OldestWent } else { Parking::Free }
    }

    /// Workers that something waits for, each once.
    pub(super) fn workers(&self) -> BTreeSet<u64> {
        self.bindings.keys().map(|(worker, _)| *worker).collect()
    }

    /// Those of a worker, by session.
    pub(super) fn take_of(&mut self, worker: u64) -> Vec<Waiting> {
        let range = (worker, SessionId(0))..=(worker, SessionId(u128::MAX));
        let keys: Vec<Key> = self.bindings.range(range).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }

    /// Back to where it was: its slot is still not known.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        self.put((waiting.kept.slot.worker_hash, waiting.kept.session.id), waiting);
    }

    /// What is newer makes those void that other writers told of; how many.
    pub(super) fn forget(&mut self, session: SessionId, up_to: Version) -> u64 {
        let told = self.told.range((session, 0)..=(session, u64::MAX));
        let keys: Vec<Key> = told.map(|(session, worker)| (*worker, *session)).collect();
        let is_old = |key: &Key| self.bindings.get(key).is_some_and(|w| w.kept.version <= up_to);
        let old: Vec<Key> = keys.into_iter().filter(is_old).collect();
        old.into_iter().filter_map(|key| self.take(key)).map(|_| 1).sum()
    }

    /// Forgets those that waited too long; how many.
    pub(super) fn expire(&mut self, now: Timestamp) -> u64 {
        let mut forgotten = 0;
        while forgotten < EXPIRED_PER_TICK_MAX {
            let Some(key) = self.by_age.first_key_value().map(|(_, key)| *key) else { break };
            let since = self.bindings.get(&key).map_or(Timestamp(0), |waiting| waiting.since);
            if now.since(since) <= PARKED_TTL {
                break;
            }
            self.take(key);
            forgotten += 1;
        }
        u64::try_from(forgotten).unwrap_or(u64::MAX)
    }

    fn put(&mut self, key: Key, waiting: Waiting) {
        self.take(key);
        if matches!(waiting.kept.told, Told::Writer { .. }) {
            self.told.insert((key.1, key.0));
        }
        self.by_age.insert(waiting.number, key);
        self.bindings.insert(key, waiting);
    }

    fn take(&mut self, key: Key) -> Option<Waiting> {
        let waiting = self.bindings.remove(&key)?;
        self.by_age.remove(&waiting.number);
        self.told.remove(&(key.1, key.0));
        Some(waiting)
    }
}
