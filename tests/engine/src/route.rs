//! From a request to its answer: bounded body, record, fault, endpoint, the engine's headers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderValue, SERVER, VARY};
use hyper::{Method, Request, StatusCode};

use crate::answer::{Answer, ENGINE_NAME, Refusal, empty, json};
use crate::api::{self, Call};
use crate::body::ResetSwitch;
use crate::config::{Kind, Mode, Role};
use crate::fault::{FAULT_HEADER, Fault};
use crate::json::{Raw, object};
use crate::prefill;
use crate::shared::Shared;

/// Largest body read; a larger one is a 413 and the end of the connection.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;
/// Longest a body may take to arrive.
const BODY_READ_MAX: Duration = Duration::from_secs(120);
/// Longest a hanging request is held.
const HANG_MAX: Duration = Duration::from_secs(3600);
/// What the null engine answers.
const NULL_REPLY: &str = concat!(
    r#"{"id":"chatcmpl-0000000000000000","object":"chat.completion","created":0,"model":"tiny","choices":[{"#,
    r#""index":0,"message":{"role":"assistant","content":"ok"},"logprobs":null,"finish_reason":"stop"}],"#,
    r#""usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1,"#,
    r#""prompt_tokens_details":{"cached_tokens":0}}}"#
);

/// Which of its doors a request came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The port: everything there is.
    Engine,
    /// The second address: `/control/…` and nothing else, whatever the port is.
    Control,
}

/// Answers one request; the service of every connection.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    side: Side,
    reset: ResetSwitch,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let mut answer = match side {
        Side::Engine => route(&shared, reset, request).await,
        Side::Control => aside(&shared, request).await,
    };
    let headers = answer.headers_mut();
    if let Ok(name) = HeaderValue::from_str(&shared.config.name) {
        headers.insert(ENGINE_NAME, name);
    }
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    Ok(answer)
}

async fn route(shared: &Arc<Shared>, reset: ResetSwitch, request: Request<Incoming>) -> Answer {
    let path = request.uri().path();
    match (request.method(), path) {
        (_, path) if path.starts_with("/control/") => control(shared, request).await,
        (&Method::GET, "/health") => health(shared).await,
        (&Method::GET | &Method::POST, "/ping") => empty(StatusCode::OK),
        (&Method::GET, path) if api::metrics::is_path(shared, path) => api::metrics::answer(shared, path),
        (&Method::GET, "/load") => api::info::load(shared),
        (&Method::POST, _) if shared.config.mode == Mode::Null => null(request.into_body()).await,
        _ => recorded(shared, reset, request).await,
    }
}

/// The second address.
async fn aside(shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    match (request.method(), request.uri().path()) {
        (&Method::POST, "/control/close") => door(shared, false).await,
        (&Method::POST, "/control/open") => door(shared, true).await,
        (_, path) if path.starts_with("/control/") => control(shared, request).await,
        _ => empty(StatusCode::NOT_FOUND),
    }
}

async fn door(shared: &Shared, open: bool) -> Answer {
    shared.door.set(open).await;
    json(StatusCode::OK, object! { "open": open })
}

async fn control(shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    match read(body).await {
        Ok(body) if head.uri.path() == "/control/kv-events" => {
            crate::kv_events::answer(shared, &head.method, &body).await
        }
        Ok(body) => crate::control::answer(shared, &head.method, head.uri.path(), &body),
        Err(refused) => refused,
    }
}

async fn health(shared: &Shared) -> Answer {
    match shared.faults.take_for_health() {
        Some(Fault::HealthHang) => hang().await,
        Some(_) => empty(StatusCode::SERVICE_UNAVAILABLE),
        None => empty(StatusCode::OK),
    }
}

/// Reads the body and forgets it as it comes.
async fn null(mut body: Incoming) -> Answer {
    while let Some(Ok(_)) = body.frame().await {}
    json(StatusCode::OK, Raw(NULL_REPLY.to_owned()))
}

async fn recorded(shared: &Arc<Shared>, reset: ResetSwitch, request: Request<Incoming>) -> Answer {
    let _in_flight = shared.enter();
    let (head, body) = request.into_parts();
    let (method, path) = (head.method, head.uri.path().to_owned());
    let read = read(body).await;
    let no_body = Bytes::new();
    let recorded_path = head.uri.path_and_query().map_or(path.as_str(), |all| all.as_str());
    let seen = read.as_ref().unwrap_or(&no_body);
    let outcome = shared.log.arrival(method.as_str(), recorded_path, &head.headers, seen);
    let body = match read {
        Ok(body) => body,
        Err(refused) => {
            outcome.status(refused.status().as_u16());
            return refused;
        }
    };
    let asked = head.headers.get(FAULT_HEADER).and_then(|value| Fault::parse(value.to_str().ok()?));
    let fault = asked.or_else(|| shared.faults.take(&method, &path));
    let call = Call { shared: Arc::clone(shared), headers: head.headers, body, outcome: outcome.clone() };
    let answer = match instead(fault, &reset).await {
        Some(failure) => failure,
        None => {
            let kind = shared.config.kind;
            served(&method, &path, call).await.unwrap_or_else(|refusal| refusal.answer_as(kind))
        }
    };
    outcome.status(answer.status().as_u16());
    match fault {
        Some(Fault::DieMidStream) => answer.map(|body| body.cut(reset)),
        _ => answer,
    }
}

