//! What one VM does for its whole Envoy besides the poll: gauges of all seats, word of the dead, upload of cached bindings.
//!
//! Mirrors `filter/src/{seats,watch}.rs`, which hold no decisions.

use crate::faults::Fault;
use crate::planted::Bug;
use crate::world::{Event, VmAt, World};
use routing::contract::{Entry, PageUpload};
use routing::header::shared::SEATS;
use routing::id::Epoch;
use routing::seat::{self, Census, Share};
use routing::time::Millis;
use routing::upload::Upload;
use std::collections::BTreeMap;

/// As in the filter: a batch that is not answered by then is sent again.
const UPLOAD_TIMEOUT: u64 = 1500;
/// By then counts are right again after the death of a VM, the watching one included.
pub(crate) const BURIED_WITHIN: u64 = 2000;

/// The part of a VM's state that serves its whole Envoy.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    census: Census,
    seat: Option<usize>,
    beat: u64,
    pub(crate) led: bool,
    upload: Option<Upload>,
    upload_call: Option<u64>,
}

/// Seats in shared data, and the gauges that Envoy shows.
#[derive(Debug)]
pub(crate) struct Seats {
    seats: Vec<Vec<u8>>,
    gauges: BTreeMap<u32, u64>,
}

impl Default for Seats {
    fn default() -> Self {
        Self { seats: (0..SEATS).map(|_| seat::free()).collect(), gauges: BTreeMap::new() }
    }
}

impl Seats {
    fn sit(&mut self, own: Option<usize>, share: &Share) -> Option<usize> {
        let mine = |at: &usize| seat::may_sit(&self.seats[*at], share.vm);
        let at = own.filter(mine).or_else(|| (0..self.seats.len()).find(mine))?;
        self.seats[at] = share.to_bytes();
        Some(at)
    }

    fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        self.seats.iter().filter_map(|bytes| Share::read(bytes))
    }

    /// Sum of the gauges now.
    pub(crate) fn shown(&self) -> u64 {
        self.gauges.values().sum()
    }

    pub(crate) fn seats_vm(&self, vm: Epoch) -> bool {
        self.shares().any(|share| share.vm == vm)
    }
}

impl World {
    /// Tells the other VMs what this one has in flight.
    pub(crate) fn write_seat(&mut self, at: VmAt) {
        let envoy = &mut self.envoys[at.envoy];
        let cell = &mut envoy.vms[at.vm];
        let Some(directory) = &cell.vm.directory else { return };
        cell.watcher.beat += 1;
        let counts = cell.vm.loads.by_gauge(directory);
        let share = Share { vm: cell.vm.caller.vm, beat: cell.watcher.beat, counts };
        cell.watcher.seat = envoy.shared.seats.sit(cell.watcher.seat, &share);
    }

    /// It begins to watch for its Envoy, whatever others showed before.
    pub(crate) fn take_gauges_over(&mut self, at: VmAt) {
        if self.bug == Some(Bug::NewWatcherTrustsGauges) {
            return;
        }
        let envoy = &mut self.envoys[at.envoy];
        let shown = envoy.shared.seats.gauges.last_key_value().map_or(0, |(highest, _)| highest + 1);
        envoy.vms[at.vm].watcher.census.doubt(0..shown);
    }

    /// Sums the seats, frees those of the dead, has the service told.
    pub(crate) fn show_gauges(&mut self, at: VmAt) {
        let envoy = &mut self.envoys[at.envoy];
        let (cell, seats) = (&mut envoy.vms[at.vm], &mut envoy.shared.seats);
        let numbered = seats.seats.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty());
        let looks = numbered.map(|(n, bytes)| (u32::try_from(n).unwrap(), bytes.as_slice()));
        let look = cell.watcher.census.look(looks);
        seats.gauges.extend(look.gauges);
        for (n, dead) in look.dead {
            self.fired.count(Fault::VmBuried);
            seats.seats[n as usize] = seat::free();
            if self.bug != Some(Bug::DeadVmsAreNotTold) {
                cell.vm.reports.push(Entry::VmGone { vm: dead });
            }
        }
    }

    pub(crate) fn wants_upload(&mut self, at: VmAt, epoch: Epoch) {
        let watcher = &mut self.envoys[at.envoy].vms[at.vm].watcher;
        if watcher.upload.as_ref().is_none_or(|upload| upload.epoch != epoch) {
            watcher.upload = Some(Upload::new(epoch));
        }
    }

    /// The next batch, if there is an upload and none is on its way.
    pub(crate) fn upload_on(&mut self, at: VmAt) {
        let to = self.envoys[at.envoy].replica;
        let (now, call, no_uploads) =
            (self.envoy_now(at.envoy), self.new_call(), self.bug == Some(Bug::NoUploads));
        let envoy = &mut self.envoys[at.envoy];
        let (cell, pages) = (&mut envoy.vms[at.vm], &envoy.shared.pages);
        let watcher = &mut cell.watcher;
        let (Some(upload), None) = (&mut watcher.upload, watcher.upload_call) else { return };
        let page = |n: u32| pages.get(n as usize).cloned();
        let Some(batch) = upload.batch(&cell.vm.caller, envoy.config.page_count, now, page) else { return };
        watcher.upload_call = Some(call);
        self.after(UPLOAD_TIMEOUT, Event::PagesAnswered { at, call, good: false });
        if no_uploads {
            return;
        }
        let lost = self.net().report_lost;
        if self.rng.per_mille(lost) {
            return self.fired.count(Fault::UploadLost);
        }
        let delay = self.rng.within(1, 6);
        self.after(delay, Event::PagesArrive { to, at, call, upload: Box::new(batch) });
    }

    pub(crate) fn pages_arrive(&mut self, at: VmAt, call: u64, upload: PageUpload) {
        if !self.is_service_up() {
            return;
        }
        self.fired.count(Fault::PagesUploaded);
        self.apply(state_service::state::Command::Pages(upload));
        let delay = self.rng.within(1, 6);
        self.after(delay, Event::PagesAnswered { at, call, good: true });
    }

    pub(crate) fn pages_answered(&mut self, at: VmAt, call: u64, good: bool) {
        let pages = self.envoys[at.envoy].config.page_count;
        let Some(cell) = self.cell(at).filter(|cell| cell.watcher.upload_call == Some(call)) else { return };
        cell.watcher.upload_call = None;
        let Some(upload) = &mut cell.watcher.upload else { return };
        if good {
            upload.acknowledged(pages);
            self.upload_on(at);
        } else {
            upload.lost();
        }
    }

    /// Whatever makes another VM watch, or the watching one start counting anew.
    pub(crate) fn disturb(&mut self, envoy: usize) {
        self.envoys[envoy].disturbed = self.now;
    }

    /// Some time after a VM died, unless something came between.
    pub(crate) fn check_buried(&mut self, envoy: usize, dead: Epoch) {
        let quiet_for = self.now.since(self.envoys[envoy].disturbed);
        if quiet_for < Millis(BURIED_WITHIN) {
            return self.after(BURIED_WITHIN - quiet_for.0, Event::CheckBuried { envoy, dead });
        }
        if self.envoys[envoy].shared.seats.seats_vm(dead) {
            self.violate("a dead VM's share goes within 2 s", &format!("{dead:?} on {envoy}"));
        }
    }
}
