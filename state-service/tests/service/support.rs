//! What the tests share: a service in this process, the real binary as a child, and waiting for conditions.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};
use state_service::auth::Token;
use state_service::config::{self, ServiceConfig};
use state_service::http;
use state_service::persist::Store;
use state_service::service::{Followers, Service, Setup};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// Longest a condition may take to come true; far above what it takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A service and its two routers, without sockets.
pub(crate) struct Api {
    pub(crate) service: Arc<Service>,
    data: Router,
    control: Router,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self::with(ServiceConfig::without_file(), None)
    }

    pub(crate) fn configured(config: &Value) -> Self {
        Self::with(config::parse(config.to_string().as_bytes()).unwrap(), None)
    }

    pub(crate) fn guarded(token: Token) -> Self {
        Self::with(ServiceConfig::without_file(), Some(token))
    }

    /// One that hosts cannot join.
    pub(crate) fn followed_by(followers: Followers) -> Self {
        Self::of(ServiceConfig::without_file(), None, followers)
    }

    fn with(config: ServiceConfig, token: Option<Token>) -> Self {
        Self::of(config, token, Followers::Hosts)
    }

    fn of(config: ServiceConfig, token: Option<Token>, followers: Followers) -> Self {
        let store = Store::open(None).unwrap();
        let service = Arc::new(Service::new(Setup { config, store, token, followers }));
        let (data, control) = (http::data_router(&service), http::control_router(&service));
        Self { service, data, control }
    }

    pub(crate) async fn control(&self, method: Method, path: &str, body: impl Into<Body>) -> Answer {
        self.send(&self.control, Request::builder().method(method).uri(path).body(body.into()).unwrap()).await
    }

    pub(crate) async fn data(&self, method: Method, path: &str, body: impl Into<Body>) -> Answer {
        self.send(&self.data, Request::builder().method(method).uri(path).body(body.into()).unwrap()).await
    }

    pub(crate) async fn control_request(&self, request: Request<Body>) -> Answer {
        self.send(&self.control, request).await
    }

    pub(crate) async fn data_request(&self, request: Request<Body>) -> Answer {
        self.send(&self.data, request).await
    }

    /// An answer whose body is read line by line.
    pub(crate) async fn open(&self, path: &str) -> axum::response::Response {
        self.open_request(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn open_request(&self, request: Request<Body>) -> axum::response::Response {
        self.data.clone().oneshot(request).await.unwrap()
    }

    async fn send(&self, router: &Router, request: Request<Body>) -> Answer {
        let response = router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec();
        Answer { status, headers, bytes }
    }

    /// Declares a worker that must be taken.
    pub(crate) async fn put(&self, id: &str, body: &Value) {
        let answer = self.control(Method::PUT, &format!("/v1/workers/{id}"), body.to_string()).await;
        assert!(answer.status.is_success(), "{}", answer.text());
    }
}

/// A worker with ranks 4..=7 at a local address.
pub(crate) fn ranked(port: u16) -> Value {
    json!({"endpoints": [{"address": format!("127.0.0.1:{port}"), "dp_start": 4, "dp_size": 4}]})
}

/// A route of session `key`, asked by VM `vm` of node `n1`.
pub(crate) fn route_body(key: &str, request: u64) -> Value {
    let id = routing::hash::session_id(b"", b"", "default", routing::hash::Phase::Aggregated, key.as_bytes());
    let session = json!({"id": id, "rank_hash": routing::hash::rank_hash(key.as_bytes())});
    json!({
        "caller": {"node": "n1", "vm": 11}, "request": request, "pool": "default", "session": session, "deadline_ms": 30,
    })
}

/// Waits until `check` gives something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut check: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A secret in a file of its own.
pub(crate) fn token_file(dir: &Path, text: &str) -> std::path::PathBuf {
    let path = dir.join("token");
    std::fs::write(&path, text).unwrap();
    path
}
