//! Nothing fails: alternating turns, first turns at once, releases, long turns, a replica that joins late.

use super::{all_say, clients, known, plan, slow};
use crate::support::{stream, streamed_by, turn};
use e2e::client::{Slot, send};
use e2e::{Service, ServicePlan, World, wait_for};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// An answer waits for its claim this long at most, and then goes out without: two replicas may say two slots at first.
const CLAIM_WAIT: Duration = Duration::from_millis(150);
/// Sessions that may begin until enough of them were claimed in time.
const TRIES: usize = 2_000;

/// Sessions one after the other, until so many of them had claims that were waited for.
struct Claims {
    wanted: usize,
    tried: usize,
    begun: Instant,
    failures: f64,
}

impl Claims {
    fn new(wanted: usize) -> Self {
        Self { wanted, tried: 0, begun: Instant::now(), failures: 0.0 }
    }

    /// The number of the next session; none once there were enough.
    async fn next(&mut self, world: &World) -> Option<usize> {
        if self.wanted == 0 {
            return None;
        }
        assert!(self.tried < TRIES, "{} more were to be claimed in time", self.wanted);
        self.tried += 1;
        self.failures = Self::failures(world).await;
        self.begun = Instant::now();
        Some(self.tried - 1)
    }

    /// Whether no answer since can have gone out without its claim: none took that long, and no call of the store failed.
    async fn were_waited_for(&mut self, world: &World) -> bool {
        let in_time = self.begun.elapsed() < CLAIM_WAIT;
        let all = in_time && Self::failures(world).await <= self.failures;
        self.wanted -= usize::from(all);
        all
    }

    async fn failures(world: &World) -> f64 {
        let mut all = 0.0;
        for replica in 0..2 {
            all += world.replica(replica).metric("rankpin_store_failures_total", &[]).await.unwrap();
        }
        all
    }
}

/// D1: turns alternate between two Envoys that ask two replicas.
#[tokio::test(flavor = "multi_thread")]
async fn d1_turns_alternate_and_stay() {
    let world = plan(2).start().await.unwrap();
    let clients = clients(&world);
    let mut claims = Claims::new(30);
    while let Some(n) = claims.next(&world).await {
        let key = format!("s{n}");
        let (home, next) = (turn(&clients[n % 2], &key).await, turn(&clients[(n + 1) % 2], &key).await);
        if !claims.were_waited_for(&world).await {
            continue;
        }
        assert_eq!(next, home, "{key}, turn 1");
        for at in 2..6 {
            assert_eq!(turn(&clients[(n + at) % 2], &key).await, home, "{key}, turn {at}");
        }
    }
    for replica in 0..2 {
        assert!(world.replica(replica).routes().await.unwrap() > 0, "replica {replica} was never asked");
    }
}

/// A2 over two replicas: first turns at once have one slot.
#[tokio::test(flavor = "multi_thread")]
async fn first_turns_at_once_have_one_slot() {
    let world = plan(2).start().await.unwrap();
    let clients = clients(&world);
    let mut claims = Claims::new(20);
    while let Some(n) = claims.next(&world).await {
        let key = format!("s{n}");
        let mut turns = JoinSet::new();
        for at in 0..16 {
            let (client, key) = (clients[at % 2].clone(), key.clone());
            turns.spawn(async move { turn(&client, &key).await });
        }
        let slots: BTreeSet<Slot> = turns.join_all().await.into_iter().collect();
        if claims.were_waited_for(&world).await {
            assert_eq!(slots.len(), 1, "{key}: {slots:?}");
        }
    }
    let mut claimed = 0.0;
    for replica in 0..2 {
        claimed += world.replica(replica).metric("rankpin_holds_claimed_total", &[]).await.unwrap();
    }
    assert!(claimed >= 20.0, "{claimed} holds were claimed");
}

