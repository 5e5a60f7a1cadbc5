//! D2 on the real service: bindings of several writers, told in any order, in any batches and twice, by a host that applies them. Each
//! outcome is the one that the table of `docs/HOSTS.md` tells, and two services that heard the same in other orders end alike.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use e2e::Service;
use e2e::kept::{Kept, session_of};
use e2e::scratch::Scratch;
use routing::contract::Target;
use routing::id::{SessionId, Version, WorkerId};
use routing::time::Millis;
use serde_json::{Value, json};
use state_service::state::Binding;

use crate::example::service;

const SESSIONS: u64 = 60;
const BATCH: usize = 37;
/// Long: no end comes while this runs.
const LIFE: u64 = 3_600_000;

/// Numbers that look random and are the same every day.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = self.below(at + 1);
            list.swap(at, other);
        }
    }
}

/// Five versions of each session by three writers; each fifth one is a release. One version has one place, and several ends.
fn histories() -> Vec<Binding> {
    let mut all = Vec::new();
    for session in 0..SESSIONS {
        for (nth, (seq, writer)) in [(1, 7), (2, 7), (2, 9), (3, 8), (5, 7)].into_iter().enumerate() {
            let is_release = (session + nth as u64).is_multiple_of(5);
            let worker =
                WorkerId::parse(if (session + seq + writer).is_multiple_of(2) { "w0" } else { "w1" });
            all.push(Binding {
                session: session_of(&format!("s{session}")),
                version: Version { seq, writer },
                target: (!is_release).then(|| Target { worker: worker.unwrap(), rank: None }),
                expires_in_ms: Millis(LIFE + 1000 * session),
                generation: 0,
            });
        }
    }
    all
}

/// The merge table, as it is written for people.
fn expected(known: &mut BTreeMap<SessionId, Binding>, told: &Binding) -> &'static str {
    let id = told.session.id;
    let Some(ours) = known.get(&id).cloned() else {
        known.insert(id, told.clone());
        return "inserted";
    };
    match told.version.cmp(&ours.version) {
        Ordering::Equal => "refreshed",
        Ordering::Greater => {
            known.insert(id, told.clone());
            "replaced_newer"
        }
        Ordering::Less if ours.target.is_none() => "ignored_stale",
        Ordering::Less => "ignored_conflict",
    }
}

/// A host on the data listener.
struct Host(Kept);

impl Host {
    async fn new(service: &Service) -> Self {
        Self(Kept::connect(service.data()).await.unwrap())
    }

    async fn apply(&mut self, bindings: Vec<Value>) -> Vec<Value> {
        let body = json!({"writer": "host-a", "bindings": bindings}).to_string();
        let status = self.0.call("POST", "/v1/bindings/apply", body.as_bytes()).await.unwrap();
        let said: Value = serde_json::from_slice(self.0.body()).unwrap();
        assert_eq!(status, 200, "{said}");
        said["outcomes"].as_array().unwrap().clone()
    }
}

fn text(binding: &Binding) -> Value {
    serde_json::to_value(binding).unwrap()
}

/// What the service knows of each session that this test has.
async fn ends(service: &Service) -> BTreeMap<SessionId, (Version, Option<Target>)> {
    let url = format!("http://{}/v1/bindings/snapshot", service.data());
    let text = reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await.unwrap();
    let (mut all, text) = (BTreeMap::new(), text.text().await.unwrap());
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for binding in line["bindings"].as_array().into_iter().flatten() {
            let binding: Binding = serde_json::from_value(binding.clone()).unwrap();
            all.insert(binding.session.id, (binding.version, binding.target));
        }
    }
    all
}

