//! Where a request goes, as a verdict: bound, joined, held afresh, unpinned or refused.
//!
//! Owns the order of these questions, and changes nothing: `route.rs` does what the verdict says, `explain.rs` shows it, so
//! the two cannot differ. Turns whose caller names the target are in `named.rs`; whether a soft session stays is in `soft.rs`.

use super::State;
use super::binding::{Record, Slot};
use super::choice::{Chosen, Field, concerns, pins};
use super::kv::Looked;
use super::limits::SEQ_MAX;
use super::offer;
use super::verdict::{Act, Bound, Fresh, Loose, Verdict};
use super::vms::VmId;
use super::workers::Worker;
use routing::contract::{
    Affinity, Cached, OnAllOverloaded, OnOverload, Policy, PoolInfo, Refusal, SessionRef, Target,
};
use routing::demand::Demands;
use routing::hash::Phase;
use routing::id::{PoolName, RequestId, SessionId, Version};
use routing::time::Timestamp;

/// One half of a request asks, at some time, with some luck.
pub(super) struct Asked<'a> {
    pub(super) now: Timestamp,
    pub(super) seat: Seat,
    pub(super) request: RequestId,
    pub(super) pool: PoolInfo,
    /// Prefill, or anything else.
    pub(super) phase: Phase,
    pub(super) session: Option<SessionRef>,
    pub(super) cached: Option<Cached>,
    pub(super) named: Option<Target>,
    pub(super) demands: Demands,
    /// Its prompt, in a pool that chooses by it.
    pub(super) looked: Option<&'a Looked>,
    /// Uniformly random.
    pub(super) draw: u64,
}

/// What is known of the VM that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// It is known.
    Of(VmId),
    /// It would be.
    New,
    /// There is no room for it.
    Full,
}

impl Asked<'_> {
    /// Whether slots are candidates, not workers.
    pub(super) fn compares_slots(&self) -> bool {
        self.pool.policy == Policy::KvAware && self.looked.is_some()
    }

    pub(super) fn session_id(&self) -> Option<SessionId> {
        self.session.map(|session| session.id)
    }

    /// The session, where sessions are kept.
    pub(super) fn pinned(&self) -> Option<SessionRef> {
        self.session.filter(|_| pins(&self.pool))
    }

    /// The VM that asks, if it is known.
    pub(super) const fn vm(&self) -> Option<VmId> {
        match self.seat {
            Seat::Of(vm) => Some(vm),
            Seat::New | Seat::Full => None,
        }
    }

    /// Only the slot in the answer will do.
    pub(super) fn is_exact(&self) -> bool {
        self.named.is_some() || self.pool.policy == Policy::Direct
    }

    /// Whether a worker is of the pool and phase asked for.
    pub(super) fn concerns(&self, worker: &Worker) -> bool {
        worker.spec.pool == self.pool.name && concerns(self.phase, worker.spec.phase)
    }

    /// Each phase of a pool has its own turn.
    pub(super) fn turn_key(&self) -> (PoolName, bool) {
        (self.pool.name.clone(), self.phase == Phase::Prefill)
    }
}

impl State {
    pub(super) fn judge(&self, asked: &Asked) -> Verdict {
        if self.leaves_to_filter(asked.now, &asked.pool, asked.session, asked.cached) {
            return Act::Unsure.alone();
        }
        if asked.pinned().is_some_and(|session| self.parked.awaits(session.id)) {
            return Act::Unsure.alone();
        }
        match (&asked.named, asked.pinned()) {
            (Some(named), _) => self.judge_named(asked, named),
            (None, Some(session)) => self.judge_pinned(asked, session),
            (None, None) => self.judge_loose(asked),
        }
    }

    fn judge_pinned(&self, asked: &Asked, session: SessionRef) -> Verdict {
        let Some(bound) = self.binding(asked, session) else {
            return self.place(asked, session, None, None);
        };
        if !self.keeps(asked, bound.slot) {
            return match asked.pool.affinity {
                Affinity::Soft => self.place(asked, session, Some(bound), Some(Fresh::Excluded)),
                Affinity::Hard | Affinity::Off => Act::Refused(Refusal::Excluded).alone(),
            };
        }
        if !self.stays(asked, session.id, bound) {
            return self.place(asked, session, Some(bound), Some(Fresh::Moved));
        }
        if self.is_overloaded(bound.slot) { self.overloaded(asked, bound) } else { bound.go_on() }
    }

