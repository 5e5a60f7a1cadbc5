//! The index of caches of a replica that joins late: what was published before it listened, and is replayed no more, it reads from
//! another one. And what one replica's requests load slots with, at another.

use e2e::redis::Redis;
use e2e::scratch::Scratch;
use e2e::{Engine, EngineSpec, Service, ServicePlan, wait_for};
use serde_json::{Value, json};

/// Tokens of a block of every engine.
const BLOCK: usize = 16;
/// Ranks of each of two engines.
const RANKS: u32 = 2;

/// Fields are dropped in this order.
struct Fleet {
    services: Vec<Service>,
    engines: Vec<Engine>,
    plan: ServicePlan,
    _redis: Redis,
    scratch: Scratch,
}

impl Fleet {
    /// One replica that listens to engines which replay nothing.
    async fn start() -> Self {
        let (scratch, redis) = (Scratch::new().unwrap(), Redis::start().await.unwrap());
        let store = Some(format!("redis://{}", redis.address()));
        let plan = ServicePlan { policy: Some("kv_aware"), store, ..ServicePlan::default() };
        let mut fleet = Self { services: Vec::new(), engines: Vec::new(), plan, _redis: redis, scratch };
        fleet.join().await;
        for name in ["w0", "w1"] {
            let spec = EngineSpec::new(name, RANKS).kv_events().engine("vllm", "0.30.0");
            let engine = Engine::start(fleet.scratch.path(), spec).await.unwrap();
            let mut at = engine.kv_declared().await.unwrap();
            at.as_object_mut().unwrap().remove("replay_endpoint");
            let mut declaration: Value = serde_json::from_str(&engine.declaration()).unwrap();
            declaration["kv_events"] = at;
            let path = format!("/v1/workers/{name}");
            let said = fleet.services[0].call("PUT", &path, Some(&declaration.to_string())).await.unwrap();
            assert!((200..300).contains(&said.status), "{said:?}");
            fleet.engines.push(engine);
        }
        for (name, rank) in ranks() {
            fleet.until(0, name, rank, "to be listened to", |shown| shown["link"] == "up").await;
        }
        fleet
    }

    /// One more replica; returns once it listens, which is before it is ready.
    async fn join(&mut self) {
        let folder = self.scratch.path().join(format!("replica-{}", self.services.len()));
        std::fs::create_dir_all(&folder).unwrap();
        self.services.push(Service::start(&folder, &self.plan).await.unwrap());
    }

    /// Until a balancer would ask it.
    async fn ready(&self, replica: usize) {
        let url = format!("http://{}/readyz", self.services[replica].data());
        wait_for("the replica to be ready", async || {
            let said = reqwest::get(&url).await.ok()?;
            said.status().is_success().then_some(())
        })
        .await
        .unwrap();
    }

    /// What a replica says of a rank's events.
    async fn shown(&self, replica: usize, worker: &str, rank: u32) -> Value {
        let path = format!("/v1/workers/{worker}");
        let said = self.services[replica].call("GET", &path, None).await.unwrap();
        let slots = said.body["slots"].as_array().cloned().unwrap_or_default();
        let slot = slots.into_iter().find(|slot| slot["rank"] == rank);
        slot.map_or(Value::Null, |slot| slot["kv_events"].clone())
    }

    async fn until(
        &self,
        replica: usize,
        worker: &str,
        rank: u32,
        what: &str,
        met: impl Fn(&Value) -> bool,
    ) -> Value {
        let what = format!("{worker}/{rank} at replica {replica} {what}");
        wait_for(&what, async || {
            let shown = self.shown(replica, worker, rank).await;
            met(&shown).then_some(shown)
        })
        .await
        .unwrap()
    }

    /// Until a replica has heard all that was published.
    async fn heard(&self, replica: usize) {
        for engine in &self.engines {
            for published in engine.kv_events().await.unwrap() {
                let next = published.next_seq;
                let met = |shown: &Value| shown["last_seq"].as_u64().map_or(0, |last| last + 1) >= next;
                self.until(replica, engine.name(), published.rank, "has all", met).await;
            }
        }
    }

    async fn compute(&self, worker: usize, rank: u32, prompt: u32, blocks: usize) {
        self.engines[worker].compute(&tokens(prompt, blocks), Some(rank)).await.unwrap();
    }

    /// Where a replica would send a prompt, and how much of it is cached there.
    async fn placed(&self, replica: usize, prompt: u32, blocks: usize) -> (Value, Value) {
        let body = json!({
            "caller": {"node": "test", "vm": 7}, "request": 1, "pool": "default", "deadline_ms": 10_000, "dry_run": true,
            "prompt": {"tokens": {"ids": tokens(prompt, blocks)}},
        });
        let url = format!("http://{}/v1/route", self.services[replica].data());
        let said = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        let said: Value = said.json().await.unwrap();
        (said["target"].clone(), said["overlap"].clone())
    }

    async fn counted(&self, replica: usize, name: &str, outcome: &str) -> f64 {
        self.services[replica].metric(name, &[&format!("outcome=\"{outcome}\"")]).await.unwrap()
    }
}

fn ranks() -> impl Iterator<Item = (&'static str, u32)> {
    ["w0", "w1"].into_iter().flat_map(|worker| (0..RANKS).map(move |rank| (worker, rank)))
}

