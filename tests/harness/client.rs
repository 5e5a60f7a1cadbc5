//! A client of the OpenAI API that keeps everything it is told. Sends no header that was not asked for.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::sse;

/// The header a session's key travels in.
pub const SESSION: &str = "x-session-id";
/// The path most tests use.
pub const CHAT: &str = "/v1/chat/completions";
/// OpenAI's newer path.
pub const RESPONSES: &str = "/v1/responses";
/// The model every fake engine serves.
pub const MODEL: &str = "tiny";
/// No turn of a test takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of one address.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

/// Worker and rank that served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// Name of the engine.
    pub worker: String,
    /// Global number of the rank.
    pub rank: Option<u32>,
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "{}/{rank}", self.worker),
            None => write!(f, "{}/-", self.worker),
        }
    }
}

/// One answered request.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body as it came.
    pub body: Vec<u8>,
}

impl Turn {
    /// First value of a header, as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Who served; absent for answers of Envoy or the filter.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        let rank = self.header("x-engine-rank").and_then(|text| text.parse().ok());
        Some(Slot { worker: self.header("x-engine-name")?.to_owned(), rank })
    }

    /// Who computed the prompt, where another engine than the one that served did.
    #[must_use]
    pub fn prefilled(&self) -> Option<Slot> {
        let rank = self.header("x-prefill-engine-rank").and_then(|text| text.parse().ok());
        Some(Slot { worker: self.header("x-prefill-engine-name")?.to_owned(), rank })
    }

    /// The id of a response, streamed or not.
    #[must_use]
    pub fn response_id(&self) -> Option<String> {
        let whole = self.json()["id"].as_str().map(str::to_owned);
        whole.or_else(|| {
            let first: Value = serde_json::from_str(sse::payloads(&self.body).first()?).ok()?;
            first["response"]["id"].as_str().map(str::to_owned)
        })
    }

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.json()["usage"]["prompt_tokens"].as_u64().unwrap_or(0)
    }

    /// How many of them were found in the rank's cache.
    #[must_use]
    pub fn cached_tokens(&self) -> u64 {
        self.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    }
}

impl Client {
    /// Keeps connections open, as clients do.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new(to: SocketAddr) -> Result<Self> {
        Self::with(to, |builder| builder)
    }

    /// A new connection for each request: Envoy gives each to any of its threads.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn fresh_connections(to: SocketAddr) -> Result<Self> {
        Self::with(to, |builder| builder.pool_max_idle_per_host(0))
    }

    fn with(
        to: SocketAddr,
        more: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self> {
        let builder = reqwest::Client::builder().no_proxy().timeout(TIMEOUT);
        Ok(Self { http: more(builder).build()?, base: format!("http://{to}") })
    }

    /// A request to build on.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// A chat request with one user message, to build on.
    pub fn chat_request(&self, session: Option<&str>, text: &str) -> RequestBuilder {
        self.messages(session, &json!([{"role": "user", "content": text}]), 4)
    }

    /// A chat request with a whole conversation, to build on.
    pub fn messages(&self, session: Option<&str>, messages: &Value, tokens_max: u32) -> RequestBuilder {
        let body = json!({"model": MODEL, "messages": messages, "max_tokens": tokens_max});
        self.post(CHAT, session, &body)
    }

    /// A POST of JSON that carries the session, to build on.
    pub fn post(&self, path: &str, session: Option<&str>, body: &Value) -> RequestBuilder {
        let request = self.request(Method::POST, path).json(body);
        match session {
            Some(key) => request.header(SESSION, key),
            None => request,
        }
    }

    /// A request for a response that goes on from an earlier one, to build on.
    pub fn respond(&self, session: Option<&str>, input: &str, previous: Option<&str>) -> RequestBuilder {
        let mut body = json!({"model": MODEL, "input": input, "max_output_tokens": 4});
        if let Some(id) = previous {
            body["previous_response_id"] = json!(id);
        }
        self.post(RESPONSES, session, &body)
    }

    /// A sound to be written down, as a form with a file of so many bytes; to build on.
    pub fn transcribe(&self, session: Option<&str>, bytes: usize) -> RequestBuilder {
        let mut body = format!(
            "--rankpin\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{MODEL}\r\n--rankpin\r\n\
             content-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n"
        )
        .into_bytes();
        body.resize(body.len() + bytes, 0xfe);
        body.extend_from_slice(b"\r\n--rankpin--\r\n");
        let request = self.request(Method::POST, "/v1/audio/transcriptions").body(body);
        let request = request.header("content-type", "multipart/form-data; boundary=rankpin");
        match session {
            Some(key) => request.header(SESSION, key),
            None => request,
        }
    }

    /// One chat turn, answered whole.
    ///
    /// # Errors
    /// No answer, or not all of it.
    pub async fn chat(&self, session: Option<&str>, text: &str) -> Result<Turn> {
        send(self.chat_request(session, text)).await
    }
}

/// Sends a request and reads all of its answer.
///
/// # Errors
/// No answer, or not all of it.
pub async fn send(request: RequestBuilder) -> Result<Turn> {
    let answer = request.send().await.context("no answer")?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let body = answer.bytes().await.context("the answer's body broke off")?.to_vec();
    Ok(Turn { status, headers, body })
}
