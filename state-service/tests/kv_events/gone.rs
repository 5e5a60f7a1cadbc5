//! Sources that end for good: what they said is forgotten at once, whoever ends them.

use crate::publisher::{Framing, Publisher};
use crate::service::Rig;
use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// An engine that answers the question where it publishes, and nothing else.
struct Engine {
    address: SocketAddr,
    told: Arc<Mutex<String>>,
    task: JoinHandle<()>,
}

impl Engine {
    async fn start(told: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = Arc::new(Mutex::new(told.to_string()));
        let telling = Arc::clone(&told);
        let answer = move || std::future::ready(telling.lock().unwrap().clone());
        let router = Router::new().route("/kv_event_sources", get(answer));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, told, task }
    }

    fn declared(&self, kv_events: &str) -> Value {
        json!({ "endpoints": [{ "address": self.address.to_string() }], "kv_events": kv_events })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn source(publisher: &Publisher) -> Value {
    json!({ "0": {
        "enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@",
        "endpoint": format!("tcp://127.0.0.1:{}", publisher.port),
        "replay_endpoint": format!("tcp://127.0.0.1:{}", publisher.replay_port),
    }})
}

/// A worker that is listened to and caches two blocks.
async fn heard() -> (Rig, Engine, Publisher) {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    publisher.store(1).await;
    publisher.store(2).await;
    let engine = Engine::start(source(&publisher)).await;
    let rig = Rig::start();
    rig.declare(&engine.declared("discover")).await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 2 && shown["link"] == "up").await;
    (rig, engine, publisher)
}

fn is_forgotten(shown: &Value) -> bool {
    shown["blocks"]["gpu"] == 0 && shown["cold"] == true
}

/// As a vLLM that is started again without `--kv-events-config`.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_publishes_no_more_is_believed_no_more() {
    let (rig, engine, publisher) = heard().await;
    *engine.told.lock().unwrap() = "{}".to_owned();
    publisher.die().await;
    let shown = rig.until(0, |shown| shown["link"] == "not_published").await;
    assert!(is_forgotten(&shown), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_moves_to_another_engine_is_believed_anew() {
    let (rig, _engine, _publisher) = heard().await;
    let other = Engine::start(json!({})).await;
    rig.declare(&other.declared("discover")).await;
    let shown = rig.shown(0);
    assert!(is_forgotten(&shown), "at once: {shown}");
    let shown = rig.until(0, |shown| shown["link"] == "not_published").await;
    assert!(is_forgotten(&shown), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_events_are_declared_off_is_believed_no_more_and_heard_again_later() {
    let (rig, engine, _publisher) = heard().await;
    rig.declare(&engine.declared("off")).await;
    let shown = rig.shown(0);
    assert!(is_forgotten(&shown) && shown["link"] == "off", "at once: {shown}");
    // Both changes may be seen at once: then it is declared as before, and must be listened to anew all the same.
    for _ in 0..5 {
        rig.declare(&engine.declared("discover")).await;
        rig.until(0, |shown| shown["blocks"]["gpu"] == 2).await;
        rig.declare(&engine.declared("off")).await;
    }
    rig.declare(&engine.declared("discover")).await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 2).await;
    // Nothing else of a declaration is a reason to forget.
    let mut heavier = engine.declared("discover");
    heavier["weight"] = json!(3);
    rig.declare(&heavier).await;
    assert_eq!(rig.shown(0)["blocks"]["gpu"], 2);
}
