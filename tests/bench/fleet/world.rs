//! One whole fleet on this machine: workers in one process, replicas and a store, Envoys; ready for turns when it returns, and counted.
//! Plays nothing.

use anyhow::{Result, ensure};
use e2e::engine::EngineGroup;
use e2e::scratch::Scratch;
use e2e::{Client, Envoy, Service, Steering, World, WorldPlan, artifacts, wait_for};
use serde_json::{Value, json};

use crate::process::{cpu_us, resident_bytes};

/// Warm turns in a row that the filter must place.
const PLACED: usize = 5;

/// What is started.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) replicas: usize,
    pub(crate) envoys: usize,
    pub(crate) workers: u32,
    /// Blocks of each worker's cache.
    pub(crate) cache_blocks: usize,
    /// Of a worker's time for a token that is not cached, µs.
    pub(crate) prefill_us: u64,
    /// From there to the answer, µs.
    pub(crate) answer_us: u64,
    pub(crate) affinity: String,
    /// More fields of the pool.
    pub(crate) more: Value,
}

/// A running fleet.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) world: World,
    replicas: usize,
    _engines: Scratch,
}

/// CPU spent so far, µs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) services: f64,
    pub(crate) store: f64,
    pub(crate) envoys: f64,
    pub(crate) engines: f64,
    pub(crate) load: f64,
}

impl Spent {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            services: self.services - before.services,
            store: self.store - before.store,
            envoys: self.envoys - before.envoys,
            engines: self.engines - before.engines,
            load: self.load - before.load,
        }
    }
}

impl Fleet {
    /// Starts it; every replica hears every worker's events, and every Envoy places sessions.
    ///
    /// # Errors
    /// Something does not start.
    pub(crate) async fn start(shape: &Shape) -> Result<Self> {
        let engines = Scratch::new()?;
        let group = EngineGroup::start(engines.path(), shape.workers, &shape.engine_arguments()).await?;
        let plan = WorldPlan::new(Steering::Kv, &[]).group(group).pool(shape.pool());
        let plan = plan.replicas(shape.replicas).envoys(shape.envoys).threads(1).probes_every_ms(0);
        let world = plan.cold().start().await?;
        let fleet = Self { world, replicas: shape.replicas, _engines: engines };
        for replica in fleet.replicas() {
            ready(replica, &fleet.world.names()).await?;
        }
        for envoy in &fleet.world.envoys {
            placed(envoy).await?;
        }
        Ok(fleet)
    }

    fn replicas(&self) -> impl Iterator<Item = &Service> {
        (0..self.replicas).map(|replica| self.world.replica(replica))
    }

    /// A metric, summed over the replicas.
    ///
    /// # Errors
    /// One does not answer.
    pub(crate) async fn sum(&self, name: &str) -> Result<f64> {
        let mut sum = 0.0;
        for replica in self.replicas() {
            sum += replica.metric(name, &[]).await?;
        }
        Ok(sum)
    }

    /// How many `route` calls all replicas answered.
    ///
    /// # Errors
    /// One does not answer.
    pub(crate) async fn routes(&self) -> Result<f64> {
        let mut sum = 0;
        for replica in self.replicas() {
            sum += replica.routes().await?;
        }
        Ok(sum as f64)
    }

    /// What the filters counted, by word, over all Envoys.
    ///
    /// # Errors
    /// One does not answer.
    pub(crate) async fn counted(&self) -> Result<Vec<(String, u64)>> {
        let mut words = std::collections::BTreeMap::new();
        for envoy in &self.world.envoys {
            for (name, count) in envoy.stats("wasmcustom.rankpin.requests.").await? {
                let word = name.trim_start_matches("wasmcustom.rankpin.requests.").to_owned();
                *words.entry(word).or_insert(0) += count;
            }
        }
        Ok(words.into_iter().collect())
    }

    /// # Errors
    /// A process is gone.
    pub(crate) fn spent(&self) -> Result<Spent> {
        let of = |pids: Vec<u32>| pids.into_iter().map(cpu_us).sum::<Result<f64>>();
        Ok(Spent {
            services: of(self.replicas().map(Service::pid).collect())?,
            store: of(self.world.shared.iter().map(|shared| shared.redis.pid()).collect())?,
            envoys: of(self.world.envoys.iter().map(Envoy::pid).collect())?,
            engines: of(self.world.group.iter().map(EngineGroup::pid).collect())?,
            load: cpu_us(std::process::id())?,
        })
    }

    /// Memory of the largest replica, MiB.
    ///
    /// # Errors
    /// One is gone.
    pub(crate) fn resident_mib(&self) -> Result<f64> {
        let bytes = self.replicas().map(|replica| resident_bytes(replica.pid()));
        let bytes: Vec<u64> = bytes.collect::<Result<_>>()?;
        Ok(bytes.into_iter().max().unwrap_or(0) as f64 / f64::from(1 << 20))
    }
}

impl Shape {
    fn engine_arguments(&self) -> Vec<String> {
        let named = [
            ("--block-size", 2),
            ("--cache-blocks", self.cache_blocks as u64),
            ("--prefill-us-per-token", self.prefill_us),
            ("--decode-us-per-token", self.answer_us),
        ];
        named.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]).collect()
    }

    fn pool(&self) -> Value {
        // Prompts come as tokens; the model is there to say so.
        let tokens = json!({"mode": "local", "path": artifacts::root().join("tests/engine/model")});
        let mut pool =
            json!({"policy": "kv_aware", "affinity": self.affinity, "ttl_s": 1800, "tokens": tokens});
        for (name, value) in self.more.as_object().into_iter().flatten() {
            pool[name] = value.clone();
        }
        pool
    }
}

/// Until a replica knows the workers, hears their events, and has its tokenizer.
async fn ready(replica: &Service, workers: &[String]) -> Result<()> {
    wait_for("a replica's tokenizer", async || {
        let said = replica.call("GET", "/v1/pools", None).await.ok()?;
        let models = said.body["pools"][0]["tokens"]["listed"]["models"].as_array()?.len();
        (models > 0).then_some(())
    })
    .await?;
    for worker in workers {
        let path = format!("/v1/workers/{worker}");
        wait_for(&format!("the events of {worker}"), async || {
            let said = replica.call("GET", &path, None).await.ok()?;
            (said.body["slots"][0]["kv_events"]["link"] == "up").then_some(())
        })
        .await?;
    }
    let ready = replica.call("GET", "/readyz", None).await?;
    ensure!(ready.status == 200, "a replica is not ready: {ready:?}");
    Ok(())
}

/// Until an Envoy's filter places sessions.
async fn placed(envoy: &Envoy) -> Result<()> {
    let client = Client::new(envoy.address())?;
    let (mut count, mut in_a_row) = (0, 0);
    wait_for("an Envoy to place sessions", async || {
        count += 1;
        let before = unplaced(envoy).await.ok()?;
        let turn =
            client.chat(Some(&format!("warm-{}-{count}", envoy.address().port())), "warm").await.ok()?;
        let is_placed = turn.status == 200 && unplaced(envoy).await.ok()? == before;
        in_a_row = if is_placed { in_a_row + 1 } else { 0 };
        (in_a_row >= PLACED).then_some(())
    })
    .await
}

async fn unplaced(envoy: &Envoy) -> Result<u64> {
    Ok(envoy.requests("no_topology").await? + envoy.requests("no_worker").await?)
}
