//! The two listeners' routers: which paths there are and what surrounds every request. What a request does is in the modules.

pub mod bindings;
pub mod body;
pub mod control;
pub mod data;
pub mod explain;
mod guests;
pub(crate) mod index;
pub mod kv;
mod lines;
pub mod listener;
pub mod openapi;
pub mod problem;
mod refused;
pub mod reservations;
pub mod show;
pub mod sight;
pub mod watch;

#[cfg(test)]
mod tests;

use crate::metrics::Kind;
use crate::service::{SNAPSHOT_PATH, Service};
use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use problem::Problem;
use refused::Refused;
use routing::contract::{BODY_BYTES_MAX, PAGES_PATH, REPORT_PATH, ROUTE_PATH, WATCH_PATH};
use std::sync::Arc;
use std::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;

/// Envoy's polls for clusters.
pub const CLUSTERS_PATH: &str = "/v3/discovery:clusters";
/// Envoy's polls for load assignments.
pub const ENDPOINTS_PATH: &str = "/v3/discovery:endpoints";

/// What changes of the bindings, for hosts.
pub const STREAM_PATH: &str = "/v1/bindings/stream";
/// What hosts bind.
pub const APPLY_PATH: &str = "/v1/bindings/apply";

/// Every route of both listeners; the OpenAPI document is tested against it.
pub const ROUTES: &[(&str, &str, &[&str])] = &[
    ("data", "/healthz", &["get"]),
    ("data", READY_PATH, &["get"]),
    ("data", ROUTE_PATH, &["post"]),
    ("data", REPORT_PATH, &["post"]),
    ("data", PAGES_PATH, &["post"]),
    ("data", WATCH_PATH, &["get"]),
    ("data", "/v1/reservations", &["post"]),
    ("data", "/v1/reservations/{id}", &["delete"]),
    ("data", "/v1/reservations/{id}/prefill-complete", &["post"]),
    ("data", STREAM_PATH, &["get"]),
    ("data", SNAPSHOT_PATH, &["get"]),
    ("data", APPLY_PATH, &["post"]),
    ("data", index::PATH, &["get"]),
    ("data", CLUSTERS_PATH, &["post"]),
    ("data", ENDPOINTS_PATH, &["post"]),
    ("control", "/healthz", &["get"]),
    ("control", "/readyz", &["get"]),
    ("control", "/metrics", &["get"]),
    ("control", "/openapi.json", &["get"]),
    ("control", "/v1/workers", &["get", "post"]),
    ("control", "/v1/workers/{id}", &["get", "put", "patch", "delete"]),
    ("control", "/v1/workers/{id}/drain", &["post"]),
    ("control", "/v1/pools", &["get"]),
    ("control", "/v1/topology", &["get"]),
    ("control", "/v1/sessions/{hash}", &["get", "delete"]),
    ("control", "/v1/explain", &["post"]),
    ("control", "/v1/kv-events", &["post"]),
];

/// Whether a service may be asked, for balancers on the data listener; on the control listener whether requests can be placed.
const READY_PATH: &str = "/readyz";

/// What Envoy and the filter ask.
pub fn data_router(service: &Arc<Service>) -> Router {
    let routes = Router::new()
        .route(ROUTE_PATH, post(data::route))
        .route(REPORT_PATH, post(data::report))
        .route(PAGES_PATH, post(data::pages))
        .route(WATCH_PATH, get(watch::watch))
        .route("/v1/reservations", post(reservations::reserve))
        .route("/v1/reservations/{id}", delete(reservations::release))
        .route("/v1/reservations/{id}/prefill-complete", post(reservations::prefilled))
        .route(STREAM_PATH, get(bindings::stream))
        .route(SNAPSHOT_PATH, get(bindings::snapshot))
        .route(APPLY_PATH, post(bindings::apply))
        .route(index::PATH, get(index::snapshot))
        .route(CLUSTERS_PATH, post(data::clusters))
        .route(ENDPOINTS_PATH, post(data::endpoints))
        .route("/healthz", get(sight::healthz))
        .route(READY_PATH, get(sight::askable));
    surround(routes, service, "data", BODY_BYTES_MAX)
}

