//! A pinned turn is told: its binding lives on, and what Envoys and service know of it is made one again.
//!
//! Owns how news without a commit heals: a binding nobody told of, one version with two slots, a version that came late or
//! early. Uploads come this way too.

use super::State;
use super::binding::{Place, Record, Slot};
use super::choice::pins;
use super::report::HoldEnd;
use super::route::refresh;
use routing::contract::{KeptSlot, PoolInfo, SessionRef};
use routing::id::{PoolName, Version};
use routing::time::Timestamp;
use std::cmp::Ordering;

impl State {
    pub(super) fn touched(
        &mut self,
        now: Timestamp,
        session: SessionRef,
        pool: &PoolName,
        version: Version,
        kept: Option<KeptSlot>,
    ) {
        let pool = self.pools.get(pool).filter(|pool| pins(pool)).cloned();
        let Some(pool) = pool.filter(|_| self.plausible(version)) else {
            self.counters.touch_unknown += 1;
            return;
        };
        let slot = kept.and_then(|kept| self.serving(&pool.name, Slot::new(kept.worker_hash, kept.rank)));
        let deadline = now + pool.ttl_ms;
        let theirs = slot.map(|slot| Record { version, place: Place::Bound(slot), deadline });
        let Some(ours) = self.sessions.by_id(session.id).and_then(|s| s.record) else {
            return self.touched_unknown(session, theirs);
        };
        match version.cmp(&ours.version) {
            Ordering::Less => {
                self.counters.touch_late += 1;
                // Its Envoy still pins what was replaced: the commit that would have told us died with its VM.
                self.publish(session, ours);
            }
            Ordering::Greater => {
                self.counters.touch_newer += 1;
                match theirs {
                    Some(theirs) => self.take_kept(session, theirs),
                    None => self.outbid(now, session, &pool, ours, version),
                }
            }
            // The version of a release is nobody's to touch: its deadline stays.
            Ordering::Equal if ours.slot().is_none() => self.counters.touch_late += 1,
            Ordering::Equal => self.touched_equal(session, &pool, Record { deadline, ..ours }, slot),
        }
    }

    /// A slot as it is kept, if it can serve.
    fn serving(&self, pool: &PoolName, slot: Slot) -> Option<Slot> {
        self.usable(pool, slot).map(|worker| worker.slot_of(slot.rank()))
    }

    /// A binding nobody told us of: its Envoy knows where it is.
    fn touched_unknown(&mut self, session: SessionRef, theirs: Option<Record>) {
        match theirs {
            Some(theirs) => {
                self.counters.touch_inserted += 1;
                self.take_kept(session, theirs);
            }
            None => self.counters.touch_unknown += 1,
        }
    }

    /// One version has one slot. With two, a commit and its retry's came from one hold and one of them was lost: the slot
    /// known here stays while it serves, under a version above both.
    fn touched_equal(&mut self, session: SessionRef, pool: &PoolInfo, ours: Record, theirs: Option<Slot>) {
        let serving = ours.slot().and_then(|slot| self.serving(&pool.name, slot));
        match theirs.filter(|theirs| serving != Some(*theirs)) {
            Some(other) => {
                self.counters.touch_split += 1;
                self.outlive(session, Record { place: Place::Bound(serving.unwrap_or(other)), ..ours });
            }
            None => self.sessions.edit(session.id, session.rank_hash, |s| refresh(s, ours.deadline)),
        }
    }

    /// Joins what an Envoy still has of a session; whoever may have another place is told.
    pub(super) fn take_kept(&mut self, session: SessionRef, theirs: Record) {
        let Some(joined) = self.merge_record(session, theirs) else { return };
        self.counters.holds_gave_way += u64::from(joined.hold == HoldEnd::Ended);
        let moved = joined.before.is_some_and(|before| before.place != joined.now.place);
        if moved || theirs.place != joined.now.place {
            self.publish(session, joined.now);
        }
    }

    /// An Envoy pins what we never heard of, and does not say where, or where nobody can serve: the binding stays here under
    /// a version above it, so that Envoys agree again. Unless its slot cannot serve either: then that Envoy knows better.
    fn outbid(
        &mut self,
        now: Timestamp,
        session: SessionRef,
        pool: &PoolInfo,
        ours: Record,
        theirs: Version,
    ) {
        let serves = ours.slot().is_some_and(|slot| self.usable(&pool.name, slot).is_some());
        if serves && !ours.is_expired(now) {
            self.outlive(session, Record { version: theirs, deadline: now + pool.ttl_ms, ..ours });
        }
    }

    /// Puts a record under a version above its own, and tells everybody.
    fn outlive(&mut self, session: SessionRef, record: Record) {
        let record = Record { version: self.next_version(record.version.seq), ..record };
        let held = self.sessions.edit(session.id, session.rank_hash, |s| {
            s.record = Some(record);
            s.hold.take().is_some()
        });
        self.counters.holds_gave_way += u64::from(held);
        self.publish(session, record);
    }
}
