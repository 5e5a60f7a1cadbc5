//! The seeded simulation: real flows, VMs, pages and `State`, under faults no live test can order. See `world.rs`.
//!
//! One seed and the commit give the run. `SIM_SEED=7 cargo test -p e2e --test sim -- --exact replay --nocapture` plays one
//! and writes what happened to `target/sim/7.jsonl`; `SIM_SEEDS=1000..3000` plays others than those of every day.

mod answer;
mod client;
mod clock;
mod dial;
mod envoy;
mod faults;
mod invariants;
mod named;
mod plan;
mod quiet;
mod request;
mod restart;
mod rng;
mod service;
mod set_up;
mod trouble;
mod watcher;
mod wire;
mod worker;
mod world;

use faults::{Bug, Fault, Fired};
use invariants::Violation;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{Stats, World};

/// Seeds of every day.
const SEEDS: std::ops::Range<u64> = 0..240;
/// Seeds within which each planted bug must be noticed.
const BUG_SEEDS: std::ops::Range<u64> = 0..160;

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
        "seed {seed}: {}\n  found: {}\n  same again: {same}\n  trace: {}\n  replay: SIM_SEED={seed} cargo test -p e2e --test sim -- --exact replay --nocapture",
        violation.invariant,
        violation.found,
        path.display(),
    )
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
    for (counter, count) in &stats.counters {
        *sum.counters.entry(*counter).or_default() += count;
    }
}

fn seeds_wanted() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("SIM_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn every_seed_keeps_the_invariants() {
    let seeds = seeds_wanted();
    let begun = std::time::Instant::now();
    let (fired, stats, violations) = play_all(seeds.clone());
    let (n, seconds) = (seeds.end - seeds.start, begun.elapsed().as_secs_f64());
    println!("seeds {seeds:?}: {:.1} seeds/s", n as f64 / seconds);
    println!("{fired:?}\n{stats:?}");
    let mut text: Vec<String> =
        violations.iter().take(3).map(|(seed, violation)| explain(*seed, None, violation)).collect();
    text.extend(
        violations.iter().skip(3).map(|(seed, v)| format!("seed {seed}: {}: {}", v.invariant, v.found)),
    );
    assert!(violations.is_empty(), "{} of {n} seeds failed\n{}", violations.len(), text.join("\n"));
    if seeds == SEEDS {
        let never: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| fired.of(*fault) == 0).collect();
        assert!(never.is_empty(), "faults that never fired: {never:?}");
        assert!(
            stats.sessions_without_cost * 5 > stats.sessions,
            "too few sessions had to keep their slot: {stats:?}"
        );
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in [1, 2, 3] {
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

fn is_noticed(bug: Bug, by: &[&str]) {
    is_noticed_in(BUG_SEEDS, bug, by);
}

fn is_noticed_in(seeds: std::ops::Range<u64>, bug: Bug, by: &[&str]) {
    let mut found = seeds.clone().filter_map(|seed| Some((seed, play(seed, Some(bug), false).violation?)));
    let Some((seed, violation)) = found.next() else { panic!("{bug:?} went unnoticed in {seeds:?}") };
    println!("{bug:?}: seed {seed}");
    assert!(
        by.contains(&violation.invariant),
        "{bug:?} in seed {seed} broke another invariant: {violation:?}"
    );
}

#[test]
fn pages_that_ignore_versions_are_noticed() {
    is_noticed(Bug::PagesIgnoreVersions, &["a cached binding never goes back"]);
}

#[test]
fn commits_that_come_again_with_another_slot_are_noticed() {
    is_noticed(Bug::CommitsTwiceElsewhere, &["a session keeps its slot"]);
}

#[test]
fn a_rank_that_stays_on_a_retry_is_noticed() {
    let by = ["no undeclared rank is on the wire", "a session's rank is its own on each worker"];
    is_noticed(Bug::RankStaysOnRetry, &by);
}

#[test]
fn lost_ends_are_noticed() {
    is_noticed(
        Bug::EndsAreLost,
        &["load counts each placed request once", "a plan lives as long as its request"],
    );
}

#[test]
fn dropped_moves_are_noticed() {
    is_noticed(Bug::MovesAreDropped, &["Envoys agree in the end", "a session keeps its slot"]);
}

#[test]
fn a_pinned_turn_that_asks_is_noticed() {
    is_noticed(Bug::SecondVmSeesNoPages, &["a pinned turn makes no call"]);
}

#[test]
fn gauges_that_nobody_takes_over_are_noticed() {
    is_noticed(Bug::NewWatcherTrustsGauges, &["gauges return to 0"]);
}

#[test]
fn dead_vms_that_are_not_told_are_noticed() {
    is_noticed(Bug::DeadVmsAreNotTold, &["the service hears of dead VMs"]);
}

#[test]
fn an_exact_target_that_is_missed_is_noticed() {
    is_noticed(
        Bug::RefusedAttemptsGoOn,
        &["a named target is served exactly or not at all", "a session keeps its slot"],
    );
}

#[test]
fn a_named_rank_that_is_dropped_is_noticed() {
    let by = ["a named rank is the one on the wire", "a session's rank is its own on each worker"];
    is_noticed(Bug::NamedRanksAreDropped, &by);
}

#[test]
fn lost_touches_are_noticed() {
    is_noticed(
        Bug::TouchesAreLost,
        &["a session in use does not grow old", "Envoys agree in the end", "no version has two slots"],
    );
}

#[test]
fn spilled_turns_that_move_their_session_are_noticed() {
    is_noticed(Bug::SpillsMove, &["a session keeps its slot"]);
}

#[test]
fn an_envoy_that_does_not_hear_of_new_ranks_is_noticed() {
    is_noticed(Bug::TopologiesAreDropped, &["every VM learns the fleet"]);
}

#[test]
fn pages_that_are_not_uploaded_are_noticed() {
    is_noticed_in(0..800, Bug::NoUploads, &["a session keeps its slot"]);
}

#[test]
fn touches_without_a_slot_are_noticed() {
    // Rare: a retry's commit is told, and the first slot's dies with its VM.
    is_noticed_in(
        1300..1400,
        Bug::TouchesNameNoSlot,
        &["no version has two slots", "pages are where the service is", "Envoys agree in the end"],
    );
}

/// Soft sessions move by load, so of them only the pages tell.
#[test]
fn dropped_moves_show_in_the_pages() {
    let mut found = (0..400).filter_map(|seed| play(seed, Some(Bug::MovesAreDropped), false).violation);
    assert!(found.any(|violation| violation.invariant == "pages are where the service is"));
}
