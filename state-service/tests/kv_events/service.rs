//! The service listening by itself: event sockets declared by hand, or told by the engine.

use crate::publisher::{Framing, Publisher};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use routing::id::WorkerId;
use serde_json::{Value, json};
use state_service::config::ServiceConfig;
use state_service::declare;
use state_service::kv_events::{push, run};
use state_service::persist::Store;
use state_service::service::{Followers, Service, Setup};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);

/// The service, listening and ticking.
pub(crate) struct Rig {
    pub(crate) service: Arc<Service>,
    _tasks: JoinSet<()>,
}

impl Rig {
    pub(crate) fn start() -> Self {
        let store = Store::open(None).unwrap();
        let setup =
            Setup { config: ServiceConfig::without_file(), store, token: None, followers: Followers::Nobody };
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

    pub(crate) async fn declare(&self, worker: &Value) {
        let spec = declare::parse(worker.to_string().as_bytes(), Some("w0")).unwrap();
        self.service.declare(spec).await.unwrap();
    }

    /// What `GET /v1/workers/w0` says of the events of its `nth` slot.
    pub(crate) fn shown(&self, nth: usize) -> Value {
        let worker = self.service.show_worker(&WorkerId::parse("w0").unwrap()).unwrap();
        worker["slots"][nth]["kv_events"].clone()
    }

    pub(crate) async fn until(&self, nth: usize, met: impl Fn(&Value) -> bool) -> Value {
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
    assert_eq!(shown["endpoint"], format!("tcp://127.0.0.1:{}", publisher.port));
    assert_eq!(shown["replay_endpoint"], format!("tcp://127.0.0.1:{}", publisher.replay_port));
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

/// The index of the pool it comes to knows nothing of it, and the publisher has no reason to say it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_changes_its_pool_or_comes_back_is_read_from_the_start() {
    let mut publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    for block in 0..3 {
        publisher.store(block).await;
    }
    let rig = Rig::start();
    let worker = |pool: &str| {
        json!({
            "pool": pool,
            "endpoints": [{ "address": "127.0.0.1:1" }],
            "kv_events": {
                "endpoint": format!("tcp://*:{}", publisher.port),
                "replay_endpoint": format!("tcp://*:{}", publisher.replay_port),
            },
        })
    };
    rig.declare(&worker("a")).await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 3).await;
    rig.declare(&worker("b")).await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 3).await;
    // Both changes may be seen at once: then the worker is where it was, and yet another.
    rig.service.remove(WorkerId::parse("w0").unwrap()).await.unwrap();
    rig.declare(&worker("b")).await;
    let shown = rig.until(0, |shown| shown["blocks"]["gpu"] == 3).await;
    assert_eq!((&shown["cold"], &shown["last_seq"]), (&json!(false), &json!(2)));
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

/// As a vLLM does whose endpoint is `tcp://*:0`: the system gives it other ports.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_at_other_ports_is_found_there_at_once() {
    let source = |publisher: &Publisher| {
        let (port, replay) = (publisher.port, publisher.replay_port);
        json!({ "0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@",
            "endpoint": format!("tcp://127.0.0.1:{port}"), "replay_endpoint": format!("tcp://127.0.0.1:{replay}"),
        }})
        .to_string()
    };
    let mut before = Publisher::start(1, (0, 0), Framing::Topic).await;
    before.store(1).await;
    let told = Arc::new(std::sync::Mutex::new(source(&before)));
    let telling = Arc::clone(&told);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move || std::future::ready(telling.lock().unwrap().clone());
    let engine = tokio::spawn(async move {
        axum::serve(listener, Router::new().route("/kv_event_sources", get(answer))).await.unwrap();
    });
    let rig = Rig::start();
    rig.declare(&json!({ "endpoints": [{ "address": address.to_string() }], "kv_events": "discover" })).await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 1).await;
    let mut after = Publisher::start(2, (0, 0), Framing::Topic).await;
    after.store(1).await;
    after.store(2).await;
    *told.lock().unwrap() = source(&after);
    drop(before);
    // Sooner than it would be asked anyway.
    let shown = rig.until(0, |shown| shown["blocks"]["gpu"] == 2).await;
    assert_eq!(shown["endpoint"], format!("tcp://127.0.0.1:{}", after.port));
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

