//! The end of a session by its client's word, or its operator's: at the end of that turn, not before, and for good.

use e2e::client::{CHAT, SESSION, send};
use e2e::raw::{Raw, request};
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use serde_json::json;

use crate::support::{BOTH, binding, bound_to, nothing_in_flight, served, three_engines, turn, unknown};

async fn count(world: &World, word: &str) -> u64 {
    world.envoy().requests(word).await.unwrap()
}

/// Until the session is gone: not known, or remembered as released.
async fn gone(world: &World, key: &str) {
    wait_for("the session to be released", async || {
        let said = world.service.session(key).await.ok()?;
        (said.status == 404 || said.body["state"] == "released").then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_last_turn_releases_the_binding() {
    for steering in BOTH {
        let world = WorldPlan::new(steering, &three_engines()).probes_every_ms(0).start().await.unwrap();
        for (name, value) in
            [("x-session-final", "true"), ("X-Session-Final", "1"), ("x-dynamo-session-final", "true")]
        {
            let (key, home) = bound_to(&world, "w0").await;
            binding(&world, &key).await;
            for no in ["false", "0", ""] {
                let request = world.client().chat_request(Some(&key), "not yet").header(name, no);
                assert_eq!(served(&send(request).await.unwrap()), home, "{name}: {no}");
            }
            assert_eq!(binding(&world, &key).await.worker, "w0", "{steering:?}: {name} with no ended it");
            let (held, released) = (count(&world, "routed_held").await, count(&world, "released").await);
            let request = world.client().chat_request(Some(&key), "bye").header(name, value);
            assert_eq!(served(&send(request).await.unwrap()), home, "the last turn is at home");
            gone(&world, &key).await;
            assert_eq!(count(&world, "released").await, released + 1, "{steering:?}: {name}");
            // The same key again is a new conversation.
            wait_for("a new first turn", async || {
                turn(&world.client(), &key).await;
                (count(&world, "routed_held").await > held).then_some(())
            })
            .await
            .unwrap();
        }
        nothing_in_flight(&world).await;
    }
}

/// While its answer is still on the way, the session is bound.
#[tokio::test]
async fn not_before_the_turn_has_ended() {
    let steering = Steering::Endpoints;
    let engines = [EngineSpec::new("w0", 4).with(&["--decode-us-per-token", "20000"])];
    let world = WorldPlan::new(steering, &engines).probes_every_ms(0).start().await.unwrap();
    let (key, _) = bound_to(&world, "w0").await;
    let body = json!({"model": "tiny", "stream": true, "max_tokens": 4000,
        "messages": [{"role": "user", "content": "tell me everything"}]});
    let head = format!(
        "POST {CHAT} HTTP/1.1\n{SESSION}: {key}\nx-session-final: true\ncontent-type: application/json"
    );
    let mut last = Raw::connect(world.envoy().address()).await.unwrap();
    last.send(request(&head, body.to_string().as_bytes())).await.unwrap();
    last.read_until("data:").await.unwrap();
    for _ in 0..3 {
        turn(&world.client(), &key).await;
        assert_eq!(binding(&world, &key).await.worker, "w0");
    }
    // However it ends.
    drop(last);
    gone(&world, &key).await;
    nothing_in_flight(&world).await;
}

/// A last turn that is also the first: nothing is left of it.
#[tokio::test]
async fn a_first_turn_may_be_the_last() {
    let world = WorldPlan::new(Steering::Cluster, &three_engines()).probes_every_ms(0).start().await.unwrap();
    for n in 0..6 {
        let key = format!("once-{n}");
        let request = world.client().chat_request(Some(&key), "hi and bye").header("x-session-final", "true");
        served(&send(request).await.unwrap());
        gone(&world, &key).await;
    }
    nothing_in_flight(&world).await;
}

/// An operator ends it by hand; unknown ones are told so.
#[tokio::test]
async fn released_by_hand() {
    let world =
        WorldPlan::new(Steering::Endpoints, &three_engines()).probes_every_ms(0).start().await.unwrap();
    let (key, _) = bound_to(&world, "w1").await;
    binding(&world, &key).await;
    let path =
        format!("/v1/sessions/{}", world.service.session(&key).await.unwrap().body["id"].as_str().unwrap());
    let said = world.service.call("DELETE", &path, None).await.unwrap();
    assert!((200..300).contains(&said.status), "{said:?}");
    gone(&world, &key).await;
    unknown(&world, "never-there").await;
    let held = count(&world, "routed_held").await;
    wait_for("a new first turn", async || {
        turn(&world.client(), &key).await;
        (count(&world, "routed_held").await > held).then_some(())
    })
    .await
    .unwrap();
}

/// Released through one Envoy: the other, which has the binding in its cache, does not raise it from the dead.
#[tokio::test]
async fn the_other_envoy_hears_of_it() {
    let world = WorldPlan::new(Steering::Endpoints, &three_engines())
        .probes_every_ms(0)
        .envoys(2)
        .start()
        .await
        .unwrap();
    let clients = [0, 1].map(|n| Client::new(world.envoys[n].address()).unwrap());
    for n in 0..4 {
        let key = format!("shared-{n}");
        let home = turn(&clients[0], &key).await;
        binding(&world, &key).await;
        assert_eq!(turn(&clients[1], &key).await, home);
        let request = clients[0].chat_request(Some(&key), "bye").header("x-session-final", "true");
        assert_eq!(served(&send(request).await.unwrap()), home);
        gone(&world, &key).await;
        let held = async || world.envoys[1].requests("routed_held").await.unwrap();
        let before = held().await;
        wait_for("the other Envoy to ask anew", async || {
            turn(&clients[1], &key).await;
            (held().await > before).then_some(())
        })
        .await
        .unwrap();
    }
    nothing_in_flight(&world).await;
}

/// Where nothing is kept, a last turn ends nothing, and is no fault.
#[tokio::test]
async fn a_last_turn_of_nobody() {
    for (policy, affinity) in [("session_hash", "hard"), ("least_loaded", "off")] {
        let plan = WorldPlan::new(Steering::Endpoints, &three_engines()).probes_every_ms(0).policy(policy);
        let world = plan.pool(json!({"affinity": affinity})).start().await.unwrap();
        for key in [None, Some("kept-nowhere")] {
            let request = world.client().chat_request(key, "bye").header("x-session-final", "1");
            served(&send(request).await.unwrap());
        }
        assert_eq!(count(&world, "released").await, 0, "{policy}, {affinity}");
        nothing_in_flight(&world).await;
    }
}
