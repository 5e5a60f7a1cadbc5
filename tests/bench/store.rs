//! `bench store`: replicas of the service, each a process of its own, on one real store. New sessions as fast as they go at two of them:
//! what is lost, how late the other one knows, commands of the store, memory. One client's first turns with the store and without.
//! Pinned turns. The service's CPU for a request with one, two and four replicas, under the same traffic and under as much for each.
//! Needs no Envoy: what filters ask and tell is sent as they do. All share the machine's cores, the load included.

mod fleet;
mod traffic;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use e2e::kept::Vm;

use crate::load::within_us;
use crate::process::cpu_us;
use crate::report::{Report, median, table};
use fleet::Fleet;

/// Replicas whose CPU is compared.
const FLEETS: [usize; 3] = [1, 2, 4];
/// Ratios of CPU for a request: name, fleet, and the one beside it.
const RATIOS: [(&str, &str, &str); 8] = [
    ("cpu_2_over_1", "2", "1"),
    ("cpu_4_over_1", "4", "1"),
    ("cpu_4_over_1_each", "4", "quarter_1"),
    ("cpu_apart_4_over_1_each", "apart_4", "apart_quarter_1"),
    ("cpu_apart_4_over_1", "apart_4", "apart_1"),
    ("cpu_store_over_apart_1", "1", "apart_1"),
    ("cpu_store_over_apart_2", "2", "apart_2"),
    ("cpu_store_over_apart_4", "4", "apart_4"),
];
/// After the last request of a second, for what the others have yet to hear.
const APPLIED: Duration = Duration::from_millis(100);
/// Of the sessions that take pinned turns.
const TTL: Duration = Duration::from_secs(1800);
/// Bound sessions of pinned turns, and turns in a second.
const PINNED: usize = 640;
const PINNED_PER_S: f64 = 850.0;

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds; each measures everything once, on services of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// New sessions as fast as they go.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(10..=500_000))]
    sessions: u32,
    /// First turns of one client.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    first_turns: u32,
    /// New sessions in a second, over all replicas, while CPU is compared.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,
    /// Seconds of that for each fleet, and of pinned turns.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Seconds until memory is looked at again.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=600))]
    still: u32,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Figures by name, in the order they were found.
#[derive(Default)]
struct Found(Vec<(String, f64)>);

impl Found {
    fn put(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), value));
    }
}

