//! `bench fleet`: a recorded day of coding agents played by many users at once through Envoys, replicas of the service and bounded
//! caches, once with one replica and once with several. Prints whether several find as much cached as one, and what they cost. All
//! share the machine's cores, the load and the workers included.

mod figures;
mod play;
mod schedule;
mod trace;
mod world;

use std::env;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::Args;
use e2e::artifacts;
use serde_json::Value;

use figures::{METRICS, Run, Size, report, text};
use schedule::{Due, Play};
use trace::Trace;
use world::{Fleet, Shape};

/// Names the trace where no argument does.
const TRACE: &str = "RANKPIN_WEKA_TRACE";
/// Else it is looked for here, from the repository's folder.
const USUAL: &str = "../shared/traces/weka-claude-code/weka_cc_traces.rle.jsonl.gz";

/// How much to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Plan {
    /// Rounds; each plays the same traffic once through every fleet.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The trace: weka's coding agents, JSON lines, plain or `.gz`. Else RANKPIN_WEKA_TRACE names it.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Replicas, and Envoys, of the larger fleet.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=16))]
    replicas: u32,
    /// Workers of one rank, in one process.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=256))]
    workers: u32,
    /// Sessions at once.
    #[arg(long, default_value_t = 640, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// How many times faster than it was recorded the trace is played.
    #[arg(long, default_value_t = 20.0)]
    speed: f64,
    /// Seconds that it is played.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Longest pause of a session, in seconds of the trace.
    #[arg(long, default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    idle_max: u32,
    /// What all caches together hold, as a share of the distinct blocks played.
    #[arg(long, default_value_t = 0.9)]
    cache_fraction: f64,
    /// Of a worker's time for a token that is not cached (it stands for 512 of the trace), µs.
    #[arg(long, default_value_t = 500)]
    prefill_us: u64,
    /// From there to the answer, ms.
    #[arg(long, default_value_t = 60)]
    answer_ms: u64,
    /// The pool's affinity.
    #[arg(long, default_value = "soft", value_parser = ["soft", "hard", "off"])]
    affinity: String,
    /// More fields of the pool, as its config has them.
    #[arg(long, default_value = "{}")]
    pool: String,
    /// Which fleets: replicas and Envoys of each, as `1x1,1x4,4x4`. Else these, by --replicas.
    #[arg(long)]
    fleets: Option<String>,
    /// Which sessions come first.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// There is no trace, or something does not start.
pub(crate) async fn run(plan: &Plan) -> Result<()> {
    let before = load_average();
    let trace = Rc::new(trace::read(&plan.trace()?)?);
    let schedule = schedule::schedule(&trace, &plan.play());
    let (distinct, all) = schedule::blocks(&trace, &schedule);
    let turns: usize = schedule.iter().map(Vec::len).sum();
    let cache_blocks = ((distinct as f64 * plan.cache_fraction) / f64::from(plan.workers)).max(1.0) as usize;
    eprintln!(
        "{turns} turns of {} sessions, {all} blocks of which {distinct} distinct; {cache_blocks} in each worker's cache",
        plan.sessions
    );
    let sizes = plan.sizes()?;
    let mut runs = Vec::new();
    for round in 0..plan.rounds {
        // Whatever the machine does over time befalls all alike: every other round goes the other way.
        let order: Vec<Size> =
            if round % 2 == 0 { sizes.clone() } else { sizes.iter().rev().copied().collect() };
        for size in order {
            eprintln!("round {} of {}: {} replicas, {} Envoys", round + 1, plan.rounds, size.0, size.1);
            runs.push(measure(plan, size, cache_blocks, &trace, &schedule).await?);
        }
    }
    let (rounds, workers) = (plan.rounds as usize, plan.workers as usize);
    let mut report = report(rounds, workers, &sizes, &runs);
    // One cache without bounds for all.
    report.ratio("hit_ratio_max", 1.0 - distinct as f64 / (all as f64).max(1.0));
    println!("{}", text(workers, &[before, load_average()], &sizes, &runs, &report));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

impl Plan {
    fn trace(&self) -> Result<PathBuf> {
        let told = self.trace.clone().or_else(|| env::var_os(TRACE).map(PathBuf::from));
        let usual = || Some(artifacts::root().join(USUAL)).filter(|path| path.is_file());
        told.or_else(usual).with_context(|| {
            format!("no trace: name weka_cc_traces.rle.jsonl.gz (callanjfox/kv-cache-tester) with --trace or {TRACE}")
        })
    }

    fn play(&self) -> Play {
        Play {
            users: self.sessions as usize,
            speed: self.speed.max(1e-3),
            seconds: f64::from(self.seconds),
            idle_max_s: f64::from(self.idle_max),
            seed: self.seed,
        }
    }

    fn sizes(&self) -> Result<Vec<Size>> {
        let Some(told) = &self.fleets else {
            let many = self.replicas as usize;
            return Ok(vec![(1, 1), (1, many), (many, many)]);
        };
        let size = |text: &str| {
            let (replicas, envoys) = text.split_once('x')?;
            Some((replicas.parse().ok()?, envoys.parse().ok()?))
        };
        told.split(',')
            .map(|text| size(text).with_context(|| format!("{text} is no fleet such as 4x4")))
            .collect()
    }

    fn shape(&self, (replicas, envoys): Size, cache_blocks: usize) -> Result<Shape> {
        let more: Value = serde_json::from_str(&self.pool).context("--pool is no JSON")?;
        Ok(Shape {
            replicas,
            envoys,
            workers: self.workers,
            cache_blocks,
            prefill_us: self.prefill_us,
            answer_us: self.answer_ms * 1000,
            affinity: self.affinity.clone(),
            more,
        })
    }
}

async fn measure(
    plan: &Plan,
    size: Size,
    cache_blocks: usize,
    trace: &Rc<Trace>,
    schedule: &[Vec<Due>],
) -> Result<Run> {
    let fleet = Fleet::start(&plan.shape(size, cache_blocks)?).await?;
    let envoys: Vec<_> = fleet.world.envoys.iter().map(e2e::Envoy::address).collect();
    let (before, routes, words) = (fleet.spent()?, fleet.routes().await?, fleet.counted().await?);
    let counted = counted(&fleet).await?;
    let played = play::play(trace, schedule, &envoys).await?;
    let spent = fleet.spent()?.since(before);
    let routes = fleet.routes().await? - routes;
    let after = self::counted(&fleet).await?;
    let counted = after.iter().zip(&counted).map(|(after, before)| after - before).collect();
    let known: std::collections::BTreeMap<_, _> = words.into_iter().collect();
    let since = |(word, count): (String, u64)| {
        let count = count - known.get(&word).copied().unwrap_or(0);
        (word, count)
    };
    let words = fleet.counted().await?.into_iter().map(since).filter(|(_, count)| *count > 0).collect();
    let store_failures = fleet.sum("rankpin_store_failures_total").await?;
    Ok(Run {
        size,
        played,
        spent,
        routes,
        counted,
        store_failures,
        words,
        resident_mib: fleet.resident_mib()?,
    })
}

async fn counted(fleet: &Fleet) -> Result<Vec<f64>> {
    let mut counted = Vec::new();
    for name in METRICS {
        counted.push(fleet.sum(&format!("rankpin_{name}_total")).await?);
    }
    Ok(counted)
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(1).collect()
}