    /// A session that is bound nowhere, or leaves its binding for a reason: joins a hold, or gets one.
    fn place(
        &self,
        asked: &Asked,
        session: SessionRef,
        bound: Option<Bound>,
        leaves: Option<Fresh>,
    ) -> Verdict {
        let stays = bound.filter(|_| leaves == Some(Fresh::Moved));
        let field = self.field(asked, bound.map(|bound| bound.slot));
        if let Some(why) = self.cannot_own(asked) {
            return stays.map_or_else(|| self.loose(asked, &field, |_| why), Bound::go_on);
        }
        if let Some(held) = self.open_hold(asked, session.id, bound) {
            return match asked.pool.affinity {
                _ if self.keeps(asked, held) => Act::Join(held).keeping(bound),
                Affinity::Soft => self.loose(asked, &field, |_| Loose::Excluded),
                Affinity::Hard | Affinity::Off => Act::Refused(Refusal::Excluded).alone(),
            };
        }
        let choice = self.choose(asked, &field);
        let act = match (choice.chosen, stays) {
            // The policy chose where it is, or nobody else.
            (Chosen::Worker(worker, _), Some(bound)) if is_home(worker, choice.slot, bound) => {
                Act::GoOn(bound)
            }
            (Chosen::Caller | Chosen::Nobody | Chosen::Unmet, Some(bound)) => Act::GoOn(bound),
            (Chosen::Overloaded, Some(bound)) if !self.is_overloaded(bound.slot) => Act::GoOn(bound),
            (Chosen::Worker(worker, policy), _) => {
                let hashed = || self.new_slot(&asked.pool, worker, session.rank_hash, asked.draw);
                let slot = choice.slot.unwrap_or_else(hashed);
                self.hold_at(asked, session, slot, leaves.unwrap_or(Fresh::First(policy)))
            }
            (nobody, _) => nobody.refusal(),
        };
        let all_overloaded = field.all_overloaded && act.places();
        Verdict { bound, turn: choice.turn, all_overloaded, ..act.alone() }
    }

    /// A fresh hold, if there is room for one more session.
    pub(super) fn hold_at(&self, asked: &Asked, session: SessionRef, slot: Slot, why: Fresh) -> Act {
        let was_bound = self.live_record(asked.now, session.id).is_some_and(|record| record.slot().is_some());
        match why {
            _ if !self.sessions.has_room(session.id) => Act::Unpinned(slot, Loose::TableFull),
            Fresh::First(_) | Fresh::Named if was_bound => Act::Hold(slot, Fresh::Rebound),
            why => Act::Hold(slot, why),
        }
    }

    /// A turn that pins nothing.
    fn judge_loose(&self, asked: &Asked) -> Verdict {
        self.loose(asked, &self.field(asked, None), Loose::Plain)
    }

    fn loose(&self, asked: &Asked, field: &Field<'_>, why: impl Fn(Policy) -> Loose) -> Verdict {
        let choice = self.choose(asked, field);
        let act = match choice.chosen {
            Chosen::Worker(worker, policy) => {
                let plain = || self.plain_slot(&asked.pool, worker, asked.session);
                Act::Unpinned(choice.slot.unwrap_or_else(plain), why(policy))
            }
            nobody => nobody.refusal(),
        };
        Verdict { turn: choice.turn, all_overloaded: field.all_overloaded && act.places(), ..act.alone() }
    }

    /// A bound turn whose slot is alive but overloaded. One that waits has waited by now.
    fn overloaded(&self, asked: &Asked, bound: Bound) -> Verdict {
        match (asked.pool.on_overload, asked.pool.affinity) {
            (OnOverload::Refuse, Affinity::Hard) => Act::Refused(Refusal::Overloaded).keeping(Some(bound)),
            // Elsewhere is nobody's to choose.
            _ if asked.is_exact() => bound.go_on(),
            // A soft one that stays has nobody better to go to.
            (OnOverload::Spill | OnOverload::Wait | OnOverload::Refuse, _) => self.spill(asked, bound),
        }
    }