/// Measures and prints.
///
/// # Errors
/// Something does not start, or an answer is not as it must be.
pub(crate) async fn run(plan: &Plan) -> Result<()> {
    let before = load_average();
    let mut rounds = Vec::new();
    for round in 0..plan.rounds {
        eprintln!("round {} of {}", round + 1, plan.rounds);
        let mut found = Found::default();
        flood(plan, &mut found).await?;
        first_turns(plan, &mut found).await?;
        pinned(plan, &mut found).await?;
        compare(plan, &mut found).await?;
        rounds.push(found.0);
    }
    let report = report(plan, &rounds);
    println!("{}", text(plan, [before, load_average()], &rounds, &report));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

/// New sessions at two replicas, as fast as they go.
async fn flood(plan: &Plan, found: &mut Found) -> Result<()> {
    let fleet = Fleet::start(2).await?;
    let (before, own) = (fleet.resident_mib()?, std::process::id());
    let (commands, cpu, store, load) =
        (fleet.commands().await?, fleet.cpu_us()?, fleet.store_cpu_us()?, cpu_us(own)?);
    let bound = traffic::flood(&fleet, plan.sessions as usize, "flood").await?;
    let (cpu, store, load) = (fleet.cpu_us()? - cpu, fleet.store_cpu_us()? - store, cpu_us(own)? - load);
    let settled = fleet.settles(bound.homes.len()).await?;
    let sessions = bound.homes.len() as f64;
    found.put("lost", fleet.lost(&bound.homes).await? as f64);
    found.put("holds_left", fleet.sum("rankpin_holds").await?);
    found.put("bindings_per_s_per_replica", sessions / bound.wall.as_secs_f64() / 2.0);
    found.put("settled_ms", settled.as_secs_f64() * 1e3);
    found.put("apply_lag_p50_ms", within(&bound.lag_ms, 0.5));
    found.put("apply_lag_p99_ms", within(&bound.lag_ms, 0.99));
    found.put("log_lag_p99_ms", log_lag_ms(&fleet, 0.99).await?);
    found.put("commands_per_new_session", (fleet.commands().await? - commands) / sessions);
    found.put("flood_route_p50_us", within_us(&bound.route_us, 0.5));
    found.put("flood_route_p99_us", within_us(&bound.route_us, 0.99));
    found.put("flood_cpu_us_services", cpu / sessions);
    found.put("flood_cpu_us_store", store / sessions);
    found.put("flood_cpu_us_load", load / sessions);
    let (after, cpu) = (fleet.resident_mib()?, fleet.cpu_us()?);
    tokio::time::sleep(Duration::from_secs(plan.still.into())).await;
    if plan.still > 0 {
        found.put("idle_cpu_ms_per_s", (fleet.cpu_us()? - cpu) / 2e3 / f64::from(plan.still));
    }
    for (name, mib) in [("before", before), ("after", after), ("still", fleet.resident_mib()?)] {
        found.put(&format!("resident_mib_{name}"), mib);
    }
    found.put("store_failures", fleet.sum("rankpin_store_failures_total").await?);
    Ok(())
}

/// One client's first turns, with the store and without.
async fn first_turns(plan: &Plan, found: &mut Found) -> Result<()> {
    let shared = Fleet::start(2).await?;
    let commands = shared.commands().await?;
    let bound = traffic::one_client(&shared, plan.first_turns as usize, "one").await?;
    shared.settles(bound.homes.len()).await?;
    found.put("first_turn_p50_us", within_us(&bound.route_us, 0.5));
    found.put("first_turn_p99_us", within_us(&bound.route_us, 0.99));
    let commands = shared.commands().await? - commands;
    found.put("commands_per_new_session_one_client", commands / bound.homes.len() as f64);
    drop(shared);
    let alone = Fleet::apart(1).await?;
    let bound = traffic::one_client(&alone, plan.first_turns as usize, "one").await?;
    found.put("first_turn_alone_p50_us", within_us(&bound.route_us, 0.5));
    found.put("first_turn_alone_p99_us", within_us(&bound.route_us, 0.99));
    Ok(())
}

/// Turns of bound sessions, as replicas hear of them.
async fn pinned(plan: &Plan, found: &mut Found) -> Result<()> {
    let (fleet, lasts) = (Fleet::start(2).await?, Duration::from_secs(plan.seconds.into()));
    let bound = traffic::one_client(&fleet, PINNED, "pinned").await?;
    fleet.settles(PINNED).await?;
    // What only time costs: beats, waits that end with nothing.
    let idle = fleet.commands().await?;
    tokio::time::sleep(Duration::from_secs(plan.still.into())).await;
    let commands = fleet.commands().await?;
    if plan.still > 0 {
        found.put("commands_per_s_idle", (commands - idle) / f64::from(plan.still));
    }
    let touches = traffic::pinned(&fleet, &bound.homes, PINNED_PER_S, TTL, lasts).await?;
    let turns = PINNED_PER_S * lasts.as_secs_f64();
    found.put("touches_per_1000_pinned_turns", touches as f64 * 1e3 / turns);
    found.put("commands_per_1000_pinned_turns", (fleet.commands().await? - commands) * 1e3 / turns);
    Ok(())
}

/// The services' CPU for a request, on a store and apart, with more and more replicas under the same traffic: a second of each in turn,
/// so that whatever else the machine does befalls all of them. Those apart share nothing and serve the same traffic: what they take
/// more is the price of several processes that are each asked less often, not of the store. One replica with a quarter of the traffic is
/// asked as often as each of four.
async fn compare(plan: &Plan, found: &mut Found) -> Result<()> {
    let mut compared = Vec::new();
    for replicas in FLEETS {
        let name = format!("apart_{replicas}");
        compared.push(Compared::new(&name, Fleet::apart(replicas).await?, plan.rate).await?);
        compared.push(Compared::new(&replicas.to_string(), Fleet::start(replicas).await?, plan.rate).await?);
    }
    let quarter = plan.rate.div_ceil(4);
    compared.push(Compared::new("apart_quarter_1", Fleet::apart(1).await?, quarter).await?);
    compared.push(Compared::new("quarter_1", Fleet::start(1).await?, quarter).await?);
    // In the first second connections and memory become warm; it does not count.
    for second in 0..=plan.seconds {
        for one in &mut compared {
            one.second(second).await?;
        }
    }
    for one in &compared {
        found.put(&format!("cpu_us_per_request_{}", one.name), one.cpu_us / one.requests.max(1.0));
        if one.fleet.redis.is_some() {
            found
                .put(&format!("cpu_us_per_request_store_{}", one.name), one.store_us / one.requests.max(1.0));
        }
        found.put(&format!("route_p50_us_{}", one.name), median(one.p50_us.iter().copied()));
    }
    Ok(())
}

/// A fleet, and what it took so far.
struct Compared {
    name: String,
    fleet: Fleet,
    vms: Vec<Vm>,
    /// Requests a second, over all of its replicas.
    rate: u32,
    cpu_us: f64,
    store_us: f64,
    requests: f64,
    sessions: usize,
    p50_us: Vec<f64>,
}

impl Compared {
    async fn new(name: &str, fleet: Fleet, rate: u32) -> Result<Self> {
        let (name, vms, p50_us) = (name.to_owned(), traffic::envoys(&fleet, 3_000_000).await?, Vec::new());
        Ok(Self { name, fleet, vms, rate, cpu_us: 0.0, store_us: 0.0, requests: 0.0, sessions: 0, p50_us })
    }

    async fn second(&mut self, second: u32) -> Result<()> {
        let (before, store) = (self.fleet.cpu_us()?, self.fleet.store_cpu_us()?);
        let run = format!("second-{second}");
        let bound = traffic::paced(&mut self.vms, self.rate as usize, self.rate.into(), &run).await?;
        self.sessions += bound.homes.len();
        // What others do with it belongs to it; being asked for metrics until all know does not.
        tokio::time::sleep(APPLIED).await;
        let (cpu, store) = (self.fleet.cpu_us()? - before, self.fleet.store_cpu_us()? - store);
        self.fleet.settles(self.sessions).await?;
        if second > 0 {
            self.cpu_us += cpu;
            self.store_us += store;
            self.requests += bound.homes.len() as f64;
            self.p50_us.push(within_us(&bound.route_us, 0.5));
        }
        Ok(())
    }
}

fn report(plan: &Plan, rounds: &[Vec<(String, f64)>]) -> Report {
    let mut report = Report::new("store", plan.rounds as usize);
    let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, value) in rounds.iter().flatten() {
        all.entry(name).or_default().push(*value);
    }
    for (name, values) in &all {
        // Of what must not be, the worst round counts.
        let worst = matches!(*name, "lost" | "holds_left");
        let value =
            if worst { values.iter().copied().fold(0.0, f64::max) } else { median(values.iter().copied()) };
        report.value(name, value);
    }
    let cpu = |fleet: &str, round: &[(String, f64)]| {
        let name = format!("cpu_us_per_request_{fleet}");
        round.iter().find(|(own, _)| *own == name).map_or(0.0, |(_, value)| *value)
    };
    for (name, more, less) in RATIOS {
        let ratios = rounds.iter().map(|round| cpu(more, round) / cpu(less, round).max(1e-9));
        report.ratio(name, median(ratios));
    }
    report
}

