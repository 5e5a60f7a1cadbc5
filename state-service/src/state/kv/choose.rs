//! The choice of a slot by what the prompt costs there.
//!
//! Owns which slots of the candidates' workers are compared, and who is left out for what it carries already. The cost is
//! `routing::policy::kv`'s, what slots hold and do is `look.rs`'s. Changes nothing.

use super::super::State;
use super::super::binding::Slot;
use super::super::choice::{Considered, Field};
use super::super::judge::Asked;
use super::super::offer;
use super::super::workers::Worker;
use super::look::{At, Looked};
use routing::contract::{Overlap, Ranks, Removal};
use routing::hash::Phase;
use routing::id::Rank;
use routing::policy::kv::{Cost, Weights, choose, cost, load_cap};

/// One slot that was compared.
#[derive(Clone, Debug)]
pub(in crate::state) struct Compared<'a> {
    pub(in crate::state) worker: &'a Worker,
    pub(in crate::state) slot: Slot,
    /// Requests there.
    pub(in crate::state) requests: u64,
    /// Ranks it stands for.
    share: u32,
    pub(in crate::state) overlap: Overlap,
    pub(in crate::state) cost: Cost,
    /// Why it is left out, if it is.
    pub(in crate::state) removed_by: Vec<Removal>,
}

impl Compared<'_> {
    const fn is_left(&self) -> bool {
        self.removed_by.is_empty()
    }
}

impl State {
    /// Where the prompt costs least, among the slots of the workers that are left.
    pub(in crate::state) fn choose_slot(&self, asked: &Asked, field: &Field<'_>) -> Option<Slot> {
        let slots = self.compare_slots(asked, field);
        let left = || slots.iter().filter(|one| one.is_left());
        let mut costs: Vec<Cost> = Vec::with_capacity(slots.len());
        costs.extend(left().map(|one| one.cost));
        let temperature = self.kv.settings(&asked.pool.name).weights.temperature;
        let chosen = choose(&costs, temperature, asked.draw)?;
        left().nth(chosen).map(|one| one.slot)
    }

    /// Every slot of the workers considered, with what is in its way.
    pub(in crate::state) fn compare_slots<'a>(&self, asked: &Asked, field: &Field<'a>) -> Vec<Compared<'a>> {
        let Some(looked) = asked.looked else { return Vec::new() };
        let weights = self.weights(asked);
        let mut seen = Vec::with_capacity(field.all.len());
        for one in &field.all {
            for slot in slots_of(asked, one.worker) {
                seen.push((one, slot, self.kv.at(looked, one.worker, slot)));
            }
        }
        let typical = typical_blocks(looked, seen.iter().map(|(_, _, at)| at));
        let compare = |(one, slot, at): (&Considered<'a>, Slot, At)| {
            let mut removed_by = one.removed_by.clone();
            if removed_by.is_empty() {
                removed_by = self.in_its_way(asked, field, one.worker, slot);
            }
            let requests = requests(one.worker, slot, &at);
            let others =
                others(one.worker, slot, (requests, &at)) + u64::from(one.worker.health.penalty(asked.now));
            let cost = cost(&weights, looked.size, &at.terms(looked, others, typical));
            let overlap = looked.overlap(at.holds);
            Compared { worker: one.worker, slot, requests, share: at.share, overlap, cost, removed_by }
        };
        let mut all: Vec<Compared<'a>> = seen.into_iter().map(compare).collect();
        self.leave_out_loaded(asked, &mut all);
        all
    }

    /// Of a pool that is split the decoding half gets its prefix handed over.
    fn weights(&self, asked: &Asked) -> Weights {
        let weights = self.kv.settings(&asked.pool.name).weights;
        if asked.phase == Phase::Decode { Weights { prefill_scale: 0, ..weights } } else { weights }
    }

    fn in_its_way(&self, asked: &Asked, field: &Field<'_>, worker: &Worker, slot: Slot) -> Vec<Removal> {
        if !asked.demands.addresses.is_empty() {
            let unmet = offer::refuses(&asked.demands, worker, slot.rank());
            if !unmet.is_empty() {
                return unmet;
            }
        }
        let busy = !field.all_overloaded && worker.is_overloaded(slot);
        if busy { vec![Removal::Overload] } else { Vec::new() }
    }

    /// Whatever is cached there, a slot that carries much more than its share of all takes no more.
    fn leave_out_loaded(&self, asked: &Asked, all: &mut [Compared<'_>]) {
        let left = || all.iter().filter(|one| one.is_left());
        // A slot that stands for several ranks counts with all their requests.
        let total = left().map(|one| one.requests).sum();
        let shares = left().map(|one| one.share).sum();
        let percent = self.kv.settings(&asked.pool.name).load_cap;
        let cap_of = |share| load_cap(percent, total, (share, shares));
        if left().all(|one| one.requests > cap_of(one.share)) {
            return;
        }
        // Nearly always all shares are equal.
        let mut last = (1, cap_of(1));
        for one in all.iter_mut().filter(|one| one.is_left()) {
            if last.0 != one.share {
                last = (one.share, cap_of(one.share));
            }
            if one.requests > last.1 {
                one.removed_by.push(Removal::Load);
            }
        }
    }
}

/// Its ranks; the worker as a whole where its engine chooses among them.
pub(in crate::state) fn slots_of(asked: &Asked, worker: &Worker) -> impl Iterator<Item = Slot> {
    let count = worker.spec.rank_count();
    let is_one = count == 1 || asked.pool.ranks() == Ranks::Engine;
    let start = worker.spec.rank_start();
    let ranks = start..start.saturating_add(if is_one { 0 } else { count });
    let ranks = ranks.map(|rank| Some(Rank(rank))).chain(is_one.then_some(None));
    let hash = worker.hash;
    ranks.map(move |rank| Slot::new(hash, rank))
}

/// Requests on a slot, those without a rank shared among the ranks; of a worker as a whole all.
fn requests(worker: &Worker, slot: Slot, at: &At) -> u64 {
    if at.share > 1 || slot.rank().is_none() {
        return worker.load.requests().saturating_add(at.sums.by_hosts.saturating_mul(at.share.into()));
    }
    let ranks = u64::from(worker.spec.rank_count().max(1));
    let unranked = worker.load.requests_on(Slot::new(slot.worker, None)).div_ceil(ranks);
    worker.load.requests_on(slot).saturating_add(unranked).saturating_add(at.sums.by_hosts)
}

/// Requests on a rank, or on each of a worker's ranks in the mean, of which no prompt is known; those that its engine has waiting
/// and nobody else told of too.
fn others(worker: &Worker, slot: Slot, (requests, at): (u64, &At)) -> u64 {
    let waiting =
        if slot.rank().is_some() { worker.gauges.waiting_on(slot.rank()) } else { worker.gauges.waiting() };
    let all = requests.max(waiting).div_ceil(at.share.max(1).into());
    all.saturating_sub(at.sums.booked)
}

/// Blocks of a request of which no prompt is known: as many as those that are known have in the mean.
fn typical_blocks<'a>(looked: &Looked, seen: impl Iterator<Item = &'a At>) -> u64 {
    let sum = |(blocks, booked): (u64, u64), at: &At| {
        (blocks.saturating_add(at.sums.prompt_blocks), booked.saturating_add(at.sums.booked))
    };
    let (blocks, booked) = seen.fold((0, 0), sum);
    blocks.checked_div(booked).unwrap_or(looked.blocks).max(1)
}
