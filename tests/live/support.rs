//! What several themes need: worlds, sessions bound to a certain worker, what the service says of them, streams held open.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use e2e::bootstrap::Bootstrap;
use e2e::client::{CHAT, SESSION, Slot, Turn};
use e2e::raw::{Raw, exchange, request};
use e2e::wait::PATIENCE;
use e2e::{Client, EngineSpec, Scripted, Steering, World, WorldPlan, wait_for};
use routing::header;
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub(crate) const BOTH: [Steering; 2] = [Steering::Cluster, Steering::Endpoints];

/// Ranks 0–3 on w0, 4–7 on w1, and w2 that takes no rank.
pub(crate) fn three_engines() -> [EngineSpec; 3] {
    [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 1)]
}

/// Three engines that nobody probes: only the requests themselves find out what is wrong.
pub(crate) fn unprobed(steering: Steering) -> WorldPlan {
    WorldPlan::new(steering, &three_engines()).probes_every_ms(0)
}

/// A new session bound to `worker`: its key, and where its turn was served. A worker that failed counts as loaded for seconds: until that
/// is over it may get none, however many there are.
pub(crate) async fn bound_to(world: &World, worker: &str) -> (String, Slot) {
    let (client, begun) = (world.client(), Instant::now());
    for n in 0.. {
        assert!(n < 200 || begun.elapsed() < PATIENCE, "{n} new sessions and none on {worker}");
        let key = format!("on-{worker}-{n}");
        if world.service.session(&key).await.unwrap().status != 404 {
            continue;
        }
        let slot = served(&client.chat(Some(&key), "hello").await.unwrap());
        if slot.worker == worker {
            binding(world, &key).await;
            return (key, slot);
        }
    }
    unreachable!("it returns")
}

/// Who served an answered turn.
pub(crate) fn served(turn: &Turn) -> Slot {
    assert_eq!(turn.status, 200, "{}", String::from_utf8_lossy(&turn.body));
    turn.slot().unwrap()
}

/// A turn that must be answered.
pub(crate) async fn turn(client: &Client, key: &str) -> Slot {
    served(&client.chat(Some(key), "go on").await.unwrap())
}

/// A binding as the service tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) worker: String,
    pub(crate) rank: Option<u64>,
    pub(crate) version: Value,
}

/// The session's binding, once the service has heard of the commit.
pub(crate) async fn binding(world: &World, key: &str) -> Binding {
    let said = wait_for("the session to be bound", async || {
        let said = world.service.session(key).await.ok()?;
        (said.body["state"] == "bound").then_some(said.body)
    });
    let said = said.await.unwrap();
    let worker = said["target"]["worker"].as_str().unwrap().to_owned();
    Binding { worker, rank: said["target"]["rank"].as_u64(), version: said["version"].clone() }
}

/// Until the session has left the service's table.
pub(crate) async fn unknown(world: &World, key: &str) {
    wait_for("the session to be unknown", async || {
        (world.service.session(key).await.ok()?.status == 404).then_some(())
    })
    .await
    .unwrap();
}

/// Requests that one by one are served by a worker: so many, and as many more as it takes until each of `count` workers served; how many
/// there were. Who draws by chance may leave one out for a while, but not of two thousand.
pub(crate) async fn until_all_served(
    least: usize,
    count: usize,
    mut one: impl AsyncFnMut() -> String,
) -> usize {
    let mut workers = BTreeSet::new();
    for n in 0..2_000 {
        if n >= least && workers.len() == count {
            return n;
        }
        workers.insert(one().await);
    }
    panic!("only {workers:?} served");
}

/// Asserts that the last request `slot`'s worker saw carried the rank that served, or none where there is but one.
pub(crate) async fn rank_is_its_own(world: &World, slot: &Slot) {
    let seen = world.engine(&slot.worker).requests().await.unwrap().pop().unwrap();
    let wanted: &[String] = &match slot.worker.as_str() {
        "w2" => vec![],
        _ => vec![slot.rank.unwrap().to_string()],
    };
    assert_eq!(seen.values(header::VLLM_RANK), wanted, "at {slot}");
}

