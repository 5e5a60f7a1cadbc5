//! Recent failures of a worker as load: one that fails fast has nothing in flight and must not look idle for it.
//!
//! Each failure adds [`PER_FAILURE`] requests; the sum halves every [`HALF_LIFE`] and with each good answer, so that a
//! worker proves itself by serving. The same in filter and service. Integers only.

use crate::time::{Millis, Timestamp};

/// What one failure counts as, in requests in flight.
pub const PER_FAILURE: u32 = 4;
/// Most that failures count as together, in requests.
pub const PENALTY_MAX: u32 = 1024;
/// The penalty halves in this time.
pub const HALF_LIFE: Millis = Millis(5000);

/// Parts of a request that a penalty is kept in, so that it decays smoothly.
const PARTS: u64 = 1024;

/// A decaying count of failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Penalty {
    parts: u64,
    at: Timestamp,
}

impl Penalty {
    /// So many failures happened now.
    pub fn add(&mut self, now: Timestamp, failures: u32) {
        let added = u64::from(failures) * u64::from(PER_FAILURE) * PARTS;
        self.parts = self.parts_at(now).saturating_add(added).min(u64::from(PENALTY_MAX) * PARTS);
        self.at = now;
    }

    /// A good answer came.
    pub fn proved(&mut self, now: Timestamp) {
        self.parts = self.parts_at(now) / 2;
        self.at = now;
    }

    /// What it counts as now, in whole requests, rounded up: a failure is felt until little is left of it.
    #[must_use]
    pub fn requests(&self, now: Timestamp) -> u32 {
        let parts = self.parts_at(now);
        // Below a quarter of a request it is over, or rounding up would keep it for ever.
        if parts < PARTS / 4 { 0 } else { u32::try_from(parts.div_ceil(PARTS)).unwrap_or(PENALTY_MAX) }
    }

    /// Halves per half-life, straight in between; a clock that went back leaves it as it was.
    fn parts_at(&self, now: Timestamp) -> u64 {
        let gone = now.since(self.at).0;
        let whole =
            self.parts.checked_shr(u32::try_from(gone / HALF_LIFE.0).unwrap_or(u32::MAX)).unwrap_or(0);
        whole - whole * (gone % HALF_LIFE.0) / (2 * HALF_LIFE.0)
    }
}
