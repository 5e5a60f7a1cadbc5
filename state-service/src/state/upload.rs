//! Bindings that Envoys upload to a service that lost its memory: merged like any other news of a session.
//!
//! A binding whose worker is not declared here yet is parked until it is. Which records win is `binding.rs`'s to say.

use super::State;
use super::binding::{Place, Record};
use super::choice::pins;
use super::journal::OWN;
use super::parked::{Kept, Life, Parking, Told};
use routing::contract::{KeptBinding, PageUpload, UPLOAD_BINDINGS_MAX};
use routing::time::{Millis, Timestamp};

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
        let KeptBinding { session, slot, version, idle_ms } = binding;
        let kept = Kept { session, version, slot, life: Life::Idle(idle_ms), told: Told::Envoy };
        if self.workers.by_hash(slot.worker_hash).is_some() {
            return self.merge_kept(now, now, &kept);
        }
        self.counters.upload_parked += 1;
        self.park(now, kept);
    }

    pub(super) fn park(&mut self, now: Timestamp, kept: Kept) {
        let parking = self.parked.park(now, kept);
        self.counters.parked_dropped += u64::from(parking == Parking::OldestWent);
    }

    /// Joins a binding told of at `since` into the table. Its pool is that of its worker.
    fn merge_kept(&mut self, now: Timestamp, since: Timestamp, kept: &Kept) {
        let Some(ttl) = self.ttl_at(kept.slot.worker_hash) else {
            self.counters.upload_unstored += 1;
            return;
        };
        let Some(deadline) = deadline(now, since, kept.life, ttl) else {
            self.counters.upload_expired += 1;
            return;
        };
        let place = Place::Bound(self.slot_kept(kept.slot));
        let record = Record { version: kept.version, place, deadline };
        self.take_kept(kept.session, record);
    }

    /// The ttl of a worker's pool; `None`: it keeps no bindings. Of a worker that is gone only writers tell, with ends of their own.
    fn ttl_at(&self, worker: u64) -> Option<Millis> {
        let Some(worker) = self.workers.by_hash(worker) else { return Some(Millis(0)) };
        self.pools.get(&worker.spec.pool).filter(|pool| pins(pool)).map(|pool| pool.ttl_ms)
    }

    /// A worker is declared, declared otherwise, or known to be gone: what was parked for it counts now, if nothing else is awaited.
    pub(super) fn unpark(&mut self, now: Timestamp, worker: u64) {
        for waiting in self.parked.take_of(worker) {
            if self.is_awaited(&waiting.kept) {
                self.parked.put_back(waiting);
                continue;
            }
            self.counters.unparked += 1;
            if let Told::Writer { writer, .. } = waiting.kept.told {
                self.sessions.write_for(writer);
            }
            self.merge_kept(now, waiting.since, &waiting.kept);
            self.sessions.write_for(OWN);
        }
    }

    pub(super) fn expire_parked(&mut self, now: Timestamp) {
        self.counters.parked_expired += self.parked.expire(now);
    }
}

/// Until when a binding lives that was told of at `since`; `None`: it is over.
fn deadline(now: Timestamp, since: Timestamp, life: Life, ttl: Millis) -> Option<Timestamp> {
    let left = match life {
        Life::Idle(idle) => ttl.0.checked_sub(idle.0)?,
        Life::Left(left) => left.0,
    };
    Some(since + Millis(left)).filter(|until| left > 0 && *until >= now)
}
