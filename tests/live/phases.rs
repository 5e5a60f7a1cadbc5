//! A split fleet before `envoy/prefill-decode.yaml`: some workers prefill, others decode. Each half of a request is chosen and bound
//! on its own; the decode worker serves and is told who prefills.

use std::collections::{BTreeMap, BTreeSet};

use e2e::client::{Slot, Turn, send};
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use routing::hash::{hashed_rank, rank_hash};
use routing::header::{self, VLLM_RANK};
use serde_json::{Value, json};

use crate::support::{nothing_in_flight, says_nothing_of, served};

const PREFILL: (&str, &str) = header::PHASE_TARGETS[0];
const DECODE: (&str, &str) = header::PHASE_TARGETS[1];

/// Two prefill workers of ranks 0–3 and 4–7, two decode workers of four and of two ranks.
fn split() -> [EngineSpec; 4] {
    [
        EngineSpec::new("p0", 4).prefills(),
        EngineSpec::new("p1", 4).from(4).prefills(),
        EngineSpec::new("d0", 4).decodes(),
        EngineSpec::new("d1", 2).decodes(),
    ]
}

/// Nobody is probed; every worker is known.
async fn world(pool: Value, trusted: bool) -> World {
    let plan = WorldPlan::new(Steering::Phases, &split()).probes_every_ms(0).cold().pool(pool);
    let plan = if trusted { plan.edit(|config| config.trusted()) } else { plan };
    let world = plan.start().await.unwrap();
    all_known(&world, &["d0", "d1"], &["p0", "p1"]).await;
    world
}

/// New sessions until every one of them was given work.
async fn all_known(world: &World, decode: &[&str], prefill: &[&str]) {
    let (mut n, mut seen) = (0, BTreeSet::new());
    wait_for("work for both halves of the fleet", async || {
        n += 1;
        let turn = world.client().chat(Some(&format!("known-{n}")), "x").await.ok()?;
        if let Some(prefilled) = turn.prefilled() {
            seen.insert(served(&turn).worker);
            seen.insert(prefilled.worker);
        }
        decode.iter().chain(prefill).all(|name| seen.contains(*name)).then_some(())
    })
    .await
    .unwrap();
    world.forget().await.unwrap();
}

/// Where both halves of an answered turn were.
fn halves(turn: &Turn) -> (Slot, Slot) {
    let serving = served(turn);
    (serving, turn.prefilled().expect("nobody prefilled"))
}

async fn both(world: &World, key: &str) -> (Slot, Slot) {
    halves(&world.client().chat(Some(key), "go on").await.unwrap())
}

/// A11: the same two slots on every turn, each with the rank its own worker gets, and both ranks really on the wire.
#[tokio::test]
async fn both_halves_are_bound_each_on_its_own() {
    for policy in ["least_loaded", "round_robin"] {
        let world = world(json!({"policy": policy}), false).await;
        let mut slots: BTreeMap<String, BTreeSet<(Slot, Slot)>> = BTreeMap::new();
        let mut n = 0;
        // A dozen, and as many more as it takes until each worker has some.
        while n < 12 || workers_of(&slots).len() < 4 {
            let key = format!("split-{n}");
            slots.insert(key.clone(), BTreeSet::from([both(&world, &key).await]));
            n += 1;
            assert!(n < 2_000, "{policy}: only {:?} had work", workers_of(&slots));
        }
        for _ in 0..2 {
            for (key, slots) in &mut slots {
                slots.insert(both(&world, key).await);
            }
        }
        for (key, slots) in &slots {
            assert_eq!(slots.len(), 1, "{policy}: {key} was on {slots:?}");
            let (decode, prefill) = slots.first().unwrap();
            let hashed = |start, size| hashed_rank(rank_hash(key.as_bytes()), start, size).map(|rank| rank.0);
            let (start, size) = if decode.worker == "d0" { (0, 4) } else { (0, 2) };
            assert_eq!(decode.rank, hashed(start, size), "{policy}: {key} on {decode}");
            assert_eq!(
                prefill.rank,
                hashed(if prefill.worker == "p0" { 0 } else { 4 }, 4),
                "{key} on {prefill}"
            );
        }
        // A prefill worker is asked by its decode worker alone.
        for name in ["p0", "p1"] {
            for seen in world.engine(name).requests().await.unwrap() {
                assert_eq!(seen.values(header::PREFILL_HOST_PORT), [""; 0], "{name}");
            }
        }
        nothing_in_flight(&world).await;
    }
}

/// Everybody who had work.
fn workers_of(slots: &BTreeMap<String, BTreeSet<(Slot, Slot)>>) -> BTreeSet<&str> {
    let halves = slots.values().flatten();
    halves.flat_map(|(decode, prefill)| [decode.worker.as_str(), prefill.worker.as_str()]).collect()
}