/// What operators ask.
pub fn control_router(service: &Arc<Service>) -> Router {
    let worker = get(control::worker).put(control::put).patch(control::patch).delete(control::remove);
    let routes = Router::new()
        .route("/v1/workers", get(control::workers).post(control::create))
        .route("/v1/workers/{id}", worker)
        .route("/v1/workers/{id}/drain", post(control::drain))
        .route("/v1/pools", get(sight::pools))
        .route("/v1/topology", get(sight::topology))
        .route("/v1/sessions/{hash}", get(control::session).delete(control::release))
        .route("/v1/explain", post(explain::explain))
        .route("/v1/kv-events", post(kv::push))
        .route("/healthz", get(sight::healthz))
        .route("/readyz", get(sight::readyz))
        .route("/metrics", get(sight::metrics))
        .route("/openapi.json", get(openapi::document));
    surround(routes, service, "control", body::CONTROL_BYTES_MAX)
}

#[derive(Clone)]
struct Around {
    service: Arc<Service>,
    listener: &'static str,
    refused: Arc<Refused>,
}

/// Counts, catches panics and checks tokens around all routes and fallbacks alike.
fn surround(
    routes: Router<Arc<Service>>,
    service: &Arc<Service>,
    listener: &'static str,
    bytes_max: usize,
) -> Router {
    let around = Around { service: Arc::clone(service), listener, refused: Arc::default() };
    let catch = CatchPanicLayer::custom(|_cause: Box<dyn std::any::Any + Send>| {
        tracing::error!("a handler panicked");
        Problem::internal("an unexpected condition; see the service's log").into_response()
    });
    // One layer of four, the outermost first: each layer of a router by itself costs every request a box and a copy of all below it.
    let layers = (
        from_fn_with_state(around.clone(), count),
        catch,
        from_fn_with_state(around, admit),
        DefaultBodyLimit::max(bytes_max),
    );
    routes
        .fallback(move |request: Request| async move { no_such_path(listener, request.uri().path()) })
        .method_not_allowed_fallback(no_such_method)
        .layer(layers)
        .with_state(Arc::clone(service))
}

fn no_such_path(listener: &str, path: &str) -> Problem {
    let elsewhere = ROUTES.iter().find(|(other, known, _)| *other != listener && is_of(path, known));
    Problem::no_such_path(path, elsewhere.map(|(other, ..)| *other))
}

/// Whether it is a path of a route, with anything for what is in braces.
fn is_of(path: &str, route: &str) -> bool {
    let mut parts = path.split('/');
    let all = route
        .split('/')
        .all(|known| parts.next().is_some_and(|part| part == known || known.starts_with('{')));
    all && parts.next().is_none()
}

async fn no_such_method(request: Request) -> Problem {
    Problem::no_such_method(request.method().as_str(), request.uri().path())
}

async fn admit(State(around): State<Around>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let open = path == "/healthz" || path == READY_PATH && around.listener == "data";
    match &around.service.token {
        Some(token) if !open && !token.admits(request.headers()) => {
            around.refused.tell(path, request.headers().contains_key(header::AUTHORIZATION));
            Problem::unauthorized().into_response()
        }
        Some(_) | None => next.run(request).await,
    }
}

async fn count(State(around): State<Around>, request: Request, next: Next) -> Response {
    let kind = kind_of(around.listener, &request);
    let begun = Instant::now();
    let response = next.run(request).await;
    let took = begun.elapsed();
    around.service.http.observe(kind, response.status().as_u16(), took);
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::warn!(path = kind.path, method = kind.method, "answered 500");
    }
    response
}

fn kind_of(listener: &'static str, request: &Request) -> Kind {
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let path =
        ROUTES.iter().map(|(_, path, _)| *path).find(|path| Some(*path) == matched).unwrap_or("unmatched");
    Kind { listener, path, method: method_name(request.method()) }
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
