//! A decode engine's side of split serving: has the prompt computed by the engine that a header names, then replies itself.
//! As the sidecars that stand beside real engines do it; moves no cache, as nothing here looks at one across engines.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::answer::{Answer, ENGINE_NAME, ENGINE_RANK, Refusal};
use crate::ask::Fields;
use crate::fault::FAULT_HEADER;
use crate::record::RANK_HEADER;

/// Names the prefiller: `host:port`.
pub(crate) const PREFILLER: &str = "x-prefiller-host-port";
/// The rank it shall compute on, sent to it as its rank header.
pub(crate) const PREFILL_RANK: &str = "x-prefill-dp-rank";
/// On the answer: who computed the prompt.
const PREFILL_NAME: HeaderName = HeaderName::from_static("x-prefill-engine-name");
/// On the answer: on which rank.
const PREFILL_ENGINE_RANK: HeaderName = HeaderName::from_static("x-prefill-engine-rank");
/// Longest the prefiller may take.
const PREFILL_MAX: Duration = Duration::from_secs(60);

/// Who computed the prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefilled {
    engine: Option<HeaderValue>,
    rank: Option<HeaderValue>,
}

impl Prefilled {
    /// Tells the client.
    pub(crate) fn tell(self, mut answer: Answer) -> Answer {
        let headers = answer.headers_mut();
        for (name, value) in [(PREFILL_NAME, self.engine), (PREFILL_ENGINE_RANK, self.rank)] {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        answer
    }
}

/// Has the prompt computed, if a prefiller is named and the body is JSON; its failure is this request's.
pub(crate) async fn ask(path: &str, headers: &HeaderMap, body: &Bytes) -> Result<Prefilled, Refusal> {
    let Some(to) = headers.get(PREFILLER).and_then(|value| value.to_str().ok()) else {
        return Ok(Prefilled::default());
    };
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else { return Ok(Prefilled::default()) };
    let request = request(to, path, headers, fields).map_err(|error| failed(to, &error))?;
    let answer = match tokio::time::timeout(PREFILL_MAX, send(to, request)).await {
        Ok(answer) => answer.map_err(|error| failed(to, &error))?,
        Err(_) => return Err(failed(to, "no answer in time")),
    };
    if !answer.status().is_success() {
        return Err(failed(to, answer.status().as_str()));
    }
    let header = |name: HeaderName| answer.headers().get(name).cloned();
    Ok(Prefilled { engine: header(ENGINE_NAME), rank: header(ENGINE_RANK) })
}

fn failed(to: &str, error: impl std::fmt::Display) -> Refusal {
    Refusal::new(StatusCode::BAD_GATEWAY, "UpstreamError", format!("prefiller {to}: {error}"))
}

/// The same request for one token, unstreamed, on the rank that was named.
fn request(
    to: &str,
    path: &str,
    headers: &HeaderMap,
    mut fields: Fields,
) -> Result<Request<Full<Bytes>>, String> {
    for limit in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
        if fields.contains_key(limit) {
            fields.insert(limit.to_owned(), json!(1));
        }
    }
    fields.insert("stream".to_owned(), json!(false));
    fields.remove("stream_options");
    fields.insert(
        "kv_transfer_params".to_owned(),
        json!({ "do_remote_decode": true, "do_remote_prefill": false }),
    );
    let body = Bytes::from(Value::Object(fields).to_string());
    let mut request = Request::post(path).body(Full::new(body)).map_err(|error| error.to_string())?;
    let own = [HOST.as_str(), CONTENT_LENGTH.as_str(), TRANSFER_ENCODING.as_str(), CONNECTION.as_str()];
    let ours = [PREFILLER, PREFILL_RANK, RANK_HEADER, FAULT_HEADER];
    for (name, value) in headers {
        if !own.contains(&name.as_str()) && !ours.contains(&name.as_str()) {
            request.headers_mut().append(name, value.clone());
        }
    }
    request.headers_mut().insert(HOST, HeaderValue::from_str(to).map_err(|error| error.to_string())?);
    if let Some(rank) = headers.get(PREFILL_RANK) {
        request.headers_mut().insert(HeaderName::from_static(RANK_HEADER), rank.clone());
    }
    Ok(request)
}

/// One connection for one request: who is asked changes with each.
async fn send(to: &str, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(to).await.map_err(|error| text(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    // Ends with the connection, which ends when `sender` is dropped.
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await.map_err(|error| text(&error))?.into_parts();
    let body = body.collect().await.map_err(|error| text(&error))?.to_bytes();
    Ok(Response::from_parts(head, body))
}