/// Tells a service everything twice in an order of its own; which outcomes there were.
async fn tell(service: &Service, seed: u64) -> BTreeSet<String> {
    let (mut host, mut draws, mut known) = (Host::new(service).await, Draws(seed), BTreeMap::new());
    let mut all: Vec<Binding> =
        histories().into_iter().flat_map(|binding| [binding.clone(), binding]).collect();
    draws.shuffle(&mut all);
    let mut seen = BTreeSet::new();
    for batch in all.chunks(BATCH) {
        let outcomes = host.apply(batch.iter().map(text).collect()).await;
        assert_eq!(outcomes.len(), batch.len());
        let wanted: Vec<&str> = batch.iter().map(|told| expected(&mut known, told)).collect();
        for ((told, said), outcome) in batch.iter().zip(outcomes).zip(wanted) {
            assert_eq!(said["outcome"], outcome, "{told:?}: {said}");
            // What it lost against, as it is after the batch.
            let newer = outcome.starts_with("ignored").then(|| known[&told.session.id].version);
            assert_eq!(said.get("known").map(|known| &known["version"]), newer.map(|v| json!(v)).as_ref());
            seen.insert(outcome.to_owned());
        }
    }
    let end = ends(service).await;
    let wanted = known.iter().map(|(id, binding)| (*id, (binding.version, binding.target.clone())));
    assert_eq!(end, wanted.collect());
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_in_any_order_and_twice_the_merge_table_holds() {
    let scratches = [Scratch::new().unwrap(), Scratch::new().unwrap()];
    let services = [service(&scratches[0]).await, service(&scratches[1]).await];
    let all = ["ignored_conflict", "ignored_stale", "inserted", "refreshed", "replaced_newer"];
    for (service, seed) in services.iter().zip([3, 4]) {
        assert_eq!(tell(service, seed).await.into_iter().collect::<Vec<_>>(), all);
    }
    assert_eq!(ends(&services[0]).await, ends(&services[1]).await);
}

/// The other rows: a worker nobody declared yet is waited for, what cannot be is refused alone, and a release is raised by nothing late.
#[tokio::test(flavor = "multi_thread")]
async fn d2_what_waits_and_what_is_refused() {
    let scratch = Scratch::new().unwrap();
    let service = service(&scratch).await;
    let mut host = Host::new(&service).await;
    let bound = |key: &str, seq, worker: &str| {
        let target = Target { worker: WorkerId::parse(worker).unwrap(), rank: None };
        let version = Version { seq, writer: 7 };
        let (session, expires_in_ms) = (session_of(key), Millis(LIFE));
        text(&Binding { session, version, target: Some(target), expires_in_ms, generation: 0 })
    };
    let without = |mut binding: Value, field: &str| {
        binding.as_object_mut().unwrap().remove(field);
        binding
    };
    let mut over = bound("over", 1, "w0");
    over["expires_in_ms"] = json!(0);
    let told = vec![bound("late", 4, "w9"), over, bound("b", 1, "w0"), bound("late", 3, "w0")];
    let outcomes = host.apply(told).await;
    let said: Vec<&str> = outcomes.iter().map(|said| said["outcome"].as_str().unwrap()).collect();
    assert_eq!(said, ["parked", "rejected", "inserted", "inserted"]);
    assert!(outcomes[1]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{outcomes:?}");
    // Its worker is declared: what waited is newer than what was taken meanwhile.
    let body = json!({"endpoints": [{"address": "127.0.0.1:9"}]}).to_string();
    let said = service.call("PUT", "/v1/workers/w9", Some(&body)).await.unwrap();
    assert_eq!(said.status, 201, "{said:?}");
    let end = ends(&service).await;
    let late = &end[&session_of("late").id];
    assert_eq!((late.0.seq, late.1.as_ref().unwrap().worker.as_str()), (4, "w9"));
    // Released, then an older writer's news, and the same release again.
    let release = without(bound("b", 2, "w0"), "target");
    let outcomes = host.apply(vec![release.clone(), bound("b", 1, "w1"), release]).await;
    let said: Vec<&str> = outcomes.iter().map(|said| said["outcome"].as_str().unwrap()).collect();
    assert_eq!(said, ["replaced_newer", "ignored_stale", "refreshed"]);
    assert_eq!(outcomes[1]["known"]["version"]["seq"], 2);
    assert_eq!(outcomes[1]["known"].get("target"), None);
    assert_eq!(host.apply(vec![bound("b", 3, "w1")]).await[0]["outcome"], "replaced_newer");
}