/// D6: a release at one replica holds at the other, whatever comes late.
#[tokio::test(flavor = "multi_thread")]
async fn d6_released_stays_released() {
    let world = slow(2).start().await.unwrap();
    let clients = clients(&world);
    let home = turn(&clients[0], "s").await;
    all_say(&world, "s", "bound").await;
    assert_eq!(turn(&clients[1], "s").await, home);
    // A turn at the other Envoy outlives the release: what it tells at its end is late.
    let late = stream(&world, 1, Some("s")).await;
    let last = clients[0].chat_request(Some("s"), "bye").header("x-session-final", "true");
    assert_eq!(send(last).await.unwrap().status, 200);
    all_say(&world, "s", "released").await;
    drop(late);
    // The other Envoy is told; then its next turn is a first one, and is bound for both.
    wait_for("the release to be known everywhere, and to stay", async || {
        let said = [known(&world, 0, "s").await, known(&world, 1, "s").await];
        said.iter().all(|one| one["state"] == "released").then_some(())
    })
    .await
    .unwrap();
    let next = turn(&clients[1], "s").await;
    all_say(&world, "s", "bound").await;
    assert_eq!(turn(&clients[0], "s").await, next);
}

/// D4: a replica joins during traffic; it knows every binding before it may be asked.
#[tokio::test(flavor = "multi_thread")]
async fn d4_who_joins_late_pulls_nobody_off() {
    let world = plan(2).start().await.unwrap();
    let clients = clients(&world);
    let mut homes = Vec::new();
    for n in 0..40 {
        let key = format!("s{n}");
        homes.push((turn(&clients[n % 2], &key).await, key));
    }
    for (_, key) in &homes {
        all_say(&world, key, "bound").await;
    }
    let shared = world.shared.as_ref().unwrap();
    let folder = world.scratch.path().join("late");
    std::fs::create_dir_all(&folder).unwrap();
    let plan = ServicePlan { store: Some(shared.url(0)), ..ServicePlan::default() };
    let late = Service::start(&folder, &plan).await.unwrap();
    wait_for("the late one to be ready", async || {
        (late.call("GET", "/readyz", None).await.ok()?.status == 200).then_some(())
    })
    .await
    .unwrap();
    for (home, key) in &homes {
        let said = late.session(key).await.unwrap().body;
        assert_eq!(said["state"], "bound", "{key}: {said}");
        assert_eq!(said["target"]["worker"], home.worker.as_str(), "{key}: {said}");
        assert_eq!(said["target"]["rank"].as_u64(), home.rank.map(u64::from), "{key}: {said}");
    }
}

/// D3: a turn longer than the ttl, at one Envoy; the others' replica keeps the binding.
#[tokio::test(flavor = "multi_thread")]
async fn d3_a_turn_longer_than_the_ttl_is_still_bound_elsewhere() {
    let world = slow(2).pool(json!({"ttl_s": 6})).start().await.unwrap();
    let clients = clients(&world);
    let home = turn(&clients[0], "s").await;
    all_say(&world, "s", "bound").await;
    let long = stream(&world, 0, Some("s")).await;
    assert_eq!(streamed_by(&long), home.worker);
    // Three times the ttl passes, and nobody forgets it.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(18) {
        for replica in 0..2 {
            let said = known(&world, replica, "s").await;
            assert_eq!(said["state"], "bound", "replica {replica} after {:?}", begun.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(turn(&clients[1], "s").await, home);
}

/// B12 and D4: ranks are added in a rollout that one replica hears of late.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_grows_pulls_nobody_off() {
    let world = plan(2).start().await.unwrap();
    let clients = clients(&world);
    let mut homes = Vec::new();
    for n in 0..24 {
        let key = format!("s{n}");
        homes.push((turn(&clients[n % 2], &key).await, key));
    }
    for (_, key) in &homes {
        all_say(&world, key, "bound").await;
    }
    // The second replica hears nothing any more; the first one learns of four more ranks and binds sessions there.
    world.shared.as_ref().unwrap().ways[1].cut();
    let engine = world.engine("w0");
    let declared = json!({"endpoints": [{"address": engine.address().to_string(), "dp_size": 8}]});
    let said = world.service.call("PUT", "/v1/workers/w0", Some(&declared.to_string())).await.unwrap();
    assert!(said.status < 300, "{said:?}");
    for (home, key) in &homes {
        for client in &clients {
            assert_eq!(&turn(client, key).await, home, "{key}");
        }
    }
    world.shared.as_ref().unwrap().ways[1].mend();
    wait_for("the second replica to know eight ranks", async || {
        let said = world.replica(1).call("GET", "/v1/workers/w0", None).await.ok()?;
        (said.body["declared"]["endpoints"][0]["dp_size"] == 8).then_some(())
    })
    .await
    .unwrap();
    for (home, key) in &homes {
        for client in &clients {
            assert_eq!(&turn(client, key).await, home, "{key}");
        }
    }
}
