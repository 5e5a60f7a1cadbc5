//! What is sent to replicas: new sessions as fast as they go or at a fixed rate, turns of bound ones as reports tell them, and probes of
//! how late a binding is known elsewhere. Counts nothing of the service's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kept::{Kept, Vm, session_of};
use routing::contract::{Entry, InFlight, KeptSlot, RouteReply, SessionRef};
use routing::hash::worker_hash;
use routing::id::PoolName;
use tokio::task::LocalSet;
use tokio::time::{sleep, sleep_until};

use super::fleet::{Fleet, Home, is_bound};

/// Connections to each replica at full speed.
const CONNECTIONS: usize = 32;
/// First turns between two reports of a VM at full speed.
const PER_REPORT: usize = 50;
/// Between two reports of a VM at a fixed rate.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// VMs at a fixed rate, over all replicas: four Envoys of two threads.
const VMS: usize = 8;
/// Between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(20);
/// Between two looks of a probe.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// A binding that is not known elsewhere by then is lost.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// What became of sessions that were bound.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    pub(crate) homes: Vec<Home>,
    /// From the first question to the last report.
    pub(crate) wall: Duration,
    /// What `route` took, µs, ascending.
    pub(crate) route_us: Vec<u32>,
    /// From a report's answer until the other replica knew, ms, ascending.
    pub(crate) lag_ms: Vec<f64>,
}

/// What tasks of one thread have seen so far.
#[derive(Default)]
struct Seen {
    homes: RefCell<Vec<Home>>,
    route_us: RefCell<Vec<u32>>,
    lag_ms: RefCell<Vec<f64>>,
    over: Cell<bool>,
}

fn home(session: SessionRef, reply: RouteReply) -> Option<Home> {
    let version = reply.version;
    reply.target.map(|target| Home { session, target, version })
}

