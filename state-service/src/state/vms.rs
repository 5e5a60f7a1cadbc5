//! VMs of all Envoys: who is alive, and what each has in flight.
//!
//! Owns what makes the load of slots: the last absolute report of every living VM, plus choices that no report of their VM
//! covers yet. A dead VM's whole share goes with it. Knows nothing of sessions.

use super::binding::Slot;
use super::limits::{Limits, OVER_MAX, RESERVATIONS_MAX};
use super::load::WorkerLoad;
use super::workers::Workers;
use routing::contract::{Caller, LOAD_REPORTS_APART, LOAD_STANDS_AFTER};
use routing::id::{Epoch, RequestId};
use routing::time::{Millis, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One life of one VM, as owners of holds name it. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VmId(u64);

/// Whether a report's numbers are the newest of their VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Newer,
    Old,
}

/// A choice that no report covers yet.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    request: RequestId,
    slot: Slot,
    made: Timestamp,
}

#[derive(Debug)]
struct Vm {
    caller: Caller,
    seen: Timestamp,
    /// When it asked or told anything here last, whatever other replicas say of it; `None`: so long ago that it owns nothing here.
    here: Option<Timestamp>,
    seq: Option<u64>,
    /// Sorted by slot, one entry each.
    in_flight: Vec<(Slot, u32)>,
    /// The same of a report before.
    before: Vec<(Slot, u32)>,
    /// Until when that one was the last.
    before_until: Timestamp,
    /// When the last report came.
    counted: Timestamp,
    /// Oldest first.
    reservations: VecDeque<Reservation>,
    /// Requests that ended before their route came, oldest first.
    over: VecDeque<RequestId>,
    /// When it reported here last; not since another replica told of it.
    reported: Option<Timestamp>,
    /// When the other replicas were told of it last.
    told: Option<Timestamp>,
    /// They were told of other counts.
    changed: bool,
}

/// A VM's last report: its number, and what it has in flight.
pub(super) type Untold = (Caller, u64, Vec<(Slot, u32)>);

/// All VMs heard of.
#[derive(Debug, Default)]
pub(super) struct Vms {
    ids: BTreeMap<Caller, VmId>,
    vms: BTreeMap<VmId, Vm>,
    next: u64,
}

impl Vms {
    pub(super) fn len(&self) -> usize {
        self.vms.len()
    }

    /// A VM that was heard of.
    pub(super) fn id_of(&self, caller: &Caller) -> Option<VmId> {
        self.ids.get(caller).copied()
    }

    /// Who a VM is.
    pub(super) fn caller_of(&self, id: VmId) -> Option<&Caller> {
        self.vms.get(&id).map(|vm| &vm.caller)
    }

