//! What a world has where several replicas share a store. Drawn from dice of its own.

use super::{CHAOS_BEGINS, CHAOS_ENDS, Plan, Timed};
use crate::rng::Rng;
use routing::contract::Policy;

/// Seeds from here on are worlds with replicas.
pub(crate) const REPLICAS_FROM: u64 = 1_000_000;

/// What is so of the replicas and their store.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// Most sessions in one call.
    pub(crate) batch: usize,
    /// Entries that the log keeps.
    pub(crate) log_max: usize,
    /// Sessions whose changes can be followed.
    pub(crate) journal_max: usize,
    /// Envoys share their first choice, or each has its own.
    pub(crate) spread: bool,
    /// This one is started later.
    pub(crate) joins_late: Option<(usize, u64)>,
    /// And does not find the store.
    pub(crate) joins_cut: bool,
    /// That other replicas learn of a declaration later, in a thousand.
    pub(crate) staggers: u64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            batch: 256,
            log_max: 16_384,
            journal_max: 131_072,
            spread: true,
            joins_late: None,
            joins_cut: false,
            staggers: 0,
        }
    }
}

impl Shared {
    pub(crate) const fn first_replica(&self, envoy: usize) -> usize {
        if self.spread { envoy } else { 0 }
    }
}

impl Plan {
    /// The same world with several replicas.
    pub(super) fn shared_by_replicas(mut self, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5A4E_D000);
        self.replicas = 2 + rng.below(2);
        self.shared = Shared {
            batch: if rng.per_mille(500) { 1 + rng.below(4) } else { 256 },
            log_max: if rng.per_mille(400) { 4 + rng.below(20) } else { 16_384 },
            journal_max: if rng.per_mille(300) { 3 + rng.below(8) } else { 131_072 },
            spread: rng.per_mille(800),
            joins_late: rng.per_mille(300).then(|| (self.replicas - 1, rng.within(500, 9000))),
            joins_cut: rng.per_mille(100),
            staggers: if rng.per_mille(500) { rng.within(200, 1000) } else { 0 },
        };
        if self.shared.joins_cut {
            self.shared.joins_late = Some((self.replicas - 1, rng.within(500, 2500)));
        }
        self.sessions_max = 4096;
        if self.policy == Policy::KvAware {
            self.policy = Policy::LeastLoaded;
        }
        let of_one = |fault: &Timed| {
            matches!(
                fault,
                Timed::ServiceRestarts { .. } | Timed::ServiceClockLeaps { .. } | Timed::WorkerDrains { .. }
            )
        };
        self.timed.retain(|(_, fault)| !of_one(fault));
        if !seed.is_multiple_of(3) {
            self.net.store_lost = if rng.per_mille(500) { rng.within(0, 30) } else { 0 };
            self.net.store_reply_lost = if rng.per_mille(500) { rng.within(0, 30) } else { 0 };
            self.net.store_late = if rng.per_mille(500) { rng.within(0, 60) } else { 0 };
        }
        self.draw_splits(&mut rng);
        self
    }

    fn draw_splits(&mut self, rng: &mut Rng) {
        for _ in 0..rng.below(5) {
            let at = rng.within(CHAOS_BEGINS, CHAOS_ENDS - 3000);
            let (replica, lasts, silent) =
                (rng.below(self.replicas), rng.within(50, 6000), rng.per_mille(500));
            let fault = match rng.below(7) {
                0 => Timed::ReplicaDies { replica, silent, down: lasts / 2 },
                1 => Timed::ReplicaCut { replica, silent, lasts },
                2 => Timed::StoreDies { silent, forgets: rng.per_mille(500), lasts: lasts / 2 },
                3 => Timed::StoreFlushed,
                4 => Timed::StoreFailsOver { lag: rng.within(5, 500) },
                _ => Timed::EnvoyShuns { envoy: rng.below(self.envoys), replica, lasts },
            };
            self.timed.push((at, fault));
        }
    }
}
