//! A whole installation for one test: engines, the service that knows them, Envoys in front; ready when it returns.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use crate::bootstrap::{Bootstrap, Steering};
use crate::client::{Client, Slot};
use crate::engine::{Engine, EngineGroup, EngineSpec};
use crate::envoy::Envoy;
use crate::scratch::Scratch;
use crate::service::{Service, ServicePlan};
use crate::shared::Shared;
use crate::wait::wait_for;

/// Far above anything a slow machine needs: no test depends on its speed.
pub const ROUTE_DEADLINE_MS: u64 = 5000;

/// A change of the shipped config that one test makes.
type Edit = Box<dyn FnOnce(&mut Bootstrap) -> Result<()> + Send>;

/// What to start.
pub struct WorldPlan {
    steering: Steering,
    service: ServicePlan,
    engines: Vec<EngineSpec>,
    group: Option<EngineGroup>,
    envoys: usize,
    replicas: usize,
    threads: u32,
    edits: Vec<Edit>,
    warm: bool,
    service_first: bool,
    deadline_ms: Option<u64>,
}

impl WorldPlan {
    /// These engines, all declared, behind one Envoy of two threads.
    #[must_use]
    pub fn new(steering: Steering, engines: &[EngineSpec]) -> Self {
        let service = ServicePlan::default();
        Self {
            steering,
            service,
            engines: engines.to_vec(),
            group: None,
            envoys: 1,
            replicas: 1,
            threads: 2,
            edits: Vec::new(),
            warm: true,
            service_first: true,
            deadline_ms: Some(ROUTE_DEADLINE_MS),
        }
    }

    /// Pool `default` has this policy, by a config file.
    #[must_use]
    pub fn policy(mut self, policy: &'static str) -> Self {
        self.service.policy = Some(policy);
        self
    }

    /// Fields of pool `default`, by a config file.
    #[must_use]
    pub fn pool(mut self, fields: serde_json::Value) -> Self {
        self.service.pool = fields;
        self
    }

    /// One more pool, by a config file; its name among the fields. Envoy's pool cluster of that name comes with it.
    #[must_use]
    pub fn other_pool(mut self, fields: serde_json::Value) -> Self {
        let name = fields["name"].as_str().unwrap_or_default().to_owned();
        self.service.others.push(fields);
        self.edit(move |config| config.pool_cluster(&name))
    }

    /// Probes come this often.
    #[must_use]
    pub fn probes_every_ms(mut self, ms: u64) -> Self {
        self.service.probe_interval_ms = ms;
        self
    }

    /// So many Envoys.
    #[must_use]
    pub fn envoys(mut self, count: usize) -> Self {
        self.envoys = count;
        self
    }

    /// Threads of each Envoy.
    #[must_use]
    pub fn threads(mut self, count: u32) -> Self {
        self.threads = count;
        self
    }

    /// Changes the shipped config, after the addresses are in place and after earlier edits.
    #[must_use]
    pub fn edit(mut self, edit: impl FnOnce(&mut Bootstrap) -> Result<()> + Send + 'static) -> Self {
        self.edits.push(Box::new(edit));
        self
    }

    /// Leaves the `route` deadline, and what else is given up after a while, as shipped: for tests of the deadline itself, and for the demo.
    #[must_use]
    pub fn shipped_deadline(mut self) -> Self {
        self.deadline_ms = None;
        self
    }

    /// Does not wait until requests are placed: the filter is edited away, or there is nobody to place on.
    #[must_use]
    pub fn cold(mut self) -> Self {
        self.warm = false;
        self
    }

    /// The service is killed before Envoy starts; workers are declared, so a later life of it knows them from its file.
    #[must_use]
    pub fn without_service(mut self) -> Self {
        self.warm = false;
        self.service_first = false;
        self
    }

    /// So many replicas of the service, each with a way of its own to a real store; of `Steering::Replicas`. Envoys ask them in turn,
    /// each another one first.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// The service wants this token; the filter brings it, and discovery by the block that the config ships commented out.
    #[must_use]
    pub fn token(mut self, token: &'static str) -> Self {
        self.service.token = Some(token);
        self
    }