    /// It asks or tells something here: renews its lease; `None` when it is new and there is no room.
    pub(super) fn seen(&mut self, now: Timestamp, caller: &Caller, max: usize) -> Option<VmId> {
        let id = self.told_of(now, caller, max)?;
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.here = Some(now);
        }
        Some(id)
    }

    /// The same of one that another replica told of.
    pub(super) fn told_of(&mut self, now: Timestamp, caller: &Caller, max: usize) -> Option<VmId> {
        if let Some(id) = self.ids.get(caller).copied() {
            if let Some(vm) = self.vms.get_mut(&id) {
                vm.seen = now;
            }
            return Some(id);
        }
        if self.vms.len() >= max {
            return None;
        }
        self.next += 1;
        let id = VmId(self.next);
        self.ids.insert(caller.clone(), id);
        self.vms.insert(id, Vm::new(caller.clone(), now));
        Some(id)
    }

    /// Takes a VM's absolute counts, unless newer ones are known. They cover every choice made for it before.
    pub(super) fn report(
        &mut self,
        now: Timestamp,
        id: VmId,
        seq: u64,
        in_flight: Vec<(Slot, u32)>,
        workers: &mut Workers,
    ) -> Freshness {
        let Some(vm) = self.vms.get_mut(&id) else { return Freshness::Old };
        if vm.seq.is_some_and(|known| seq <= known) {
            return Freshness::Old;
        }
        vm.seq = Some(seq);
        vm.changed |= vm.in_flight != in_flight;
        if now.since(vm.before_until) >= LOAD_REPORTS_APART {
            vm.before.clone_from(&vm.in_flight);
            vm.before_until = now;
        }
        vm.take_out(workers);
        (vm.in_flight, vm.counted) = (in_flight, now);
        vm.put_in(workers);
        Freshness::Newer
    }

    /// Requests on a worker of which only the last report of their VM knows, and none a while before it, `of`'s own aside: they may be
    /// over long before another one tells.
    pub(super) fn unsettled(&self, now: Timestamp, worker: u64, of: VmId) -> u64 {
        let others = self.vms.iter().filter(|(id, _)| of != **id);
        let recent = others.filter(|(_, vm)| now.since(vm.counted) < LOAD_STANDS_AFTER);
        // Of all together: what one has less of another may have more.
        let (now, before) = recent.fold((0u64, 0u64), |(now, before), (_, vm)| {
            (now + on(&vm.in_flight, worker), before + on(&vm.before, worker))
        });
        now.saturating_sub(before)
    }

    /// Counts a choice until a report covers it; true when an older one had to go for it.
    pub(super) fn reserve(
        &mut self,
        now: Timestamp,
        id: VmId,
        request: RequestId,
        slot: Slot,
        workers: &mut Workers,
    ) -> bool {
        self.end_reservation(id, request, workers);
        let Some(vm) = self.vms.get_mut(&id) else { return false };
        let full = vm.reservations.len() >= RESERVATIONS_MAX;
        if full {
            vm.drop_oldest_reservation(workers);
        }
        vm.reservations.push_back(Reservation { request, slot, made: now });
        change(workers, slot, |load| load.reserve(slot));
        full
    }

    /// The request ended before any report covered it.
    pub(super) fn end_reservation(&mut self, id: VmId, request: RequestId, workers: &mut Workers) {
        let Some(vm) = self.vms.get_mut(&id) else { return };
        // From the back: what ends early mostly ends soon.
        if let Some(at) = vm.reservations.iter().rposition(|r| r.request == request)
            && let Some(gone) = vm.reservations.remove(at)
        {
            change(workers, gone.slot, |load| load.give_back(gone.slot));
        }
    }

    /// The request is over and owned nothing: its route may still be under way.
    pub(super) fn note_over(&mut self, id: VmId, request: RequestId) {
        let Some(vm) = self.vms.get_mut(&id).filter(|vm| !vm.over.contains(&request)) else { return };
        if vm.over.len() >= OVER_MAX {
            vm.over.pop_front();
        }
        vm.over.push_back(request);
    }

    /// Whether nobody waits for this request's route any more.
    pub(super) fn is_over(&self, id: VmId, request: RequestId) -> bool {
        self.vms.get(&id).is_some_and(|vm| vm.over.contains(&request))
    }

    /// Buries VMs silent for longer than their lease, and drops reservations as old as that.
    pub(super) fn expire(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        workers: &mut Workers,
    ) -> BTreeSet<VmId> {
        let lease = limits.vm_lease;
        let dead: BTreeSet<VmId> =
            self.vms.iter().filter(|(_, vm)| now.since(vm.seen) > lease).map(|(id, _)| *id).collect();
        for id in &dead {
            if let Some(mut vm) = self.vms.remove(id) {
                self.ids.remove(&vm.caller);
                vm.take_out(workers);
            }
        }
        for vm in self.vms.values_mut() {
            while vm.reservations.front().is_some_and(|r| now.since(r.made) > lease) {
                vm.drop_oldest_reservation(workers);
            }
        }
        dead
    }

    /// VMs that live, and that neither asked nor told anything here for longer than their lease; each once.
    pub(super) fn gone_elsewhere(&mut self, now: Timestamp, lease: Millis) -> BTreeSet<VmId> {
        let left = |vm: &mut Vm| vm.here.take_if(|here| now.since(*here) > lease).is_some();
        self.vms.iter_mut().filter_map(|(id, vm)| left(vm).then_some(*id)).collect()
    }

    /// It reported here.
    pub(super) fn told_by_itself(&mut self, now: Timestamp, id: VmId) {
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.reported = Some(now);
        }
    }

    /// Another replica told of it: that one tells the others.
    pub(super) fn told_by_another(&mut self, id: VmId, seq: u64) {
        if let Some(vm) = self.vms.get_mut(&id).filter(|vm| vm.seq == Some(seq)) {
            (vm.reported, vm.changed) = (None, false);
        }
    }

    /// Counts of VMs that report here and changed, or were told of too long ago; at most `max`. From now on they are told.
    pub(super) fn take_untold(&mut self, now: Timestamp, again: Millis, max: usize) -> Vec<Untold> {
        let is_due = |vm: &Vm| {
            let told_since = vm.told.is_some_and(|told| vm.reported.is_none_or(|at| at <= told));
            let waits = vm.told.is_none_or(|told| now.since(told) >= again);
            vm.reported.is_some() && (vm.changed || waits && !told_since)
        };
        let mut untold = Vec::new();
        for vm in self.vms.values_mut().filter(|vm| is_due(vm)).take(max) {
            (vm.told, vm.changed) = (Some(now), false);
            untold.push((vm.caller.clone(), vm.seq.unwrap_or(0), vm.in_flight.clone()));
        }
        untold
    }

    /// Buries a VM of the same Envoy as `teller`, at that one's word; `None` when there is none.
    pub(super) fn gone(&mut self, teller: VmId, vm: Epoch, workers: &mut Workers) -> Option<(VmId, Caller)> {
        let node = self.vms.get(&teller).map(|teller| teller.caller.node.clone())?;
        let caller = Caller { node, vm };
        self.buried(&caller, workers).map(|id| (id, caller))
    }

    /// Buries a VM; `None` when it was not heard of.
    pub(super) fn buried(&mut self, caller: &Caller, workers: &mut Workers) -> Option<VmId> {
        let id = self.ids.remove(caller)?;
        if let Some(mut vm) = self.vms.remove(&id) {
            vm.take_out(workers);
        }
        Some(id)
    }

    /// Load of a worker that is declared anew while VMs have requests there already.
    pub(super) fn load_of(&self, worker: u64) -> WorkerLoad {
        let mut load = WorkerLoad::default();
        for vm in self.vms.values() {
            vm.in_flight
                .iter()
                .filter(|(slot, _)| slot.worker == worker)
                .for_each(|(slot, n)| load.report(*slot, *n));
            vm.reservations.iter().filter(|r| r.slot.worker == worker).for_each(|r| load.reserve(r.slot));
        }
        load
    }
}

