//! The stage of one part: engines, one service and the Envoys in front, each of a version of its own; replaced while traffic runs.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use e2e::client::Client;
use e2e::scratch::Scratch;
use e2e::{Engine, EngineSpec, Envoy, Service, ServicePlan, Steering, wait_for};
use serde_json::json;

use crate::version::Version;

/// Workers declared from the start, and the one that comes while traffic runs.
pub(crate) const WORKERS: [&str; 3] = ["w0", "w1", "w2"];
pub(crate) const LATE: &str = "w3";
/// Threads of each Envoy: a conversation's turns meet both.
const THREADS: u32 = 2;
/// The filter's counters that are shown.
const SHOWN: &[&str] = &[
    "pinned",
    "joined",
    "routed_bound",
    "routed_held",
    "placed_alone",
    "spilled",
    "route_failed",
    "route_timeout",
    "breaker_open",
    "page_contended",
];
/// Those that count what must not be: nobody to place on, an answer that cannot be read, an attempt without its rank.
const NEVER: &[&str] = &[
    "no_topology",
    "no_worker",
    "route_malformed",
    "watch_unread",
    "plan_missing",
    "upstream_role_missing",
    "exact_refused",
    "cluster_missing",
    "entry_dropped",
];

/// An Envoy in front.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) envoy: Envoy,
    /// Counters as they stood when it was warm.
    before: BTreeMap<String, u64>,
}

/// See the module. Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Stage {
    steering: Steering,
    pub(crate) fronts: Vec<Front>,
    opened: usize,
    /// Counters of all Envoys that are gone.
    gone: BTreeMap<String, u64>,
    pub(crate) service: Service,
    pub(crate) engines: Vec<Engine>,
    pub(crate) scratch: Scratch,
}

impl Stage {
    /// Engines, and a service of that version that knows all but the late one.
    pub(crate) async fn start(steering: Steering, service: &Version) -> Result<Self> {
        let scratch = Scratch::new()?;
        let plan = ServicePlan { program: service.service.clone(), ..ServicePlan::default() };
        let service = Service::start(scratch.path(), &plan).await?;
        let mut engines = Vec::new();
        for spec in specs() {
            engines.push(Engine::start(scratch.path(), spec).await?);
        }
        for engine in engines.iter().filter(|engine| engine.name() != LATE) {
            service.register(engine).await?;
        }
        Ok(Self { steering, fronts: Vec::new(), opened: 0, gone: BTreeMap::new(), service, engines, scratch })
    }

    /// Puts an Envoy with the filter of that version in front, beside those that are; returns once it places on all workers.
    pub(crate) async fn open(&mut self, filter: &Version) -> Result<()> {
        let node = format!("envoy-{}-{}", self.opened, filter.word);
        self.opened += 1;
        let workers: Vec<(String, SocketAddr)> =
            self.engines.iter().map(|engine| (engine.name().to_owned(), engine.address())).collect();
        let config = filter.bootstrap(self.steering, &node, self.service.data(), &workers)?;
        let envoy = Envoy::start(&node, self.scratch.path(), &config, THREADS).await?;
        let known = self.taking_new().await?;
        let warm = placed_on(&envoy, &node, &known).await;
        warm.with_context(|| format!("{node} knows of {known:?}:\n{}", tail(&envoy.log())))?;
        let before = counters(&envoy).await?;
        self.fronts.push(Front { envoy, before });
        Ok(())
    }

    /// Workers that new conversations may be placed on.
    async fn taking_new(&self) -> Result<Vec<String>> {
        let mut taking = Vec::new();
        for engine in &self.engines {
            let state = self.service.worker_state(engine.name()).await?;
            if matches!(state.as_str(), "joining" | "ready") {
                taking.push(engine.name().to_owned());
            }
        }
        Ok(taking)
    }

    /// Takes the oldest Envoy away; nothing is sent through it any more.
    pub(crate) async fn close_oldest(&mut self) -> Result<()> {
        let front = self.fronts.remove(0);
        front.add_to(&mut self.gone).await
    }

    /// Replaces the service by that version: same addresses, same files.
    pub(crate) async fn serve(&mut self, version: &Version) -> Result<()> {
        self.service.replace(version.service.clone()).await
    }

    /// Clients of all Envoys in front.
    pub(crate) fn clients(&self) -> Result<Vec<Client>> {
        self.fronts.iter().map(|front| Client::new(front.envoy.address())).collect()
    }

    /// The filters' counters since each Envoy was warm, those of Envoys that are gone included: the ones shown, and those that never may be.
    pub(crate) async fn counted(&self) -> Result<[BTreeMap<String, u64>; 2]> {
        let mut all = self.gone.clone();
        for front in &self.fronts {
            front.add_to(&mut all).await?;
        }
        let of = |names: &[&str]| {
            let some = names.iter().filter_map(|&name| Some((name.to_owned(), *all.get(name)?)));
            some.filter(|(_, count)| *count > 0).collect()
        };
        Ok([of(SHOWN), of(NEVER)])
    }

    /// What Envoys said of the workers they were given by the service: configs refused.
    pub(crate) async fn rejected(&self) -> Result<u64> {
        let mut rejected = 0;
        for front in &self.fronts {
            let stats = front.envoy.stats("update_rejected").await?;
            rejected += stats.iter().map(|(_, count)| count).sum::<u64>();
        }
        Ok(rejected)
    }
}

impl Front {
    async fn add_to(&self, all: &mut BTreeMap<String, u64>) -> Result<()> {
        for (name, count) in counters(&self.envoy).await? {
            let before = self.before.get(&name).copied().unwrap_or(0);
            *all.entry(name).or_default() += count.saturating_sub(before);
        }
        Ok(())
    }
}

/// Two engines of two ranks, two of one; one says more of itself.
fn specs() -> [EngineSpec; 4] {
    let labelled =
        EngineSpec::new("w2", 1).declaring("labels", json!({"zone": "a"})).declaring("weight", json!(2));
    [EngineSpec::new("w0", 2), EngineSpec::new("w1", 2).from(2), labelled, EngineSpec::new(LATE, 1)]
}

/// The filter's own counters, without their prefix.
async fn counters(envoy: &Envoy) -> Result<BTreeMap<String, u64>> {
    const PREFIX: &str = "wasmcustom.rankpin.";
    let all = envoy.stats(PREFIX).await?;
    let own = |name: &str| {
        let name = name.strip_prefix(PREFIX)?;
        Some(name.strip_prefix("requests.").unwrap_or(name).to_owned())
    };
    Ok(all.into_iter().filter_map(|(name, count)| Some((own(&name)?, count))).collect())
}

/// Until new conversations are placed on each of these.
pub(crate) async fn placed_on(envoy: &Envoy, run: &str, workers: &[String]) -> Result<()> {
    let client = Client::new(envoy.address())?;
    let (mut served, mut count) = (BTreeSet::new(), 0_u32);
    wait_for(&format!("new conversations on each of {workers:?}"), async || {
        count += 1;
        let before = unplaced(envoy).await.ok()?;
        let turn = client.chat(Some(&format!("warm-{run}-{count}")), "warm").await.ok()?;
        let placed = turn.status == 200 && unplaced(envoy).await.ok()? == before;
        if let Some(slot) = turn.slot().filter(|_| placed) {
            served.insert(slot.worker);
        }
        workers.iter().all(|worker| served.contains(worker)).then_some(())
    })
    .await
    .with_context(|| format!("served by {served:?} after {count} tries"))
}

async fn unplaced(envoy: &Envoy) -> Result<u64> {
    Ok(envoy.requests("no_topology").await? + envoy.requests("no_worker").await?)
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n")
}
