//! What one seed sets up: fleet, Envoys, traffic, and how likely each fault is. All draws of the plan come before the run.

use crate::rng::Rng;
use routing::config::Steering;
use routing::contract::{Affinity, Engine, Policy, RankChoice, RankNumbering};
use routing::time::Millis;

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
}

/// Ranks of a worker, endpoint by endpoint.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) engine: Engine,
    pub(crate) numbering: RankNumbering,
    pub(crate) start: u32,
    pub(crate) sizes: Vec<u32>,
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
}

/// A fault with a time of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timed {
    VmDies {
        envoy: usize,
        vm: usize,
    },
    ServiceRestarts {
        silent: bool,
        down: u64,
        /// The file with the workers is there when it comes back.
        keeps_file: bool,
    },
    WorkerRefuses {
        worker: usize,
        lasts: u64,
    },
    WorkerHangs {
        worker: usize,
        lasts: u64,
    },
    WorkerAnswers {
        worker: usize,
        status: u16,
        lasts: u64,
    },
    WorkerBusy {
        worker: usize,
        status: u16,
        lasts: u64,
    },
    WorkerRemoved {
        worker: usize,
        lasts: u64,
        moves: bool,
    },
    RanksChange {
        worker: usize,
    },
    /// At the same address.
    RanksGrow {
        worker: usize,
    },
    RanksShrink {
        worker: usize,
    },
    /// Dies and is there again at the same address.
    WorkerRestarts {
        worker: usize,
        lasts: u64,
    },
    WorkerJoins {
        worker: usize,
    },
    /// Envoy loses a worker's hosts although it is declared.
    HostsVanish {
        envoy: usize,
        worker: usize,
        lasts: u64,
    },
    EnvoyClockJumps {
        envoy: usize,
        by_ms: i64,
    },
    ServiceClockLeaps {
        by: Millis,
    },
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
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
        }
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

/// What may happen in every run: it costs a session no place, or only where it says so.
fn harmless(rng: &mut Rng, envoys: usize, policy: Policy, workers: &mut [WorkerPlan]) -> Vec<(u64, Timed)> {
    let mut timed = Vec::new();
    let mut when = |rng: &mut Rng, fault| timed.push((rng.within(CHAOS_BEGINS, CHAOS_ENDS - 3000), fault));
    if rng.per_mille(300) {
        workers[0] = plan(Engine::Vllm, RankNumbering::Global, 0, &[1]);
        when(rng, Timed::RanksGrow { worker: 0 });
    }
    if rng.per_mille(300) {
        workers[1] = plan(Engine::Vllm, RankNumbering::Local, 4, &[8]);
        when(rng, Timed::RanksShrink { worker: 1 });
    }
    // Under `session_hash` its share of the sessions moves there.
    if rng.per_mille(250) && policy != Policy::SessionHash {
        when(rng, Timed::WorkerJoins { worker: workers.len() - 1 });
    }
    if rng.per_mille(if policy == Policy::Direct { 700 } else { 120 }) {
        let (envoy, worker) = (rng.below(envoys), rng.below(workers.len()));
        let lasts = rng.within(300, 2500);
        when(rng, Timed::HostsVanish { envoy, worker, lasts });
    }
    if rng.per_mille(200) {
        let (silent, keeps_file) = (rng.per_mille(500), rng.per_mille(500));
        let down = rng.within(0, 1500);
        when(rng, Timed::ServiceRestarts { silent, down, keeps_file });
    }
    for _ in 0..rng.below(3) {
        let (worker, lasts) = (rng.below(workers.len()), rng.within(200, 3000));
        when(rng, Timed::WorkerBusy { worker, status: 429, lasts });
    }
    for envoy in 0..envoys {
        for _ in 0..rng.below(3) {
            let minutes = i64::try_from(rng.within(20, 900)).unwrap_or(0) * 1000;
            let by_ms = if rng.per_mille(500) { minutes } else { -minutes };
            when(rng, Timed::EnvoyClockJumps { envoy, by_ms });
        }
    }
    timed
}

fn plan(engine: Engine, numbering: RankNumbering, start: u32, sizes: &[u32]) -> WorkerPlan {
    WorkerPlan { engine, numbering, start, sizes: sizes.to_vec() }
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

/// Faults that may not cost any session its place.
fn calm_net(rng: &mut Rng) -> Net {
    Net {
        report_lost: rng.within(0, 200),
        report_twice: rng.within(0, 200),
        report_late: if rng.per_mille(500) { 0 } else { rng.within(0, 200) },
        watch_lost: rng.within(0, 100),
        xds_lost: rng.within(0, 200),
        reply_twice: rng.within(0, 200),
        reply_late: rng.within(0, 100),
        ..Net::default()
    }
}

fn rough_net(rng: &mut Rng) -> Net {
    Net {
        route_lost: rng.within(0, 80),
        route_reply_lost: rng.within(0, 80),
        route_late: rng.within(0, 150),
        ..calm_net(rng)
    }
}

fn timed(rng: &mut Rng, envoys: usize, vms: usize, workers: usize) -> Vec<(u64, Timed)> {
    let mut timed = Vec::new();
    for _ in 0..1 + rng.below(6) {
        let at = rng.within(CHAOS_BEGINS, CHAOS_ENDS - 3000);
        let (worker, lasts) = (rng.below(workers), rng.within(200, 6000));
        timed.push((
            at,
            match rng.below(11) {
                0 | 1 => Timed::VmDies { envoy: rng.below(envoys), vm: rng.below(vms) },
                2 => Timed::ServiceRestarts {
                    silent: rng.per_mille(500),
                    down: rng.within(0, 2500),
                    keeps_file: rng.per_mille(500),
                },
                3 => Timed::WorkerRefuses { worker, lasts },
                4 => Timed::WorkerHangs { worker, lasts },
                5 => {
                    Timed::WorkerAnswers { worker, status: if rng.per_mille(500) { 500 } else { 503 }, lasts }
                }
                6 => Timed::WorkerRemoved { worker, lasts, moves: rng.per_mille(500) },
                9 => Timed::WorkerBusy { worker, status: 503, lasts },
                7 => Timed::WorkerRestarts { worker, lasts: rng.within(20, 900) },
                8 => Timed::ServiceClockLeaps { by: Millis(rng.within(5_000, 400_000)) },
                _ => Timed::RanksChange { worker },
            },
        ));
    }
    timed
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
