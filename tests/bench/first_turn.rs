//! `bench first-turn`: what a first turn waits longer than on a bare Envoy, at a fixed rate, in interleaved rounds. Each request is
//! a new session, so each asks the service once; what does not is no first turn, and then there is no figure.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Args;
use e2e::Envoy;

use crate::open_loop::OpenLoop;
use crate::process::Cores;
use crate::report::{Report, median, table};
use crate::stage::{AccessLog, Stage};
use crate::variant::Front;

/// What is measured beside the bare Envoy, which comes first.
const FRONTS: [Front; 3] = [Front::Bare, Front::Cluster, Front::Endpoints];

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds; each measures every Envoy, in an order of its own.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// First turns a second.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Requests of an Envoy in a round.
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    requests: u32,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// One Envoy in one round.
#[derive(Clone, Copy, Debug)]
struct Sample {
    p50_us: f64,
    p99_us: f64,
    late_p99_us: f64,
    routes: u64,
}

type Samples = BTreeMap<&'static str, Vec<Sample>>;

/// Measures and prints.
///
/// # Errors
/// Something is missing, a request failed, or a first turn was none: then no figure is worth printing.
pub(crate) async fn run(plan: &Plan, cores: Cores) -> Result<()> {
    let stage = Stage::start(cores, AccessLog::Off).await?;
    let samples = rounds(plan, &stage).await?;
    let report = figures(plan, &samples)?;
    println!("{}", text(plan, cores, &samples, &report));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

async fn rounds(plan: &Plan, stage: &Stage) -> Result<Samples> {
    let mut envoys = Vec::new();
    for front in FRONTS {
        envoys.push((front, stage.envoy(front, 1).await?));
    }
    let mut samples = Samples::new();
    for round in 0..plan.rounds as usize {
        eprintln!("round {} of {}", round + 1, plan.rounds);
        envoys.rotate_left(1);
        for (front, envoy) in &envoys {
            let sample = measure(plan, stage, *front, envoy, round).await?;
            samples.entry(front.name()).or_default().push(sample);
        }
    }
    Ok(samples)
}

async fn measure(plan: &Plan, stage: &Stage, front: Front, envoy: &Envoy, round: usize) -> Result<Sample> {
    let run = format!("{}-{round}", front.name());
    let load = OpenLoop { to: envoy.address(), per_second: plan.rate, requests: plan.requests, run: &run };
    let (held, routes) = (envoy.requests("routed_held").await?, stage.service(front).routes().await?);
    let answered = load.run().await?;
    let held = envoy.requests("routed_held").await? - held;
    let routes = stage.service(front).routes().await? - routes;
    let expected = if front == Front::Bare { 0 } else { u64::from(plan.requests) };
    ensure!(held == expected, "{held} of {expected} turns of `{}` were placed by the service", front.name());
    Ok(Sample {
        p50_us: answered.within_us(0.5),
        p99_us: answered.within_us(0.99),
        late_p99_us: answered.late_within_us(0.99),
        routes,
    })
}

fn of(samples: &Samples, front: Front) -> &[Sample] {
    samples.get(front.name()).map_or(&[], Vec::as_slice)
}

/// Medians over the rounds. What is added is the median of each round's own difference: what drifts within minutes drifts for both.
fn figures(plan: &Plan, samples: &Samples) -> Result<Report> {
    let mut report = Report::new("first-turn", usize::try_from(plan.rounds)?);
    report.value("requests_per_s", f64::from(plan.rate));
    let bare = of(samples, Front::Bare);
    for front in FRONTS {
        let (own, name) = (of(samples, front), front.name());
        let mid = |pick: fn(&Sample) -> f64| median(own.iter().map(pick));
        report.value(&format!("p50_us_{name}"), mid(|s| s.p50_us));
        report.value(&format!("p99_us_{name}"), mid(|s| s.p99_us));
        report.value(&format!("late_p99_us_{name}"), mid(|s| s.late_p99_us));
        let turns = f64::from(plan.requests) * own.len().max(1) as f64;
        let routes = own.iter().map(|sample| sample.routes as f64).sum::<f64>();
        report.value(&format!("calls_per_first_turn_{name}"), routes / turns);
        if front != Front::Bare {
            let added = |pick: fn(&Sample) -> f64| {
                median(own.iter().zip(bare).map(move |(own, bare)| pick(own) - pick(bare)))
            };
            report.value(&format!("added_p50_us_{name}"), added(|s| s.p50_us));
            report.value(&format!("added_p99_us_{name}"), added(|s| s.p99_us));
        }
    }
    Ok(report)
}

fn text(plan: &Plan, cores: Cores, samples: &Samples, report: &Report) -> String {
    let value = |name: String| report.values.get(&name).copied().unwrap_or(0.0);
    let headers = ["", "p50 µs", "min", "max", "p99 µs", "added p50", "added p99", "load late p99"];
    let mut rows = vec![headers.map(str::to_owned).to_vec()];
    for front in FRONTS {
        let name = front.name();
        let p50 = || of(samples, front).iter().map(|sample| sample.p50_us);
        rows.push(vec![
            title(front).to_owned(),
            format!("{:.0}", value(format!("p50_us_{name}"))),
            format!("{:.0}", p50().fold(f64::INFINITY, f64::min)),
            format!("{:.0}", p50().fold(0.0, f64::max)),
            format!("{:.0}", value(format!("p99_us_{name}"))),
            format!("{:+.0}", value(format!("added_p50_us_{name}"))),
            format!("{:+.0}", value(format!("added_p99_us_{name}"))),
            format!("{:.0}", value(format!("late_p99_us_{name}"))),
        ]);
    }
    format!(
        "First turns at {} requests/s, open loop: each is due at its own time, its latency counts from there to the whole answer.\n\
         Each request is a new session and asks the service once; medians of {} interleaved rounds of {} requests, --concurrency 1. {}.\n\n{}",
        plan.rate,
        plan.rounds,
        plan.requests,
        cores.text(),
        table(&rows),
    )
}

const fn title(front: Front) -> &'static str {
    match front {
        Front::Bare => "bare Envoy, maglev on the session",
        Front::Cluster => "first turn, static.yaml (cluster)",
        Front::Endpoints => "first turn, dynamic.yaml (endpoints)",
        Front::SessionHash | Front::Soft | Front::Agents => "not measured here",
    }
}