/// Carries out the part of a fault that comes before the endpoint; an answer stands instead of its own.
async fn instead(fault: Option<Fault>, reset: &ResetSwitch) -> Option<Answer> {
    match fault? {
        Fault::Slow(delay) => tokio::time::sleep(delay).await,
        Fault::Failure(status) => return Some(failure(status, None)),
        Fault::Unavailable { retry_after_s } => {
            return Some(failure(StatusCode::SERVICE_UNAVAILABLE, retry_after_s));
        }
        Fault::TooManyRequests { retry_after_s } => {
            return Some(failure(StatusCode::TOO_MANY_REQUESTS, Some(retry_after_s)));
        }
        Fault::Reset => {
            reset.notify_one();
            return Some(hang().await);
        }
        Fault::Hang => return Some(hang().await),
        Fault::DieMidStream | Fault::HealthHang | Fault::HealthUnavailable => {}
    }
    None
}

fn failure(status: StatusCode, retry_after_s: Option<u64>) -> Answer {
    let kind = match status {
        StatusCode::INTERNAL_SERVER_ERROR => "InternalServerError",
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => "UpstreamError",
        StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
        _ => "ServiceUnavailableError",
    };
    let message = status.canonical_reason().unwrap_or_default();
    Refusal { retry_after_s, ..Refusal::new(status, kind, message) }.answer()
}

/// Holds a request without an answer. Ends early when the client leaves: the connection drops this.
async fn hang() -> Answer {
    tokio::time::sleep(HANG_MAX).await;
    failure(StatusCode::SERVICE_UNAVAILABLE, None)
}

/// The endpoint's answer; a decode engine has the prompt computed first.
async fn served(method: &Method, path: &str, call: Call) -> Result<Answer, Refusal> {
    if call.shared.config.role != Role::Decode || method != Method::POST {
        return endpoint(method, path, call).await;
    }
    let prefilled = prefill::ask(path, &call.headers, &call.body).await?;
    endpoint(method, path, call).await.map(|answer| prefilled.tell(answer))
}

async fn endpoint(method: &Method, path: &str, call: Call) -> Result<Answer, Refusal> {
    let shared = Arc::clone(&call.shared);
    let kind = shared.config.kind;
    if let Some(rest) = path.strip_prefix("/v1/responses/") {
        return api::responses::stored(&shared, method.as_str(), rest);
    }
    match (method.as_str(), path) {
        ("POST", "/v1/chat/completions") => api::chat::answer(call).await,
        ("POST", "/v1/completions") => api::completions::answer(call).await,
        ("POST", "/v1/responses") => api::responses::answer(call).await,
        ("POST", "/v1/messages") => api::messages::answer(call).await,
        ("POST", "/v1/messages/count_tokens") => api::messages::count_tokens(call).await,
        ("POST", "/v1/embeddings") => api::embeddings::answer(call).await,
        ("POST", "/tokenize") if kind != Kind::Trtllm => api::tokenize::answer(call).await,
        ("POST", "/kv_cache_events") if kind == Kind::Trtllm => Ok(api::info::kv_cache_events(&shared)),
        ("POST", "/reset_prefix_cache") if kind != Kind::Trtllm => Ok(api::info::reset_prefix_cache(&shared)),
        ("GET" | "POST", "/flush_cache") if kind == Kind::Sglang => Ok(api::info::flush_cache(&shared)),
        ("POST", path) if path.ends_with("/render") => Err(scale_out_disabled()),
        ("GET", "/v1/models") => Ok(api::info::models(&shared)),
        ("POST", "/v1/audio/transcriptions" | "/v1/audio/translations") => api::audio::answer(&call),
        ("POST", "/generate") if kind == Kind::Sglang => api::native::answer(call).await,
        ("GET", "/server_info" | "/get_server_info") if kind == Kind::Sglang => {
            Ok(api::info::server_info(&shared))
        }
        ("GET", "/health_generate") if kind != Kind::Vllm => Ok(empty(StatusCode::OK)),
        ("GET", "/version") => Ok(api::info::version(&shared)),
        ("GET", "/kv_event_sources") if crate::kv_events::ports::tells_each(&shared.config) => {
            Ok(api::info::kv_event_sources(&shared))
        }
        ("GET", "/is_sleeping") => Ok(json(StatusCode::OK, Raw(r#"{"is_sleeping":false}"#.to_owned()))),
        ("GET", "/is_paused") => Ok(json(StatusCode::OK, Raw(r#"{"is_paused":false}"#.to_owned()))),
        _ => Err(Refusal::plain(StatusCode::NOT_FOUND)),
    }
}

fn scale_out_disabled() -> Refusal {
    let message =
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
    Refusal::new(StatusCode::FORBIDDEN, "PermissionDeniedError", message)
}

/// The whole body, or the answer to one too large, too slow or broken.
async fn read(body: Incoming) -> Result<Bytes, Answer> {
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(closing(StatusCode::PAYLOAD_TOO_LARGE));
    }
    match tokio::time::timeout(BODY_READ_MAX, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(closing(StatusCode::PAYLOAD_TOO_LARGE)),
        Ok(Err(_)) => Err(closing(StatusCode::BAD_REQUEST)),
        Err(_) => Err(closing(StatusCode::REQUEST_TIMEOUT)),
    }
}

/// An answer after which the rest of the request is not read.
fn closing(status: StatusCode) -> Answer {
    let mut answer: Answer = Refusal::plain(status).answer();
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
