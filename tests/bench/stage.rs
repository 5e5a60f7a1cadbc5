//! Everything that runs during a bench: workers that answer at once, a service for each policy, and Envoys with the shipped configs.
//! Knows how they are wired; measures nothing.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::scratch::Scratch;
use e2e::world::ROUTE_DEADLINE_MS;
use e2e::{Bootstrap, Client, Engine, EngineSpec, Envoy, Service, ServicePlan, Steering, wait_for};
use serde_json::Value;

use crate::process::Cores;
use crate::variant::Front;

/// Workers, and ranks of each.
const WORKERS: [&str; 3] = ["w0", "w1", "w2"];
const RANKS: u32 = 4;
/// Where the connection manager stands in the shipped files.
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

/// Whether Envoys write an access log. Off is the harder comparison: a log's cost is the same for all and would hide the filter's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessLog {
    Off,
    AsShipped,
}

/// Workers and services; Envoys are started on it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) least_loaded: Service,
    hashed: Service,
    soft: Service,
    engines: Vec<Engine>,
    cores: Cores,
    access_log: AccessLog,
    scratch: Scratch,
}

impl Stage {
    /// Starts workers and services.
    ///
    /// # Errors
    /// A program is missing or does not start.
    pub(crate) async fn start(cores: Cores, access_log: AccessLog) -> Result<Self> {
        let scratch = Scratch::new()?;
        let mut engines = Vec::new();
        for name in WORKERS {
            let spec = EngineSpec::new(name, RANKS).with(&["--null"]);
            engines.push(Engine::start(scratch.path(), spec).await?);
        }
        let least_loaded = service(&scratch.join("least"), "least_loaded", &engines).await?;
        let hashed = service(&scratch.join("hashed"), "session_hash", &engines).await?;
        let soft = soft_service(&scratch.join("soft"), &engines).await?;
        Ok(Self { least_loaded, hashed, soft, engines, cores, access_log, scratch })
    }

    /// The service an Envoy asks.
    pub(crate) fn service(&self, front: Front) -> &Service {
        match front {
            Front::SessionHash => &self.hashed,
            Front::Soft => &self.soft,
            Front::Bare | Front::Cluster | Front::Endpoints | Front::Agents => &self.least_loaded,
        }
    }

    /// Starts an Envoy on its core; returns once it places sessions on every worker.
    ///
    /// # Errors
    /// It does not start, or comes to know no worker.
    pub(crate) async fn envoy(&self, front: Front, threads: u32) -> Result<Envoy> {
        self.edited_envoy(front, threads, front.name(), |_| Ok(())).await
    }

    /// As [`Self::envoy`] with a change of its config.
    ///
    /// # Errors
    /// As [`Self::envoy`].
    pub(crate) async fn edited_envoy(
        &self,
        front: Front,
        threads: u32,
        name: &str,
        edit: impl FnOnce(&mut Value) -> Result<()>,
    ) -> Result<Envoy> {
        let mut bootstrap = self.bootstrap(front)?;
        bootstrap.node(name);
        edit(manager(&mut bootstrap)?)?;
        let envoy = Envoy::start(name, self.scratch.path(), &bootstrap, threads).await?;
        self.cores.give_to_envoy(envoy.pid())?;
        warm(&envoy, front).await?;
        Ok(envoy)
    }

    /// The shipped file with this stage's addresses; for the bare Envoy without the filter, all else as shipped.
    fn bootstrap(&self, front: Front) -> Result<Bootstrap> {
        let steering = match front {
            Front::Endpoints => Steering::Endpoints,
            Front::Agents => Steering::Agents,
            Front::Bare | Front::Cluster | Front::SessionHash | Front::Soft => Steering::Cluster,
        };
        let mut bootstrap = Bootstrap::shipped(steering)?;
        bootstrap.service(self.service(front).data())?;
        let workers: Vec<_> = self.engines.iter().map(|one| (one.name().to_owned(), one.address())).collect();
        bootstrap.workers(&workers)?;
        bootstrap.route_deadline(ROUTE_DEADLINE_MS)?;
        if front == Front::Bare {
            bootstrap.without_filter();
        }
        if self.access_log == AccessLog::Off {
            let fields =
                manager(&mut bootstrap)?.as_object_mut().context("the connection manager is no object")?;
            ensure!(fields.remove("access_log").is_some(), "no access log in the shipped config");
        }
        Ok(bootstrap)
    }
}

fn manager(bootstrap: &mut Bootstrap) -> Result<&mut Value> {
    bootstrap.document().pointer_mut(MANAGER).context("no connection manager in the config")
}

async fn service(folder: &Path, policy: &'static str, engines: &[Engine]) -> Result<Service> {
    declared(folder, ServicePlan { policy: Some(policy), ..ServicePlan::default() }, engines).await
}

async fn soft_service(folder: &Path, engines: &[Engine]) -> Result<Service> {
    // A margin that the load of a bench never reaches: a move would be a call.
    let pool = serde_json::json!({"affinity": "soft", "soft_margin_percent": 10_000});
    declared(folder, ServicePlan { pool, ..ServicePlan::default() }, engines).await
}

async fn declared(folder: &Path, plan: ServicePlan, engines: &[Engine]) -> Result<Service> {
    std::fs::create_dir(folder)?;
    let service = Service::start(folder, &plan).await?;
    for engine in engines {
        service.register(engine).await?;
    }
    Ok(service)
}

/// Until new sessions come to every worker and none is passed unplaced.
async fn warm(envoy: &Envoy, front: Front) -> Result<()> {
    let client = Client::new(envoy.address())?;
    let mut served = BTreeSet::new();
    let mut count = 0_u32;
    let what = format!("Envoy `{}` to place sessions on all of {WORKERS:?}", front.name());
    wait_for(&what, async || {
        count += 1;
        let unplaced = passed(envoy).await.ok()?;
        let turn = client.chat(Some(&format!("warm-{}-{count}", front.name())), "warm").await.ok()?;
        let placed = turn.status == 200 && passed(envoy).await.ok()? == unplaced;
        served.extend(turn.slot().filter(|_| placed).map(|slot| slot.worker));
        (served.len() == WORKERS.len()).then_some(())
    })
    .await
}

/// Requests the filter let through unplaced.
async fn passed(envoy: &Envoy) -> Result<u64> {
    Ok(envoy.requests("no_topology").await? + envoy.requests("no_worker").await?)
}