    /// These engines of one process besides, all declared.
    #[must_use]
    pub fn group(mut self, group: EngineGroup) -> Self {
        self.group = Some(group);
        self
    }

    /// Starts it all.
    ///
    /// # Errors
    /// Some part is missing or does not start.
    pub async fn start(mut self) -> Result<World> {
        let scratch = Scratch::new()?;
        let mut shared = if self.replicas > 1 { Some(Shared::start(self.replicas).await?) } else { None };
        self.service.store = shared.as_ref().map(|shared| shared.url(0));
        let service = Service::start(scratch.path(), &self.service).await?;
        if let Some(shared) = &mut shared {
            shared.start_peers(scratch.path(), &self.service).await?;
        }
        let group = self.group;
        let mut world = World { engines: Vec::new(), group, service, shared, envoys: Vec::new(), scratch };
        for spec in self.engines {
            let engine = Engine::start(world.scratch.path(), spec).await?;
            world.service.register(&engine).await?;
            world.engines.push(engine);
        }
        world.register_group().await?;
        if let Some(shared) = &world.shared {
            shared.knows(&world.names()).await?;
        }
        let mut bootstrap = Bootstrap::shipped_for(self.steering, self.service.token)?;
        world.point(&mut bootstrap)?;
        if let Some(ms) = self.deadline_ms {
            bootstrap.route_deadline(ms)?;
            bootstrap.patient()?;
        }
        for edit in self.edits {
            edit(&mut bootstrap)?;
        }
        if !self.service_first {
            world.service.kill();
        }
        for index in 0..self.envoys {
            let name = World::node(index);
            bootstrap.node(&name);
            world.point_replicas(&mut bootstrap, index)?;
            world.envoys.push(Envoy::start(&name, world.scratch.path(), &bootstrap, self.threads).await?);
        }
        if self.warm {
            world.warm().await?;
        }
        Ok(world)
    }
}

/// A running installation.
#[derive(Debug)]
pub struct World {
    /// The Envoys; fields are dropped in this order, clients' side first.
    pub envoys: Vec<Envoy>,
    /// The service; of several replicas the first.
    pub service: Service,
    /// Its other replicas, and the store they share.
    pub shared: Option<Shared>,
    /// The engines, in the plan's order.
    pub engines: Vec<Engine>,
    /// Those of one process.
    pub group: Option<EngineGroup>,
    /// Its folder; last, so that logs are whole when it is kept.
    pub scratch: Scratch,
}

impl World {
    /// `node.id` of the Envoy at `index`.
    #[must_use]
    pub fn node(index: usize) -> String {
        format!("envoy-{index}")
    }