/// One half loses its worker: that half is bound anew, once, and the other stays.
#[tokio::test]
async fn a_lost_prefill_worker_moves_one_half_only() {
    let world = world(json!({}), false).await;
    let (key, (decode, _)) = prefilled_by(&world, "p0").await;
    world.service.remove("p0").await.unwrap();
    let moved = wait_for("the prefill half to move", async || {
        let turn = world.client().chat(Some(&key), "go on").await.unwrap();
        let (serving, prefilled) = (served(&turn), turn.prefilled());
        assert_eq!(serving, decode, "the half that answers moved");
        prefilled.filter(|slot| slot.worker != "p0")
    })
    .await
    .unwrap();
    for _ in 0..3 {
        assert_eq!(both(&world, &key).await, (decode.clone(), moved.clone()));
    }
    nothing_in_flight(&world).await;
}

/// A session whose prefill half is there, and where both are.
async fn prefilled_by(world: &World, worker: &str) -> (String, (Slot, Slot)) {
    for n in 0..200 {
        let key = format!("by-{worker}-{n}");
        let slots = both(world, &key).await;
        if slots.1.worker == worker {
            return (key, slots);
        }
    }
    panic!("200 sessions and none prefilled by {worker}");
}

/// Nobody prefills any more: the decode workers do both, nothing is told them, and nothing stays counted or held.
#[tokio::test]
async fn without_prefill_workers_the_decode_half_serves_alone() {
    let world = world(json!({}), false).await;
    let key = "alone";
    let (decode, _) = both(&world, key).await;
    for worker in ["p0", "p1"] {
        world.service.remove(worker).await.unwrap();
    }
    wait_for("a turn that nobody prefills", async || {
        let turn = world.client().chat(Some(key), "go on").await.unwrap();
        assert_eq!(served(&turn), decode);
        turn.prefilled().is_none().then_some(())
    })
    .await
    .unwrap();
    let seen = world.engine(&decode.worker).requests().await.unwrap().pop().unwrap();
    for name in [header::PREFILL_HOST_PORT, header::PREFILL_RANK] {
        assert_eq!(seen.values(name), [""; 0]);
    }
    served(&world.client().chat(Some("brand-new"), "hi").await.unwrap());
    nothing_in_flight(&world).await;
}

/// A first turn that fails leaves neither half bound.
#[tokio::test]
async fn a_failed_first_turn_binds_neither_half() {
    let world = world(json!({}), false).await;
    let sessions = world.service.metric("rankpin_sessions", &[]).await.unwrap();
    for engine in &world.engines {
        engine.fault("500", None).await.unwrap();
    }
    let failed = world.client().chat(Some("unlucky"), "hi").await.unwrap();
    assert!(failed.status >= 500, "{}", failed.status);
    for engine in &world.engines {
        engine.heal().await.unwrap();
    }
    nothing_in_flight(&world).await;
    assert_eq!(world.service.metric("rankpin_sessions", &[]).await.unwrap(), sessions, "a half stayed bound");
    both(&world, "unlucky").await;
}

/// What a client says of prefilling reaches no engine, whoever prefills.
#[tokio::test]
async fn a_client_names_no_prefiller() {
    let world = world(json!({}), false).await;
    let nobody = "127.0.0.1:1";
    for key in [None, Some("spoofing")] {
        let request = world.client().chat_request(key, "hi").header(header::PREFILL_HOST_PORT, nobody);
        let request = request.header(header::PREFILL_RANK, "99").header(VLLM_RANK, "98");
        let (decode, _) = halves(&send(request).await.unwrap());
        let seen = world.engine(&decode.worker).requests().await.unwrap().pop().unwrap();
        assert_ne!(seen.values(header::PREFILL_HOST_PORT), [nobody]);
        assert_ne!(seen.values(header::PREFILL_RANK), ["99"]);
    }
}

