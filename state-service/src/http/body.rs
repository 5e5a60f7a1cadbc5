//! Reads bodies: bounded in bytes and time, decoded as JSON, every failure a [`Problem`]. Does not know what the bodies mean.

use super::problem::Problem;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use routing::contract::BODY_BYTES_MAX;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Largest body of the control listener: a worker with 1,024 endpoints is about 150 KiB.
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// A body that takes longer is given up; a peer that stalls may not hold its buffer.
const BODY_WAIT: Duration = Duration::from_secs(10);

/// A JSON body of the data plane; unknown fields are ignored by its types.
pub struct Wire<T>(pub T);
/// The bytes of a data plane body, for handlers that read them in more than one way.
pub struct DataBody(pub Bytes);
/// The bytes of a control body; its parser names every fault itself.
pub struct ControlBody(pub Bytes);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Wire<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = read(request, state, BODY_BYTES_MAX).await?;
        decode(&bytes).map(Self)
    }
}

impl<S: Send + Sync> FromRequest<S> for DataBody {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        read(request, state, BODY_BYTES_MAX).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequest<S> for ControlBody {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        read(request, state, CONTROL_BYTES_MAX).await.map(Self)
    }
}

/// Reads JSON.
///
/// # Errors
/// [`Problem`]: where it is not JSON, or not of the expected shape.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|e| Problem::malformed(explain(&e)))
}

async fn read<S: Send + Sync>(request: Request, state: &S, bytes_max: usize) -> Result<Bytes, Problem> {
    match tokio::time::timeout(BODY_WAIT, Bytes::from_request(request, state)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(rejection)) => Err(refused(&rejection, bytes_max)),
        Err(_late) => Err(Problem::body_timeout()),
    }
}

fn refused(rejection: &BytesRejection, bytes_max: usize) -> Problem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(bytes_max),
        _ => Problem::malformed("the body broke off"),
    }
}

/// What serde says, which names fields and places but quotes no values of ours beyond the offending one.
fn explain(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Syntax | serde_json::error::Category::Eof => {
            format!("not JSON: line {}, column {}", error.line(), error.column())
        }
        serde_json::error::Category::Data | serde_json::error::Category::Io => error.to_string(),
    }
}
