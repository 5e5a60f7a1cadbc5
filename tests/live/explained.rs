//! What is explained is what is done: the answer of `POST /v1/explain` about a request, and then the request itself.

use e2e::client::{CHAT, SESSION, Slot, send};
use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{binding, served};

/// The filter's config as the world's Envoy has it, and two workers.
async fn world(policy: &'static str, config: &Value) -> World {
    let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 1)];
    let plan = WorldPlan::new(Steering::Agents, &engines).probes_every_ms(0).policy(policy);
    let own = config.clone();
    plan.edit(move |bootstrap| {
        bootstrap.plugin(|text| {
            for (name, value) in own.as_object().into_iter().flatten() {
                text[name] = value.clone();
            }
        })
    })
    .start()
    .await
    .unwrap()
}

/// A request in all the ways a key may come.
fn request(n: usize) -> (String, Vec<(&'static str, String)>, Value) {
    let mut body = json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": format!("question {n}")}]});
    let (mut path, mut headers) = (CHAT.to_owned(), vec![("content-type", "application/json".to_owned())]);
    match n % 6 {
        0 => headers.push((SESSION, format!("header-{n}"))),
        1 => body["prompt_cache_key"] = json!(format!("cache-{n}")),
        2 => path = format!("{CHAT}?sid=query-{n}"),
        3 => headers.push(("cookie", format!("a=b; sid=cookie-{n}"))),
        4 => {
            headers.push(("x-claude-code-session-id", format!("claude-{}", n / 12)));
            headers.push(("x-claude-code-agent-id", format!("agent-{n}")));
        }
        _ => {
            headers.push((SESSION, format!("both-{n}")));
            body["session_id"] = json!(format!("other-{n}"));
        }
    }
    (path, headers, body)
}

async fn explain(
    world: &World,
    config: &Value,
    (path, headers, body): &(String, Vec<(&'static str, String)>, Value),
) -> Value {
    let question = json!({"config": config, "method": "POST", "path": path, "headers": headers, "body": body.to_string()});
    let said = world.service.call("POST", "/v1/explain", Some(&question.to_string())).await.unwrap();
    assert_eq!(said.status, 200, "{said:?}");
    said.body
}

async fn ask(world: &World, (path, headers, body): &(String, Vec<(&'static str, String)>, Value)) -> Slot {
    let mut request = world.client().request(Method::POST, path).body(body.to_string());
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    served(&send(request).await.unwrap())
}

/// By hash, where nothing is kept: every first turn is where it was said to go. With bindings: every bound one is.
#[tokio::test]
async fn a_decision_is_what_was_explained() {
    let config = json!({"session": {"body": true, "sources": [format!("header:{SESSION}"), "header:x-claude-code-session-id",
        "cookie:sid", "query:sid", "body:/prompt_cache_key"]}, "hash_secret": "a secret"});
    for policy in ["session_hash", "least_loaded"] {
        let world = world(policy, &config).await;
        for n in 0..48 {
            let request = request(n);
            if policy == "least_loaded" {
                // Explained before, it leaves nothing; explained after, it is what is bound.
                explain(&world, &config, &request).await;
                let first = ask(&world, &request).await;
                bound(&world, &config, &request, &first).await;
            }
            let told = explain(&world, &config, &request).await;
            let slot = ask(&world, &request).await;
            assert_eq!(told["choice"]["worker"], slot.worker.as_str(), "{policy}: {n}: {told}");
            let rank = told["choice"]["rank"].as_u64();
            assert!(
                rank == slot.rank.map(u64::from) || slot.worker == "w2",
                "{policy}: {n}: {told} but {slot}"
            );
            assert!(told["key"]["source"].is_string(), "{told}");
            for key in ["header-", "cache-", "query-", "cookie-", "claude-", "agent-", "both-"] {
                assert!(!told.to_string().contains(&format!("{key}{n}")), "the key is shown: {told}");
            }
        }
    }
}

/// Until the service has heard that the first turn's answer came.
async fn bound(
    world: &World,
    config: &Value,
    request: &(String, Vec<(&'static str, String)>, Value),
    slot: &Slot,
) {
    e2e::wait_for("the explanation to be the binding", async || {
        let told = explain(world, config, request).await;
        (told["outcome"] == "bound" && told["choice"]["worker"] == slot.worker.as_str()).then_some(())
    })
    .await
    .unwrap();
}

/// Asking leaves nothing behind.
#[tokio::test]
async fn an_explanation_changes_nothing() {
    let world = world("least_loaded", &json!({})).await;
    // What came before is reported within a tick.
    wait_for("every hold to be committed", async || {
        (world.service.metric("rankpin_holds", &[]).await.ok()? == 0.0).then_some(())
    })
    .await
    .unwrap();
    let sessions = world.service.metric("rankpin_sessions", &[]).await.unwrap();
    for n in 0..20 {
        explain(&world, &Value::Null, &request(n)).await;
    }
    assert_eq!(world.service.metric("rankpin_sessions", &[]).await.unwrap(), sessions);
    assert_eq!(world.service.metric("rankpin_holds", &[]).await.unwrap(), 0.0);
    for engine in &world.engines {
        assert!(engine.requests().await.unwrap().is_empty(), "{} was asked", engine.name());
    }
    let client = world.client();
    served(&client.chat(Some("after"), "x").await.unwrap());
    binding(&world, "after").await;
}
