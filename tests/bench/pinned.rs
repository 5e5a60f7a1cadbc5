//! `bench pinned`: CPU time of Envoy per request, at saturation, of each variant, in interleaved rounds; and what a pinned turn may not
//! cost at all: a call, a byte of its body. Owns what is measured and how; see [`Stage`] for what runs.

use anyhow::{Result, bail, ensure};
use clap::Args;
use e2e::{Envoy, artifacts};

use crate::figures::{self, Sample, Samples};
use crate::load::{BODY_BYTES, Keys, LARGE_BODY_BYTES, Load, Shape};
use crate::process::{self, Cores};
use crate::report::Report;
use crate::stage::{AccessLog, Stage};
use crate::variant::{Front, Variant};
use crate::{body, wasm, witness};

/// Sessions that are bound before anything is measured.
const SESSIONS_MAX: u64 = 10_000;
/// Below so many requests this is a smoke test, and each request has a session of its own.
const REQUESTS_SMOKE: u64 = 1000;
/// A first turn costs more: fewer of them tell as much.
const FIRST_SHARE: u64 = 4;
/// Requests on one connection, for the latency that no queue hides.
const ALONE_SHARE: u64 = 40;
/// Callbacks that would hand a body to the filter.
const BODY_CALLBACKS: [&str; 2] = ["proxy_on_request_body", "proxy_on_response_body"];
const MEBIBYTE: f64 = 1_048_576.0;

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds; each measures every variant, in an order of its own.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Requests of a variant in a round. Many short rounds bear a restless machine better than few long ones.
    #[arg(long, default_value_t = 6000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) requests: u64,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) connections: u64,
    /// Keep the shipped access log in all Envoys instead of in none.
    #[arg(long)]
    pub(crate) access_log: bool,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(crate) fn sessions(&self) -> u64 {
        if self.requests < REQUESTS_SMOKE { self.requests } else { SESSIONS_MAX }
    }

    pub(crate) fn requests_of(&self, variant: Variant) -> u64 {
        match variant {
            Variant::Turns(_) | Variant::Large(_) => self.requests,
            Variant::First(_) => self.requests / FIRST_SHARE,
        }
    }
}

/// What pinned turns asked of the service.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    turns: u64,
    routes: u64,
    all: u64,
}

/// Measures and prints.
///
/// # Errors
/// Something is missing, a request failed, or a pinned turn was none: then no figure is worth printing.
pub(crate) async fn run(plan: &Plan, cores: Cores) -> Result<()> {
    let access_log = if plan.access_log { AccessLog::AsShipped } else { AccessLog::Off };
    let mut report = Report::new("pinned", usize::try_from(plan.rounds)?);
    let stage = Stage::start(cores, access_log).await?;
    let samples = turns(plan, &stage, &mut report).await?;
    figures::medians(&samples, &mut report);
    memory(plan, &stage, &mut report).await?;
    report.value("wasm_bytes", std::fs::metadata(artifacts::wasm()?)?.len() as f64);
    report.hash = witness::hash(&stage).await?;
    println!("{}", figures::text(plan, cores, &samples, &report));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

/// The rounds, and what pinned turns may not cost.
async fn turns(plan: &Plan, stage: &Stage, report: &mut Report) -> Result<Samples> {
    let mut envoys = Vec::new();
    for front in Front::ALL {
        let envoy = stage.envoy(front, 1).await?;
        prime(plan, front, &envoy).await?;
        envoys.push((front, envoy));
    }
    let mut samples = Samples::new();
    let mut asked = Asked::default();
    let rounds = usize::try_from(plan.rounds)?;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut order = Variant::ALL;
        order.rotate_left(round % Variant::ALL.len());
        for variant in order {
            let Some((_, envoy)) = envoys.iter().find(|(front, _)| *front == variant.front()) else {
                continue;
            };
            let sample = measure(plan, stage, variant, envoy, round, &mut asked).await?;
            samples.entry(variant.name()).or_default().push(sample);
        }
    }
    report.value("calls_per_pinned_turn", asked.routes as f64 / asked.turns.max(1) as f64);
    report
        .value("service_requests_per_1000_pinned_turns", asked.all as f64 * 1e3 / asked.turns.max(1) as f64);
    report.value("body_bytes_per_pinned_turn", body_bytes(&envoys).await?);
    Ok(samples)
}

/// Binds all sessions; afterwards each turn of theirs must be a pinned one.
async fn prime(plan: &Plan, front: Front, envoy: &Envoy) -> Result<()> {
    let sessions = plan.sessions();
    let load = Load {
        to: envoy.address(),
        connections: plan.connections,
        requests: sessions,
        keys: Keys::Turns { sessions },
        shape: shape(front, BODY_BYTES),
    };
    load.run().await?;
    let before = turns_counted(front, envoy).await?;
    load.run().await?;
    let pinned = turns_counted(front, envoy).await? - before;
    if front != Front::Bare && !as_good_as_all(front, pinned, sessions) {
        let counted = envoy.stats("wasmcustom.rankpin.requests.").await?;
        let counted: Vec<_> = counted.into_iter().filter(|(_, count)| *count > 0).collect();
        bail!("{pinned} of {sessions} turns of `{}` stayed: {counted:?}", front.name());
    }
    Ok(())
}