impl Vm {
    const fn new(caller: Caller, seen: Timestamp) -> Self {
        Self {
            caller,
            seen,
            here: None,
            seq: None,
            in_flight: Vec::new(),
            before: Vec::new(),
            before_until: seen,
            counted: seen,
            reservations: VecDeque::new(),
            over: VecDeque::new(),
            reported: None,
            told: None,
            changed: false,
        }
    }

    fn put_in(&self, workers: &mut Workers) {
        for (slot, count) in &self.in_flight {
            change(workers, *slot, |load| load.report(*slot, *count));
        }
    }

    /// Takes the whole share of this VM out of the workers' load.
    fn take_out(&mut self, workers: &mut Workers) {
        for (slot, count) in self.in_flight.drain(..) {
            change(workers, slot, |load| load.take_back(slot, count));
        }
        while !self.reservations.is_empty() {
            self.drop_oldest_reservation(workers);
        }
    }

    fn drop_oldest_reservation(&mut self, workers: &mut Workers) {
        if let Some(oldest) = self.reservations.pop_front() {
            change(workers, oldest.slot, |load| load.give_back(oldest.slot));
        }
    }
}

/// Requests on a worker, of counts sorted by slot.
fn on(counts: &[(Slot, u32)], worker: u64) -> u64 {
    let from = counts.partition_point(|(slot, _)| slot.worker < worker);
    let there = counts.iter().skip(from).take_while(|(slot, _)| slot.worker == worker);
    there.map(|(_, count)| u64::from(*count)).sum()
}

/// A worker that is not declared has no load; it gets what there is when it is declared.
fn change(workers: &mut Workers, slot: Slot, change: impl FnOnce(&mut WorkerLoad)) {
    if let Some(worker) = workers.by_hash_mut(slot.worker) {
        change(&mut worker.load);
        workers.touch(slot);
    }
}