    /// The first Envoy.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn envoy(&self) -> &Envoy {
        &self.envoys[0]
    }

    /// A client of the first Envoy that keeps its connections.
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.envoy().address()).expect("an HTTP client")
    }

    /// The engine of that name.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn engine(&self, name: &str) -> &Engine {
        self.engines.iter().find(|engine| engine.name() == name).expect("an engine of that name")
    }

    /// Starts one more engine, not declared yet.
    ///
    /// # Errors
    /// It does not start.
    pub async fn add_engine(&mut self, spec: EngineSpec) -> Result<&Engine> {
        let engine = Engine::start(self.scratch.path(), spec).await?;
        self.engines.push(engine);
        self.engines.last().context("just added")
    }

    /// Makes every engine forget what it was asked.
    ///
    /// # Errors
    /// One does not answer.
    pub async fn forget(&self) -> Result<()> {
        for engine in &self.engines {
            engine.forget().await?;
        }
        Ok(())
    }

    /// Names of all engines, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.engines.iter().map(|engine| engine.name().to_owned()).collect();
        names.extend(self.grouped().iter().map(|(name, _)| name.clone()));
        names.sort();
        names
    }

    /// Requests in flight of every slot, by the gauges of the Envoy at `index`.
    ///
    /// # Errors
    /// The service or the admin does not answer.
    pub async fn in_flight(&self, index: usize) -> Result<BTreeMap<Slot, u64>> {
        let gauges = self.service.gauges(&Self::node(index)).await?;
        let stats: BTreeMap<String, u64> =
            self.envoys[index].stats("rankpin.slot.").await?.into_iter().collect();
        let value = |name: String| stats.get(&format!("wasmcustom.{name}")).copied().unwrap_or(0);
        Ok(gauges.into_iter().map(|(slot, name)| (slot, value(name))).collect())
    }

    /// The replica of that number.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn replica(&self, index: usize) -> &Service {
        match (index, &self.shared) {
            (0, _) => &self.service,
            (index, Some(shared)) => &shared.peers[index - 1],
            (_, None) => panic!("there is one replica only"),
        }
    }

    /// The same, to be killed.
    ///
    /// # Panics
    /// There is none.
    pub fn replica_mut(&mut self, index: usize) -> &mut Service {
        match (index, &mut self.shared) {
            (0, _) => &mut self.service,
            (index, Some(shared)) => &mut shared.peers[index - 1],
            (_, None) => panic!("there is one replica only"),
        }
    }

    /// The replicas' addresses, another one first for each Envoy.
    fn point_replicas(&self, bootstrap: &mut Bootstrap, envoy: usize) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let count = shared.peers.len() + 1;
        let order: Vec<_> = (0..count).map(|n| self.replica((envoy + n) % count).data()).collect();
        bootstrap.replicas(&order)
    }

    /// Puts the running parts' addresses into a shipped config.
    fn point(&self, bootstrap: &mut Bootstrap) -> Result<()> {
        let address = |engine: &Engine| (engine.name().to_owned(), engine.address());
        bootstrap.service(self.service.data())?;
        let own = self.engines.iter().map(address);
        bootstrap.workers(&own.chain(self.grouped().iter().cloned()).collect::<Vec<_>>())
    }

    fn grouped(&self) -> &[(String, SocketAddr)] {
        self.group.as_ref().map_or(&[], EngineGroup::workers)
    }

    async fn register_group(&self) -> Result<()> {
        for (name, address) in self.grouped() {
            let (path, declared) = (format!("/v1/workers/{name}"), EngineGroup::declaration(*address));
            let said = self.service.call("PUT", &path, Some(&declared)).await?;
            ensure!(said.status < 300, "worker {name} is refused: {said:?}");
        }
        Ok(())
    }

    /// Until each Envoy places sessions on every worker.
    async fn warm(&self) -> Result<()> {
        for index in 0..self.envoys.len() {
            self.warm_one(index, &self.names()).await?;
        }
        self.forget().await
    }

    /// Until the Envoy at `index` places new sessions on each of `workers`: only then its filter knows them.
    ///
    /// # Errors
    /// It does not come to that in time.
    pub async fn warm_one(&self, index: usize, workers: &[String]) -> Result<()> {
        let (envoy, node) = (&self.envoys[index], Self::node(index));
        let what = format!("{node} to place sessions on {workers:?}");
        let client = Client::new(envoy.address())?;
        let mut served = std::collections::BTreeSet::new();
        let mut count = 0_u32;
        wait_for(&what, async || {
            count += 1;
            let before = unplaced(envoy).await.ok()?;
            let turn = client.chat(Some(&format!("warm-{node}-{count}")), "warm").await.ok()?;
            let placed = turn.status == 200 && unplaced(envoy).await.ok()? == before;
            if let Some(slot) = turn.slot().filter(|_| placed) {
                served.insert(slot.worker);
            }
            workers.iter().all(|worker| served.contains(worker)).then_some(())
        })
        .await
        .with_context(|| format!("served by {served:?} after {count} tries"))?;
        Ok(())
    }
}

/// Requests that went to the default route because the filter knew nobody.
async fn unplaced(envoy: &Envoy) -> Result<u64> {
    Ok(envoy.requests("no_topology").await? + envoy.requests("no_worker").await?)
}
