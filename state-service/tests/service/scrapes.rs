//! Scrapes and waits against real sockets: what is read, what is asked less often, and a held answer over HTTP.

use crate::support::{Api, route_body, until};
use axum::Router;
use axum::http::{Method, StatusCode};
use axum::routing::get;
use serde_json::{Value, json};
use state_service::scrape;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// An engine whose metrics are what the test says.
struct Engine {
    address: String,
    shown: Arc<Mutex<(StatusCode, String)>>,
    asked: Arc<AtomicUsize>,
    _server: JoinSet<()>,
}

impl Engine {
    async fn start(path: &'static str, text: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shown = Arc::new(Mutex::new((StatusCode::OK, text.to_owned())));
        let asked = Arc::new(AtomicUsize::new(0));
        let (said, counted) = (Arc::clone(&shown), Arc::clone(&asked));
        let answer = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let said = said.lock().unwrap().clone();
            async move { said }
        };
        let mut server = JoinSet::new();
        server.spawn(
            async move { axum::serve(listener, Router::new().route(path, get(answer))).await.unwrap() },
        );
        Self { address, shown, asked, _server: server }
    }

    fn shows(&self, status: StatusCode, text: &str) {
        *self.shown.lock().unwrap() = (status, text.to_owned());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn scraping(api: &Api) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let service = Arc::clone(&api.service);
    tasks.spawn(async move { scrape::run(service, 5).await.unwrap() });
    tasks
}

async fn shown(api: &Api, id: &str) -> Value {
    api.control(Method::GET, &format!("/v1/workers/{id}"), "").await.json()
}

async fn metric(api: &Api, line: &str) -> Option<u64> {
    let text = api.control(Method::GET, "/metrics", "").await.text();
    text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' ')?.parse().ok())
}

const BUSY: &str = include_str!("../golden/vllm_busy_dp2_metrics.txt");

#[tokio::test]
async fn each_rank_of_an_engine_is_shown() {
    let (api, engine) = (Api::new(), Engine::start("/metrics", BUSY).await);
    let _tasks = scraping(&api);
    api.put("w", &json!({"endpoints": [{"address": engine.address, "dp_size": 2}]})).await;
    let slots = until("both ranks are read", || async {
        let slots = shown(&api, "w").await["slots"].clone();
        (slots[0]["waiting"] == 3 && slots[1]["waiting"] == 0).then_some(slots)
    })
    .await;
    let gauges = |slot: &Value| ["running", "kv_usage", "overloaded", "load"].map(|name| slot[name].clone());
    assert_eq!(gauges(&slots[0]), [json!(7), json!(0.961), json!(true), json!(3)]);
    assert_eq!(gauges(&slots[1]), [json!(2), json!(0.25), json!(false), json!(0)]);
    assert_eq!(
        gauges(&slots[2]),
        [Value::Null, Value::Null, json!(false), json!(0)],
        "requests without a rank"
    );
    let (_, fleet) = api.service.topology("");
    assert_eq!((fleet.workers[0].waiting, fleet.workers[0].overloaded.len()), (3, 1));
    assert_eq!(metric(&api, "rankpin_worker_waiting{worker=\"w\"}").await, Some(3));
    assert_eq!(metric(&api, "rankpin_worker_overloaded_slots{worker=\"w\"}").await, Some(1));

    engine.shows(StatusCode::OK, &BUSY.replace("0.9612345", "0.5"));
    until("the slot clears", || async {
        (shown(&api, "w").await["slots"][0]["overloaded"] == false).then_some(())
    })
    .await;
}

#[tokio::test]
async fn tensorrt_shows_its_gauges_elsewhere() {
    let text = include_str!("../golden/trtllm_metrics.txt");
    let (api, engine) = (Api::new(), Engine::start("/prometheus/metrics", text).await);
    let _tasks = scraping(&api);
    api.put("w", &json!({"engine": "trtllm", "endpoints": [{"address": engine.address}]})).await;
    until("it is read", || async { (shown(&api, "w").await["waiting"] == 2).then_some(()) }).await;
}

