//! Case A12: conversations that clients of `/v1/responses` continue by the id of an answer alone (`rankpin-full.wasm`).

use e2e::client::{RESPONSES, Slot, Turn, send};
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, artifacts, wait_for};
use reqwest::Method;
use serde_json::json;

use crate::support::{nothing_in_flight, served, until_all_served};

/// Two workers of four ranks behind so many Envoys whose filter sees answers, too.
async fn world(envoys: usize) -> World {
    let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4)];
    let plan = WorldPlan::new(Steering::Agents, &engines).probes_every_ms(0).envoys(envoys);
    let full = plan.edit(|config| {
        config.wasm(&artifacts::module(artifacts::FULL_MODULE)?)?;
        config.plugin(|own| own["response_ids"] = json!(true))
    });
    full.start().await.unwrap()
}

/// One answer of a conversation, streamed or not.
async fn respond(client: &Client, previous: Option<&str>, stream: bool) -> Turn {
    let mut body = json!({"model": "tiny", "input": "go on", "max_output_tokens": 4, "stream": stream});
    if let Some(id) = previous {
        body["previous_response_id"] = json!(id);
    }
    send(client.post(RESPONSES, None, &body)).await.unwrap()
}

/// Each turn names the answer before it, and is where that was, rank and all. An engine that did not give the answer would say 404.
#[tokio::test]
async fn a12_a_chain_of_responses_stays_on_its_slot() {
    let world = world(1).await;
    let client = Client::fresh_connections(world.envoy().address()).unwrap();
    let mut homes = Vec::new();
    // Of eight slots; that two have all of so many is no chance.
    for n in 0..24 {
        let stream = n % 2 == 1;
        let first = respond(&client, None, stream).await;
        let (home, mut id) = (served(&first), first.response_id().unwrap());
        assert!(home.rank.is_some());
        for k in 0..3 {
            // Streamed answers and whole ones of one chain.
            let next = respond(&client, Some(&id), (n + k) % 3 == 0).await;
            assert_eq!(served(&next), home, "chain {n}, turn {k}");
            id = next.response_id().unwrap();
        }
        homes.push(home);
    }
    homes.sort();
    homes.dedup();
    assert!(homes.len() > 2, "new conversations are not spread: {homes:?}");
    nothing_in_flight(&world).await;
}

/// Another Envoy has not seen the answer: the service tells it whose it is.
#[tokio::test]
async fn a12_another_envoy_knows_the_id_too() {
    let world = world(2).await;
    let clients = [0, 1].map(|n| Client::new(world.envoys[n].address()).unwrap());
    for n in 0..8 {
        let first = respond(&clients[n % 2], None, false).await;
        let (home, id) = (served(&first), first.response_id().unwrap());
        // Two answers a conversation: the second of the one before may be told later than the first of this.
        told(&world, 2 * n + 1).await;
        let next = respond(&clients[(n + 1) % 2], Some(&id), false).await;
        assert_eq!(served(&next), home, "conversation {n}");
    }
    nothing_in_flight(&world).await;
}

/// Until the service has heard of so many ids: filters report a moment later.
async fn told(world: &World, ids: usize) {
    wait_for("the service to know the id", async || {
        (world.service.metric("rankpin_aliases", &[]).await.ok()? as usize >= ids).then_some(())
    })
    .await
    .unwrap();
}

/// An id nobody gave is no session: the request is spread like any other, and an engine says what it thinks of it.
#[tokio::test]
async fn a12_an_unknown_id_is_no_session() {
    let world = world(1).await;
    let client = Client::fresh_connections(world.envoy().address()).unwrap();
    let sessions = world.service.metric("rankpin_sessions", &[]).await.unwrap();
    until_all_served(40, 2, async || {
        let turn = respond(&client, Some("resp_nobody_gave_this"), false).await;
        assert_eq!(turn.status, 404, "an engine's own word");
        turn.slot().unwrap().worker
    })
    .await;
    for engine in &world.engines {
        for seen in engine.requests().await.unwrap() {
            assert_eq!(seen.rank_header, None, "a rank without a session");
        }
    }
    assert_eq!(world.service.metric("rankpin_sessions", &[]).await.unwrap(), sessions, "it left a session");
    nothing_in_flight(&world).await;
}

/// `GET /v1/responses/ID` and its `cancel` go to the worker that has the answer, without a body and without a key.
#[tokio::test]
async fn a12_stored_answers_are_asked_for_where_they_are() {
    let world = world(1).await;
    let client = Client::fresh_connections(world.envoy().address()).unwrap();
    for n in 0..6 {
        let body = json!({"model": "tiny", "input": "hi", "max_output_tokens": 4, "background": n % 2 == 1});
        let first = send(client.post(RESPONSES, None, &body)).await.unwrap();
        let (home, id) = (served(&first), first.response_id().unwrap());
        for (method, path) in [
            (Method::GET, format!("/v1/responses/{id}")),
            (Method::POST, format!("/v1/responses/{id}/cancel")),
        ] {
            let turn = send(client.request(method.clone(), &path)).await.unwrap();
            assert_ne!(turn.status, 404, "{method} {path} went to {:?}, not {home}", turn.slot());
            assert_eq!(turn.slot().map(|slot| slot.worker), Some(home.worker.clone()), "{method} {path}");
        }
    }
    nothing_in_flight(&world).await;
}

/// A key in a header is the session, whatever answer is named besides.
#[tokio::test]
async fn a12_a_key_wins_over_an_id() {
    let world = world(1).await;
    let client = world.client();
    let keyed = |key: &'static str, previous: Option<String>| {
        let client = client.clone();
        async move { send(client.respond(Some(key), "hi", previous.as_deref())).await.unwrap() }
    };
    let (first, second) = (keyed("conversation-1", None).await, keyed("conversation-2", None).await);
    let (home, id): (Slot, _) = (served(&second), first.response_id());
    let turn = keyed("conversation-2", id).await;
    assert_eq!(
        turn.slot().map(|slot| slot.worker),
        Some(home.worker),
        "{}",
        String::from_utf8_lossy(&turn.body)
    );
}
