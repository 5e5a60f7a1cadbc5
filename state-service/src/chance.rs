//! The only clock and the only dice of the service: everything below takes time and chance as arguments.

use crate::lock::lock;
use routing::id::Epoch;
use routing::time::{Millis, Timestamp};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Longest step. The service looks ten times a second: between two looks that are further apart it was stopped, and heard of nothing.
const STEP_MS_MAX: u64 = 1000;

/// Milliseconds since the process started, but for those in which it was stopped; monotonic. Who was stopped would else end what others
/// kept alive in the meantime, and pull sessions off their slots before it hears of them.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    steps: Mutex<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    /// When it was looked at last, since it began.
    looked: u64,
    /// What it shows.
    shown: u64,
}

impl Steps {
    fn look(&mut self, now: u64) -> u64 {
        self.shown += now.saturating_sub(self.looked).min(STEP_MS_MAX);
        self.looked = self.looked.max(now);
        self.shown
    }
}

impl Clock {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self { began: Instant::now(), steps: Mutex::default() }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let mut steps = lock(&self.steps);
        Timestamp(steps.look(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)))
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
    fn time_in_which_nobody_looked_does_not_count() {
        let mut steps = Steps::default();
        assert_eq!(
            [10, 1010, 9010, 9011, 9000, 9012].map(|now| steps.look(now)),
            [10, 1010, 2010, 2011, 2011, 2012]
        );
    }

    #[test]
    fn draws_differ_and_jitter_stays_within_a_tenth() {
        let chance = Chance::from_system();
        assert_ne!(chance.draw(), chance.draw());
        assert!((0..1000).all(|_| (900..=1100).contains(&chance.jittered(1000).0)));
        assert!((0..1000).all(|_| chance.jittered(3).0 == 3), "no room for jitter");
        assert!((0..1000).all(|_| (1..1 << 53).contains(&chance.epoch().0)));
    }
}
