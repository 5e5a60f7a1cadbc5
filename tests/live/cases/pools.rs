//! Several pools behind one listener, told apart by the model a request asks for; and one conversation in all of them.

use std::collections::{BTreeMap, BTreeSet};

use e2e::client::{CHAT, SESSION, Slot, Turn, send};
use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};
use reqwest::Method;
use routing::header::VLLM_RANK;
use serde_json::{Value, json};

use crate::support::{BOTH, nothing_in_flight, says_nothing_of, served};

const MODELS: [&str; 3] = ["model-a", "model-b", "model-c"];

/// A worker of eight ranks that serves one model.
fn engine(name: &str, pool: &str, model: &str) -> EngineSpec {
    let spec = EngineSpec::new(name, 8).with(&["--model", model]);
    spec.declaring("pool", json!(pool)).declaring("models", json!([model]))
}

/// A chat turn for that model.
async fn ask(world: &World, key: Option<&str>, model: Option<&str>, in_header: bool) -> Turn {
    let mut body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let mut request = world.client().request(Method::POST, CHAT).json(&body);
    if let Some(key) = key {
        request = request.header(SESSION, key);
    }
    if let Some(model) = model.filter(|_| in_header) {
        request = request.header("x-model", model);
    }
    send(request).await.unwrap()
}

/// Until every model is placed where it lives; the default route, which knows every worker, places nobody.
async fn ready(world: &World, homes: &[(&str, &str)], in_header: bool) {
    for (model, home) in homes {
        wait_for(&format!("{model} on {home}"), async || {
            let before = passed(world).await;
            let turn = ask(world, Some("ready"), Some(model), in_header).await;
            (turn.slot()?.worker == *home && turn.status == 200 && passed(world).await == before)
                .then_some(())
        })
        .await
        .unwrap();
    }
    world.forget().await.unwrap();
}

/// Requests that went the default route.
async fn passed(world: &World) -> u64 {
    world.envoy().requests("no_topology").await.unwrap() + world.envoy().requests("no_worker").await.unwrap()
}

/// Three pools of one model each, the listener reads which in the body.
async fn three_pools(steering: Steering, pool_by: &str) -> World {
    let engines = [
        engine("w0", "default", MODELS[0]),
        engine("w1", "second", MODELS[1]),
        engine("w2", "third", MODELS[2]),
    ];
    let by = pool_by.to_owned();
    let plan = WorldPlan::new(steering, &engines).probes_every_ms(0).cold();
    let plan = plan.pool(json!({})).other_pool(json!({"name": "second"}));
    let plan = plan.other_pool(json!({"name": "third", "models": ["alias-c"]}));
    let world =
        plan.edit(move |config| config.plugin(|own| own["pool_by"] = json!(by))).start().await.unwrap();
    ready(&world, &[(MODELS[0], "w0"), (MODELS[1], "w1"), (MODELS[2], "w2")], pool_by != "body").await;
    world
}

/// One conversation key used with three models: three bindings, none of which disturbs another. Three pools, or one.
#[tokio::test]
async fn a7_one_key_with_three_models_is_three_sessions() {
    let one_pool = MODELS.iter().enumerate().map(|(n, model)| engine(&format!("w{n}"), "default", model));
    let plan = WorldPlan::new(Steering::Agents, &one_pool.collect::<Vec<_>>()).probes_every_ms(0).cold();
    let by_body =
        plan.edit(|config| config.plugin(|own| own["pool_by"] = json!("body"))).start().await.unwrap();
    ready(&by_body, &[(MODELS[0], "w0"), (MODELS[1], "w1"), (MODELS[2], "w2")], false).await;
    for (what, world, in_header) in [
        ("one pool, by the body", by_body, false),
        ("three pools, by the body", three_pools(Steering::Agents, "body").await, false),
        ("three pools, by a header", three_pools(Steering::Endpoints, "header x-model").await, true),
    ] {
        let before = world.envoy().requests("routed_held").await.unwrap();
        let mut slots: BTreeMap<&str, BTreeSet<Slot>> = BTreeMap::new();
        for _ in 0..3 {
            for model in MODELS {
                let slot = served(&ask(&world, Some("conversation"), Some(model), in_header).await);
                slots.entry(model).or_default().insert(slot);
            }
        }
        for (n, model) in MODELS.into_iter().enumerate() {
            assert_eq!(slots[model].len(), 1, "{what}: {slots:?}");
            assert_eq!(slots[model].first().unwrap().worker, format!("w{n}"), "{what}");
        }
        assert_eq!(world.envoy().requests("routed_held").await.unwrap(), before + 3, "{what}");
        nothing_in_flight(&world).await;
    }
}

