//! E11: ranks that serve while nothing is heard of their cache; a replay socket that says nothing.

use super::fleet::{Fleet, telling, tokens};
use crate::support::served;
use e2e::wait::wait_within;
use e2e::{Engine, EngineSpec, Steering, World, WorldPlan, artifacts, wait_for};
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than the half minute after which silence is one.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is wrong with each worker, by the word the service finds for it.
fn silent() -> Vec<EngineSpec> {
    vec![
        EngineSpec::new("not_published", 1).declaring("kv_events", json!("discover")),
        EngineSpec::new("undiscovered", 1)
            .kv_events()
            .engine("vllm", "0.30.0")
            .declaring("kv_events", json!("discover")),
        telling("not_connected", 1),
        EngineSpec::new("topic_differs", 1)
            .kv_events()
            .with(&["--kv-topic", "kv@here"])
            .engine("vllm", "0.30.0"),
        telling("nothing_published", 1),
        telling("stopped", 1),
        telling("heard", 1),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn e11_silence_is_seen_with_its_cause_and_a_silent_replay_heals() {
    // All wait; they wait together.
    tokio::join!(causes(), without_sessions(), a_replay_that_says_nothing());
}

/// Where choices are made by events, traffic without sessions shows silence too, and workers declared off are among the silent.
async fn without_sessions() {
    let specs = [
        EngineSpec::new("off", 1).kv_events().declaring("kv_events", json!("off")),
        EngineSpec::new("not_published", 1),
        EngineSpec::new("heard", 1).kv_events(),
    ];
    let tokens = json!({"mode": "local", "path": artifacts::root().join("tests/engine/model")});
    let pool = json!({"policy": "kv_aware", "tokens": tokens});
    let plan = WorldPlan::new(Steering::Kv, &specs).pool(pool);
    let world = plan.edit(|config| config.served_header()).start().await.unwrap();
    let mut turn = 10_000;
    let mut last = Vec::new();
    let waited = wait_within(PATIENCE, "both silent ranks to be seen", async || {
        for _ in 0..specs.len() {
            turn += 1;
            served(&world.client().chat(None, &long(turn)).await.ok()?);
        }
        last.clear();
        for spec in &specs {
            last.push((spec.name.clone(), kv(&world, &spec.name).await["silent"].clone()));
        }
        let fits = |(name, seen): &(String, Value)| match name.as_str() {
            "heard" => seen.is_null(),
            name => seen == name,
        };
        last.iter().all(fits).then_some(())
    });
    waited.await.unwrap_or_else(|error| panic!("{error}: {last:?}"));
    assert_eq!(world.service.metric("rankpin_kv_events_silent", &[]).await.unwrap(), 2.0);
}

async fn causes() {
    let plan = WorldPlan::new(Steering::Endpoints, &silent());
    let world = plan.pool(json!({"policy": "round_robin"})).start().await.unwrap();
    let engine = |name: &str| -> &Engine { world.engine(name) };
    let mut declared: Value = serde_json::from_str(&engine("topic_differs").declaration()).unwrap();
    declared["kv_events"] = engine("topic_differs").kv_declared().await.unwrap();
    declared["kv_events"]["topic"] = json!("kv@elsewhere");
    let said =
        world.service.call("PUT", "/v1/workers/topic_differs", Some(&declared.to_string())).await.unwrap();
    assert!((200..300).contains(&said.status), "{said:?}");
    engine("not_connected").kv_fault("close", None).await.unwrap();
    engine("nothing_published").kv_fault("silent", None).await.unwrap();
    // What warming up has published is its past.
    engine("nothing_published").kv_fault("restart", None).await.unwrap();
    engine("stopped").compute(&tokens(1, 2), None).await.unwrap();
    wait_for("stopped to be heard", async || {
        (kv(&world, "stopped").await["events"].as_u64()? > 0).then_some(())
    })
    .await
    .unwrap();
    engine("stopped").kv_fault("silent", None).await.unwrap();
    let mut turn = 0;
    let mut last = Vec::new();
    let waited = wait_within(PATIENCE, "every silent rank to be seen", async || {
        // New sessions: each is told of by the filter at once, and each engine serves some.
        for _ in 0..silent().len() {
            turn += 1;
            served(&world.client().chat(Some(&format!("silence-{turn}")), &long(turn)).await.ok()?);
        }
        last.clear();
        for spec in silent() {
            let seen = kv(&world, &spec.name).await["silent"].clone();
            last.push((spec.name, seen));
        }
        let fits = |(name, seen): &(String, Value)| match name.as_str() {
            "heard" => seen.is_null(),
            name => seen == name,
        };
        last.iter().all(fits).then_some(())
    });
    waited.await.unwrap_or_else(|error| panic!("{error}: {last:?}"));
    let count = world.service.metric("rankpin_kv_events_silent", &[]).await.unwrap();
    assert_eq!(count, (silent().len() - 1) as f64);
}

/// A prompt of some blocks, another one each time.
fn long(turn: u32) -> String {
    (0..60).map(|n| format!("word {} ", turn * 60 + n)).collect()
}

async fn kv(world: &World, worker: &str) -> Value {
    let said = world.service.call("GET", &format!("/v1/workers/{worker}"), None).await.unwrap();
    said.body["slots"][0]["kv_events"].clone()
}

/// The replay's end does not come: what is known is given up, and asked for again until it does.
async fn a_replay_that_says_nothing() {
    let fleet = Fleet::undeclared(vec![telling("w0", 1)]).await;
    let engine = fleet.engine("w0");
    engine.compute(&tokens(1, 5), None).await.unwrap();
    engine.kv_fault("stall", None).await.unwrap();
    fleet.service.register(engine).await.unwrap();
    fleet.until("w0", 0, "cold", |shown| shown["cold"] == true).await;
    assert!(fleet.stream("replay_failed").await >= 1);
    engine.heal_kv().await.unwrap();
    let shown = fleet.until("w0", 0, "all of it", |shown| shown["blocks"]["gpu"] == 5).await;
    assert_eq!(shown["cold"], false);
}
