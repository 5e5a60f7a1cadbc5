//! Probes and names against real sockets: what fails, what hangs, what comes back.

use crate::support::{Api, PATIENCE, until};
use axum::Router;
use axum::http::{Method, StatusCode, header};
use axum::routing::get;
use serde_json::{Value, json};
use state_service::{probe, resolve};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A worker whose health answers with `status`, or never when it is 0.
struct Fake {
    address: String,
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
    server: JoinSet<()>,
}

impl Fake {
    async fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (status, asked) = (Arc::new(AtomicU16::new(status)), Arc::new(AtomicUsize::new(0)));
        let (shown, counted) = (Arc::clone(&status), Arc::clone(&asked));
        let answer = move || {
            let (shown, counted) = (Arc::clone(&shown), Arc::clone(&counted));
            async move {
                counted.fetch_add(1, Ordering::SeqCst);
                let status = match shown.load(Ordering::SeqCst) {
                    0 => std::future::pending().await,
                    status => StatusCode::from_u16(status).unwrap(),
                };
                // Each probe dials anew: a connection that is kept would go on answering when the port is closed.
                (status, [(header::CONNECTION, "close")])
            }
        };
        let mut server = JoinSet::new();
        server.spawn(async move {
            axum::serve(listener, Router::new().route("/health", get(answer))).await.unwrap()
        });
        Self { address, status, asked, server }
    }

    /// Closes the port: connections are refused from now on.
    async fn stop(&mut self) {
        self.server.shutdown().await;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}

fn probing(api: &Api, interval_ms: u64) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let service = Arc::clone(&api.service);
    tasks.spawn(async move { probe::run(service, interval_ms).await.unwrap() });
    tasks
}

async fn state(api: &Api, id: &str) -> Value {
    api.control(Method::GET, &format!("/v1/workers/{id}"), "").await.json()["state"].clone()
}

async fn becomes(api: &Api, id: &str, wanted: &str) {
    until(&format!("{id} becomes {wanted}"), || async { (state(api, id).await == wanted).then_some(()) })
        .await;
}

fn at(address: &str) -> Value {
    json!({"endpoints": [{"address": address}]})
}

#[tokio::test]
async fn a_worker_goes_down_and_comes_back() {
    let (api, fake) = (Api::new(), Fake::start(200).await);
    let _tasks = probing(&api, 10);
    api.put("w", &at(&fake.address)).await;
    becomes(&api, "w", "ready").await;
    fake.answer_with(503);
    becomes(&api, "w", "down").await;
    fake.answer_with(200);
    becomes(&api, "w", "ready").await;
}

#[tokio::test]
async fn a_worker_that_accepts_and_says_nothing_is_found() {
    let (api, fake) = (Api::new(), Fake::start(200).await);
    let _tasks = probing(&api, 10);
    api.put("w", &at(&fake.address)).await;
    becomes(&api, "w", "ready").await;
    fake.answer_with(0);
    becomes(&api, "w", "down").await;
    assert_eq!(api.control(Method::GET, "/readyz", "").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

/// So long that no usual probe but the first comes within the test.
const SELDOM_MS: u64 = 3_600_000;

async fn report_refused(api: &Api, seq: usize) {
    let failed =
        json!({"kind": "slot_failed", "target": {"worker": "w"}, "failure": "connection", "count": 1});
    let report =
        json!({"caller": {"node": "n1", "vm": 11}, "seq": seq, "in_flight": [], "entries": [failed]});
    let answer = api.data(Method::POST, "/v1/report", report.to_string()).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text());
}

#[tokio::test]
async fn one_refused_connection_that_is_reported_brings_a_dead_worker_down() {
    let (api, mut fake) = (Api::new(), Fake::start(200).await);
    let _tasks = probing(&api, SELDOM_MS);
    api.put("w", &at(&fake.address)).await;
    becomes(&api, "w", "ready").await;
    fake.stop().await;
    report_refused(&api, 1).await;
    let begun = Instant::now();
    becomes(&api, "w", "down").await;
    println!("down {:?} after the report", begun.elapsed());
}

#[tokio::test]
async fn a_worker_that_answers_is_not_asked_more_often_than_every_tenth_of_a_second() {
    const MORE: usize = 5;
    let (api, fake) = (Api::new(), Fake::start(200).await);
    let _tasks = probing(&api, SELDOM_MS);
    api.put("w", &at(&fake.address)).await;
    becomes(&api, "w", "ready").await;
    let (before, begun) = (fake.asked(), Instant::now());
    let mut seq = 0;
    while fake.asked() < before + MORE {
        seq += 1;
        report_refused(&api, seq).await;
        assert!(begun.elapsed() < PATIENCE, "{} of {MORE} probes", fake.asked() - before);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The first may come at once, the last is counted before its pause.
    let asked = fake.asked() - before;
    let pauses = u32::try_from(asked).unwrap() - 1;
    assert!(begun.elapsed() >= Duration::from_millis(95) * pauses, "{asked} in {:?}", begun.elapsed());
    assert!(seq > asked, "more was reported than asked");
}

#[tokio::test]
async fn a_redirect_is_no_health() {
    let (api, fake) = (Api::new(), Fake::start(302).await);
    let _tasks = probing(&api, 10);
    api.put("w", &at(&fake.address)).await;
    becomes(&api, "w", "down").await;
}

#[tokio::test]
async fn a_removed_worker_is_asked_no_more() {
    let (api, gone, stays) = (Api::new(), Fake::start(200).await, Fake::start(200).await);
    let _tasks = probing(&api, 10);
    api.put("gone", &at(&gone.address)).await;
    api.put("stays", &at(&stays.address)).await;
    becomes(&api, "gone", "ready").await;
    api.control(Method::DELETE, "/v1/workers/gone", "").await;
    // Its last question may be under way; the one after several of its neighbour's would not be.
    let neighbour_asked = |more: usize| {
        let goal = stays.asked.load(Ordering::SeqCst) + more;
        let asked = &stays.asked;
        until("the neighbour is asked", move || async move {
            (asked.load(Ordering::SeqCst) >= goal).then_some(())
        })
    };
    neighbour_asked(5).await;
    let asked = gone.asked.load(Ordering::SeqCst);
    neighbour_asked(20).await;
    assert_eq!(gone.asked.load(Ordering::SeqCst), asked);
}

#[tokio::test]
async fn a_tls_endpoint_is_up_when_it_accepts() {
    let (api, fake) = (Api::new(), Fake::start(503).await);
    let _tasks = probing(&api, 10);
    api.put("w", &json!({"endpoints": [{"address": fake.address, "tls": {"sni": "w.test"}}]})).await;
    becomes(&api, "w", "ready").await;
}

#[tokio::test]
async fn a_host_name_is_resolved_for_endpoints_steering() {
    let api = Api::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(resolve::run(Arc::clone(&api.service)));
    api.put("w", &at("localhost:8000")).await;
    let resolved = until("localhost resolves", || async {
        let shown = api.control(Method::GET, "/v1/workers/w", "").await.json();
        shown["endpoints"][0]["resolved"].as_str().map(str::to_owned)
    });
    let resolved: std::net::SocketAddr = resolved.await.parse().unwrap();
    assert!(resolved.ip().is_loopback() && resolved.port() == 8000, "{resolved}");
    let poll = api.data(Method::POST, "/v3/discovery:clusters", "{}").await.json();
    assert_eq!(poll["resources"][0]["type"], "STRICT_DNS", "cluster steering leaves the name to Envoy");
}
