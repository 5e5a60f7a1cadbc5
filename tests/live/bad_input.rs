//! What is wrong is refused with a sentence, and nothing is changed by it: worker declarations, session keys.

use e2e::{EngineSpec, Steering, World, WorldPlan};
use serde_json::json;

const BOTH: [Steering; 2] = [Steering::Cluster, Steering::Endpoints];

#[tokio::test]
async fn a_key_of_257_bytes_is_400_and_leaves_no_state() {
    for steering in BOTH {
        let world = WorldPlan::new(steering, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
        let routes = world.service.routes().await.unwrap();
        let long = "k".repeat(257);
        let turn = world.client().chat(Some(&long), "hello").await.unwrap();
        assert_eq!(turn.status, 400);
        let text = String::from_utf8(turn.body.clone()).unwrap();
        assert!(text.contains("256"), "the limit is not named in {text}");
        assert!(!text.contains(&long), "the key is repeated");
        assert!(world.engine("w0").requests().await.unwrap().is_empty(), "it reached the worker");
        assert_eq!(world.service.routes().await.unwrap(), routes);
        assert_eq!(world.service.session(&long).await.unwrap().status, 404);
        let fits = world.client().chat(Some(&"k".repeat(256)), "hello").await.unwrap();
        assert_eq!(fits.status, 200);
        assert!(!world.engine("w0").requests().await.unwrap()[0].values("x-data-parallel-rank").is_empty());
    }
}

#[tokio::test]
async fn a_bad_declaration_is_refused_and_changes_nothing() {
    let world = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
    let w0 = world.engine("w0").address().to_string();
    let before = fleet(&world).await;
    let at = |address: &str| json!({"endpoints": [{"address": address, "dp_size": 4}]});
    let overlapping = json!({"endpoints": [
        {"address": "127.0.0.1:1", "dp_start": 0, "dp_size": 4}, {"address": "127.0.0.1:2", "dp_start": 3, "dp_size": 4}]});
    let same_address = json!({"endpoints": [
        {"address": "127.0.0.1:1", "dp_start": 0, "dp_size": 4}, {"address": "127.0.0.1:1", "dp_start": 2, "dp_size": 4}]});
    let mut typo = at("127.0.0.1:1");
    typo["wieght"] = json!(2);
    for (body, named) in [
        ("{".to_owned(), "JSON"),
        ("[]".to_owned(), "object"),
        (json!({}).to_string(), "endpoints"),
        (at("nonsense").to_string(), "endpoints[0].address"),
        (
            json!({"endpoints": [{"address": "127.0.0.1:1", "dp_size": 0}]}).to_string(),
            "endpoints[0].dp_size",
        ),
        (overlapping.to_string(), "endpoints[1].dp_start"),
        (same_address.to_string(), "endpoints[1].address"),
        (typo.to_string(), "wieght"),
        (at(&w0).to_string(), "w0"),
    ] {
        let said = world.service.call("PUT", "/v1/workers/bad", Some(&body)).await.unwrap();
        assert!((400..500).contains(&said.status), "{body}: {said:?}");
        assert!(said.body["code"].is_string(), "no code in {said:?}");
        assert!(said.body.to_string().contains(named), "{named} is not named for {body}: {said:?}");
        assert_eq!(fleet(&world).await, before, "{body} changed something");
    }
}

#[tokio::test]
async fn a_declaration_names_all_its_faults_at_once() {
    let world = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
    let body =
        json!({"weight": 0, "engine": "abacus", "endpoints": [{"address": "x", "dp_size": 9999}], "nope": 1});
    let said = world.service.call("PUT", "/v1/workers/bad", Some(&body.to_string())).await.unwrap();
    assert_eq!(said.status, 400);
    let paths: Vec<_> =
        said.body["errors"].as_array().unwrap().iter().map(|fault| fault["path"].clone()).collect();
    for path in ["weight", "engine", "endpoints[0].address", "endpoints[0].dp_size", "nope"] {
        assert!(paths.contains(&json!(path)), "{path} is not among {paths:?}");
    }
}

#[tokio::test]
async fn an_id_is_taken_once() {
    let world = WorldPlan::new(Steering::Endpoints, &[EngineSpec::new("w0", 4)]).start().await.unwrap();
    let before = fleet(&world).await;
    let body = json!({"id": "w0", "endpoints": [{"address": "127.0.0.1:1"}]}).to_string();
    let said = world.service.call("POST", "/v1/workers", Some(&body)).await.unwrap();
    assert_eq!(said.status, 409, "{said:?}");
    let other = world.service.call("PUT", "/v1/workers/w1", Some(&body)).await.unwrap();
    assert_eq!(other.status, 400, "an id in the body that is not the path's: {other:?}");
    assert_eq!(fleet(&world).await, before);
}

/// Everything declared, as the service tells it.
async fn fleet(world: &World) -> Vec<serde_json::Value> {
    let said = world.service.call("GET", "/v1/workers", None).await.unwrap();
    said.body["workers"].as_array().unwrap().iter().map(|worker| worker["declared"].clone()).collect()
}
