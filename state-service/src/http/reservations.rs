//! Reservations: hosts that dispatch requests themselves ask where to, book the load, and tell when it is over.

mod faults;

use super::body::DataBody;
use super::problem::Problem;
use super::show::json;
use crate::declare::Faults;
use crate::service::{Service, Wish};
use crate::state::Reserved;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use routing::contract::{Overlap, Prompt, Target};
use routing::id::{PoolName, Rank, WorkerId};
use routing::time::Millis;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest id a host may give.
const ID_BYTES_MAX: usize = 128;
/// How long a reservation lives that nobody ends, unless it says so itself.
const TTL_DEFAULT: Millis = Millis::from_secs(600);
/// Longest life of one.
const TTL_MAX: Millis = Millis::from_secs(3600);

/// Body of `POST /v1/reservations`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    #[serde(default)]
    id: Option<String>,
    pool: PoolName,
    prompt: Prompt,
    #[serde(default)]
    worker: Option<WorkerId>,
    #[serde(default)]
    rank: Option<Rank>,
    #[serde(default)]
    ttl_ms: Option<Millis>,
}

/// Answer of `POST /v1/reservations`.
#[derive(Debug, Serialize)]
struct Answer {
    booked: bool,
    id: String,
    overlap: Option<Overlap>,
    reason: String,
    target: Target,
    ttl_ms: Millis,
}

/// `POST /v1/reservations`.
pub async fn reserve(
    State(service): State<Arc<Service>>,
    DataBody(body): DataBody,
) -> Result<Response, Problem> {
    let asked: Asked = serde_json::from_slice(&body).map_err(|_| faults::problem(&body))?;
    let ttl = asked.ttl_ms.unwrap_or(TTL_DEFAULT);
    let wish = wish(asked, ttl)?;
    let (id, Reserved { target, overlap, reason, booked }) = service.reserve(wish).await?;
    Ok(json(&Answer { booked, id, overlap, reason, target, ttl_ms: ttl }))
}

/// `POST /v1/reservations/{id}/prefill-complete`.
pub async fn prefilled(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    service.reservation_prefilled(checked(&id)?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `DELETE /v1/reservations/{id}`.
pub async fn release(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    service.release_reservation(checked(&id)?)?;
    Ok(StatusCode::NO_CONTENT)
}

fn wish(asked: Asked, ttl: Millis) -> Result<Wish, Problem> {
    let Asked { id, pool, prompt, worker, rank, .. } = asked;
    if let Some(id) = &id {
        checked(id)?;
    }
    if ttl == Millis(0) || ttl > TTL_MAX {
        return Err(invalid("ttl_ms", format!("{} is out of range", ttl.0), &format!("1..={}", TTL_MAX.0)));
    }
    let named = match (worker, rank) {
        (Some(worker), rank) => Some(Target { worker, rank }),
        (None, None) => None,
        (None, Some(_)) => {
            return Err(invalid("rank", "names no worker".to_owned(), "`worker` beside it"));
        }
    };
    Ok(Wish { id, pool, prompt, named, within: ttl })
}

fn checked(id: &str) -> Result<&str, Problem> {
    let good = (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    let allowed = format!("1..={ID_BYTES_MAX} visible ASCII characters");
    if good { Ok(id) } else { Err(invalid("id", format!("{} bytes that are no id", id.len()), &allowed)) }
}

fn invalid(path: &str, problem: String, allowed: &str) -> Problem {
    let mut faults = Faults::default();
    faults.add(path, problem, allowed);
    faults::invalid(faults)
}