/// Whether so many of so many turns stayed as must be. Some of soft ones move, if the service finds the load uneven, too.
const fn as_good_as_all(front: Front, pinned: u64, all: u64) -> bool {
    match front {
        Front::Soft => pinned * 20 >= all * 19,
        _ => pinned == all,
    }
}

async fn turns_counted(front: Front, envoy: &Envoy) -> Result<u64> {
    let mut sum = 0;
    for word in front.turn_counters() {
        sum += envoy.requests(word).await?;
    }
    Ok(sum)
}

async fn measure(
    plan: &Plan,
    stage: &Stage,
    variant: Variant,
    envoy: &Envoy,
    round: usize,
    asked: &mut Asked,
) -> Result<Sample> {
    let (front, requests) = (variant.front(), plan.requests_of(variant));
    let run = format!("{}-{round}", variant.name());
    let alone = format!("{run}-alone");
    let keys = |run| match variant {
        Variant::Turns(_) | Variant::Large(_) => Keys::Turns { sessions: plan.sessions() },
        Variant::First(_) => Keys::New { run },
    };
    let shape = match variant {
        Variant::Large(front) => shape(front, LARGE_BODY_BYTES),
        Variant::Turns(front) | Variant::First(front) => shape(front, BODY_BYTES),
    };
    let load = |connections, requests, run| {
        let keys = keys(run);
        Load { to: envoy.address(), connections, requests, keys, shape }
    };
    let single = load(1, (requests / ALONE_SHARE).max(10), &alone).run().await?;

    let counted = turns_counted(front, envoy).await?;
    let routes = stage.service(front).routes().await?;
    let all = envoy.stat("cluster.rankpin-service.upstream_rq_total").await?;
    let cpu = process::cpu_us(envoy.pid())?;
    let sent = load(plan.connections, requests, &run).run().await?;
    let cpu = process::cpu_us(envoy.pid())? - cpu;
    if matches!(variant, Variant::Turns(_) | Variant::Large(_)) && front != Front::Bare {
        let turns = turns_counted(front, envoy).await? - counted;
        let enough = as_good_as_all(front, turns, requests);
        ensure!(enough, "{turns} of {requests} turns of `{}` stayed", variant.name());
        if front != Front::Soft {
            asked.turns += turns;
            asked.routes += stage.service(front).routes().await? - routes;
            asked.all += envoy.stat("cluster.rankpin-service.upstream_rq_total").await? - all;
        }
    }
    Ok(Sample {
        cpu_us: cpu / requests as f64,
        busy: cpu / sent.wall.as_secs_f64() / 1e6,
        rate: sent.rate(),
        p50_us: sent.within_us(0.5),
        p99_us: sent.within_us(0.99),
        alone_p50_us: single.within_us(0.5),
        alone_p99_us: single.within_us(0.99),
    })
}

/// How requests of an Envoy look.
const fn shape(front: Front, bytes: usize) -> Shape {
    match front {
        Front::Agents => Shape::KeyInBody(bytes),
        Front::Bare | Front::Cluster | Front::Endpoints | Front::SessionHash | Front::Soft => {
            Shape::KeyInHead(bytes)
        }
    }
}

/// Bytes of a body that the filter sees or that wait for it: all of it if the module exports a body callback, else what Envoy held back.
async fn body_bytes(envoys: &[(Front, Envoy)]) -> Result<f64> {
    let exports = wasm::exports(&std::fs::read(artifacts::wasm()?)?)?;
    let mut bytes = 0;
    if BODY_CALLBACKS.iter().any(|callback| exports.iter().any(|export| export == callback)) {
        bytes = BODY_BYTES as u64;
    }
    // Where the key stands in the body, the body is what it takes.
    for (_, envoy) in envoys.iter().filter(|(front, _)| !matches!(front, Front::Bare | Front::Agents)) {
        bytes = bytes.max(body::held_bytes(envoy, "session-0").await?);
    }
    Ok(bytes as f64)
}

/// Resident memory at two threads after many sessions: both roles of the filter against none.
async fn memory(plan: &Plan, stage: &Stage, report: &mut Report) -> Result<()> {
    let mut resident = Vec::new();
    for front in [Front::Bare, Front::Endpoints] {
        let envoy = stage.edited_envoy(front, 2, &format!("{}-2", front.name()), |_| Ok(())).await?;
        prime(plan, front, &envoy).await?;
        let bytes = process::resident_bytes(envoy.pid())? as f64;
        report.value(&format!("rss_mb_{}", front.name()), bytes / MEBIBYTE);
        resident.push(bytes);
    }
    let added = resident.last().unwrap_or(&0.0) - resident.first().unwrap_or(&0.0);
    report.value("added_rss_mb", added / MEBIBYTE);
    Ok(())
}
