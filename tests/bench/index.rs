//! `bench index`: what the block index costs (per block taken in, per prompt looked up, per block kept), beside another router's in the
//! same run on the same traffic. Each measurement has a process of its own, so that memory is what it grew by. Needs no Envoy.

mod churn;
mod ours;
#[cfg(feature = "peers")]
mod peer;
mod recorded;
pub(crate) mod shape;

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::report::{Report, median, table};
use shape::{Draws, Shape, Traffic};

/// Look-ups of one measurement.
const LOOKUPS: usize = 20_000;
const PAGE_BYTES: f64 = 4096.0;
/// Workers and blocks of a prompt.
const SHAPES: [(u32, usize); 3] = [(16, 314), (64, 314), (16, 8000)];
const CONTENDERS: &[&str] = if cfg!(feature = "peers") { &["ours", "kv_index"] } else { &["ours"] };

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds; in each, every contender measures every shape once, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Blocks to be cached, each counted for every worker that has it.
    #[arg(long, default_value_t = 1_000_000)]
    resident: usize,
    /// Blocks stored and removed in the churn.
    #[arg(long, default_value_t = 10_000_000)]
    churn: usize,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
    /// One measurement, as a child of this program: which contender on which shape.
    #[arg(long, hide = true)]
    only: Option<usize>,
}

/// An index under test.
trait Contender: Sized {
    /// One event as this index takes it.
    type Event;
    /// One prompt as this index takes it.
    type Prompt;
    fn event(step: &shape::Step) -> Self::Event;
    fn prompt(tokens: &[u32]) -> Self::Prompt;
    fn new(workers: u32) -> Self;
    fn apply(&mut self, event: &Self::Event);
    /// Blocks found, summed over the workers.
    fn find(&mut self, prompt: &Self::Prompt) -> u64;
    /// Bytes it says it has; 0 when it does not say.
    fn bytes(&self) -> usize;
}

/// What one process measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Sample {
    apply_ns: f64,
    find_p50_us: f64,
    find_p99_us: f64,
    bytes_per_block: f64,
    own_bytes_per_block: f64,
    /// Blocks found by all look-ups: contenders must agree.
    found: u64,
}

