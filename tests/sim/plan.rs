//! What one seed sets up: fleet, Envoys, traffic, and how likely each fault is. All draws of the plan come before the run.

mod extra;
mod faults;
mod shared;
mod timed;

pub(crate) use extra::{Extra, OTHER_MODEL, OTHER_POOL, POOL, POOL_HEADER};
pub(crate) use shared::{REPLICAS_FROM, Shared};
pub(crate) use timed::Timed;

use crate::rng::Rng;
use faults::{calm_net, harmless, rough_net, timed};
use routing::config::Steering;
use routing::contract::{Affinity, Engine, Policy, RankChoice, RankNumbering};
use routing::hash::Phase;

/// Faults begin after the fleet is known everywhere and end here, in ms.
pub(crate) const CHAOS_BEGINS: u64 = 2_000;
/// See [`CHAOS_BEGINS`].
pub(crate) const CHAOS_ENDS: u64 = 14_000;

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) envoys: usize,
    pub(crate) vms: usize,
    pub(crate) steering: Steering,
    pub(crate) policy: Policy,
    pub(crate) workers: Vec<WorkerPlan>,
    pub(crate) sessions: usize,
    pub(crate) turns: u64,
    /// Count and bytes of pages: small ones evict.
    pub(crate) pages: (u32, usize),
    pub(crate) sessions_max: usize,
    pub(crate) net: Net,
    pub(crate) clients_leave: u64,
    pub(crate) timed: Vec<(u64, Timed)>,
    /// The Envoy whose clusters come from files.
    pub(crate) by_files: Option<usize>,
    pub(crate) affinity: Affinity,
    pub(crate) rank: RankChoice,
    /// Callers may name their targets.
    pub(crate) trust: bool,
    /// Clients are told who served.
    pub(crate) served_header: bool,
    /// How many of `workers` every world has; those of further pools and halves come behind them.
    pub(crate) plain_workers: usize,
    pub(crate) extra: Extra,
    /// Of the service.
    pub(crate) replicas: usize,
    pub(crate) shared: Shared,
}

/// Ranks of a worker, endpoint by endpoint.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) engine: Engine,
    pub(crate) numbering: RankNumbering,
    pub(crate) start: u32,
    pub(crate) sizes: Vec<u32>,
    pub(crate) pool: &'static str,
    pub(crate) phase: Phase,
}

