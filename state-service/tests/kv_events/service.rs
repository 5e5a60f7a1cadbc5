//! The service listening by itself: event sockets declared by hand, or told by the engine.

use crate::publisher::{Framing, Publisher};
use axum::Router;
use axum::routing::get;
use routing::id::WorkerId;
use serde_json::{Value, json};
use state_service::config::ServiceConfig;
use state_service::declare;
use state_service::kv_events::run;
use state_service::persist::Store;
use state_service::service::{Service, Setup};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    service: Arc<Service>,
    _tasks: JoinSet<()>,
}

impl Rig {
    fn start() -> Self {
        let store = Store::open(None).unwrap();
        let setup = Setup { config: ServiceConfig::without_file(), store, token: None };
        let service = Arc::new(Service::new(setup));
        let mut tasks = JoinSet::new();
        let (listening, ticking) = (Arc::clone(&service), Arc::clone(&service));
        tasks.spawn(async move { run::run(listening).await.unwrap() });
        tasks.spawn(async move {
            loop {
                sleep(Duration::from_millis(50)).await;
                ticking.expire();
            }
        });
        Self { service, _tasks: tasks }
    }

    async fn declare(&self, worker: &Value) {
        let spec = declare::parse(worker.to_string().as_bytes(), Some("w0")).unwrap();
        self.service.declare(spec).await.unwrap();
    }

    /// What `GET /v1/workers/w0` says of the events of its `nth` slot.
    fn shown(&self, nth: usize) -> Value {
        let worker = self.service.show_worker(&WorkerId::parse("w0").unwrap()).unwrap();
        worker["slots"][nth]["kv_events"].clone()
    }

    async fn until(&self, nth: usize, met: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.shown(nth);
            if met(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "{shown}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn declared_sockets_are_listened_to_and_shown_rank_by_rank() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    for block in 0..3 {
        publisher.store(block).await;
    }
    let rig = Rig::start();
    rig.declare(&json!({
        "endpoints": [{ "address": "127.0.0.1:1" }],
        "kv_events": {
            "endpoint": format!("tcp://*:{}", publisher.port),
            "replay_endpoint": format!("tcp://127.0.0.1:{}", publisher.replay_port),
        },
    }))
    .await;
    let shown = rig.until(0, |shown| shown["blocks"]["gpu"] == 3).await;
    assert_eq!(shown["link"], "up");
    assert_eq!((&shown["events"], &shown["last_seq"], &shown["cold"]), (&json!(3), &json!(2), &json!(false)));
    publisher.store(7).await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 4).await;
    let metrics = rig.service.render_metrics();
    for line in [
        "rankpin_kv_connected 1",
        "rankpin_kv_resident_blocks{pool=\"default\"} 4",
        "rankpin_kv_events_silent 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is missing in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_asked_where_its_ranks_publish() {
    let (mut zero, mut one) =
        (Publisher::start(1, (0, 0), Framing::Topic).await, Publisher::start(2, (0, 0), Framing::Old).await);
    zero.store(1).await;
    one.store(1).await;
    one.store(2).await;
    let source = |publisher: &Publisher| {
        json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@",
            "endpoint": format!("tcp://*:{}", publisher.port),
            "replay_endpoint": format!("tcp://*:{}", publisher.replay_port),
        })
    };
    let told = json!({ "0": source(&zero), "1": source(&one) }).to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/kv_event_sources", get(move || std::future::ready(told.clone())));
    let engine = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let rig = Rig::start();
    rig.declare(&json!({
        "endpoints": [{ "address": address.to_string(), "dp_size": 3 }],
        "kv_events": "discover",
    }))
    .await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 1).await;
    rig.until(1, |shown| shown["blocks"]["gpu"] == 2).await;
    // The engine does not know of a third rank.
    assert_eq!(rig.shown(2)["link"], "undiscovered");
    engine.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_events_is_told_apart_from_one_that_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let off = r#"{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}"#;
    let router = Router::new().route("/kv_event_sources", get(move || std::future::ready(off)));
    let engine = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let rig = Rig::start();
    let worker = |address: &str| json!({ "endpoints": [{ "address": address }], "kv_events": "discover" });
    rig.declare(&worker(&address.to_string())).await;
    rig.until(0, |shown| shown["link"] == "not_published").await;
    rig.declare(&worker("127.0.0.1:1")).await;
    rig.until(0, |shown| shown["link"] == "undiscovered").await;
    engine.abort();
}
