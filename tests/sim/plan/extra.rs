//! What a world has beside the plain life of one pool: overload, gauges, split and further pools, demands, last turns, response
//! ids, drains. Drawn from dice of its own, so that a seed's other draws stay what they are.

use super::{CHAOS_BEGINS, CHAOS_ENDS, Timed, WorkerPlan, plan};
use crate::rng::Rng;
use routing::contract::{Engine, OnAllOverloaded, OnOverload, Policy, RankNumbering};
use routing::hash::Phase;

/// Longest wait for a slot in these worlds, in ms.
const WAITS: [u64; 3] = [40, 400, 2000];

/// What a world has beside the plain life of one pool. Chances are in a thousand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    pub(crate) overload: Option<Overload>,
    /// Engines show gauges.
    pub(crate) gauges: bool,
    /// That a scrape takes long.
    pub(crate) gauges_late: u64,
    /// The first pool has prefill workers.
    pub(crate) split: bool,
    /// There is a second pool.
    pub(crate) pools: bool,
    /// That a turn demands something of its worker.
    pub(crate) demands: u64,
    /// That a turn ends its session.
    pub(crate) finals: u64,
    /// That a conversation hangs on response ids.
    pub(crate) chains: u64,
    /// This worker repels who does not ask for it.
    pub(crate) tainted: Option<usize>,
    pub(crate) timed: Vec<(u64, Timed)>,
}

/// Limits low enough to be met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overload {
    pub(crate) limit: u32,
    pub(crate) on: OnOverload,
    pub(crate) on_all: OnAllOverloaded,
    pub(crate) wait: u64,
}

impl Overload {
    fn of(rng: &mut Rng) -> Self {
        let on = [OnOverload::Wait, OnOverload::Wait, OnOverload::Spill, OnOverload::Refuse];
        Self {
            limit: 1 + u32::try_from(rng.below(2)).unwrap(),
            on: on[rng.below(on.len())],
            on_all: if rng.per_mille(700) { OnAllOverloaded::LeastLoaded } else { OnAllOverloaded::Refuse },
            wait: WAITS[rng.below(WAITS.len())],
        }
    }

    /// Somebody may be turned away.
    pub(crate) fn refuses(&self) -> bool {
        self.on == OnOverload::Refuse || self.on_all == OnAllOverloaded::Refuse
    }
}

impl Extra {
    pub(crate) fn of(seed: u64, policy: Policy, workers: usize) -> Self {
        let mut rng = Rng::new(seed ^ 0xE87A_B000);
        if rng.per_mille(250) {
            return Self::default();
        }
        let direct = policy == Policy::Direct;
        let gauges = rng.per_mille(450);
        let demands = rng.per_mille(350) && !direct;
        let mut extra = Self {
            overload: rng.per_mille(550).then(|| Overload::of(&mut rng)),
            gauges,
            gauges_late: if rng.per_mille(500) { 0 } else { 400 },
            split: rng.per_mille(350) && !direct,
            pools: rng.per_mille(300) && !direct,
            demands: if demands { rng.within(50, 300) } else { 0 },
            finals: if rng.per_mille(350) { rng.within(30, 200) } else { 0 },
            chains: if rng.per_mille(350) && !direct { rng.within(200, 600) } else { 0 },
            tainted: (demands && rng.per_mille(500)).then(|| rng.below(workers)),
            timed: Vec::new(),
        };
        extra.draw_faults(&mut rng, seed.is_multiple_of(3), workers);
        extra
    }

    fn draw_faults(&mut self, rng: &mut Rng, calm: bool, workers: usize) {
        let mut when =
            |rng: &mut Rng, fault| self.timed.push((rng.within(CHAOS_BEGINS, CHAOS_ENDS - 3000), fault));
        for _ in 0..rng.below(3) {
            let (worker, lasts) = (rng.below(workers), rng.within(500, 5000));
            // A drain without a deadline costs nobody his place.
            let deadline = (!calm && rng.per_mille(500)).then(|| rng.within(0, lasts));
            when(rng, Timed::WorkerDrains { worker, deadline, lasts });
        }
        for _ in 0..if self.gauges { rng.below(4) } else { 0 } {
            let (worker, lasts) = (rng.below(workers), rng.within(1000, 6000));
            when(rng, Timed::CacheFills { worker, lasts });
            if rng.per_mille(400) {
                when(rng, Timed::GaugesStop { worker });
            }
        }
        if self.split && !calm && rng.per_mille(700) {
            let (worker, lasts) = (workers + rng.below(2), rng.within(200, 4000));
            let fault = match rng.below(4) {
                0 => Timed::WorkerRemoved { worker, lasts, moves: rng.per_mille(500) },
                1 => Timed::WorkerRefuses { worker, lasts },
                _ => Timed::RanksShrink { worker: workers },
            };
            when(rng, fault);
        }
    }

    /// Workers that come behind those every world has: two that prefill, two of another pool.
    pub(crate) fn workers(&self) -> Vec<WorkerPlan> {
        let mut all = Vec::new();
        if self.split {
            let prefill = |plan| WorkerPlan { phase: Phase::Prefill, ..plan };
            all.push(prefill(plan(Engine::Vllm, RankNumbering::Global, 0, &[8])));
            all.push(prefill(plan(Engine::Vllm, RankNumbering::Local, 4, &[2])));
        }
        if self.pools {
            let other = |plan| WorkerPlan { pool: OTHER_POOL, ..plan };
            all.push(other(plan(Engine::Vllm, RankNumbering::Global, 0, &[4])));
            all.push(other(plan(Engine::Sglang, RankNumbering::Global, 0, &[2])));
        }
        all
    }
}

/// The pool that every world has.
pub(crate) const POOL: &str = "chat";
/// The second one, which serves [`OTHER_MODEL`].
pub(crate) const OTHER_POOL: &str = "code";
/// A model of the second pool.
pub(crate) const OTHER_MODEL: &str = "coder-7b";
/// Names a pool, where there are several.
pub(crate) const POOL_HEADER: &str = "x-pool";
