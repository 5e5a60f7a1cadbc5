//! `POST /v1/explain`: what would become of a described request. Changes nothing.

use super::body::ControlBody;
use super::control::invalid_faults;
use super::problem::Problem;
use super::show::json;
use crate::explain;
use crate::service::Service;
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;

/// `POST /v1/explain`.
pub async fn explain(
    State(service): State<Arc<Service>>,
    ControlBody(body): ControlBody,
) -> Result<Response, Problem> {
    let question = explain::parse(&body).map_err(|faults| {
        invalid_faults("explain_invalid", "The request to explain is not valid", &faults)
    })?;
    service.check_pool(question.pool())?;
    Ok(json(&service.explain(&question).await.to_json()))
}
