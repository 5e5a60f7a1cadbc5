//! In-flight counts of all VMs of one Envoy, without drift: each VM writes its absolute share to a seat of its own in shared
//! data, and the watching VM sums the seats into gauges. A VM that died stops writing, and its whole share goes with its seat.
//!
//! Pure: bytes in, bytes out. Time does not come into it, so that no clock can bury a living VM: a seat that stands still for
//! [`STILL_MAX`] looks is dead.

use crate::id::Epoch;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Looks (one a tick) after which an unchanged seat is given up.
pub const STILL_MAX: u32 = 8;
/// Highest gauge number taken from a seat: a torn or foreign value must not make Envoy define endless gauges.
pub const GAUGES_MAX: u32 = 65_536;

/// A gauge whose value nobody here knows.
const UNKNOWN: u64 = u64::MAX;

/// What one VM wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The VM.
    pub vm: Epoch,
    /// Grows with each write: shows that the VM lives.
    pub beat: u64,
    /// Gauge number and requests in flight there.
    pub counts: Vec<(u32, u32)>,
}

impl Share {
    /// As kept in shared data.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.counts.len() * 8);
        out.extend_from_slice(&self.vm.0.to_le_bytes());
        out.extend_from_slice(&self.beat.to_le_bytes());
        for (gauge, count) in &self.counts {
            out.extend_from_slice(&gauge.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        out
    }

    /// Reads [`Self::to_bytes`]; `None` for a free seat.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (vm, rest) = bytes.split_first_chunk::<8>()?;
        let (beat, rest) = rest.split_first_chunk::<8>()?;
        let number = |chunk: &[u8; 4]| u32::from_le_bytes(*chunk);
        let (numbers, _) = rest.as_chunks::<4>();
        let (pairs, _) = numbers.as_chunks::<2>();
        let counts = pairs.iter().map(|[gauge, count]| (number(gauge), number(count))).collect();
        Some(Self { vm: Epoch(u64::from_le_bytes(*vm)), beat: u64::from_le_bytes(*beat), counts })
    }
}

/// A seat that nobody sits on.
#[must_use]
pub fn free() -> Vec<u8> {
    Vec::new()
}

/// Whether VM `me` may write to a seat that holds `bytes`: it is free, or its own.
#[must_use]
pub fn may_sit(bytes: &[u8], me: Epoch) -> bool {
    Share::read(bytes).is_none_or(|share| share.vm == me)
}

/// What the watching VM remembers of the seats.
#[derive(Debug, Default)]
pub struct Census {
    seen: BTreeMap<u32, Seen>,
    /// Gauges that are not zero.
    shown: BTreeMap<u32, u64>,
}

#[derive(Debug)]
struct Seen {
    vm: Epoch,
    beat: u64,
    still: u32,
}

/// What one look at all seats found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Gauges whose value changed.
    pub gauges: Vec<(u32, u64)>,
    /// Seats to be freed, with the dead VMs that sat there.
    pub dead: Vec<(u32, Epoch)>,
}

impl Census {
    /// Takes in all seats, once a tick.
    pub fn look<'a>(&mut self, seats: impl Iterator<Item = (u32, &'a [u8])>) -> Look {
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        let mut dead = Vec::new();
        for (seat, bytes) in seats {
            let Some(share) = Share::read(bytes) else {
                self.seen.remove(&seat);
                continue;
            };
            if self.is_dead(seat, &share) {
                dead.push((seat, share.vm));
                continue;
            }
            for (gauge, count) in share.counts.iter().filter(|(gauge, _)| *gauge < GAUGES_MAX) {
                *sums.entry(*gauge).or_default() += u64::from(*count);
            }
        }
        Look { gauges: self.show(sums), dead }
    }

    /// Another VM may have shown gauges meanwhile: these, and all this one has shown, are told anew with the next look.
    pub fn doubt(&mut self, gauges: impl Iterator<Item = u32>) {
        self.shown.values_mut().for_each(|value| *value = UNKNOWN);
        self.shown.extend(gauges.filter(|gauge| *gauge < GAUGES_MAX).map(|gauge| (gauge, UNKNOWN)));
    }

    fn is_dead(&mut self, seat: u32, share: &Share) -> bool {
        let fresh = || Seen { vm: share.vm, beat: share.beat, still: 0 };
        let seen = match self.seen.entry(seat) {
            Entry::Vacant(place) => {
                place.insert(fresh());
                return false;
            }
            Entry::Occupied(place) => place.into_mut(),
        };
        if (seen.vm, seen.beat) == (share.vm, share.beat) {
            seen.still += 1;
        } else {
            *seen = fresh();
        }
        seen.still > STILL_MAX
    }

    /// Changed gauges, those that fell to zero among them.
    fn show(&mut self, sums: BTreeMap<u32, u64>) -> Vec<(u32, u64)> {
        let fallen = self.shown.keys().filter(|gauge| !sums.contains_key(gauge)).map(|gauge| (*gauge, 0));
        let changed = sums.iter().filter(|(gauge, sum)| self.shown.get(gauge) != Some(sum));
        let gauges = fallen.chain(changed.map(|(gauge, sum)| (*gauge, *sum))).collect();
        self.shown = sums;
        gauges
    }
}
