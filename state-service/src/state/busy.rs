//! How busy a worker and each of its slots are: load, gauges and overload together, as choices and people see them.
//!
//! Owns what is judged when, and who is told: a slot that becomes overloaded, or ceases to be, is in the fleet at once.
//! What is counted is in `load.rs` and `gauges.rs`, when a slot is overloaded in `overload.rs`.

use super::State;
use super::binding::Slot;
use super::error::StateError;
use super::gauges::SlotGauges;
use super::overload::Signs;
use super::workers::Worker;
use routing::contract::Target;
use routing::id::{Rank, WorkerId};
use routing::time::Timestamp;

/// One slot as an operator may see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotView {
    /// Requests in flight, as last reported by all VMs.
    pub in_flight: u64,
    /// What it carries when another request is placed: those, choices not reported yet, and requests its engine has waiting.
    pub load: u64,
    /// What its engine says, if that is new enough.
    pub gauges: Option<SlotGauges>,
    /// Whether it is overloaded.
    pub overloaded: bool,
}

impl Worker {
    /// What it carries when another request is placed: requests, those its engine has waiting, and what recent failures
    /// count as.
    pub(super) fn load_at(&self, now: Timestamp) -> u64 {
        let requests = self.load.requests().saturating_add(self.gauges.waiting());
        requests.saturating_add(self.health.penalty(now).into())
    }

    /// The same of one slot. Failures are remembered by worker, and make no difference between its slots.
    pub(super) fn load_on(&self, slot: Slot) -> u64 {
        self.load.requests_on(slot).saturating_add(self.gauges.waiting_on(slot.rank()))
    }

    /// Whether a slot of it is overloaded. Where the worker as a whole is, each of its slots is.
    pub(super) fn is_overloaded(&self, slot: Slot) -> bool {
        self.all_overloaded() || slot.rank().is_some_and(|rank| self.overload.is_marked(Some(rank)))
    }

    /// Whether anything there is overloaded: most workers are not, and need no closer look.
    pub(super) fn has_overload(&self) -> bool {
        self.overload.has_any()
    }

    /// Whether nothing more should be sent there: each of its ranks is overloaded, or all of them together are.
    pub(super) fn all_overloaded(&self) -> bool {
        self.overload.is_marked(None) || self.overload.rank_count() >= self.spec.rank_count()
    }

    /// Ranks that are overloaded, ascending; none of a worker with one rank.
    pub(super) fn overloaded_ranks(&self) -> Vec<Rank> {
        self.overload.ranks().collect()
    }

    /// Requests waiting in its engine.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.gauges.waiting()).unwrap_or(u32::MAX)
    }

    /// How many of its slots are overloaded: ranks, or the worker itself where it has one.
    #[must_use]
    pub fn overloaded_slots(&self) -> u32 {
        if self.spec.rank_count() > 1 { self.overload.rank_count() } else { self.all_overloaded().into() }
    }

    /// Judges a slot, and the worker as a whole; how many of them became overloaded, and how many ceased to be.
    fn judge(&mut self, rank: Option<Rank>) -> Turned {
        let mut turned = Turned::default();
        // A worker that has one rank now may have had several when a slot was counted.
        let rank = self.slot_of(rank).rank().filter(|rank| self.has_rank(Some(*rank)));
        for rank in rank.map(Some).into_iter().chain([None]) {
            let signs = self.signs(rank);
            if self.overload.judge(rank, signs) {
                let now_overloaded = u64::from(self.overload.is_marked(rank));
                turned.overloaded += now_overloaded;
                turned.cleared += 1 - now_overloaded;
            }
        }
        turned
    }

    fn signs(&self, rank: Option<Rank>) -> Signs {
        let (in_flight, ranks) = match rank {
            Some(_) => (self.load.requests_on(self.slot_of(rank)), 1),
            None => (self.spread_requests(), self.spec.rank_count()),
        };
        let limit = self.in_flight_limit.map(|limit| u64::from(limit).saturating_mul(ranks.into()));
        let kv_permille = self.gauges.on(rank).and_then(|told| told.kv_permille);
        Signs { in_flight, limit, kv_permille }
    }

    /// What fills the worker as a whole: everything, once the engine spreads requests over its ranks. Where each request has
    /// a rank, the ranks tell.
    fn spread_requests(&self) -> u64 {
        let every_request_has_a_rank =
            self.spec.rank_count() > 1 && self.load.requests_on(self.slot_of(None)) == 0;
        if every_request_has_a_rank { 0 } else { self.load.requests() }
    }
}

/// Slots whose overload began or ended.
#[derive(Clone, Copy, Debug, Default)]
struct Turned {
    overloaded: u64,
    cleared: u64,
}

impl State {
    /// Takes what an endpoint's engine shows.
    pub(super) fn gauges(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        endpoint: usize,
        slots: Vec<SlotGauges>,
        strays: usize,
    ) -> Result<(), StateError> {
        let worker =
            self.workers.by_id_mut(id).ok_or_else(|| StateError::UnknownWorker { id: id.clone() })?;
        if endpoint >= worker.endpoints.len() {
            return Err(StateError::UnknownEndpoint { worker: id.clone(), endpoint });
        }
        let told = slots.len();
        let known: Vec<SlotGauges> = slots.into_iter().filter(|told| worker.has_rank(told.rank)).collect();
        let strays = strays.saturating_add(told - known.len());
        let (before, hash) = (worker.gauges.waiting(), worker.hash);
        let mut touched = Vec::with_capacity(known.len());
        for told in known.iter().copied() {
            let slot = worker.slot_of(told.rank);
            worker.gauges.take(now, slot.rank(), told);
            touched.push(slot);
        }
        self.load_changed |= worker.gauges.waiting() != before;
        touched.into_iter().for_each(|slot| self.workers.touch(slot));
        known.iter().for_each(|told| self.kv_gauges(now, hash, told));
        self.counters.gauges_taken += 1;
        self.counters.gauges_undeclared_rank += u64::try_from(strays).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Forgets gauges that nobody renewed.
    pub(super) fn forget_gauges(&mut self, now: Timestamp) {
        let forgotten: Vec<Slot> = self.workers.forget_gauges(now);
        self.counters.gauges_forgotten += u64::try_from(forgotten.len()).unwrap_or(u64::MAX);
        self.load_changed |= !forgotten.is_empty();
        forgotten.into_iter().for_each(|slot| self.workers.touch(slot));
    }

    /// Judges every slot that changed. Not while a report is being taken: half of it is not what a slot carries.
    pub(super) fn judge_touched(&mut self) {
        for slot in self.workers.touched() {
            let Some(worker) = self.workers.by_hash_mut(slot.worker) else { continue };
            let turned = worker.judge(slot.rank());
            self.counters.slots_overloaded += turned.overloaded;
            if turned.overloaded + turned.cleared > 0 {
                self.fleet_stale = true;
            }
        }
    }

    /// One slot of a worker, for people.
    #[must_use]
    pub fn slot(&self, target: &Target) -> SlotView {
        let Some(worker) = self.workers.by_id(&target.worker) else { return SlotView::default() };
        let slot = worker.slot_of(target.rank);
        SlotView {
            in_flight: worker.load.reported_on(slot),
            load: worker.load_on(slot),
            gauges: worker.gauges.on(slot.rank()).copied(),
            overloaded: worker.is_overloaded(slot),
        }
    }
}
