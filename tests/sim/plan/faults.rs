//! When which fault comes: drawn before the run.

use super::{CHAOS_BEGINS, CHAOS_ENDS, Net, Timed, WorkerPlan, plan};
use crate::rng::Rng;
use routing::contract::{Engine, Policy, RankNumbering};
use routing::time::Millis;

/// What may happen in every run: it costs a session no place, or only where it says so.
pub(super) fn harmless(
    rng: &mut Rng,
    envoys: usize,
    policy: Policy,
    workers: &mut [WorkerPlan],
) -> Vec<(u64, Timed)> {
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

/// What may cost sessions their places.
pub(super) fn timed(rng: &mut Rng, envoys: usize, vms: usize, workers: usize) -> Vec<(u64, Timed)> {
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

/// Faults that may not cost any session its place.
pub(super) fn calm_net(rng: &mut Rng) -> Net {
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

/// And those that may.
pub(super) fn rough_net(rng: &mut Rng) -> Net {
    Net {
        route_lost: rng.within(0, 80),
        route_reply_lost: rng.within(0, 80),
        route_late: rng.within(0, 150),
        ..calm_net(rng)
    }
}
