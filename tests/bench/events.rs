//! `bench events`: hundreds of workers publish cache events at once to one service, are all cut off at once, and come back. Prints
//! what it takes: descriptors, memory, events a second, how long until every rank is known whole again. One fake engine stands for
//! all workers: each has four of its ranks, and each rank its own sockets. Fails where a rank is not as its engine is.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use e2e::scratch::Scratch;
use e2e::wait::wait_within;
use e2e::{Engine, EngineSpec, Service, ServicePlan};
use serde_json::{Value, json};

use crate::process::{cpu_us, resident_bytes};
use crate::report::{Report, table};

const RANKS: u32 = 4;
/// Blocks of each prompt that a rank computes by itself.
const BLOCKS: u64 = 16;
/// Only a machine that is stuck reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

/// Batches of each rank that the engine is asked for at once.
const AT_ONCE: u64 = 10;
/// Between two counts of descriptors.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Times the publishers are cut off and return.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Workers of four ranks each.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Batches of each rank while it is connected, and again while it is cut off.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batches: u64,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// The service under its publishers.
struct Storm {
    plan: Plan,
    service: Service,
    engine: Engine,
    _scratch: Scratch,
}

/// What one wait showed.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    seconds: f64,
    cpu_seconds: f64,
    descriptors: usize,
    resident_mib: f64,
}