/// Tokens of so many blocks, others for every `prompt`.
fn tokens(prompt: u32, blocks: usize) -> Vec<u32> {
    let count = u32::try_from(blocks * BLOCK).unwrap();
    (0..count).map(|at| 1 + (prompt * 37 + at * 11) % 1500).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_joins_late_knows_what_is_cached() {
    let mut fleet = Fleet::start().await;
    for (prompt, (_, rank)) in (0..).zip(ranks()) {
        fleet.compute(prompt as usize / 2, rank, prompt, 40 + prompt as usize).await;
    }
    fleet.heard(0).await;

    fleet.join().await;
    fleet.ready(1).await;
    assert_eq!(
        fleet.counted(1, "rankpin_index_joined_total", "loaded").await,
        1.0,
        "{}",
        fleet.services[1].log()
    );
    assert_eq!(
        fleet.counted(1, "rankpin_index_slots_total", "taken").await,
        4.0,
        "{}",
        fleet.services[1].log()
    );
    for (prompt, (worker, rank)) in (0..).zip(ranks()) {
        let blocks = 40 + prompt as usize;
        // One block more than is cached: the answer says all that is.
        let [first, second] =
            [fleet.placed(0, prompt, blocks + 1).await, fleet.placed(1, prompt, blocks + 1).await];
        assert_eq!(first, second, "prompt {prompt}");
        assert_eq!(second.0, json!({"worker": worker, "rank": rank}));
        assert_eq!(second.1["blocks"], blocks);
        let [first, second] = [fleet.shown(0, worker, rank).await, fleet.shown(1, worker, rank).await];
        assert_eq!(first["blocks"], second["blocks"], "{worker}/{rank}");
        assert_eq!(first["cold"], second["cold"]);
    }
    // It follows from there: what begins with what it read is known, and what goes is gone.
    fleet.compute(0, 1, 1, 60).await;
    for replica in [0, 1] {
        fleet.heard(replica).await;
        assert_eq!(fleet.placed(replica, 1, 61).await.1["blocks"], 60, "replica {replica}");
    }
}

/// The same where nobody has anything to read: the snapshot is what it knows it by.
#[tokio::test(flavor = "multi_thread")]
async fn without_another_replica_nothing_is_known_of_the_past() {
    let mut fleet = Fleet::start().await;
    fleet.compute(0, 1, 1, 40).await;
    fleet.heard(0).await;
    fleet.services[0].kill();
    fleet.join().await;
    fleet.ready(1).await;
    assert_eq!(
        fleet.counted(1, "rankpin_index_joined_total", "no_peer").await,
        1.0,
        "{}",
        fleet.services[1].log()
    );
    assert_eq!(fleet.placed(1, 1, 41).await.1["blocks"].as_u64().unwrap_or(0), 0);
}

impl Fleet {
    /// A prompt of somebody who dispatches it himself, to a slot of his choice.
    async fn reserve(&self, replica: usize, id: &str, (worker, rank): (&str, u32)) {
        let prompt = json!({"tokens": {"ids": tokens(90, 100)}});
        let body = json!({"id": id, "pool": "default", "worker": worker, "rank": rank, "prompt": prompt});
        let url = format!("http://{}/v1/reservations", self.services[replica].data());
        let said = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        let said: Value = said.json().await.unwrap();
        assert_eq!((&said["booked"], &said["target"]["worker"]), (&json!(true), &json!(worker)), "{said}");
    }

    /// Until a small prompt always goes where it should: of slots equally loaded one is drawn, and twenty times alike is no chance.
    async fn until_placed(&self, replica: usize, what: &str, met: impl Fn(&Value) -> bool) {
        wait_for(what, async || {
            for _ in 0..20 {
                if !met(&self.placed(replica, 91, 2).await.0) {
                    return None;
                }
            }
            Some(())
        })
        .await
        .unwrap();
    }
}

/// What one replica's requests load slots with counts at the others, until they end or their replica is dead for its lease.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_replica_booked_counts_at_the_other_until_it_ends_or_its_replica_does() {
    let mut fleet = Fleet::start().await;
    fleet.join().await;
    fleet.ready(1).await;
    for (worker, rank) in ranks() {
        fleet.until(1, worker, rank, "to be listened to", |shown| shown["link"] == "up").await;
    }
    for (nth, slot) in ranks().take(3).enumerate() {
        fleet.reserve(0, &format!("r{nth}"), slot).await;
    }
    let last = json!({"worker": "w1", "rank": 1});
    for replica in [0, 1] {
        fleet.until_placed(replica, "the one free slot to be chosen", |target| *target == last).await;
    }
    // The other one loads that slot: all are loaded alike but the one whose prompt is over.
    fleet.reserve(1, "own", ("w1", 1)).await;
    let over =
        reqwest::Client::new().delete(format!("http://{}/v1/reservations/r1", fleet.services[0].data()));
    over.send().await.unwrap().error_for_status().unwrap();
    let first_free = json!({"worker": "w0", "rank": 1});
    fleet.until_placed(1, "the ended one's slot to be chosen", |target| *target == first_free).await;
    // It is loaded, too, and the others' loads go with their replica.
    fleet.reserve(1, "own-2", ("w0", 1)).await;
    fleet.services[0].kill();
    fleet.until_placed(1, "the dead replica's loads to be over", |target| target["rank"] == 0).await;
}