/// Chances in a thousand, a message each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Net {
    pub(crate) route_lost: u64,
    pub(crate) route_reply_lost: u64,
    pub(crate) route_late: u64,
    pub(crate) report_lost: u64,
    pub(crate) report_twice: u64,
    pub(crate) report_late: u64,
    pub(crate) watch_lost: u64,
    pub(crate) xds_lost: u64,
    pub(crate) reply_twice: u64,
    pub(crate) reply_late: u64,
    pub(crate) store_lost: u64,
    pub(crate) store_reply_lost: u64,
    pub(crate) store_late: u64,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let plan = Self::of_one_replica(seed);
        if seed >= REPLICAS_FROM { plan.shared_by_replicas(seed) } else { plan }
    }

    fn of_one_replica(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x51AB_1E00);
        let calm = seed.is_multiple_of(3);
        let steering = if rng.per_mille(500) { Steering::Cluster } else { Steering::Endpoints };
        let policy = policy(&mut rng);
        let (envoys, vms) = (2 + rng.below(2), 2 + rng.below(2));
        let mut workers: Vec<WorkerPlan> = (0..3 + rng.below(2)).map(|n| worker(&mut rng, n)).collect();
        let sessions = 12 + rng.below(14);
        let small_table = !calm && rng.per_mille(120);
        let net = if calm { calm_net(&mut rng) } else { rough_net(&mut rng) };
        let mut timed = if calm { Vec::new() } else { timed(&mut rng, envoys, vms, workers.len()) };
        timed.extend(harmless(&mut rng, envoys, policy, &mut workers));
        if rng.per_mille(300) {
            let at = rng.within(CHAOS_BEGINS, CHAOS_ENDS - 3000);
            timed.push((at, Timed::VmDies { envoy: rng.below(envoys), vm: rng.below(vms) }));
        }
        let extra = Extra::of(seed, policy, workers.len());
        let policy = by_cache(seed, policy);
        let plain_workers = workers.len();
        if extra.split {
            workers.iter_mut().for_each(|worker| worker.phase = Phase::Decode);
        }
        workers.extend(extra.workers());
        timed.extend(extra.timed.iter().copied());
        let trust = policy == Policy::Direct || rng.per_mille(250);
        // Where targets are exact, an Envoy that does not know a host yet must show.
        let by_files = rng.per_mille(if trust { 700 } else { 250 }).then(|| rng.below(envoys));
        Self {
            envoys,
            vms,
            steering,
            policy,
            workers,
            sessions,
            turns: 4 + rng.next() % 4,
            pages: if rng.per_mille(300) { (2, 260) } else { (64, 2048) },
            sessions_max: if small_table { 4 } else { 4096 },
            net,
            clients_leave: rng.within(0, 120),
            timed,
            by_files,
            served_header: rng.per_mille(300),
            affinity: match rng.below(10) {
                0 | 1 => Affinity::Soft,
                2 => Affinity::Off,
                _ => Affinity::Hard,
            },
            rank: match rng.below(8) {
                0 => RankChoice::Engine,
                1 => RankChoice::Pinned,
                _ => RankChoice::Auto,
            },
            trust,
            plain_workers,
            extra,
            replicas: 1,
            shared: Shared::default(),
        }
    }

    /// Callers of its listeners are trusted.
    pub(crate) const fn trusts(&self) -> bool {
        self.trust || self.extra.demands > 0
    }

    /// Whether somebody may be refused only because others are there.
    pub(crate) fn may_refuse(&self) -> bool {
        self.extra.overload.is_some_and(|overload| overload.refuses())
    }

    /// Whether a session's turns carry the rank of its hash where nothing binds another.
    pub(crate) fn sends_hashed_ranks(&self) -> bool {
        let engines = matches!(
            (self.affinity, self.rank),
            (Affinity::Off, _) | (_, RankChoice::Engine) | (Affinity::Soft, RankChoice::Auto)
        );
        !engines
    }

    /// This Envoy's clock goes forward at some time.
    pub(crate) fn leaps_ahead(&self, envoy: usize) -> bool {
        let ahead =
            |fault: &Timed| matches!(fault, Timed::EnvoyClockJumps { envoy: n, by_ms: 1.. } if *n == envoy);
        self.timed.iter().any(|(_, fault)| ahead(fault))
    }

    /// Not there from the beginning.
    pub(crate) fn joins_late(&self, worker: usize) -> bool {
        self.timed
            .iter()
            .any(|(_, fault)| matches!(fault, Timed::WorkerJoins { worker: late } if *late == worker))
    }
}

fn plan(engine: Engine, numbering: RankNumbering, start: u32, sizes: &[u32]) -> WorkerPlan {
    WorkerPlan { engine, numbering, start, sizes: sizes.to_vec(), pool: POOL, phase: Phase::Aggregated }
}

fn worker(rng: &mut Rng, n: usize) -> WorkerPlan {
    match n {
        0 => plan(Engine::Vllm, RankNumbering::Global, 0, &[4]),
        1 => plan(Engine::Vllm, RankNumbering::Local, 4, &[4]),
        2 => match rng.below(3) {
            0 => plan(Engine::Sglang, RankNumbering::Global, 0, &[1]),
            1 => plan(Engine::Trtllm, RankNumbering::None, 0, &[1]),
            _ => plan(Engine::Vllm, RankNumbering::Local, 2, &[2, 2]),
        },
        _ => plan(Engine::Vllm, RankNumbering::Global, 8, &[2, 4]),
    }
}

/// Some pools of the default policy go by what engines cache; dice of its own, as for what is `extra`.
fn by_cache(seed: u64, policy: Policy) -> Policy {
    let by_cache = policy == Policy::LeastLoaded && Rng::new(seed ^ 0x6B76_0000).per_mille(300);
    if by_cache { Policy::KvAware } else { policy }
}

/// Mostly the default; every other policy in some seeds.
fn policy(rng: &mut Rng) -> Policy {
    const OTHERS: [Policy; 6] = [
        Policy::SessionHash,
        Policy::RoundRobin,
        Policy::Random,
        Policy::PowerOfTwo,
        Policy::DeviceAware,
        Policy::Direct,
    ];
    if rng.per_mille(500) { Policy::LeastLoaded } else { OTHERS[rng.below(OTHERS.len())] }
}
