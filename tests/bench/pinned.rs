//! `bench pinned`: CPU time of Envoy per request, at saturation, of each variant, in interleaved rounds; and what a pinned turn may not
//! cost at all: a call, a byte of its body. Owns what is measured and how; see [`Stage`] for what runs.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use clap::Args;
use e2e::{Envoy, artifacts};

use crate::load::{BODY_BYTES, Keys, Load};
use crate::process::{self, Cores};
use crate::report::{Report, median, table};
use crate::stage::{AccessLog, Stage};
use crate::variant::{Front, Variant};
use crate::{body, wasm, witness};

/// Memory is compared after so many sessions.
const SESSIONS_MAX: u64 = 10_000;
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
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Requests of a variant in a round.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    requests: u64,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    connections: u64,
    /// Keep the shipped access log in all Envoys instead of in none.
    #[arg(long)]
    access_log: bool,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

impl Plan {
    fn sessions(&self) -> u64 {
        self.requests.min(SESSIONS_MAX)
    }

    fn requests_of(&self, variant: Variant) -> u64 {
        match variant {
            Variant::Turns(_) => self.requests,
            Variant::First(_) => self.requests / FIRST_SHARE,
        }
    }
}

/// One variant in one round.
#[derive(Clone, Copy, Debug)]
struct Sample {
    cpu_us: f64,
    busy: f64,
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    alone_p50_us: f64,
    alone_p99_us: f64,
}

/// What pinned turns asked of the service.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    turns: u64,
    routes: u64,
    all: u64,
}

type Samples = BTreeMap<&'static str, Vec<Sample>>;

/// Measures and prints.
///
/// # Errors
/// Something is missing, a request failed, or a pinned turn was none: then no figure is worth printing.
pub(crate) async fn run(plan: &Plan, cores: Cores) -> Result<()> {
    let access_log = if plan.access_log { AccessLog::AsShipped } else { AccessLog::Off };
    let mut report = Report {
        name: "pinned",
        ratios: BTreeMap::new(),
        values: BTreeMap::new(),
        rounds: usize::try_from(plan.rounds)?,
        hash: String::new(),
    };
    let stage = Stage::start(cores, access_log).await?;
    let samples = turns(plan, &stage, &mut report).await?;
    figures(&samples, &mut report);
    memory(plan, &stage, &mut report).await?;
    report.value("wasm_bytes", std::fs::metadata(artifacts::wasm()?)?.len() as f64);
    report.hash = witness::hash(&stage).await?;
    println!("{}", text(plan, cores, &samples, &report));
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
    };
    load.run().await?;
    let before = turns_counted(front, envoy).await?;
    load.run().await?;
    let pinned = turns_counted(front, envoy).await? - before;
    if front != Front::Bare && pinned != sessions {
        let counted = envoy.stats("wasmcustom.rankpin.requests.").await?;
        let counted: Vec<_> = counted.into_iter().filter(|(_, count)| *count > 0).collect();
        bail!("{pinned} of {sessions} turns of `{}` were pinned: {counted:?}", front.name());
    }
    Ok(())
}

