//! A client of the OpenAI API that keeps everything it is told. Sends no header that was not asked for.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// The header a session's key travels in.
pub const SESSION: &str = "x-session-id";
/// The path most tests use.
pub const CHAT: &str = "/v1/chat/completions";
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
        let request = self.request(Method::POST, CHAT).json(&body);
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
