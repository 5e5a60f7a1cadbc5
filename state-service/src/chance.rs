//! The only clock and the only dice of the service: everything below takes time and chance as arguments.

use routing::id::Epoch;
use routing::time::{Millis, Timestamp};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Milliseconds since the process started; monotonic.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Since the start.
    #[must_use]
    pub fn uptime(&self) -> Millis {
        self.now().since(Timestamp(0))
    }
}

/// Uniform draws, for ties, salts and jitter; not for secrets.
#[derive(Debug)]
pub struct Chance(AtomicU64);

impl Chance {
    /// Seeded by the system, through the keys std draws for its hash maps.
    #[must_use]
    pub fn from_system() -> Self {
        Self(AtomicU64::new(RandomState::new().build_hasher().finish()))
    }

    /// One draw (splitmix64: each step of the counter is one output).
    pub fn draw(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A life of the service: never 0, and exact in a JSON reader that knows doubles only.
    pub fn epoch(&self) -> Epoch {
        Epoch((self.draw() >> 12) | 1)
    }

    /// `ms` give or take a tenth, so that many periodic tasks do not march in step.
    pub fn jittered(&self, ms: u64) -> Millis {
        let tenth = ms / 10;
        let spread = tenth.saturating_mul(2).saturating_add(1);
        Millis(ms - tenth + self.draw() % spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_differ_and_jitter_stays_within_a_tenth() {
        let chance = Chance::from_system();
        assert_ne!(chance.draw(), chance.draw());
        assert!((0..1000).all(|_| (900..=1100).contains(&chance.jittered(1000).0)));
        assert!((0..1000).all(|_| chance.jittered(3).0 == 3), "no room for jitter");
        assert!((0..1000).all(|_| (1..1 << 53).contains(&chance.epoch().0)));
    }
}