/// A model nobody serves: 404 in OpenAI's shape, and nothing else is said; nobody is asked.
#[tokio::test]
async fn an_unknown_model_is_404() {
    for (steering, pool_by, in_header) in
        [(Steering::Agents, "body", false), (Steering::Endpoints, "header x-model", true)]
    {
        let world = three_pools(steering, pool_by).await;
        for key in [None, Some("lost")] {
            let turn = ask(&world, key, Some("model-nobody-has"), in_header).await;
            assert_eq!((turn.status, turn.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
            let type_is_text = turn.json()["error"]["type"].is_string();
            assert!(type_is_text && turn.json()["error"]["message"].is_string(), "{:?}", turn.json());
            says_nothing_of(&turn, &["lost", "w0", "w1", "w2", "second", "third", "model-a"]);
        }
        for engine in &world.engines {
            assert!(engine.requests().await.unwrap().is_empty(), "{} was asked", engine.name());
        }
        assert_eq!(world.envoy().requests("model_unknown").await.unwrap(), 2);
        nothing_in_flight(&world).await;
    }
}

/// Several pools: the answer is the union of what they serve, whoever asks; one pool: an engine answers.
#[tokio::test]
async fn the_list_of_models_is_the_union() {
    for (steering, pool_by) in [(Steering::Agents, "body"), (Steering::Cluster, "header x-model")] {
        let world = three_pools(steering, pool_by).await;
        let turn = send(world.client().request(Method::GET, "/v1/models")).await.unwrap();
        assert_eq!((turn.status, turn.slot()), (200, None), "{steering:?}");
        let list = turn.json();
        assert_eq!(list["object"], "list");
        let names: BTreeSet<&str> =
            list["data"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
        assert_eq!(names, BTreeSet::from(["alias-c", "model-a", "model-b", "model-c"]), "{steering:?}");
        assert!(list["data"].as_array().unwrap().iter().all(|one| one["object"] == "model"));
        says_nothing_of(&turn, &["w0", "w1", "w2", "second", "third"]);
    }
    for steering in BOTH {
        let world = WorldPlan::new(steering, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
        let turn = send(world.client().request(Method::GET, "/v1/models")).await.unwrap();
        assert_eq!(turn.slot().map(|slot| slot.worker), Some("w0".to_owned()));
    }
}

/// A header may name the pool itself.
#[tokio::test]
async fn a_header_names_the_pool() {
    let world = three_pools(Steering::Endpoints, "header x-model").await;
    for (pool, worker, model) in
        [("default", "w0", MODELS[0]), ("second", "w1", MODELS[1]), ("third", "w2", MODELS[2])]
    {
        let body = json!({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
        let request = world.client().post(CHAT, Some("by-pool"), &body).header("x-model", pool);
        assert_eq!(served(&send(request).await.unwrap()).worker, worker);
    }
    // Without the header the pool named `default`, as engines do without a model.
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    let request = world.client().post(CHAT, None, &body);
    assert_eq!(served(&send(request).await.unwrap()).worker, "w0");
}

/// A form is not read: it goes to the pool named `default`, at any size.
#[tokio::test]
async fn audio_is_routed_without_being_read() {
    let engines = [EngineSpec::new("w0", 8), engine("w1", "second", MODELS[1])];
    let plan = WorldPlan::new(Steering::Agents, &engines).probes_every_ms(0).cold().pool(json!({}));
    let plan = plan.other_pool(json!({"name": "second"}));
    let world = plan
        .edit(|config| config.plugin(|own: &mut Value| own["pool_by"] = json!("body")))
        .start()
        .await
        .unwrap();
    ready(&world, &[("tiny", "w0"), (MODELS[1], "w1")], false).await;
    for bytes in [1_000, 3_000_000] {
        let turn = send(world.client().transcribe(Some("speaker"), bytes)).await.unwrap();
        assert_eq!(served(&turn).worker, "w0");
        let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
        assert!(seen.body_bytes > bytes && seen.values(VLLM_RANK).is_empty(), "{seen:?}");
    }
    for word in ["body_too_long", "body_malformed", "body_missing"] {
        assert_eq!(world.envoy().requests(word).await.unwrap(), 0, "{word}");
    }
}
