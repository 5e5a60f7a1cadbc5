//! Points in time and durations, as values. Nothing here reads a clock.

use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign};

/// Milliseconds since an arbitrary origin that the caller keeps for its whole life. Compare only with timestamps of the same caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// A duration in milliseconds. On the wire durations are always relative (`decisions`: never wall-clock).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// Whole seconds as milliseconds, saturating.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }
}

impl Timestamp {
    /// Time since `earlier`; zero when the clock went backwards, so a jump never yields a huge age.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Millis> for Timestamp {
    type Output = Self;
    fn add(self, rhs: Millis) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign<Millis> for Timestamp {
    fn add_assign(&mut self, rhs: Millis) {
        *self = *self + rhs;
    }
}
