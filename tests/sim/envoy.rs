//! One Envoy: shared data, what it knows by xDS, and its VMs with the calls that belong to no request.
//!
//! Mirrors `filter/src/{store,vm,watch,root}.rs`, which hold no decisions: what they hand to `routing`, this hands to it.

use crate::faults::Fault;
use crate::planted::Bug;
use crate::watcher::{Seats, Watcher};
use crate::world::{Event, VmAt, World};
use routing::config::FilterConfig;
use routing::contract::{Report, Topology};
use routing::flow::PageChange;
use routing::header::shared::CURSORS;
use routing::id::Epoch;
use routing::page;
use routing::time::Timestamp;
use routing::vm::Vm;
use routing::watch::{self, Position, StoredFleet, gauge_parts};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// As in the filter: a report that is not answered by then is sent again.
const REPORT_TIMEOUT: u64 = 1500;
/// As in the filter: pause after a failed poll.
pub(crate) const PAUSE_MS: u64 = 200;
/// As in the filter: urgent reports a tick may send at once.
const URGENT_PER_TICK_MAX: u32 = 64;

/// What all VMs of an Envoy share.
#[derive(Debug, Default)]
pub(crate) struct SharedData {
    pub(crate) pages: Vec<Vec<u8>>,
    /// Round-robin positions.
    pub(crate) turns: Vec<Cell<u64>>,
    pub(crate) seats: Seats,
    pub(crate) topology: Option<Topology>,
    pub(crate) fleet: Option<StoredFleet>,
    pub(crate) position: Position,
    pub(crate) lease: Option<Vec<u8>>,
    pub(crate) gauge: u64,
}

/// What discovery told this Envoy: endpoint clusters with their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Discovered {
    pub(crate) epoch: Epoch,
    pub(crate) version: u64,
    pub(crate) clusters: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(crate) struct VmCell {
    pub(crate) vm: Vm,
    pub(crate) life: u64,
    seen: u64,
    urgent: u32,
    report_call: Option<u64>,
    pub(crate) watch_call: Option<u64>,
    pub(crate) not_before: Timestamp,
    pub(crate) watcher: Watcher,
    /// Requests placed here that are not over: what `vm.loads` must say.
    pub(crate) placed: u64,
    /// Of these, those whose prefill half counts too.
    pub(crate) prefilling: u64,
}

#[derive(Debug)]
pub(crate) struct Envoy {
    pub(crate) node: String,
    pub(crate) config: FilterConfig,
    pub(crate) shared: SharedData,
    pub(crate) discovered: Discovered,
    /// Hosts it lost for a while.
    pub(crate) hidden: BTreeSet<String>,
    /// Its clusters come from files: the service does not see when it has them.
    pub(crate) by_files: bool,
    /// How far its clock is off.
    pub(crate) skew_ms: i64,
    /// When its VMs last had to begin counting anew.
    pub(crate) disturbed: Timestamp,
    /// The replica that it asks.
    pub(crate) replica: usize,
    /// One that it takes for dead.
    pub(crate) shuns: Option<usize>,
    /// VMs of it that died.
    pub(crate) deaths: u64,
    pub(crate) vms: Vec<VmCell>,
}

impl VmCell {
    /// Grows with each topology taken over.
    pub(crate) const fn topologies(&self) -> u64 {
        gauge_parts(self.seen).0
    }

    pub(crate) fn new(node: &str, life: u64, seed: u64) -> Self {
        Self {
            vm: Vm::new(node, Epoch(seed | 1), seed.rotate_left(17)),
            life,
            seen: 0,
            urgent: 0,
            report_call: None,
            watch_call: None,
            not_before: Timestamp(0),
            watcher: Watcher::default(),
            placed: 0,
            prefilling: 0,
        }
    }
}

impl SharedData {
    pub(crate) fn new(pages: u32) -> Self {
        let turns = vec![Cell::new(0); CURSORS as usize];
        Self { pages: (0..pages).map(|_| page::empty()).collect(), turns, ..Self::default() }
    }

    /// True when the change needs no further try.
    pub(crate) fn change_page(&mut self, change: &PageChange, bytes: usize, bug: Option<Bug>) {
        let count = u32::try_from(self.pages.len()).unwrap();
        let at = page::page_of(change.session(), count) as usize;
        let mut old = self.pages[at].clone();
        if let (Some(Bug::PagesIgnoreVersions), PageChange::Put(record)) = (bug, change) {
            let others = page::all(&old).filter(|known| known.id != record.id);
            old = others.fold(page::empty(), |page, other| page::with(&page, &other, bytes).unwrap_or(page));
        }
        if let Some(new) = change.apply(&old, bytes) {
            self.pages[at] = new;
        }
    }

