//! An engine in this process and a client for it.

use fake_engine::{Engine, EngineConfig};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Asked {
    pub(crate) engine: Engine,
    pub(crate) client: Client,
}

/// An answer read to its end.
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) rank: Option<u32>,
    pub(crate) name: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) retry_after: Option<String>,
    pub(crate) text: String,
}

impl Got {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Cached tokens of an OpenAI usage.
    pub(crate) fn cached(&self) -> u64 {
        self.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("cached_tokens")
    }
}

pub(crate) async fn start(ranks: u32, change: impl FnOnce(&mut EngineConfig)) -> Asked {
    let mut config = EngineConfig::new(ranks);
    change(&mut config);
    let engine = Engine::spawn(config).await.unwrap();
    Asked { engine, client: Client::new() }
}

impl Asked {
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Response {
        self.try_send(method, path, headers, body).await.unwrap()
    }

    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> reqwest::Result<Response> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, self.engine.url() + path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        request.send().await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        read(self.send("GET", path, &[], None).await).await
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Got {
        read(self.send("POST", path, headers, Some(body)).await).await
    }

    pub(crate) async fn order_fault(&self, order: Value) {
        assert_eq!(self.post("/control/fault", &[], &order).await.status, 200);
    }

    pub(crate) async fn requests(&self) -> Vec<Value> {
        self.get("/control/requests").await.json()["requests"].as_array().unwrap().clone()
    }

    /// Sends a raw request and reads until the connection ends; `Err` is how it ended.
    pub(crate) async fn raw(&self, request: &str) -> (Vec<u8>, std::io::Result<()>) {
        let mut stream = TcpStream::connect(self.engine.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        let end = stream.read_to_end(&mut seen).await.map(drop);
        (seen, end)
    }
}

pub(crate) async fn read(response: Response) -> Got {
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    Got {
        status: response.status().as_u16(),
        rank: header("x-engine-rank").map(|rank| rank.parse().unwrap()),
        name: header("x-engine-name"),
        content_type: header("content-type"),
        retry_after: header("retry-after"),
        text: response.text().await.unwrap(),
    }
}

pub(crate) fn chat(text: &str) -> Value {
    json!({ "model": "tiny", "max_tokens": 8, "messages": [{ "role": "user", "content": text }] })
}