/// Turns, all of them answered, until one is at home; then all are.
pub(crate) async fn comes_home(world: &World, key: &str, home: &Slot) {
    let client = world.client();
    wait_for("the session to be home again", async || (turn(&client, key).await == *home).then_some(()))
        .await
        .unwrap();
    for _ in 0..3 {
        assert_eq!(&turn(&client, key).await, home);
    }
}

/// Requests that engine has seen.
pub(crate) async fn asked(world: &World, worker: &str) -> usize {
    world.engine(worker).requests().await.unwrap().len()
}

/// Until the service says that of the worker.
pub(crate) async fn state(world: &World, worker: &str, wanted: &str) {
    wait_for(&format!("{worker} to be {wanted}"), async || {
        (world.service.worker_state(worker).await.ok()? == wanted).then_some(())
    })
    .await
    .unwrap();
}

/// The bytes of a chat turn that streams so many tokens.
pub(crate) fn streaming(session: Option<&str>, tokens: u32) -> Vec<u8> {
    let body = json!({"model": "tiny", "stream": true, "max_tokens": tokens,
        "messages": [{"role": "user", "content": "tell me everything"}]})
    .to_string();
    let key = session.map(|key| format!("\n{SESSION}: {key}")).unwrap_or_default();
    request(&format!("POST {CHAT} HTTP/1.1{key}\ncontent-type: application/json"), body.as_bytes())
}

/// A turn whose answer has begun and goes on for minutes, if its engine takes its time.
pub(crate) async fn stream(world: &World, index: usize, session: Option<&str>) -> Raw {
    let mut client = Raw::connect(world.envoys[index].address()).await.unwrap();
    client.send(streaming(session, 4000)).await.unwrap();
    client.read_until("data:").await.unwrap();
    client
}

/// Who serves a stream.
pub(crate) fn streamed_by(stream: &Raw) -> String {
    stream.header("x-engine-name").unwrap()
}

/// Makes an engine refuse connections, until Envoy has seen that those it kept are closed: what is sent on one of them before that is
/// reset, not refused.
pub(crate) async fn refuses(world: &World, worker: &str) {
    let engine = world.engine(worker);
    engine.close().await.unwrap();
    for (index, envoy) in world.envoys.iter().enumerate() {
        wait_for(&format!("{} to have no connection to {worker}", World::node(index)), async || {
            (envoy.connections_to(engine.address()).await.ok()? == 0).then_some(())
        })
        .await
        .unwrap();
    }
}

/// Until the service counts so many requests in flight on the worker.
pub(crate) async fn in_flight(world: &World, worker: &str, count: u64) {
    wait_for(&format!("{count} requests in flight on {worker}"), async || {
        (world.service.in_flight(worker).await.ok()? == count).then_some(())
    })
    .await
    .unwrap();
}

/// Until the gauges of every Envoy, the service's own counts and the choices nobody answered yet are all 0.
pub(crate) async fn nothing_in_flight(world: &World) {
    for engine in &world.engines {
        // Who was removed has nothing either.
        let path = format!("/v1/workers/{}", engine.name());
        wait_for(&format!("no requests in flight on {}", engine.name()), async || {
            let said = world.service.call("GET", &path, None).await.ok()?;
            (said.status == 404 || said.body["in_flight"] == 0).then_some(())
        })
        .await
        .unwrap();
    }
    nothing_held(world).await;
    for index in 0..world.envoys.len() {
        gauges(world, index, 0).await;
    }
}

/// Until the service holds no choice for a first turn that is still to be answered.
pub(crate) async fn nothing_held(world: &World) {
    wait_for("no holds", async || {
        (world.service.metric("rankpin_holds", &[]).await.ok()? == 0.0).then_some(())
    })
    .await
    .unwrap();
}

/// Until that Envoy's gauges add up to so many.
pub(crate) async fn gauges(world: &World, index: usize, count: u64) {
    let mut seen = None;
    let waited = wait_for("the gauges", async || {
        seen = world.in_flight(index).await.ok();
        let sum: u64 = seen.as_ref()?.values().sum();
        (sum == count).then_some(())
    });
    waited.await.unwrap_or_else(|error| panic!("{error}: {count} expected, {seen:?}"));
}

