//! In-flight gauges: this VM's seat in shared data, and, for the watching VM, the sum of all seats.

use crate::{host, store, vm};
use routing::contract::Entry;
use routing::header::{self, shared};
use routing::seat::{self, Census, Share};
use std::collections::BTreeMap;

/// Where this VM writes its share.
#[derive(Default)]
pub(crate) struct Seat {
    number: Option<u32>,
    beat: u64,
    warned: bool,
}

impl Seat {
    fn write(&mut self, share: &Share) {
        if self.number.is_some_and(|n| sit(n, share)) {
            return;
        }
        self.number = (0..shared::SEATS).find(|n| sit(*n, share));
        if self.number.is_none() && !self.warned {
            self.warned = true;
            log::warn!("all {} seats are taken: this VM's requests are not in the gauges", shared::SEATS);
        }
    }
}

/// Writes a share to a seat that is free or ours.
fn sit(n: u32, share: &Share) -> bool {
    let key = shared::seat(n);
    let Some((bytes, cas)) = host::shared(&key) else { return false };
    seat::may_sit(&bytes, share.vm) && host::set_shared(&key, &share.to_bytes(), cas)
}

/// Tells the other VMs of this Envoy what this one has in flight. Once a tick.
pub(crate) fn write() {
    vm::with(|shared| {
        let Some(directory) = &shared.vm.directory else { return };
        shared.seat.beat += 1;
        let counts = shared.vm.loads.by_gauge(directory);
        let share = Share { vm: shared.vm.caller.vm, beat: shared.seat.beat, counts };
        shared.seat.write(&share);
    });
}

/// The watching VM's look at all seats.
#[derive(Default)]
pub(crate) struct Gauges {
    census: Census,
    ids: BTreeMap<u32, u32>,
}

impl Gauges {
    /// This VM takes the watch over: what another one showed meanwhile is not known here.
    pub(crate) fn take_over(&mut self) {
        self.census.doubt(0..store::number(shared::GAUGES));
    }

    /// Sums the seats into gauges, frees those of dead VMs and has the service told. Once a tick.
    pub(crate) fn show(&mut self) {
        let seats: Vec<(u32, Vec<u8>, u32)> = (0..shared::SEATS)
            .filter_map(|n| host::shared(&shared::seat(n)).map(|(bytes, cas)| (n, bytes, cas)))
            .collect();
        let look = self.census.look(seats.iter().map(|(n, bytes, _)| (*n, bytes.as_slice())));
        for (gauge, value) in look.gauges {
            self.record(gauge, value);
        }
        for (n, dead) in look.dead {
            let cas = seats.iter().find(|(seat, ..)| *seat == n).map_or(0, |(_, _, cas)| *cas);
            // Written since after all: it lives.
            if host::set_shared(&shared::seat(n), &seat::free(), cas) {
                vm::with(|shared| shared.vm.reports.push(Entry::VmGone { vm: dead }));
            }
        }
    }

    fn record(&mut self, gauge: u32, value: u64) {
        let id = match self.ids.get(&gauge) {
            Some(id) => *id,
            None => {
                let Some(id) = host::gauge(&header::gauge::slot_in_flight(gauge)) else { return };
                self.ids.insert(gauge, id);
                // A successor must know of it, whatever becomes of the worker it stands for.
                if gauge >= store::number(shared::GAUGES) {
                    store::put_number(shared::GAUGES, gauge + 1);
                }
                id
            }
        };
        host::record(id, value);
    }
}
