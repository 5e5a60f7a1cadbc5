//! Engines that publish and the service that listens; what a rank is said to hold, and what it does hold.

use e2e::scratch::Scratch;
use e2e::{Engine, EngineSpec, Service, ServicePlan, wait_for};
use serde_json::{Value, json};

/// Tokens of a block of every engine.
pub(super) const BLOCK: usize = 16;

/// Fields are dropped in this order: who listens, who publishes, their folder.
pub(super) struct Fleet {
    pub(super) service: Service,
    pub(super) engines: Vec<Engine>,
    scratch: Scratch,
}

/// An engine of so many ranks that tells where it publishes.
pub(super) fn telling(name: &str, ranks: u32) -> EngineSpec {
    EngineSpec::new(name, ranks).kv_events().declaring("kv_events", json!("discover"))
}

/// Tokens of so many blocks, others for every `prompt`.
pub(super) fn tokens(prompt: u32, blocks: usize) -> Vec<u32> {
    let count = u32::try_from(blocks * BLOCK).unwrap();
    (0..count).map(|at| 1 + (prompt * 37 + at * 11) % 1500).collect()
}

impl Fleet {
    /// All of them run and none is declared.
    pub(super) async fn undeclared(specs: Vec<EngineSpec>) -> Self {
        let scratch = Scratch::new().unwrap();
        let plan = ServicePlan::default();
        let service = Service::start(scratch.path(), &plan).await.unwrap();
        let mut engines = Vec::new();
        for spec in specs {
            engines.push(Engine::start(scratch.path(), spec).await.unwrap());
        }
        Self { service, engines, scratch }
    }

    /// All of them run, are declared, and every rank is listened to.
    pub(super) async fn start(specs: Vec<EngineSpec>) -> Self {
        let fleet = Self::undeclared(specs).await;
        for engine in &fleet.engines {
            fleet.service.register(engine).await.unwrap();
        }
        for engine in &fleet.engines {
            for rank in engine.kv_events().await.unwrap() {
                fleet.linked(engine.name(), rank.rank, "up").await;
            }
        }
        fleet
    }

    pub(super) fn engine(&self, name: &str) -> &Engine {
        self.engines.iter().find(|engine| engine.name() == name).unwrap()
    }

    pub(super) fn engine_mut(&mut self, name: &str) -> &mut Engine {
        self.engines.iter_mut().find(|engine| engine.name() == name).unwrap()
    }

    /// The engine of that name is killed, and another one runs in its place.
    pub(super) async fn replace(&mut self, name: &str, spec: EngineSpec) {
        let at = self.engines.iter().position(|engine| engine.name() == name).unwrap();
        let mut before = self.engines.remove(at);
        before.kill();
        // What the one before wrote of itself must not be read for its own.
        std::fs::remove_file(self.scratch.path().join(format!("{name}.addr"))).unwrap();
        self.engines.push(Engine::start(self.scratch.path(), spec).await.unwrap());
    }

    /// Declares a running engine with these `kv_events`.
    pub(super) async fn declare(&self, name: &str, kv_events: Value) {
        let mut declaration: Value = serde_json::from_str(&self.engine(name).declaration()).unwrap();
        declaration["kv_events"] = kv_events;
        let path = format!("/v1/workers/{name}");
        let said = self.service.call("PUT", &path, Some(&declaration.to_string())).await.unwrap();
        assert!((200..300).contains(&said.status), "{said:?}");
    }

    /// What the service says of a rank's events; null where it has heard of none.
    pub(super) async fn shown(&self, worker: &str, rank: u32) -> Value {
        let said = self.service.call("GET", &format!("/v1/workers/{worker}"), None).await.unwrap();
        let slots = said.body["slots"].as_array().cloned().unwrap_or_default();
        // A worker of one rank has a slot without a number.
        let slot = slots.into_iter().find(|slot| slot["rank"].is_null() || slot["rank"] == rank);
        slot.map_or(Value::Null, |slot| slot["kv_events"].clone())
    }

    /// Until that is met; what the service says then.
    pub(super) async fn until(
        &self,
        worker: &str,
        rank: u32,
        what: &str,
        met: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let what = format!("{worker}/{rank}: {what}");
        let looked = wait_for(&what, async || {
            last = self.shown(worker, rank).await;
            met(&last).then_some(())
        });
        let looked = looked.await;
        looked.unwrap_or_else(|error| panic!("{error}: {last}"));
        last
    }

    pub(super) async fn linked(&self, worker: &str, rank: u32, link: &str) {
        self.until(worker, rank, link, |shown| shown["link"] == link).await;
    }

    /// Until the service has taken the last batch that the rank has published, and holds so many blocks of it.
    pub(super) async fn holds(&self, worker: &str, rank: u32, blocks: usize) -> Value {
        let next = self.published(worker, rank).await;
        let met = |shown: &Value| shown["last_seq"].as_u64().map(|seq| seq + 1) == Some(next);
        let shown = self.until(worker, rank, &format!("batch {next} is next"), met).await;
        assert_eq!(shown["blocks"]["gpu"], blocks, "{worker}/{rank}: {shown}");
        shown
    }

    /// The number of the next batch a rank will publish.
    pub(super) async fn published(&self, worker: &str, rank: u32) -> u64 {
        let ranks = self.engine(worker).kv_events().await.unwrap();
        ranks.into_iter().find(|one| one.rank == rank).unwrap().next_seq
    }

    /// Has a rank compute a prompt of so many blocks; returns how many blocks it had.
    pub(super) async fn compute(&self, worker: &str, rank: u32, prompt: u32, blocks: usize) -> usize {
        let engine = self.engine(worker);
        let cached = engine.compute(&tokens(prompt, blocks), Some(rank)).await.unwrap();
        usize::try_from(cached).unwrap() / BLOCK
    }

    /// What a family of counters says of one outcome.
    pub(super) async fn counted(&self, name: &str, label: &str) -> u64 {
        let key = if name == "rankpin_kv_stream_total" || name == "rankpin_kv_blocks_total" {
            "outcome"
        } else {
            "reason"
        };
        let labels = format!("{key}=\"{label}\"");
        self.service.metric(name, &[&labels]).await.unwrap() as u64
    }

    /// Streams' counter of that outcome.
    pub(super) async fn stream(&self, outcome: &str) -> u64 {
        self.counted("rankpin_kv_stream_total", outcome).await
    }
}