#[tokio::test]
async fn an_endpoint_without_gauges_is_asked_less_often() {
    let (api, has) = (Api::new(), Engine::start("/metrics", BUSY).await);
    let lacking = [
        Engine::start("/health", "").await,
        Engine::start("/metrics", "process_open_fds 46.0\n").await,
        Engine::start("/metrics", "").await,
    ];
    lacking[2].shows(StatusCode::UNAUTHORIZED, BUSY);
    let begun = Instant::now();
    let _tasks = scraping(&api);
    for (i, engine) in lacking.iter().enumerate() {
        api.put(&format!("w{i}"), &json!({"endpoints": [{"address": engine.address}]})).await;
    }
    let absent = || metric(&api, "rankpin_scrapes_total{finding=\"absent\"}");
    until("all three are found lacking", || async { (absent().await >= Some(3)).then_some(()) }).await;
    api.put("has", &json!({"endpoints": [{"address": has.address}]})).await;
    until("another is asked often", || async { (has.asked() > 20).then_some(()) }).await;
    // Ten seconds, give or take a tenth.
    let most = 1 + begun.elapsed().as_secs() / 9;
    assert!(absent().await.unwrap() <= 3 * most, "{:?} within {:?}", absent().await, begun.elapsed());
    assert!(lacking.iter().all(|engine| engine.asked() as u64 <= most));
}

#[tokio::test]
async fn a_tls_endpoint_is_not_scraped() {
    let api = Api::new();
    api.put("w", &json!({"endpoints": [{"address": "127.0.0.1:9", "tls": {"sni": "w.test"}}]})).await;
    assert!(api.service.scrape_targets().is_empty() && api.service.probe_targets().len() == 1);
}

/// A pool whose sessions wait, with session `a` bound to a worker that is overloaded.
async fn waiting_api() -> Api {
    let api = Api::configured(&json!({
        "pools": [{"name": "default", "on_overload": "wait", "in_flight_limit": 1}],
        "workers": [{"id": "w", "endpoints": [{"address": "127.0.0.1:9"}]}],
    }));
    let reply = api.data(Method::POST, "/v1/route", route_body("a", 1).to_string()).await.json();
    let committed = json!({"kind": "committed", "session": route_body("a", 1)["session"], "pool": "default", "request": 1,
        "hold": reply["hold"], "target": reply["target"], "version": reply["version"]});
    report(&api, 1, 1, json!([committed])).await;
    api
}

async fn report(api: &Api, seq: u64, in_flight: u32, entries: Value) {
    let report = json!({"caller": {"node": "n1", "vm": 11}, "seq": seq, "entries": entries,
        "in_flight": [{"target": {"worker": "w"}, "count": in_flight}]});
    let answer = api.data(Method::POST, "/v1/report", report.to_string()).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text());
}

fn waits(request: u64, wait_ms: u64) -> String {
    let mut body = route_body("a", request);
    body["wait_ms"] = json!(wait_ms);
    body.to_string()
}

async fn until_waiting(api: &Api, count: u64) {
    until("it waits", || async { (metric(api, "rankpin_waiting").await == Some(count)).then_some(()) }).await;
}

#[tokio::test(start_paused = true)]
async fn a_held_answer_comes_when_the_slot_clears() {
    let api = waiting_api().await;
    let (held, ()) = tokio::join!(api.data(Method::POST, "/v1/route", waits(2, 2000)), async {
        until_waiting(&api, 1).await;
        report(&api, 2, 0, json!([])).await;
    });
    assert_eq!((held.status, held.json()["outcome"].clone()), (StatusCode::OK, json!("bound")));
    assert_eq!(metric(&api, "rankpin_wait_cleared_total").await, Some(1));
}

#[tokio::test]
async fn a_held_answer_comes_when_its_time_is_up() {
    let api = waiting_api().await;
    // Nobody ticks here: the wait ends by itself.
    let held = api.data(Method::POST, "/v1/route", waits(2, 50)).await;
    assert_eq!(
        (held.status, held.json()["target"]["worker"].clone()),
        (StatusCode::OK, json!("w")),
        "nobody else"
    );
    assert_eq!(metric(&api, "rankpin_wait_over_total").await, Some(1));
}

#[tokio::test]
async fn a_client_that_goes_takes_its_wait_along() {
    let api = waiting_api().await;
    tokio::select! {
        held = api.data(Method::POST, "/v1/route", waits(2, 2000)) => panic!("{}", held.text()),
        () = until_waiting(&api, 1) => {}
    }
    assert_eq!(metric(&api, "rankpin_waiting").await, Some(0), "its request was dropped");
    assert_eq!(metric(&api, "rankpin_wait_left_total").await, Some(1));
    tokio::time::timeout(Duration::from_secs(20), api.data(Method::POST, "/v1/route", waits(3, 20)))
        .await
        .unwrap();
}