#[tokio::test(flavor = "multi_thread")]
async fn batches_can_be_pushed() {
    let rig = Rig::start();
    rig.declare(&json!({ "endpoints": [{ "address": "127.0.0.1:1", "dp_size": 2 }] })).await;
    let push = |rank: u32, seq: u64, events: Value| {
        let body = json!({ "worker": "w0", "rank": rank, "seq": seq, "events": events }).to_string();
        rig.service.push_kv(push::parse(body.as_bytes()).unwrap())
    };
    let stored =
        |block: u64| json!({ "type": "stored", "hashes": [block], "tokens": [block, 2], "block_size": 2 });
    let first = push(1, 0, json!([stored(1), stored(2)])).unwrap();
    assert_eq!((first.blocks, first.cold, first.last_seq), ([2, 0, 0], false, Some(0)));
    assert_eq!(
        push(1, 0, json!([stored(1), stored(2)])).unwrap().blocks,
        [2, 0, 0],
        "the same again is known"
    );
    // A number is left out, and nobody can replay it.
    let gap = push(1, 2, json!([stored(3)])).unwrap();
    assert_eq!((gap.blocks, gap.cold), ([1, 0, 0], true));
    let whole = push(1, 3, json!([{ "type": "cleared" }, stored(4), stored(5)])).unwrap();
    assert_eq!((whole.blocks, whole.cold), ([2, 0, 0], false));
    let restarted = push(1, 0, json!([stored(6)])).unwrap();
    assert_eq!((restarted.blocks, restarted.cold), ([1, 0, 0], false));
    assert_eq!(rig.shown(1)["link"], "pushed");
    assert!(push(2, 0, json!([])).is_err(), "there is no rank 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_is_listened_to_takes_no_pushes() {
    let publisher = Publisher::start(1, (0, 0), Framing::Topic).await;
    let rig = Rig::start();
    let endpoint = format!("tcp://*:{}", publisher.port);
    rig.declare(
        &json!({ "endpoints": [{ "address": "127.0.0.1:1" }], "kv_events": { "endpoint": endpoint } }),
    )
    .await;
    rig.until(0, |shown| shown["link"] == "up").await;
    let body = br#"{"worker": "w0", "seq": 0, "events": []}"#;
    let refused = rig.service.push_kv(push::parse(body).unwrap()).unwrap_err();
    assert!(format!("{refused:?}").contains("kv_events_subscribed"), "{refused:?}");
}

/// Each question takes away what it is answered, so two must not ask; and one that fails has lost what it would have been told.
#[tokio::test(flavor = "multi_thread")]
async fn a_tensorrt_llm_is_polled_and_cold_after_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = Arc::new(std::sync::Mutex::new(VecDeque::from([
        Some(stored_by_trtllm(0, 1)),
        Some(stored_by_trtllm(1, 2)),
    ])));
    let given = Arc::clone(&answers);
    let answer = move || {
        let next = given.lock().unwrap().pop_front();
        std::future::ready(
            next.unwrap_or(Some(json!([]))).map(|list| list.to_string()).ok_or(StatusCode::BAD_GATEWAY),
        )
    };
    let router = Router::new().route("/kv_cache_events", post(answer));
    let engine = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let rig = Rig::start();
    rig.declare(&json!({
        "engine": "trtllm", "kv_events": "discover", "endpoints": [{ "address": address.to_string() }],
    }))
    .await;
    rig.until(0, |shown| shown["blocks"]["gpu"] == 2 && shown["link"] == "up").await;
    answers.lock().unwrap().extend([None, Some(stored_by_trtllm(9, 3))]);
    let shown = rig.until(0, |shown| shown["blocks"]["gpu"] == 1).await;
    assert_eq!((&shown["cold"], &shown["last_seq"]), (&json!(true), &json!(9)));
    engine.abort();
}

fn stored_by_trtllm(event_id: u64, block: u32) -> Value {
    let token = |id: u32| json!({ "type": "unique_token", "token_id": id, "token_extra_id": 0 });
    let block = json!({ "type": "stored_block", "block_hash": block, "tokens": [token(block), token(2)], "cache_level": 0 });
    json!([{ "event_id": event_id, "window_size": 64, "data": { "type": "stored", "parent_hash": null, "blocks": [block] } }])
}
