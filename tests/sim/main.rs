//! The seeded simulation: real flows, VMs, pages and `State`, under faults no live test can order. See `world.rs`.
//!
//! One seed and the commit give the run. `SIM_SEED=7 cargo test -p e2e --test sim -- --exact replay --nocapture` plays one
//! and writes what happened to `target/sim/7.jsonl`; `SIM_SEEDS=1000..3000` plays others than those of every day.

mod answer;
mod asks;
mod bugs;
mod busy;
mod chains;
mod client;
mod clock;
mod counting;
mod deciding;
mod declaring;
mod dial;
mod envoy;
mod event;
mod faults;
mod halves;
mod invariants;
mod named;
mod news;
mod plan;
mod planted;
mod polls;
mod prompts;
mod quiet;
mod replicas;
mod reports;
mod request;
mod restart;
mod rng;
mod service;
mod set_up;
mod trouble;
mod waiting;
mod watcher;
mod wire;
mod worker;
mod world;

use faults::{Fault, Fired};
use invariants::Violation;
use planted::Bug;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{Stats, World};

/// Seeds of every day.
const SEEDS: std::ops::Range<u64> = 0..240;
/// And those with several replicas.
const REPLICA_SEEDS: std::ops::Range<u64> = plan::REPLICAS_FROM..plan::REPLICAS_FROM + 160;

fn play(seed: u64, bug: Option<Bug>, traced: bool) -> World {
    let mut world = World::new(seed, bug, traced);
    world.run();
    world
}

/// Plays a failed seed again with its trace on, and says how to do the same by hand.
fn explain(seed: u64, bug: Option<Bug>, violation: &Violation) -> String {
    let again = play(seed, bug, true);
    let same = again.violation.as_ref() == Some(violation);
    let path = write_trace(seed, &again);
    format!(
        "seed {seed}: {}\n  found: {}\n  same again: {same}\n  trace: {}\n  commit: {}\n  replay: {}",
        violation.invariant,
        violation.found,
        path.display(),
        commit(),
        replay_command(seed),
    )
}

fn replay_command(seed: u64) -> String {
    format!("SIM_SEED={seed} cargo test -p e2e --test sim -- --exact replay --nocapture")
}

/// What the run was built from: seed and commit give the run.
fn commit() -> String {
    let git = |args: &[&str]| {
        let out =
            std::process::Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        let out = out.ok().filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return "unknown (no git here)".to_owned() };
    let clean =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| changes.is_empty());
    if clean { commit } else { format!("{commit} and changes that are not committed") }
}

fn write_trace(seed: u64, world: &World) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("sim");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{seed}.jsonl"));
    std::fs::write(&path, world.trace()).unwrap();
    path
}

/// Every seed on all cores; the worlds themselves know no threads.
fn play_all(seeds: std::ops::Range<u64>) -> (Fired, Stats, Vec<(u64, Violation)>) {
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new((Fired::default(), Stats::default(), Vec::new()));
    let one_by_one = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end {
            return;
        }
        let world = play(seed, None, false);
        let mut sum = sum.lock().unwrap();
        sum.0.add(&world.fired);
        add(&mut sum.1, &world.stats);
        sum.2.extend(world.violation.map(|violation| (seed, violation)));
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(one_by_one);
        }
    });
    sum.into_inner().unwrap()
}

fn add(sum: &mut Stats, stats: &Stats) {
    sum.events += stats.events;
    sum.requests += stats.requests;
    sum.accepted += stats.accepted;
    sum.told += stats.told;
    sum.sessions += stats.sessions;
    sum.sessions_without_cost += stats.sessions_without_cost;
    sum.ended += stats.ended;
    for (counter, count) in &stats.counters {
        *sum.counters.entry(*counter).or_default() += count;
    }
}

fn assert_none(n: u64, violations: &[(u64, Violation)]) {
    let mut text: Vec<String> =
        violations.iter().take(3).map(|(seed, violation)| explain(*seed, None, violation)).collect();
    text.extend(
        violations.iter().skip(3).map(|(seed, v)| format!("seed {seed}: {}: {}", v.invariant, v.found)),
    );
    assert!(violations.is_empty(), "{} of {n} seeds failed\n{}", violations.len(), text.join("\n"));
}

fn replica_seeds_wanted() -> std::ops::Range<u64> {
    let wanted = seeds_wanted();
    if wanted.start >= plan::REPLICAS_FROM { wanted } else { REPLICA_SEEDS }
}

fn seeds_wanted() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("SIM_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// Plays seeds, none of which may break an invariant; `whole` ones fire every one of these faults, and at least one session of so many
/// had to keep its slot.
fn storm(seeds: std::ops::Range<u64>, whole: bool, faults: &[Fault], one_of: u64) -> Stats {
    let begun = std::time::Instant::now();
    let (fired, stats, violations) = play_all(seeds.clone());
    let (n, seconds) = (seeds.end - seeds.start, begun.elapsed().as_secs_f64());
    println!("seeds {seeds:?}: {:.1} seeds/s", n as f64 / seconds);
    println!("{fired:?}\n{stats:?}");
    assert_none(n, &violations);
    if whole {
        let never: Vec<&Fault> = faults.iter().filter(|fault| fired.of(**fault) == 0).collect();
        assert!(never.is_empty(), "faults that never fired: {never:?}");
        assert!(
            stats.sessions_without_cost * one_of > stats.sessions,
            "too few sessions had to keep their slot: {stats:?}"
        );
    }
    stats
}

#[test]
fn every_seed_keeps_the_invariants() {
    let seeds = seeds_wanted();
    let whole = seeds == SEEDS;
    let stats = storm(seeds, whole, &Fault::ALL, 5);
    assert!(!whole || stats.ended > 0, "no session ended for sure: {stats:?}");
}

#[test]
fn every_seed_with_replicas_keeps_the_invariants() {
    let seeds = replica_seeds_wanted();
    let whole = seeds == REPLICA_SEEDS;
    storm(seeds, whole, &Fault::SHARED, 8);
}

#[test]
fn one_seed_is_one_run() {
    for seed in [1, 2, 3, plan::REPLICAS_FROM, plan::REPLICAS_FROM + 1] {
        let (first, second) = (play(seed, None, true), play(seed, None, true));
        assert_eq!(first.stats, second.stats);
        assert!(first.trace() == second.trace(), "seed {seed} ran differently");
    }
}

/// Plays `SIM_SEED`; without it there is nothing to play.
#[test]
fn replay() {
    let Ok(seed) = std::env::var("SIM_SEED") else { return };
    let seed = seed.parse().expect("SIM_SEED is a number");
    let world = play(seed, None, true);
    println!("trace: {}\n{:?}\n{:?}", write_trace(seed, &world).display(), world.plan, world.stats);
    assert_eq!(world.violation, None);
}