    pub(crate) fn record(&self, id: routing::id::SessionId) -> Option<page::Record> {
        let count = u32::try_from(self.pages.len()).unwrap();
        self.pages.get(page::page_of(id, count) as usize).and_then(|page| page::find(page, id))
    }
}

impl Envoy {
    /// The addresses it can dial, by cluster.
    pub(crate) fn dialable(&self) -> BTreeMap<&str, &str> {
        let all = self.discovered.clusters.iter().map(|(name, address)| (name.as_str(), address.as_str()));
        all.filter(|(_, address)| !self.hidden.contains(*address)).collect()
    }

    /// Takes over a newer topology or fleet from shared data.
    pub(crate) fn refresh(&mut self, now: Timestamp, vm: usize) {
        let (shared, cell) = (&self.shared, &mut self.vms[vm]);
        if shared.gauge == cell.seen {
            return;
        }
        let differs = gauge_parts(cell.seen).0 != gauge_parts(shared.gauge).0;
        cell.vm.take_over(now, shared.topology.as_ref().filter(|_| differs), shared.fleet.as_ref());
        cell.seen = shared.gauge;
    }

    pub(crate) fn leads(&mut self, vm: usize, now: Timestamp) -> bool {
        let me = self.vms[vm].vm.caller.vm;
        let lease = watch::claim(self.shared.lease.as_deref(), me, now);
        let mine = lease.is_some();
        self.shared.lease = lease.or_else(|| self.shared.lease.take());
        mine
    }
}

impl World {
    pub(crate) fn tick(&mut self, at: VmAt) {
        let now = self.envoy_now(at.envoy);
        let Some(cell) = self.cell(at) else { return };
        cell.urgent = 0;
        self.envoys[at.envoy].refresh(now, at.vm);
        let cell = &mut self.envoys[at.envoy].vms[at.vm];
        if let Some(report) = cell.vm.next_report(now) {
            self.send_report(at, &report, true);
        }
        let idle = {
            let cell = &self.envoys[at.envoy].vms[at.vm];
            let paused = now < cell.not_before && cell.not_before.since(now).0 <= PAUSE_MS;
            cell.watch_call.is_none() && !paused
        };
        self.write_seat(at);
        let leads = self.envoys[at.envoy].leads(at.vm, now);
        let led = std::mem::replace(&mut self.envoys[at.envoy].vms[at.vm].watcher.led, leads);
        if leads {
            if !led {
                self.take_gauges_over(at);
            }
            self.show_gauges(at);
            self.upload_on(at);
            if idle {
                self.poll(at);
            }
        }
        let tick = self.envoys[at.envoy].config.tick.0;
        self.after(tick, Event::Tick(at));
    }

    /// The newest entry, at once; nobody waits for the answer.
    pub(crate) fn report_now(&mut self, at: VmAt) {
        let cell = &mut self.envoys[at.envoy].vms[at.vm];
        cell.urgent += 1;
        if cell.urgent > URGENT_PER_TICK_MAX {
            return;
        }
        let in_flight = cell.vm.loads.absolute(cell.vm.directory.as_ref());
        let caller = cell.vm.caller.clone();
        if let Some(report) = cell.vm.reports.urgent(&caller, in_flight) {
            self.send_report(at, &report, false);
        }
    }

    fn send_report(&mut self, at: VmAt, report: &Report, regular: bool) {
        let call = self.new_call();
        if regular {
            self.envoys[at.envoy].vms[at.vm].report_call = Some(call);
            self.after(REPORT_TIMEOUT, Event::ReportAnswered { at, call, good: false });
        }
        let net = self.net();
        if self.rng.per_mille(net.report_lost) {
            return self.fired.count(Fault::ReportLost);
        }
        let copies = if self.rng.per_mille(net.report_twice) { 2 } else { 1 };
        let to = self.envoys[at.envoy].replica;
        for copy in 0..copies {
            let late = self.rng.per_mille(net.report_late);
            let delay = if late { self.rng.within(20, 1900) } else { self.rng.within(1, 6) };
            self.after(delay, Event::ReportArrives { to, at, call, report: Box::new(report.clone()) });
            for (fault, fired) in [(Fault::ReportTwice, copy == 1), (Fault::ReportLate, late)] {
                if fired {
                    self.fired.count(fault);
                }
            }
        }
    }

    pub(crate) fn report_answered(&mut self, at: VmAt, call: u64, good: bool) {
        let Some(cell) = self.cell(at) else { return };
        if cell.report_call != Some(call) {
            return;
        }
        cell.report_call = None;
        if good {
            cell.vm.reports.acknowledged();
        } else {
            cell.vm.reports.lost();
        }
    }
}