/// Measures and prints.
///
/// # Errors
/// A child failed, or contenders found different overlaps.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    if let Some(which) = plan.only {
        println!("{}", serde_json::to_string(&measure(plan, which)?)?);
        return Ok(());
    }
    let mut samples = vec![Vec::new(); CONTENDERS.len() * SHAPES.len()];
    for _ in 0..plan.rounds {
        for (at, samples) in samples.iter_mut().enumerate() {
            samples.push(child(plan, at)?);
        }
    }
    let mut report = Report::new("index", plan.rounds as usize);
    let heading = ["", "workers", "blocks", "apply ns/block", "find p50 µs", "find p99 µs", "bytes/block"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (shape, group) in SHAPES.iter().zip(samples.chunks(CONTENDERS.len())) {
        let found: Vec<u64> = group.iter().flatten().map(|sample| sample.found).collect();
        ensure!(found.iter().all(|n| *n == found[0]), "contenders find different overlaps: {found:?}");
        rows.extend(CONTENDERS.iter().zip(group).map(|(name, samples)| row(name, *shape, samples)));
        figures(*shape, group, &mut report);
    }
    println!("{} resident blocks, one thread\n\n{}", plan.resident, table(&rows));
    println!("{}", churn::run(plan.churn, &mut report));
    println!("{}", recorded::run(plan.churn / 10, &mut report)?);
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

fn row(name: &str, (workers, blocks): (u32, usize), samples: &[Sample]) -> Vec<String> {
    let mid = |pick: fn(&Sample) -> f64| median(samples.iter().map(pick));
    vec![
        name.to_owned(),
        workers.to_string(),
        blocks.to_string(),
        format!("{:.0}", mid(|sample| sample.apply_ns)),
        format!("{:.2}", mid(|sample| sample.find_p50_us)),
        format!("{:.2}", mid(|sample| sample.find_p99_us)),
        format!("{:.1}", mid(|sample| sample.bytes_per_block)),
    ]
}

fn figures((workers, blocks): (u32, usize), group: &[Vec<Sample>], report: &mut Report) {
    let shape = if blocks == SHAPES[0].1 { workers.to_string() } else { format!("{workers}x{blocks}") };
    for (name, samples) in CONTENDERS.iter().zip(group) {
        let mid = |pick: fn(&Sample) -> f64| median(samples.iter().map(pick));
        let suffix = if *name == "ours" { String::new() } else { format!("_{name}") };
        report.value(&format!("find_p50_us_{shape}{suffix}"), mid(|sample| sample.find_p50_us));
        report.value(&format!("apply_ns_{shape}{suffix}"), mid(|sample| sample.apply_ns));
        report.value(&format!("bytes_{shape}{suffix}"), mid(|sample| sample.bytes_per_block));
        if (workers, blocks) == SHAPES[0] {
            report.value(&format!("apply_ns_per_block{suffix}"), mid(|sample| sample.apply_ns));
            report.value(&format!("bytes_per_block{suffix}"), mid(|sample| sample.bytes_per_block));
        }
    }
    if let [ours, peer] = group {
        let ratio = |pick: fn(&Sample) -> f64| median(ours.iter().zip(peer).map(|(a, b)| pick(a) / pick(b)));
        report.ratio(&format!("apply_over_kv_index_{shape}"), ratio(|sample| sample.apply_ns));
        report.ratio(&format!("find_over_kv_index_{shape}"), ratio(|sample| sample.find_p50_us));
        report.ratio(&format!("bytes_over_kv_index_{shape}"), ratio(|sample| sample.bytes_per_block));
    }
}

fn child(plan: &Plan, which: usize) -> Result<Sample> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["index", "--resident", &plan.resident.to_string()]);
    command.args(["--only", &which.to_string()]);
    let output = command.output().context("cannot run this program again")?;
    ensure!(output.status.success(), "a measurement: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("what a measurement printed")
}

/// Contenders take turns on a shape, then on the next.
fn measure(plan: &Plan, which: usize) -> Result<Sample> {
    let (workers, blocks) = *SHAPES.get(which / CONTENDERS.len()).context("no such measurement")?;
    let shape = Shape { workers, blocks, resident: plan.resident };
    match CONTENDERS[which % CONTENDERS.len()] {
        #[cfg(feature = "peers")]
        "kv_index" => sample::<peer::KvIndex>(shape),
        _ => sample::<ours::Ours>(shape),
    }
}

fn sample<C: Contender>(shape: Shape) -> Result<Sample> {
    let traffic = Traffic::of(shape);
    let blocks = traffic.resident as f64;
    let events: Vec<(u32, C::Event)> =
        traffic.steps.iter().map(|step| (step.worker, C::event(step))).collect();
    let prompts: Vec<C::Prompt> = traffic.prompts.iter().map(|tokens| C::prompt(tokens)).collect();
    let memory = resident_bytes()?;
    let mut index = C::new(shape.workers);
    let began = cpu_ns();
    events.iter().for_each(|(_, event)| index.apply(event));
    let apply_ns = (cpu_ns() - began) / blocks;
    let bytes_per_block = (resident_bytes()? - memory) / blocks;
    let (mut times, mut found, mut draws) = (Vec::with_capacity(LOOKUPS), 0, Draws::new(1));
    for _ in 0..LOOKUPS {
        let prompt = &prompts[draws.below(prompts.len() as u64) as usize];
        let began = Instant::now();
        found += black_box(index.find(black_box(prompt)));
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(Sample {
        apply_ns,
        find_p50_us: times[LOOKUPS / 2],
        find_p99_us: times[LOOKUPS * 99 / 100],
        bytes_per_block,
        own_bytes_per_block: index.bytes() as f64 / blocks,
        found,
    })
}

/// Nanoseconds of CPU this thread has had.
pub(crate) fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn resident_bytes() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = text.split(' ').nth(1).context("a short statm")?.parse().context("statm")?;
    Ok(pages * PAGE_BYTES)
}