    /// Served elsewhere this once. Where everybody is overloaded nobody is better than the one that has its prefix.
    fn spill(&self, asked: &Asked, bound: Bound) -> Verdict {
        let field = self.field(asked, Some(bound.slot));
        if field.all_overloaded && asked.pool.on_all_overloaded == OnAllOverloaded::Refuse {
            return Act::Refused(Refusal::Overloaded).keeping(Some(bound));
        }
        if field.all_overloaded {
            return bound.go_on();
        }
        let spilled = self.loose(asked, &field, |_| Loose::Spilled);
        if spilled.act.places() { Verdict { bound: Some(bound), ..spilled } } else { bound.go_on() }
    }

    /// Why a request cannot own a hold.
    pub(super) fn cannot_own(&self, asked: &Asked) -> Option<Loose> {
        match asked.seat {
            Seat::Full => Some(Loose::VmsFull),
            Seat::Of(vm) if self.vms.is_over(vm, asked.request) => Some(Loose::Over),
            Seat::Of(_) | Seat::New => None,
        }
    }

    /// The live binding, if its slot can serve this phase: the caller's, if that is newer than ours.
    pub(super) fn binding(&self, asked: &Asked, session: SessionRef) -> Option<Bound> {
        if let Some(adopted) = self.adoptable(asked, session) {
            return Some(adopted);
        }
        let record = self.live_record(asked.now, session.id)?;
        let slot = record.slot()?;
        self.worker_for(asked, slot)?;
        Some(Bound { slot, version: record.version, adopted: false })
    }

    fn adoptable(&self, asked: &Asked, session: SessionRef) -> Option<Bound> {
        let cached = asked.cached.filter(|cached| is_plausible(cached.version))?;
        let slot = Slot::new(cached.worker_hash, cached.rank);
        let known = self.sessions.by_id(session.id).and_then(|session| session.record);
        let newer = known.is_none_or(|known| cached.version > known.version);
        let fits = newer && self.worker_for(asked, slot).is_some() && self.sessions.has_room(session.id);
        fits.then_some(Bound { slot, version: cached.version, adopted: true })
    }

    /// The worker of a slot that can serve this question, unless its demands forbid it.
    pub(super) fn worker_for(&self, asked: &Asked, slot: Slot) -> Option<&Worker> {
        self.usable(&asked.pool.name, slot).filter(|worker| asked.concerns(worker))
    }

    /// Whether what is placed there may go on, as far as the request's demands go.
    pub(super) fn keeps(&self, asked: &Asked, slot: Slot) -> bool {
        let worker = self.workers.by_hash(slot.worker);
        worker.is_some_and(|worker| offer::keeps(&asked.demands, worker, slot.rank()))
    }

    /// Whether a slot is overloaded.
    pub(super) fn is_overloaded(&self, slot: Slot) -> bool {
        self.workers.by_hash(slot.worker).is_some_and(|worker| worker.is_overloaded(slot))
    }

    /// Slot of a session's hold, if it can still serve. A binding learned just now ends it.
    pub(super) fn open_hold(&self, asked: &Asked, session: SessionId, bound: Option<Bound>) -> Option<Slot> {
        let slot = self.sessions.by_id(session)?.hold.as_ref()?.slot;
        let ended = bound.is_some_and(|bound| bound.adopted);
        self.worker_for(asked, slot).filter(|_| !ended).map(|_| slot)
    }

    /// What is known of a session, unless its time is over.
    pub(super) fn live_record(&self, now: Timestamp, id: SessionId) -> Option<Record> {
        self.sessions.by_id(id)?.record.filter(|record| !record.is_expired(now))
    }
}

/// Whether a soft session that looks around is where it would go.
fn is_home(worker: u64, slot: Option<Slot>, bound: Bound) -> bool {
    let rank = slot.and_then(Slot::rank).zip(bound.slot.rank());
    worker == bound.slot.worker && rank.is_none_or(|(chosen, bound)| chosen == bound)
}

/// A version that nobody can have given would end all counting.
pub(super) const fn is_plausible(version: Version) -> bool {
    version.seq <= SEQ_MAX
}