/// A trusted caller names the target of each half; an error names the half, and nobody is asked.
#[tokio::test]
async fn named_targets_of_each_half() {
    let world = world(json!({}), true).await;
    let named = async |key: Option<&str>, headers: &[(&str, &str)]| {
        let mut request = world.client().chat_request(key, "hi");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        send(request).await.unwrap()
    };
    let slot = |worker: &str, rank| Slot { worker: worker.to_owned(), rank: Some(rank) };
    let wanted = (slot("d0", 2), slot("p1", 6));
    let all = [(DECODE.0, "d0"), (DECODE.1, "2"), (PREFILL.0, "p1"), (PREFILL.1, "6")];
    assert_eq!(halves(&named(None, &all).await), wanted);
    assert_eq!(halves(&named(Some("led"), &all).await), wanted);
    for _ in 0..2 {
        assert_eq!(both(&world, "led").await, wanted, "later turns name nothing");
    }
    world.forget().await.unwrap();
    for (headers, status, phase) in [
        (vec![(PREFILL.0, "nobody")], 404, "prefill"),
        (vec![(PREFILL.0, "p0"), (PREFILL.1, "7")], 400, "prefill"),
        (vec![(DECODE.0, "d1"), (DECODE.1, "3")], 400, "decode"),
        (vec![(PREFILL.1, "1")], 400, "prefill"),
        (vec![(DECODE.0, "p0")], 404, "decode"),
    ] {
        let turn = named(None, &headers).await;
        assert_eq!(turn.status, status, "{headers:?}");
        says_nothing_of(&turn, &["nobody", "p0", "p1", "d0", "d1"]);
        let message = turn.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(phase), "{headers:?}: {message}");
    }
    let elsewhere = named(Some("led"), &[(PREFILL.0, "p0")]).await;
    assert_eq!(elsewhere.status, 400, "the prefill half is bound elsewhere");
    for engine in &world.engines {
        assert!(engine.requests().await.unwrap().is_empty(), "{} was asked", engine.name());
    }
    nothing_in_flight(&world).await;
}

/// Two Envoys of two threads: each session's two slots are the same on both.
#[tokio::test]
async fn two_envoys_agree_on_both_halves() {
    let plan = WorldPlan::new(Steering::Phases, &split()).probes_every_ms(0).cold().envoys(2);
    let world = plan.start().await.unwrap();
    all_known(&world, &["d0", "d1"], &["p0", "p1"]).await;
    let clients: Vec<Client> =
        world.envoys.iter().map(|envoy| Client::fresh_connections(envoy.address()).unwrap()).collect();
    // The second one may still be learning: its turns count once it places them.
    wait_for("the second Envoy to place both halves", async || {
        clients[1].chat(Some("second"), "x").await.ok()?.prefilled().map(drop)
    })
    .await
    .unwrap();
    for n in 0..16 {
        let key = format!("agreed-{n}");
        let mut slots = BTreeSet::new();
        for turn in 0..6 {
            slots.insert(halves(&clients[(n + turn) % 2].chat(Some(&key), "go on").await.unwrap()));
        }
        assert_eq!(slots.len(), 1, "{key} was on {slots:?}");
    }
    nothing_in_flight(&world).await;
}

/// A decode worker that refuses: the attempt elsewhere has its own rank, and the same prefill slot.
#[tokio::test]
async fn a_retry_keeps_the_prefill_half() {
    let world = world(json!({}), false).await;
    let (key, (decode, prefill)) = prefilled_by(&world, "p1").await;
    let other = if decode.worker == "d0" { "d1" } else { "d0" };
    world.engine(&decode.worker).fault("503", Some(1)).await.unwrap();
    let (serving, prefilled) = both(&world, &key).await;
    assert_eq!((serving.worker.as_str(), prefilled), (other, prefill.clone()));
    let size = if other == "d0" { 4 } else { 2 };
    assert_eq!(serving.rank, hashed_rank(rank_hash(key.as_bytes()), 0, size).map(|rank| rank.0));
    wait_for("both halves at home", async || {
        (both(&world, &key).await == (decode.clone(), prefill.clone())).then_some(())
    })
    .await
    .unwrap();
    nothing_in_flight(&world).await;
}

/// `session_hash` and `off`: no state, and both halves all the same; by the hash, the same ones on every turn.
#[tokio::test]
async fn halves_without_bindings() {
    for (pool, steady) in [(json!({"policy": "session_hash"}), true), (json!({"affinity": "off"}), false)] {
        let world = world(pool, false).await;
        let sessions = world.service.metric("rankpin_sessions", &[]).await.unwrap();
        let (mut prefillers, mut decoders) = (BTreeSet::new(), BTreeSet::new());
        let mut n = 0;
        while n < 24 || (prefillers.len(), decoders.len()) != (2, 2) {
            n += 1;
            assert!(n < 2_000, "only {prefillers:?} and {decoders:?} had work");
            let key = format!("loose-{n}");
            let first = both(&world, &key).await;
            assert!(!steady || both(&world, &key).await == first, "{key} left {first:?}");
            decoders.insert(first.0.worker);
            prefillers.insert(first.1.worker);
            let keyless = world.client().chat(None, "x").await.unwrap();
            assert!(keyless.prefilled().is_some());
        }
        assert_eq!(world.service.metric("rankpin_sessions", &[]).await.unwrap(), sessions);
        nothing_in_flight(&world).await;
    }
}
