//! Sources that end for good, or for longer than anybody can believe in what they said; replays that cannot be had.

use super::fleet::{Fleet, telling};
use e2e::{EngineSpec, wait_for};
use serde_json::{Value, json};

fn is_forgotten(shown: &Value) -> bool {
    shown["blocks"]["gpu"] == 0 && shown["cold"] == true
}

/// Restarted at its address without `--kv-events-config`: what it had is gone, and it says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_back_without_events_is_believed_no_more() {
    let mut fleet = Fleet::start(vec![telling("w0", 2)]).await;
    for rank in [0, 1] {
        fleet.compute("w0", rank, 1, 5).await;
        fleet.holds("w0", rank, 5).await;
    }
    let address = fleet.engine("w0").address().to_string();
    fleet.replace("w0", EngineSpec::new("w0", 2).with(&["--listen", &address])).await;
    for rank in [0, 1] {
        let shown = fleet.until("w0", rank, "not published", |shown| shown["link"] == "not_published").await;
        assert!(is_forgotten(&shown), "{shown}");
    }
}

/// The same id elsewhere; then declared off.
#[tokio::test(flavor = "multi_thread")]
async fn a_declaration_that_names_another_source_is_believed_anew_at_once() {
    let fleet = Fleet::undeclared(vec![telling("w0", 1), EngineSpec::new("mute", 1)]).await;
    fleet.service.register(fleet.engine("w0")).await.unwrap();
    fleet.compute("w0", 0, 1, 5).await;
    fleet.holds("w0", 0, 5).await;
    let mut elsewhere: Value = serde_json::from_str(&fleet.engine("mute").declaration()).unwrap();
    elsewhere["kv_events"] = json!("discover");
    let said = fleet.service.call("PUT", "/v1/workers/w0", Some(&elsewhere.to_string())).await.unwrap();
    assert!((200..300).contains(&said.status), "{said:?}");
    let shown = fleet.shown("w0", 0).await;
    assert!(is_forgotten(&shown), "{shown}");
    fleet.linked("w0", 0, "not_published").await;

    fleet.service.register(fleet.engine("w0")).await.unwrap();
    fleet.holds("w0", 0, 5).await;
    let said = fleet.service.call("PATCH", "/v1/workers/w0", Some(r#"{"kv_events": "off"}"#)).await.unwrap();
    assert!((200..300).contains(&said.status), "{said:?}");
    let shown = fleet.shown("w0", 0).await;
    assert!(is_forgotten(&shown) && shown["link"] == "off", "{shown}");
}

/// Killed, and nobody comes back: not for ever. A cut that is short costs nothing (see `lifes`).
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_is_believed_in_for_ten_seconds() {
    let mut fleet = Fleet::start(vec![telling("w0", 1)]).await;
    fleet.compute("w0", 0, 1, 5).await;
    fleet.holds("w0", 0, 5).await;
    fleet.engine_mut("w0").kill();
    let shown = fleet.until("w0", 0, "forgotten", is_forgotten).await;
    assert_eq!((&shown["link"], &shown["trouble"]), (&json!("connecting"), &json!("link_away")));
}

/// A firewall, a container that publishes one port of two: cold once, then as warm as the live stream makes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_port_that_is_closed_costs_the_past_and_nothing_else() {
    let spec = EngineSpec::new("w0", 1).kv_events().engine("vllm", "0.30.0");
    let fleet = Fleet::undeclared(vec![spec]).await;
    let mut at = fleet.engine("w0").kv_declared().await.unwrap();
    at["replay_endpoint"] = json!("tcp://127.0.0.1:1");
    fleet.compute("w0", 0, 1, 3).await;
    fleet.declare("w0", at).await;
    let shown = fleet.until("w0", 0, "cold", |shown| shown["cold"] == true && shown["link"] == "up").await;
    assert_eq!(shown["trouble"], "replay_unreachable");
    // Past the comparison one second after the connection, and the first attempt to repair.
    let mut prompts = 0;
    let failed = wait_for("replays that failed", async || {
        prompts += 1;
        fleet.compute("w0", 0, 10 + prompts, 2).await;
        fleet.holds("w0", 0, 2 * prompts as usize).await;
        (fleet.stream("replay_failed").await >= 3).then_some(())
    });
    failed.await.unwrap();
    let connections = fleet.service.metric("rankpin_kv_connections_total", &[]).await.unwrap();
    assert_eq!((connections, fleet.stream("cold").await), (1.0, 1));
}

/// `--block-size 16` after 64, at the same address.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_back_with_smaller_blocks_is_read_by_them() {
    let mut fleet = Fleet::start(vec![telling("w0", 1).with(&["--block-size", "64"])]).await;
    // Of so many of its own blocks.
    fleet.compute("w0", 0, 1, 80).await;
    fleet.holds("w0", 0, 20).await;
    let address = fleet.engine("w0").address().to_string();
    fleet.replace("w0", telling("w0", 1).with(&["--listen", &address])).await;
    fleet.compute("w0", 0, 1, 8).await;
    let shown = fleet.until("w0", 0, "eight blocks", |shown| shown["blocks"]["gpu"] == 8).await;
    assert_eq!((&shown["cold"], &shown["trouble"]), (&json!(false), &Value::Null));
}

/// Of three, two have blocks of 16; the third is shown for what it is and costs the others nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_odd_worker_with_larger_blocks_empties_nobody() {
    let odd = telling("odd", 1).with(&["--block-size", "64"]);
    let fleet = Fleet::start(vec![telling("w0", 1), telling("w1", 1), odd]).await;
    for worker in ["w0", "w1"] {
        fleet.compute(worker, 0, 1, 4).await;
        fleet.holds(worker, 0, 4).await;
    }
    for prompt in 0..4 {
        fleet.compute("odd", 0, prompt, 80).await;
    }
    let shown = fleet.holds("odd", 0, 0).await;
    assert_eq!((&shown["cold"], &shown["trouble"]), (&json!(true), &json!("other_block_size")));
    for worker in ["w0", "w1"] {
        let shown = fleet.holds(worker, 0, 4).await;
        assert_eq!(shown["cold"], false);
    }
    assert!(fleet.counted("rankpin_kv_blocks_ignored_total", "other_block_size").await >= 80);
}
