//! `bench failover`: a worker is killed, and a session bound to it asks again and again until it is served. The time from the kill
//! to that answer, in both steering modes, each time with a fresh installation. Knows when it was served, not by what means.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use e2e::{Client, EngineSpec, Steering, WorldPlan};

use crate::report::{Report, median, table};

/// Workers, and ranks of each.
const WORKERS: [&str; 3] = ["w0", "w1", "w2"];
const RANKS: u32 = 4;
/// The client's pause between an answer that is no 200 and its next try.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// A session that is not served by then never is.
const PATIENCE: Duration = Duration::from_secs(60);
/// Turns before the kill: the first binds, the second must be on the same slot.
const TURNS_BEFORE: usize = 2;
const MODES: [(Steering, &str); 2] = [(Steering::Cluster, "cluster"), (Steering::Endpoints, "endpoints")];

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds; each starts everything anew in both steering modes.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// One kill.
#[derive(Clone, Copy, Debug)]
struct Sample {
    ms: f64,
    /// Answers 5xx before the good one.
    failures: u32,
}

/// Measures and prints.
///
/// # Errors
/// Something is missing, or a session was not served in time, or by nobody else.
pub(crate) async fn run(plan: &Plan) -> Result<()> {
    let mut samples: [Vec<Sample>; MODES.len()] = Default::default();
    for round in 0..plan.rounds {
        eprintln!("round {} of {}", round + 1, plan.rounds);
        for ((steering, name), own) in MODES.into_iter().zip(&mut samples) {
            own.push(kill_one(steering, round).await.with_context(|| format!("under {name} steering"))?);
        }
    }
    let report = figures(plan, &samples)?;
    println!("{}", text(plan, &report));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

/// Binds a session in a new installation, kills its worker, asks until another one serves.
async fn kill_one(steering: Steering, round: u32) -> Result<Sample> {
    let engines = WORKERS.map(|name| EngineSpec::new(name, RANKS).with(&["--null"]));
    let mut world = WorldPlan::new(steering, &engines).threads(1).shipped_deadline().start().await?;
    let (client, key) = (world.client(), format!("failover-{round}"));
    let worker = bind(&client, &key).await?;
    let engine = world.engines.iter_mut().find(|engine| engine.name() == worker);
    let engine = engine.context("the session is bound to a stranger")?;
    let killed = Instant::now();
    engine.kill();
    let mut failures = 0;
    loop {
        let turn = client.chat(Some(&key), "again").await?;
        match turn.status {
            200 => {
                let by = turn.slot().map(|slot| slot.worker);
                ensure!(by.as_ref().is_some_and(|by| *by != worker), "{by:?} answered, {worker} is dead");
                return Ok(Sample { ms: killed.elapsed().as_secs_f64() * 1e3, failures });
            }
            500.. => failures += 1,
            status => bail!("the client saw a {status}"),
        }
        ensure!(killed.elapsed() < PATIENCE, "not served {} s after the kill", PATIENCE.as_secs());
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// The worker to which the session is bound.
async fn bind(client: &Client, key: &str) -> Result<String> {
    let mut workers = Vec::new();
    for _ in 0..TURNS_BEFORE {
        let turn = client.chat(Some(key), "hello").await?;
        ensure!(turn.status == 200, "a turn before the kill got a {}", turn.status);
        workers.push(turn.slot().context("no worker answered")?.worker);
    }
    workers.dedup();
    ensure!(workers.len() == 1, "the session moved before the kill: {workers:?}");
    workers.pop().context("no turn was made")
}

fn figures(plan: &Plan, samples: &[Vec<Sample>]) -> Result<Report> {
    let mut report = Report::new("failover", usize::try_from(plan.rounds)?);
    for ((_, name), own) in MODES.into_iter().zip(samples) {
        let ms = || own.iter().map(|sample| sample.ms);
        let failures = || own.iter().map(|sample| f64::from(sample.failures));
        report.value(&format!("ms_min_{name}"), ms().fold(f64::INFINITY, f64::min));
        report.value(&format!("ms_{name}"), median(ms()));
        report.value(&format!("ms_max_{name}"), ms().fold(0.0, f64::max));
        report.value(&format!("status_5xx_{name}"), failures().sum());
        report.value(&format!("status_5xx_max_{name}"), failures().fold(0.0, f64::max));
    }
    Ok(report)
}

fn text(plan: &Plan, report: &Report) -> String {
    let value = |name: String| report.values.get(&name).copied().unwrap_or(0.0);
    let headers = ["", "min ms", "median", "max", "5xx seen", "most at once"];
    let mut rows = vec![headers.map(str::to_owned).to_vec()];
    for (steering, name) in MODES {
        rows.push(vec![
            format!("{name} ({})", steering.file()),
            format!("{:.1}", value(format!("ms_min_{name}"))),
            format!("{:.1}", value(format!("ms_{name}"))),
            format!("{:.1}", value(format!("ms_max_{name}"))),
            format!("{:.0}", value(format!("status_5xx_{name}"))),
            format!("{:.0}", value(format!("status_5xx_max_{name}"))),
        ]);
    }
    format!(
        "From killing a worker (SIGKILL) to the first 200 of a session bound to it; the client tries again {} ms after each other\n\
         answer. {} rounds, each with {} fresh workers of {RANKS} ranks, the shipped configs and deadlines, probes every second.\n\n{}",
        RETRY_AFTER.as_millis(),
        plan.rounds,
        WORKERS.len(),
        table(&rows),
    )
}