/// Measures and prints.
///
/// # Errors
/// Something is missing, or a rank is not known as it is.
pub(crate) async fn run(plan: &Plan) -> Result<()> {
    let storm = Storm::start(*plan).await?;
    let mut report = Report::new("events", usize::try_from(plan.rounds)?);
    let mut rows = vec![["", "s", "service's CPU s", "descriptors", "MiB"].map(str::to_owned).to_vec()];
    let mut note = |name: &str, sample: Sample, report: &mut Report| {
        rows.push(sample.row(name));
        sample.report(name, report);
    };
    let idle = storm.watch(async || storm.connected(storm.ranks()).await).await?;
    note("connected", idle, &mut report);
    let live = storm.watch(async || storm.publish().await).await?;
    note("published", live, &mut report);
    let batches = (u64::from(storm.ranks()) * plan.batches) as f64;
    for (name, count) in [("batches_per_s", batches), ("blocks_per_s", batches * BLOCKS as f64)] {
        report.value(name, count / live.seconds);
        report.value(&format!("{name}_cpu"), count / live.cpu_seconds.max(f64::EPSILON));
    }
    let mut worst = Sample::default();
    for _ in 0..plan.rounds {
        storm.engine.kv_fault("close", None).await?;
        storm.connected(0).await?;
        storm.fill().await?;
        let back = storm.watch(async || storm.come_back().await).await?;
        worst = if back.seconds > worst.seconds { back } else { worst };
    }
    note("reconnected", worst, &mut report);
    report.value("ranks", f64::from(storm.ranks()));
    println!("{}\n{}", storm.text(&report), table(&rows));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

impl Storm {
    async fn start(plan: Plan) -> Result<Self> {
        let scratch = Scratch::new()?;
        let ranks = plan.workers * RANKS;
        // Small caches, so that evictions come as well.
        let spec = EngineSpec::new("all", ranks).kv_events().with(&["--cache-blocks", "256"]);
        // A worker has its own address; all of these are the engine's.
        let spec = spec.with(&["--listen", "0.0.0.0:0"]);
        let engine = Engine::start(scratch.path(), spec).await?;
        let quiet = ServicePlan { probe_interval_ms: 0, ..ServicePlan::default() };
        let service = Service::start(scratch.path(), &quiet).await?;
        for worker in 0..plan.workers {
            let declared = json!({"engine": "vllm", "kv_events": "discover", "endpoints": [{
                "address": format!("127.0.1.{worker}:{}", engine.address().port()), "rank_numbering": "global", "dp_start": worker * RANKS, "dp_size": RANKS}]});
            let said =
                service.call("PUT", &format!("/v1/workers/w{worker}"), Some(&declared.to_string())).await?;
            ensure!(said.status == 201, "{said:?}");
        }
        Ok(Self { plan, service, engine, _scratch: scratch })
    }

    fn ranks(&self) -> u32 {
        self.plan.workers * RANKS
    }

    /// Until so many ranks are connected.
    async fn connected(&self, count: u32) -> Result<()> {
        let what = format!("{count} ranks to be connected");
        wait_within(PATIENCE, &what, async || {
            let now = self.service.metric("rankpin_kv_connected", &[]).await.ok()?;
            (now == f64::from(count)).then_some(())
        })
        .await
    }

    async fn fill(&self) -> Result<()> {
        let mut left = self.plan.batches;
        while left > 0 {
            let now = left.min(AT_ONCE);
            self.engine.kv_fault(&format!("fill={now}"), None).await?;
            left -= now;
        }
        Ok(())
    }

    async fn publish(&self) -> Result<()> {
        self.fill().await?;
        self.known().await
    }

    async fn come_back(&self) -> Result<()> {
        self.engine.kv_fault("open", None).await?;
        self.connected(self.ranks()).await?;
        self.known().await
    }

    /// Until every rank's last batch is applied; then each is whole, and holds what its engine holds.
    async fn known(&self) -> Result<()> {
        let published = self.engine.kv_events().await?;
        let held = self.engine.cached_blocks().await?;
        for worker in 0..self.plan.workers {
            let mut last = Value::Null;
            let mine = (worker * RANKS) as usize..((worker + 1) * RANKS) as usize;
            let looked = wait_within(PATIENCE, "a worker to be known", async || {
                let said = self.service.call("GET", &format!("/v1/workers/w{worker}"), None).await.ok()?;
                last = said.body["slots"].clone();
                let is_known = |(slot, at): (&Value, usize)| {
                    let kv = &slot["kv_events"];
                    let next = kv["last_seq"].as_u64().map(|seq| seq + 1);
                    next == Some(published[at].next_seq)
                        && kv["cold"] == false
                        && kv["blocks"]["gpu"] == held[at]
                };
                last.as_array()?.iter().zip(mine.clone()).all(is_known).then_some(())
            });
            looked.await.with_context(|| format!("w{worker}: {last}"))?;
        }
        Ok(())
    }

    /// Does it, and tells what the service had of time and memory meanwhile, and the most descriptors it held.
    async fn watch(&self, act: impl AsyncFnOnce() -> Result<()>) -> Result<Sample> {
        let (began, cpu) = (Instant::now(), cpu_us(self.service.pid())?);
        let mut most = descriptors(self.service.pid())?;
        let mut acting = std::pin::pin!(act());
        loop {
            tokio::select! {
                done = &mut acting => break done?,
                () = tokio::time::sleep(LOOK_EVERY) => most = most.max(descriptors(self.service.pid())?),
            }
        }
        Ok(Sample {
            seconds: began.elapsed().as_secs_f64(),
            cpu_seconds: (cpu_us(self.service.pid())? - cpu) / 1e6,
            descriptors: most.max(descriptors(self.service.pid())?),
            resident_mib: resident_bytes(self.service.pid())? as f64 / f64::from(1 << 20),
        })
    }

    fn text(&self, report: &Report) -> String {
        let value = |name: &str| report.values.get(name).copied().unwrap_or(0.0);
        format!(
            "{} workers × {RANKS} ranks publish to one service; {} batches of {BLOCKS} blocks each while connected, as many while cut off, \
             which are then replayed. Publishers and service share the machine.\n\
             {:.0} batches/s, {:.0} blocks/s; of the service's CPU time alone {:.0} and {:.0}.\n",
            self.plan.workers,
            self.plan.batches,
            value("batches_per_s"),
            value("blocks_per_s"),
            value("batches_per_s_cpu"),
            value("blocks_per_s_cpu"),
        )
    }
}

fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd")).context("the service is gone")?.count())
}

impl Sample {
    fn row(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            format!("{:.2}", self.seconds),
            format!("{:.2}", self.cpu_seconds),
            self.descriptors.to_string(),
            format!("{:.0}", self.resident_mib),
        ]
    }

    fn report(&self, name: &str, report: &mut Report) {
        report.value(&format!("s_{name}"), self.seconds);
        report.value(&format!("cpu_s_{name}"), self.cpu_seconds);
        report.value(&format!("descriptors_{name}"), self.descriptors as f64);
        report.value(&format!("mib_{name}"), self.resident_mib);
    }
}
