//! Answers as the engine gives them: heads, JSON bodies, error bodies. Does not know what is asked.

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use crate::body::Body;
use crate::config::Kind;
use crate::json::{Raw, object};

/// Names the engine that answers.
pub(crate) const ENGINE_NAME: HeaderName = HeaderName::from_static("x-engine-name");
/// The global number of the rank that served; absent where no rank did.
pub(crate) const ENGINE_RANK: HeaderName = HeaderName::from_static("x-engine-rank");

/// An answer on its way out.
pub(crate) type Answer = Response<Body>;

/// A refusal in the engine's own shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) param: Option<&'static str>,
    pub(crate) retry_after_s: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, retry_after_s: None }
    }

    /// A 400 found by the engine, not by the schema.
    pub(crate) fn bad_request(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message) }
    }

    /// A 400 found by the schema: fields that are required and missing. `keys` is how many were given.
    pub(crate) fn missing(fields: &[&'static str], keys: usize) -> Self {
        let plural = if fields.len() == 1 { "" } else { "s" };
        let mut message = format!("{} validation error{plural}:", fields.len());
        for field in fields {
            message.push_str(&format!(
                "\n  {{'type': 'missing', 'loc': '{field}', 'msg': 'Field required', 'input': '<dict of {keys} items>'}}"
            ));
        }
        Self { param: fields.first().copied(), ..Self::new(StatusCode::BAD_REQUEST, "Bad Request", message) }
    }

    /// What HTTP itself refuses, worded by the status.
    pub(crate) fn plain(status: StatusCode) -> Self {
        let phrase = status.canonical_reason().unwrap_or("Error");
        Self::new(status, phrase, phrase)
    }

    /// In vLLM's shape.
    pub(crate) fn answer(&self) -> Answer {
        self.answer_as(Kind::Vllm)
    }

    /// In the engine's own shape: nested for vLLM, flat for the others, a sentence for what TensorRT-LLM's schema refuses.
    pub(crate) fn answer_as(&self, kind: Kind) -> Answer {
        let code = self.status.as_u16();
        let body = match kind {
            Kind::Vllm => {
                let error =
                    object! { "message": self.message, "type": self.kind, "param": self.param, "code": code };
                object! { "error": error }
            }
            Kind::Trtllm if self.status == StatusCode::BAD_REQUEST => object! { "error": self.message },
            Kind::Sglang | Kind::Trtllm => object! {
                "object": "error", "message": self.message, "type": self.kind, "param": self.param, "code": code,
            },
        };
        let mut answer = json(self.status, body);
        if let Some(seconds) = self.retry_after_s {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: Raw) -> Answer {
    typed(status, "application/json", Body::whole(body.0))
}

/// A JSON answer with status 200.
pub(crate) fn ok(body: Raw) -> Answer {
    json(StatusCode::OK, body)
}

/// A status without a body.
pub(crate) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Body::Whole(None));
    *answer.status_mut() = status;
    answer
}

/// Server-sent events.
pub(crate) fn events(frames: mpsc::Receiver<hyper::body::Bytes>) -> Answer {
    typed(StatusCode::OK, "text/event-stream; charset=utf-8", Body::Stream(frames))
}

/// An answer of another content type.
pub(crate) fn typed(status: StatusCode, content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
