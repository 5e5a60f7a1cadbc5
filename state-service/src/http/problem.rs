//! Answers that say no: `application/problem+json` (RFC 9457) with a stable code. Owns their shape, not their occasions.

use crate::state::StateError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// One refusal as the client sees it. Private causes go to the log, never in here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    errors: Vec<Fault>,
    snapshot: Option<&'static str>,
    retry_after_s: Option<u32>,
}

/// One fault of a body or query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Where: `endpoints[0].dp_size`; empty for the whole body.
    pub path: String,
    /// What is wrong there.
    pub problem: String,
    /// What would be right.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub allowed: String,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    code: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'static str>,
}

impl Problem {
    /// A refusal with its public code and sentence.
    pub fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        let (detail, errors) = (detail.into(), Vec::new());
        Self { status, code, title, detail, errors, snapshot: None, retry_after_s: None }
    }

    /// Adds every fault found.
    #[must_use]
    pub fn with_errors(mut self, errors: Vec<Fault>) -> Self {
        self.errors = errors;
        self
    }

    /// Tells where everything can be read that was missed.
    #[must_use]
    pub fn with_snapshot(mut self, path: &'static str) -> Self {
        self.snapshot = Some(path);
        self
    }

    /// Says that a change which was asked for did not happen, not even in part.
    #[must_use]
    pub fn nothing_changed(mut self) -> Self {
        self.detail.push_str("; nothing was changed");
        self
    }

    /// Tells the client when to come again, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The body is not JSON, or not of the expected shape.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "body_malformed", "The body could not be read", detail)
    }

    /// The body is over the limit of its route.
    pub fn too_large(bytes_max: usize) -> Self {
        let detail = format!("at most {bytes_max} bytes are read");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The body is too large", detail)
    }

    /// The body did not arrive in time.
    pub fn body_timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            "The body came too slowly",
            "the upload stalled",
        )
    }

    /// No such path on this listener; perhaps on another.
    pub fn no_such_path(path: &str, elsewhere: Option<&str>) -> Self {
        let detail = match elsewhere {
            Some(listener) => format!("{path} is served by the {listener} listener, not by this one"),
            None => {
                format!("{path} is not served on this listener; see /openapi.json on the control listener")
            }
        };
        Self::new(StatusCode::NOT_FOUND, "path_unknown", "No such path", detail)
    }

    /// The path exists, the method does not.
    pub fn no_such_method(method: &str, path: &str) -> Self {
        let detail = format!("{path} does not take {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed", detail)
    }

    /// The named thing is not known.
    pub fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, "Not found", detail)
    }

    /// The bearer token is missing or wrong.
    pub fn unauthorized() -> Self {
        let detail = "send 'authorization: Bearer TOKEN' with the token of --token-file";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "A token is needed", detail)
    }

    /// A limit of the service is reached; it passes.
    pub fn busy(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, "Try again later", detail).retry_after(1)
    }

    /// Our own fault; the cause is in the log.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "The service failed", detail)
    }
}

impl From<crate::declare::Fault> for Fault {
    fn from(fault: crate::declare::Fault) -> Self {
        Self { path: fault.path, problem: fault.problem, allowed: fault.allowed }
    }
}

impl From<&StateError> for Problem {
    fn from(error: &StateError) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(status, error.code(), error.title(), error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body {
            r#type: format!("urn:rankpin:problem:{}", self.code),
            code: self.code,
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            errors: &self.errors,
            snapshot: self.snapshot,
        };
        let text = serde_json::to_string(&body).unwrap_or_default();
        let mut response = (self.status, text).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
