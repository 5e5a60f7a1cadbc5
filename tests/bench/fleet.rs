//! `bench fleet`: a recorded day of coding agents played by many users at once through Envoys, replicas of the service and bounded
//! caches, once with one replica and once with several. Prints whether several find as much cached as one, and what they cost. All
//! share the machine's cores, the load and the workers included.

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

use crate::load::within_us;
use crate::report::{Report, median, table};
use play::Played;
use schedule::{Due, Play};
use trace::Trace;
use world::{Fleet, Shape, Spent};

/// Names the trace where no argument does.
const TRACE: &str = "RANKPIN_WEKA_TRACE";
/// Else it is looked for here, from the repository's folder.
const USUAL: &str = "../shared/traces/weka-claude-code/weka_cc_traces.rle.jsonl.gz";
/// What is counted of the services.
const METRICS: [&str; 5] =
    ["route_held", "route_bound", "route_moved", "route_rebound", "merge_replaced_newer"];

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
    #[arg(long, default_value_t = 100.0)]
    speed: f64,
    /// Seconds that it is played.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Longest pause of a session, in seconds of the trace.
    #[arg(long, default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    idle_max: u32,
    /// What all caches together hold, as a share of the distinct blocks played.
    #[arg(long, default_value_t = 0.5)]
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

/// Replicas and Envoys.
type Size = (usize, usize);

/// What one fleet did with the traffic.
struct Run {
    size: Size,
    played: Played,
    spent: Spent,
    routes: f64,
    /// [`METRICS`].
    counted: Vec<f64>,
    store_failures: f64,
    /// The filters' words.
    words: Vec<(String, u64)>,
    resident_mib: f64,
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
    let report = report(plan, &sizes, &runs);
    println!("{}", text(plan, [before, load_average()], &sizes, &runs, &report));
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

impl Run {
    fn figures(&self, workers: usize) -> Vec<(String, f64)> {
        let (played, requests) = (&self.played, self.played.requests as f64);
        let mut all: Vec<(String, f64)> = Vec::new();
        let mut put = |name: &str, value: f64| all.push((name.to_owned(), value));
        put("requests_per_s", requests / played.wall.as_secs_f64());
        put("hit_ratio", played.hit_ratio());
        put("status_5xx", played.status_5xx as f64);
        put("failed", played.failed as f64);
        put("changes", played.changes as f64);
        for (name, value) in METRICS.into_iter().zip(&self.counted) {
            put(name, *value);
        }
        // A turn elsewhere than the one before is a move, or else it went astray.
        put("wrong_turns", (played.changes as f64 - self.moves()).max(0.0));
        put("returns", played.returns as f64);
        put("routes", self.routes);
        for (name, us) in [
            ("services", self.spent.services),
            ("store", self.spent.store),
            ("envoys", self.spent.envoys),
            ("engines", self.spent.engines),
            ("load", self.spent.load),
        ] {
            put(&format!("cpu_us_per_request_{name}"), us / requests);
        }
        put("cpu_us_per_route_services", self.spent.services / self.routes.max(1.0));
        put("max_over_mean", played.max_over_mean(workers));
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            put(&format!("answer_ms_{name}"), within_us(&played.took_us, share) / 1e3);
            put(&format!("late_ms_{name}"), within_us(&played.late_us, share) / 1e3);
        }
        put("resident_mib", self.resident_mib);
        put("store_failures", self.store_failures);
        all
    }

    /// Bindings that the services moved.
    fn moves(&self) -> f64 {
        METRICS
            .iter()
            .zip(&self.counted)
            .filter(|(name, _)| matches!(**name, "route_moved" | "route_rebound"))
            .map(|(_, count)| count)
            .sum()
    }
}

/// A figure of a fleet, over the rounds.
fn of<'a>(runs: &'a [Run], size: Size, workers: usize, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    let own = runs.iter().filter(move |run| run.size == size);
    own.filter_map(move |run| run.figures(workers).into_iter().find(|(own, _)| own == name))
        .map(|(_, value)| value)
}

fn word((replicas, envoys): Size) -> String {
    if replicas == 1 && envoys > 1 { format!("1_envoys_{envoys}") } else { replicas.to_string() }
}

fn report(plan: &Plan, sizes: &[Size], runs: &[Run]) -> Report {
    let (mut report, workers) = (Report::new("fleet", plan.rounds as usize), plan.workers as usize);
    for size in sizes {
        let Some(run) = runs.iter().find(|run| run.size == *size) else { continue };
        for (name, _) in run.figures(workers) {
            let value = median(of(runs, *size, workers, &name));
            report.value(&format!("{name}_{}", word(*size)), value);
        }
        // In ten-thousandths of a point.
        let ratio = median(of(runs, *size, workers, "hit_ratio"));
        report.ratio(&format!("hit_ratio_{}", word(*size)), ratio);
    }
    if let [first, .., last] = sizes {
        let hit = |size: Size| of(runs, size, workers, "hit_ratio").collect::<Vec<_>>();
        let points = hit(*first).into_iter().zip(hit(*last)).map(|(one, many)| (one - many) * 100.0);
        report.value("difference_points", median(points));
    }
    report
}

fn text(plan: &Plan, loads: [String; 2], sizes: &[Size], runs: &[Run], report: &Report) -> String {
    let workers = plan.workers as usize;
    let mut head = vec![String::new()];
    head.extend(sizes.iter().map(|(replicas, envoys)| format!("{replicas} replicas, {envoys} Envoys")));
    let mut rows = vec![head];
    for (name, _) in runs.first().map(|run| run.figures(workers)).unwrap_or_default() {
        let mut row = vec![name.clone()];
        for size in sizes {
            let values: Vec<f64> = of(runs, *size, workers, &name).collect();
            let digits = if name == "hit_ratio" { 4 } else { 1 };
            row.push(format!("{:.digits$}", median(values)));
        }
        rows.push(row);
    }
    let words = runs.iter().map(|run| {
        let words: Vec<String> = run.words.iter().map(|(word, count)| format!("{word} {count}")).collect();
        format!("{}x{} hit {:.4}: {}\n", run.size.0, run.size.1, run.played.hit_ratio(), words.join(", "))
    });
    let words: String = words.collect();
    let points = report.values.get("difference_points").copied().unwrap_or(0.0);
    format!(
        "{}\nwhat filters counted, run by run:\n{words}medians of {} rounds; load average {} before, {} after\n\
         the hit ratio of several replicas is {points:.2} points below one's",
        table(&rows),
        plan.rounds,
        loads[0],
        loads[1]
    )
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(1).collect()
}