async fn turns_counted(front: Front, envoy: &Envoy) -> Result<u64> {
    match front.turn_counter() {
        Some(word) => envoy.requests(word).await,
        None => Ok(0),
    }
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
        Variant::Turns(_) => Keys::Turns { sessions: plan.sessions() },
        Variant::First(_) => Keys::New { run },
    };
    let load =
        |connections, requests, run| Load { to: envoy.address(), connections, requests, keys: keys(run) };
    let single = load(1, (requests / ALONE_SHARE).max(10), &alone).run().await?;

    let counted = turns_counted(front, envoy).await?;
    let routes = stage.service(front).routes().await?;
    let all = envoy.stat("cluster.rankpin-service.upstream_rq_total").await?;
    let cpu = process::cpu_us(envoy.pid())?;
    let sent = load(plan.connections, requests, &run).run().await?;
    let cpu = (process::cpu_us(envoy.pid())? - cpu) as f64;
    if matches!(variant, Variant::Turns(_)) && front != Front::Bare {
        let turns = turns_counted(front, envoy).await? - counted;
        ensure!(turns == requests, "{turns} of {requests} turns of `{}` were pinned", variant.name());
        asked.turns += turns;
        asked.routes += stage.service(front).routes().await? - routes;
        asked.all += envoy.stat("cluster.rankpin-service.upstream_rq_total").await? - all;
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

/// Bytes of a body that the filter sees or that wait for it: all of it if the module exports a body callback, else what Envoy held back.
async fn body_bytes(envoys: &[(Front, Envoy)]) -> Result<f64> {
    let exports = wasm::exports(&std::fs::read(artifacts::wasm()?)?)?;
    let mut bytes = 0;
    if BODY_CALLBACKS.iter().any(|callback| exports.iter().any(|export| export == callback)) {
        bytes = BODY_BYTES as u64;
    }
    for (_, envoy) in envoys.iter().filter(|(front, _)| *front != Front::Bare) {
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

/// Medians over the rounds. A ratio is the median of each round's own: what drifts within minutes drifts for both.
fn figures(samples: &Samples, report: &mut Report) {
    let bare = of(samples, Variant::Turns(Front::Bare));
    for variant in Variant::ALL {
        let (own, name) = (of(samples, variant), variant.name());
        let mid = |pick: fn(&Sample) -> f64| median(own.iter().map(pick));
        let bare_mid = |pick: fn(&Sample) -> f64| median(bare.iter().map(pick));
        report.value(&format!("cpu_us_{name}"), mid(|s| s.cpu_us));
        report.value(&format!("requests_per_s_{name}"), mid(|s| s.rate));
        report.value(&format!("envoy_busy_{name}"), mid(|s| s.busy));
        report.value(&format!("p50_us_{name}"), mid(|s| s.p50_us));
        report.value(&format!("p99_us_{name}"), mid(|s| s.p99_us));
        report.value(&format!("alone_p50_us_{name}"), mid(|s| s.alone_p50_us));
        if let Some(ratio) = variant.ratio() {
            let pairs = own.iter().zip(bare);
            report.ratio(ratio, median(pairs.map(|(own, bare)| own.cpu_us / bare.cpu_us.max(1e-9))));
            report.value(
                &format!("added_p50_us_{name}"),
                mid(|s| s.alone_p50_us) - bare_mid(|s| s.alone_p50_us),
            );
            report.value(
                &format!("added_p99_us_{name}"),
                mid(|s| s.alone_p99_us) - bare_mid(|s| s.alone_p99_us),
            );
        }
    }
}

fn of(samples: &Samples, variant: Variant) -> &[Sample] {
    samples.get(variant.name()).map_or(&[], Vec::as_slice)
}

fn text(plan: &Plan, cores: Cores, samples: &Samples, report: &Report) -> String {
    let value = |name: &str| report.values.get(name).copied().unwrap_or(0.0);
    let headers = [
        "",
        "CPU µs",
        "min",
        "max",
        "× bare",
        "requests/s",
        "Envoy busy",
        "p50 µs",
        "p99 µs",
        "alone p50",
        "added p50",
    ];
    let mut rows = vec![headers.map(str::to_owned).to_vec()];
    for variant in Variant::ALL {
        let name = variant.name();
        let cpu = || of(samples, variant).iter().map(|sample| sample.cpu_us);
        let ratio = variant.ratio().and_then(|ratio| report.ratios.get(ratio)).copied().unwrap_or(1.0);
        rows.push(vec![
            variant.title().to_owned(),
            format!("{:.1}", value(&format!("cpu_us_{name}"))),
            format!("{:.1}", cpu().fold(f64::INFINITY, f64::min)),
            format!("{:.1}", cpu().fold(0.0, f64::max)),
            format!("{ratio:.3}"),
            format!("{:.0}", value(&format!("requests_per_s_{name}"))),
            format!("{:.0} %", value(&format!("envoy_busy_{name}")) * 100.0),
            format!("{:.0}", value(&format!("p50_us_{name}"))),
            format!("{:.0}", value(&format!("p99_us_{name}"))),
            format!("{:.0}", value(&format!("alone_p50_us_{name}"))),
            format!("{:+.0}", value(&format!("added_p50_us_{name}"))),
        ]);
    }
    format!(
        "CPU of the Envoy process (user + system) per request, --concurrency 1; medians of {} interleaved rounds of {} requests\n\
         ({} for first turns), {} connections, {BODY_BYTES}-byte chat bodies, {} sessions. {}.\n\
         Access log {} in all variants. `alone`: one connection, so no queue; `added` is beside the bare Envoy's.\n\n{}\n\
         calls of `route` per pinned turn: {}   (all requests to the service, watch, reports and EDS included: {:.2} in 1,000 turns)\n\
         body bytes seen or held per pinned turn: {}   (no body callback exported; half a body reached the worker before the rest was sent)\n\
         filter: {:.0} KB   memory at 2 threads after {} sessions: {:.1} MB, bare {:.1} MB, added {:.1} MB\n\
         hash of where 64 sessions go under session_hash: {}\n",
        plan.rounds,
        plan.requests,
        plan.requests / FIRST_SHARE,
        plan.connections,
        plan.sessions(),
        cores.text(),
        if plan.access_log {
            "as shipped"
        } else {
            "off (its cost, the same for all, would hide the filter's)"
        },
        table(&rows),
        value("calls_per_pinned_turn"),
        value("service_requests_per_1000_pinned_turns"),
        value("body_bytes_per_pinned_turn"),
        value("wasm_bytes") / 1000.0,
        plan.sessions(),
        value("rss_mb_endpoints"),
        value("rss_mb_bare"),
        value("added_rss_mb"),
        report.hash,
    )
}
