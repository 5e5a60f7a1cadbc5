//! `POST /v1/kv-events`: batches of a rank whose engine has no ZeroMQ.

use super::body::ControlBody;
use super::control::invalid_faults;
use super::problem::Problem;
use super::show::json;
use crate::kv_events::push;
use crate::service::Service;
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;

/// `POST /v1/kv-events`.
pub async fn push(
    State(service): State<Arc<Service>>,
    ControlBody(body): ControlBody,
) -> Result<Response, Problem> {
    let push = push::parse(&body).map_err(|faults| {
        invalid_faults("kv_events_invalid", "The events are not valid", &faults).nothing_changed()
    })?;
    let taken = service.push_kv(push)?;
    Ok(json(
        &serde_json::json!({ "next_seq": taken.last_seq.map_or(0, |last| last.saturating_add(1)), "cold": taken.cold }),
    ))
}