impl Seen {
    fn took(&self, session: SessionRef, reply: RouteReply, took: Duration) {
        self.homes.borrow_mut().extend(home(session, reply));
        self.route_us.borrow_mut().push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    fn finish(&self, wall: Duration) -> Bound {
        let (mut route_us, mut lag_ms) = (self.route_us.take(), self.lag_ms.take());
        route_us.sort_unstable();
        lag_ms.sort_by(f64::total_cmp);
        Bound { homes: self.homes.take(), wall, route_us, lag_ms }
    }
}

/// New sessions at all replicas at once, as fast as they go.
///
/// # Errors
/// An answer is not as it must be.
pub(crate) async fn flood(fleet: &Fleet, sessions: usize, run: &str) -> Result<Bound> {
    let (seen, next) = (Rc::new(Seen::default()), Rc::new(Cell::new(0)));
    let (tasks, mut all) = (LocalSet::new(), Vec::new());
    for connection in 0..CONNECTIONS * fleet.replicas.len() {
        let replica = &fleet.replicas[connection % fleet.replicas.len()];
        let vm = Vm::connect(replica.data(), &format!("envoy-{connection}"), 1 + connection as u64).await?;
        let (seen, next, run) = (Rc::clone(&seen), Rc::clone(&next), run.to_owned());
        all.push(tasks.spawn_local(full_speed(vm, seen, next, sessions, run)));
    }
    let probes = tasks.spawn_local(probe(fleet_ends(fleet).await?, Rc::clone(&seen), run.to_owned()));
    let began = Instant::now();
    let wall = tasks
        .run_until(async {
            for one in all {
                one.await??;
            }
            let wall = began.elapsed();
            seen.over.set(true);
            probes.await??;
            anyhow::Ok(wall)
        })
        .await?;
    ensure!(seen.homes.borrow().len() >= sessions, "not every session was bound");
    Ok(seen.finish(wall))
}

async fn full_speed(
    mut vm: Vm,
    seen: Rc<Seen>,
    next: Rc<Cell<usize>>,
    sessions: usize,
    run: String,
) -> Result<()> {
    loop {
        let n = next.replace(next.get() + 1);
        if n >= sessions {
            return vm.report(Vec::new()).await;
        }
        let session = session_of(&format!("{run}-{n}"));
        let asked = Instant::now();
        let reply = vm.turn(session).await?;
        seen.took(session, reply, asked.elapsed());
        if vm.entries.len() >= PER_REPORT {
            vm.report(Vec::new()).await?;
        }
    }
}

/// A VM and a look at each end: the first two replicas.
async fn fleet_ends(fleet: &Fleet) -> Result<Vec<(Vm, Kept)>> {
    let mut ends = Vec::new();
    for (nth, replica) in fleet.replicas.iter().take(2).enumerate() {
        let vm = Vm::connect(replica.data(), &format!("probe-{nth}"), 1_000_000 + nth as u64).await?;
        ends.push((vm, Kept::connect(replica.control()).await?));
    }
    Ok(ends)
}

/// Binds a session at one end and looks at the other until it is known there, in turn, for as long as there is traffic.
async fn probe(mut ends: Vec<(Vm, Kept)>, seen: Rc<Seen>, run: String) -> Result<()> {
    let mut n = 0;
    while !seen.over.get() && ends.len() == 2 {
        sleep(PROBE_EVERY).await;
        let session = session_of(&format!("probe-{run}-{n}"));
        let reply = ends[n % 2].0.turn(session).await?;
        ends[n % 2].0.report(Vec::new()).await?;
        let told = Instant::now();
        let other = &mut ends[(n + 1) % 2].1;
        while !is_bound(other, session, None).await? && told.elapsed() < PROBE_MAX {
            sleep(LOOK_EVERY).await;
        }
        seen.lag_ms.borrow_mut().push(told.elapsed().as_secs_f64() * 1e3);
        seen.homes.borrow_mut().extend(home(session, reply));
        n += 1;
    }
    Ok(())
}

/// New sessions one after the other over one connection to the first replica.
///
/// # Errors
/// An answer is not as it must be.
pub(crate) async fn one_client(fleet: &Fleet, sessions: usize, run: &str) -> Result<Bound> {
    let seen = Seen::default();
    let mut vm = Vm::connect(fleet.replicas[0].data(), "one", 2_000_000).await?;
    let (began, mut reported) = (Instant::now(), Instant::now());
    for n in 0..sessions {
        let session = session_of(&format!("{run}-{n}"));
        let asked = Instant::now();
        let reply = vm.turn(session).await?;
        seen.took(session, reply, asked.elapsed());
        if reported.elapsed() >= REPORT_EVERY {
            vm.report(Vec::new()).await?;
            reported = Instant::now();
        }
    }
    vm.report(Vec::new()).await?;
    Ok(seen.finish(began.elapsed()))
}

/// The VMs of a fixed rate, evenly over all replicas; `first` numbers their lives.
///
/// # Errors
/// Nobody listens.
pub(crate) async fn envoys(fleet: &Fleet, first: u64) -> Result<Vec<Vm>> {
    let mut vms = Vec::new();
    for nth in 0..VMS {
        let replica = &fleet.replicas[nth % fleet.replicas.len()];
        vms.push(Vm::connect(replica.data(), &format!("envoy-{}", nth / 2), first + nth as u64).await?);
    }
    Ok(vms)
}

/// New sessions at a fixed rate over all these VMs together; each reports as filters do, with what it has in flight.
///
/// # Errors
/// An answer is not as it must be.
pub(crate) async fn paced(vms: &mut Vec<Vm>, sessions: usize, per_second: f64, run: &str) -> Result<Bound> {
    let seen = Rc::new(Seen::default());
    let (tasks, mut all) = (LocalSet::new(), Vec::new());
    let every = Duration::from_secs_f64(VMS as f64 / per_second);
    for (nth, vm) in vms.drain(..).enumerate() {
        let own: Vec<SessionRef> =
            (nth..sessions).step_by(VMS).map(|n| session_of(&format!("{run}-{n}"))).collect();
        let lead = every.mul_f64(nth as f64 / VMS as f64);
        all.push(tasks.spawn_local(at_rate(vm, own, every, lead, Rc::clone(&seen))));
    }
    let began = Instant::now();
    tasks
        .run_until(async {
            for one in all {
                vms.push(one.await??);
            }
            anyhow::Ok(())
        })
        .await?;
    Ok(seen.finish(began.elapsed()))
}

async fn at_rate(
    mut vm: Vm,
    own: Vec<SessionRef>,
    every: Duration,
    lead: Duration,
    seen: Rc<Seen>,
) -> Result<Vm> {
    let (began, mut reported) = (tokio::time::Instant::now() + lead, Instant::now());
    for (nth, session) in (0u32..).zip(own) {
        sleep_until(began + every * nth).await;
        let asked = Instant::now();
        let reply = vm.turn(session).await?;
        let busy = reply.target.clone();
        seen.took(session, reply, asked.elapsed());
        if reported.elapsed() >= REPORT_EVERY {
            let in_flight = busy.map(|target| InFlight { target, count: 1 + nth % 3 });
            vm.report(in_flight.into_iter().collect()).await?;
            reported = Instant::now();
        }
    }
    vm.report(Vec::new()).await?;
    Ok(vm)
}

/// Turns of bound sessions as replicas hear of them: nothing of most, a touch of each session once in an eighth of its ttl, and what is
/// in flight. How many touches there were.
///
/// # Errors
/// A report is not taken.
pub(crate) async fn pinned(
    fleet: &Fleet,
    homes: &[Home],
    turns_per_second: f64,
    ttl: Duration,
    lasts: Duration,
) -> Result<usize> {
    ensure!(!homes.is_empty(), "there is nobody to take turns");
    let mut vms = envoys(fleet, 4_000_000).await?;
    let rounds = (lasts.as_secs_f64() / REPORT_EVERY.as_secs_f64()).ceil() as u32;
    // Each session once in an eighth of the ttl, evenly.
    let per_round = homes.len() as f64 * REPORT_EVERY.as_secs_f64() * 8.0 / ttl.as_secs_f64();
    let busy = turns_per_second * REPORT_EVERY.as_secs_f64() / VMS as f64;
    let (began, mut touches) = (tokio::time::Instant::now(), 0usize);
    let pool = PoolName::parse("default").context("a pool's name")?;
    for round in 0..rounds {
        sleep_until(began + REPORT_EVERY * round).await;
        let due = (f64::from(round + 1) * per_round) as usize;
        while touches < due {
            let Home { session, target, version } = homes[touches % homes.len()].clone();
            let slot = Some(KeptSlot { worker_hash: worker_hash(&target.worker), rank: target.rank });
            vms[touches % VMS].entries.push(Entry::Touched { session, pool: pool.clone(), version, slot });
            touches += 1;
        }
        for (nth, vm) in vms.iter_mut().enumerate() {
            let target = &homes[(nth + round as usize) % homes.len()].target;
            vm.report(vec![InFlight { target: target.clone(), count: 1 + busy as u32 + round % 3 }]).await?;
        }
    }
    Ok(touches)
}
