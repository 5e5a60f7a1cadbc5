//! What operators and balancers look at: health, readiness, numbers, pools and topology. Changes nothing.

use super::problem::Problem;
use super::show::json;
use crate::service::Service;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::sync::Arc;

/// `GET /healthz`: the process answers. Needs no token.
pub async fn healthz() -> Response {
    json(&serde_json::json!({"alive": true}))
}

/// `GET /readyz`: 200 while requests can be placed, else 503 with the reasons.
pub async fn readyz(State(service): State<Arc<Service>>) -> Response {
    let report = service.ready();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, json(&report)).into_response()
}

/// `GET /readyz` of the data listener: 503 while another replica should be asked instead, because this one still loads what they know,
/// or is stopping. A fleet without a usable worker is none of that: its Envoys are to hear so. Needs no token.
pub async fn askable(State(service): State<Arc<Service>>) -> Response {
    let report = service.askable();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, json(&report)).into_response()
}

/// `GET /metrics`.
pub async fn metrics(State(service): State<Arc<Service>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], service.render_metrics()).into_response()
}

/// `GET /v1/pools`.
pub async fn pools(State(service): State<Arc<Service>>) -> Response {
    json(&serde_json::json!({"pools": service.show_pools()}))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TopologyQuery {
    node: String,
}

/// `GET /v1/topology?node=N`: as the filters of that Envoy see it.
pub async fn topology(State(service): State<Arc<Service>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::<TopologyQuery>::try_from_uri(&uri).map_err(|e| Problem::malformed(e.body_text()))?;
    let (topology, fleet) = service.topology(&query.node);
    Ok(json(&serde_json::json!({"epoch": service.epoch, "topology": topology, "fleet": fleet})))
}