fn text(plan: &Plan, loads: [String; 2], rounds: &[Vec<(String, f64)>], report: &Report) -> String {
    let mut rows = vec![["", "median", "min", "max"].map(str::to_owned).to_vec()];
    for (name, _) in rounds.iter().take(1).flatten() {
        let each = || rounds.iter().flatten().filter(|(own, _)| own == name).map(|(_, value)| *value);
        let digits = if each().fold(0.0, f64::max) < 10.0 { 3 } else { 1 };
        let (low, high) = (each().fold(f64::INFINITY, f64::min), each().fold(0.0, f64::max));
        let mut row = vec![name.clone()];
        row.extend([median(each()), low, high].map(|value| format!("{value:.digits$}")));
        rows.push(row);
    }
    let ratio = |name: &str| report.ratios.get(name).copied().unwrap_or(0.0);
    let [before, after] = loads;
    format!(
        "{} rounds of {} new sessions; {} sessions a second over all replicas while CPU is compared.\n\
         {} cores for replicas, store and load together; load average {before} before and {after} after.\n\n{}\n\
         CPU for a request: 2 replicas {:.3} × 1, 4 replicas {:.3} × 1; 4 that share nothing {:.3} × 1 that shares nothing\n\
         and, one asked as often as each of the four: 4 replicas {:.3} × 1; 4 that share nothing {:.3} × 1 that shares nothing\n",
        plan.rounds,
        plan.sessions,
        plan.rate,
        std::thread::available_parallelism().map_or(0, usize::from),
        table(&rows),
        ratio("cpu_2_over_1"),
        ratio("cpu_4_over_1"),
        ratio("cpu_apart_4_over_1"),
        ratio("cpu_4_over_1_each"),
        ratio("cpu_apart_4_over_1_each"),
    )
}

/// The machine's, as the kernel tells it: others may be at work.
fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// The value within which this share of ascending ones lies; 0 of none.
fn within(ascending: &[f64], share: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    ascending.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

/// How late entries of the log came, as the services' histograms tell: the upper end of the bucket that has this share.
async fn log_lag_ms(fleet: &Fleet, share: f64) -> Result<f64> {
    let all = fleet.sum("rankpin_store_lag_seconds_count").await?;
    for bound_ms in state_service::store::LAG_BUCKETS_MS {
        let label = format!("le=\"{}\"", bound_ms as f64 / 1000.0);
        let mut below = 0.0;
        for replica in &fleet.replicas {
            below += replica.metric("rankpin_store_lag_seconds_bucket", &[&label]).await?;
        }
        if below >= all * share {
            return Ok(bound_ms as f64);
        }
    }
    Ok(f64::INFINITY)
}