/// Asserts that an answer of the filter's own names none of these.
pub(crate) fn says_nothing_of(turn: &Turn, ids: &[&str]) {
    let text = String::from_utf8_lossy(&turn.body);
    assert!(turn.slot().is_none(), "an engine answered: {text}");
    for id in ids {
        assert!(!text.contains(id), "the answer names {id}: {text}");
        let in_header = turn
            .headers
            .values()
            .any(|value| value.as_bytes().windows(id.len()).any(|part| part == id.as_bytes()));
        assert!(!in_header, "a header of the answer names {id}: {:?}", turn.headers);
    }
}

/// How many VMs of the filter were made so far, by Envoy's count: one more is one that died. (Its `vm_reload` counters do not move.)
pub(crate) async fn vms(world: &World) -> u64 {
    let stats = world.envoy().stats("wasm").await.unwrap();
    let made: Vec<_> = stats.iter().filter(|(name, _)| name.ends_with("created")).collect();
    assert!(!made.is_empty(), "{stats:?}");
    made.iter().map(|(_, count)| count).sum()
}

/// Scripted workers, listening.
pub(crate) async fn scripted_workers(count: usize) -> Vec<Arc<Scripted>> {
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(Arc::new(Scripted::start().await.unwrap()));
    }
    workers
}

/// One Envoy before scripted workers s0, s1, … of eight ranks each, which nobody probes; every one of them is known.
pub(crate) async fn scripted_world(steering: Steering, workers: &[Arc<Scripted>]) -> World {
    scripted_world_with(steering, workers, |_| Ok(())).await
}

/// The same with a config changed.
pub(crate) async fn scripted_world_with(
    steering: Steering,
    workers: &[Arc<Scripted>],
    edit: impl FnOnce(&mut Bootstrap) -> Result<()> + Send + 'static,
) -> World {
    scripted_world_of(WorldPlan::new(steering, &[]).edit(edit), workers).await
}

/// The same of a plan without engines.
pub(crate) async fn scripted_world_of(plan: WorldPlan, workers: &[Arc<Scripted>]) -> World {
    let named: Vec<_> =
        workers.iter().enumerate().map(|(n, worker)| (format!("s{n}"), worker.address())).collect();
    let plan = plan.probes_every_ms(0).cold();
    let clusters = named.clone();
    let world = plan.edit(move |config| config.workers(&clusters)).start().await.unwrap();
    for (id, address) in &named {
        let declaration = json!({"endpoints": [{"address": address.to_string(), "dp_size": 8}]}).to_string();
        let said = world.service.call("PUT", &format!("/v1/workers/{id}"), Some(&declaration)).await.unwrap();
        assert_eq!(said.status, 201, "{said:?}");
    }
    warm(&world, workers).await;
    world
}

/// New sessions until each worker was pinned to by the filter, not found by Envoy's default route.
async fn warm(world: &World, workers: &[Arc<Scripted>]) {
    // Ends with the function: then every byte is the test's again.
    let mut serving = JoinSet::new();
    for worker in workers {
        let worker = Arc::clone(worker);
        serving.spawn(async move { worker.serve().await });
    }
    let (mut n, mut known) = (0, vec![false; workers.len()]);
    wait_for("sessions on every scripted worker", async || {
        n += 1;
        let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: warm-{n}\ncontent-type: application/json");
        let before: Vec<usize> = workers.iter().map(|worker| worker.served()).collect();
        let placed = world.envoy().requests("routed_held").await.ok()?;
        exchange(world.envoy().address(), &head, b"{}").await.ok()?;
        if world.envoy().requests("routed_held").await.ok()? > placed {
            workers.iter().enumerate().for_each(|(at, worker)| known[at] |= worker.served() > before[at]);
        }
        known.iter().all(|known| *known).then_some(())
    })
    .await
    .unwrap();
}
