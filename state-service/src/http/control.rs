//! What operators change: workers and sessions. Extract, ask the state, answer; nothing is decided here.

use super::body::{ControlBody, decode};
use super::problem::{Fault, Problem};
use super::show::{self, json};
use crate::declare::{self, Faults, WorkerSpec};
use crate::service::Service;
use crate::state::Declared;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use routing::id::{SessionId, WorkerId};
use routing::time::Millis;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Longest drain: a day. Without a deadline a worker drains until it is removed.
pub const DRAIN_S_MAX: u64 = 86_400;

/// `GET /v1/workers`.
pub async fn workers(State(service): State<Arc<Service>>) -> Response {
    json(&serde_json::json!({"workers": service.show_workers()}))
}

/// `GET /v1/workers/{id}`.
pub async fn worker(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = worker_id(&id)?;
    Ok(json(&service.show_worker(&id)?))
}

/// `POST /v1/workers`: a new one only.
pub async fn create(
    State(service): State<Arc<Service>>,
    ControlBody(body): ControlBody,
) -> Result<Response, Problem> {
    let spec = declare::parse(&body, None).map_err(|faults| invalid_worker(&faults))?;
    if service.has_worker(&spec.id) {
        let detail = format!("worker {} is declared; PUT /v1/workers/{} replaces it", spec.id, spec.id);
        return Err(Problem::new(StatusCode::CONFLICT, "worker_exists", "The id is taken", detail));
    }
    declare_and_show(&service, spec).await
}

/// `PUT /v1/workers/{id}`: new or replaced.
pub async fn put(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    ControlBody(body): ControlBody,
) -> Result<Response, Problem> {
    let spec = declare::parse(&body, Some(&id)).map_err(|faults| invalid_worker(&faults))?;
    declare_and_show(&service, spec).await
}

/// `PATCH /v1/workers/{id}`: a JSON merge patch (RFC 7396) over the declaration.
pub async fn patch(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    ControlBody(body): ControlBody,
) -> Result<Response, Problem> {
    let changes = changes(&body).map_err(|faults| invalid_worker(&faults))?;
    let mut declared = service.declaration(&worker_to_change(&id)?)?;
    merge(&mut declared, changes);
    let spec = declare::parse(declared.to_string().as_bytes(), Some(&id))
        .map_err(|faults| invalid_worker(&faults))?;
    declare_and_show(&service, spec).await
}

fn changes(body: &[u8]) -> Result<Value, Faults> {
    let mut faults = Faults::default();
    let value = declare::document(body, &mut faults);
    faults.or(value)
}

/// `DELETE /v1/workers/{id}`.
pub async fn remove(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    service.remove(worker_to_change(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Body of a drain; empty means no deadline.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Drain {
    deadline_s: Option<u64>,
    resume: bool,
}

/// `POST /v1/workers/{id}/drain`.
pub async fn drain(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    ControlBody(body): ControlBody,
) -> Result<Response, Problem> {
    let id = worker_to_change(&id)?;
    let drain = if body.is_empty() { Drain::default() } else { decode(&body)? };
    if drain.resume {
        service.resume(id.clone()).await?;
    } else {
        service.drain(id.clone(), deadline(&drain)?).await?;
    }
    Ok(json(&service.show_worker(&id)?))
}

/// `GET /v1/sessions/{hash}`.
pub async fn session(
    State(service): State<Arc<Service>>,
    Path(hash): Path<String>,
) -> Result<Response, Problem> {
    let session = service.session(session_id(&hash)?)?;
    Ok(json(&show::session(&session)))
}

/// `DELETE /v1/sessions/{hash}`.
pub async fn release(
    State(service): State<Arc<Service>>,
    Path(hash): Path<String>,
) -> Result<StatusCode, Problem> {
    service.release(session_id(&hash).map_err(Problem::nothing_changed)?)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn declare_and_show(service: &Service, spec: WorkerSpec) -> Result<Response, Problem> {
    let id = spec.id.clone();
    let status = match service.declare(spec).await? {
        Declared::Created => StatusCode::CREATED,
        Declared::Replaced | Declared::Unchanged => StatusCode::OK,
    };
    let mut response = (status, json(&service.show_worker(&id)?)).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/v1/workers/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

fn deadline(drain: &Drain) -> Result<Option<Millis>, Problem> {
    match drain.deadline_s {
        Some(seconds) if seconds > DRAIN_S_MAX => {
            let allowed = format!("0..={DRAIN_S_MAX} seconds");
            let fault =
                Fault { path: "deadline_s".to_owned(), problem: format!("{seconds} is too long"), allowed };
            Err(invalid("drain_invalid", "The drain is not valid", vec![fault]).nothing_changed())
        }
        seconds => Ok(seconds.map(Millis::from_secs)),
    }
}

fn worker_id(text: &str) -> Result<WorkerId, Problem> {
    WorkerId::parse(text).map_err(|e| invalid_name("id", text, &e.to_string()))
}

fn worker_to_change(text: &str) -> Result<WorkerId, Problem> {
    worker_id(text).map_err(Problem::nothing_changed)
}

fn session_id(text: &str) -> Result<SessionId, Problem> {
    SessionId::from_hex(text).ok_or_else(|| {
        let fault = Fault {
            path: "hash".to_owned(),
            problem: format!("{} characters that are not a session id", text.chars().count()),
            allowed: "32 hex digits, as `rankpin hash KEY` prints them".to_owned(),
        };
        invalid("session_id_invalid", "The session id is not valid", vec![fault])
    })
}

fn invalid_name(path: &str, text: &str, rule: &str) -> Problem {
    let shown: String = text.chars().take(80).collect();
    let fault = Fault {
        path: path.to_owned(),
        problem: format!("{shown:?} {rule}"),
        allowed: declare::NAME_ALLOWED.to_owned(),
    };
    invalid("name_invalid", "The name is not valid", vec![fault])
}

fn invalid_worker(faults: &Faults) -> Problem {
    invalid_faults("worker_invalid", "The worker is not valid", faults).nothing_changed()
}

/// Everything wrong with a body.
pub(super) fn invalid_faults(code: &'static str, title: &'static str, faults: &Faults) -> Problem {
    invalid(code, title, faults.list.iter().cloned().map(Fault::from).collect())
}

fn invalid(code: &'static str, title: &'static str, errors: Vec<Fault>) -> Problem {
    let detail = match errors.len() {
        1 => "1 fault".to_owned(),
        n => format!("{n} faults"),
    };
    Problem::new(StatusCode::BAD_REQUEST, code, title, detail).with_errors(errors)
}

/// RFC 7396: objects are merged, `null` removes, anything else replaces.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(changes) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(&key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::merge;
    use serde_json::json;

    #[test]
    fn a_merge_patch_follows_the_rfc() {
        let mut target = json!({"a": "b", "c": {"d": "e", "f": "g"}, "l": [1, 2]});
        merge(&mut target, json!({"a": "z", "c": {"f": null, "n": {"x": null, "y": 1}}, "l": [3]}));
        assert_eq!(target, json!({"a": "z", "c": {"d": "e", "n": {"y": 1}}, "l": [3]}));
    }
}
