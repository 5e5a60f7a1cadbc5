//! Workers declared by their URL alone, against engines that tell what they are.

use crate::support::{Api, until};
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use serde_json::{Value, json};
use state_service::told;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

type Answers = Arc<Mutex<BTreeMap<&'static str, String>>>;

/// An engine with answers by path; other paths are not found.
struct Engine {
    url: String,
    answers: Answers,
    _server: JoinSet<()>,
}

async fn answer(State(answers): State<Answers>, uri: Uri) -> Result<String, StatusCode> {
    answers.lock().unwrap().get(uri.path()).cloned().ok_or(StatusCode::NOT_FOUND)
}

impl Engine {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = Answers::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&answers));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, answers, _server: server }
    }

    fn says(&self, path: &'static str, text: &str) {
        self.answers.lock().unwrap().insert(path, text.to_owned());
    }

    /// As a vLLM 0.32.0 with ranks 4 and 5 says it.
    fn is_vllm(&self) {
        self.says("/metrics", "vllm:cache_config_info{block_size=\"32\",engine=\"4\"} 1.0\n");
        self.says("/version", r#"{"version":"0.32.0"}"#);
        self.says("/kv_event_sources", r#"{"5":{"publisher":"zmq"},"4":{"publisher":"zmq"}}"#);
    }
}

fn asking(api: &Api) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let service = Arc::clone(&api.service);
    tasks.spawn(async move { told::run(service).await.unwrap() });
    tasks
}

async fn declared(api: &Api) -> Value {
    api.control(Method::GET, "/v1/workers/w0", "").await.json()["declared"].clone()
}

async fn told(api: &Api, ranks: u32) -> Value {
    until("what the engine tells", async || {
        Some(declared(api).await).filter(|declared| declared["endpoints"][0]["dp_size"] == ranks)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vllm_is_declared_by_its_url_before_it_serves_and_again() {
    let engine = Engine::start().await;
    let (api, by_url) = (Api::new(), json!({ "url": engine.url }));
    let _asking = asking(&api);
    api.put("w0", &by_url).await;
    assert_eq!(declared(&api).await["endpoints"][0]["dp_size"], 1);
    engine.is_vllm();
    let first = told(&api, 2).await;
    let endpoint = &first["endpoints"][0];
    assert_eq!((&endpoint["dp_start"], &endpoint["rank_numbering"]), (&json!(4), &json!("local")));
    assert_eq!((&first["block_size"], &first["engine_version"]), (&json!(32), &json!("0.32.0")));
    assert_eq!((&first["url"], &first["engine"]), (&json!(engine.url), &json!("vllm")));
    let topology = api.control(Method::GET, "/v1/topology?node=n1", "").await.json();
    assert_eq!(topology["topology"]["workers"][0]["endpoints"][0]["dp_size"], 2);

    // Neither the same again nor what was written out forgets it; something else of it changes beside it.
    api.put("w0", &by_url).await;
    assert_eq!(declared(&api).await, first);
    api.put("w0", &first).await;
    assert_eq!(declared(&api).await, first);
    api.put("w0", &json!({ "url": engine.url, "weight": 3 })).await;
    let heavier = declared(&api).await;
    assert_eq!((&heavier["weight"], &heavier["endpoints"]), (&json!(3), &first["endpoints"]));
    // Said by hand it is as it is said.
    let address = engine.url.trim_start_matches("http://");
    api.put("w0", &json!({ "endpoints": [{ "address": address }] })).await;
    assert_eq!(declared(&api).await["endpoints"][0]["dp_size"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sglang_is_known_by_what_it_tells() {
    let engine = Engine::start().await;
    engine.says("/server_info", r#"{"dp_size":4,"page_size":64,"version":"0.5.23","internal_states":[]}"#);
    let api = Api::new();
    let _asking = asking(&api);
    api.put("w0", &json!({ "url": engine.url })).await;
    let declared = told(&api, 4).await;
    assert_eq!((&declared["engine"], &declared["block_size"]), (&json!("sglang"), &json!(64)));
}
