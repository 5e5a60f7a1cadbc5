//! What is refused, and the null engine.

use fake_engine::Mode;
use serde_json::json;

use crate::support::{chat, start};

#[tokio::test]
async fn a_body_over_64_mib_is_a_413_unread() {
    let engine = start(1, |_| {}).await;
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", (64 << 20) + 1);
    let (seen, _) = engine.raw(&head).await;
    assert!(seen.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&seen));
}

#[tokio::test]
async fn ten_mib_beside_the_text_are_read() {
    let engine = start(1, |_| {}).await;
    let mut body = chat("hi");
    body["padding"] = json!("x".repeat(10 << 20));
    assert_eq!(engine.post("/v1/chat/completions", &[], &body).await.status, 200);
    let image = format!("data:image/png;base64,{}", "A".repeat(10 << 20));
    let content =
        json!([{ "type": "text", "text": "see" }, { "type": "image_url", "image_url": { "url": image } }]);
    let body = json!({ "messages": [{ "role": "user", "content": content }] });
    assert_eq!(engine.post("/v1/chat/completions", &[], &body).await.status, 200);
}

#[tokio::test]
async fn lengths() {
    let engine = start(1, |config| config.max_model_len = 64).await;
    let ask = async |body: serde_json::Value| engine.post("/v1/completions", &[], &body).await;
    assert_eq!(ask(json!({ "prompt": vec![5; 63], "max_tokens": 1 })).await.status, 200);
    assert_eq!(ask(json!({ "prompt": vec![5; 64], "max_tokens": 1 })).await.status, 400);
    let reply = ask(json!({ "prompt": vec![5; 60], "max_tokens": 5 })).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input_tokens")));
    assert_eq!(ask(json!({ "prompt": "x ".repeat(100_000) })).await.status, 400);
    assert_eq!(ask(json!({ "prompt": "x", "max_tokens": 0 })).await.status, 400);
}

#[tokio::test]
async fn bad_bodies() {
    let engine = start(1, |_| {}).await;
    let post =
        |path: &str, body: &str| engine.client.post(engine.engine.url() + path).body(body.to_owned()).send();
    for (path, body) in [
        ("/v1/chat/completions", "{"),
        ("/v1/chat/completions", "[]"),
        ("/v1/chat/completions", ""),
        ("/v1/completions", "{}"),
        ("/v1/completions", r#"{"prompt":[]}"#),
        ("/v1/completions", r#"{"prompt":[-1]}"#),
        ("/v1/completions", r#"{"prompt":[[],["x"]]}"#),
        ("/v1/responses", "{}"),
        ("/v1/messages", r#"{"messages":[]}"#),
        ("/v1/embeddings", "{}"),
        ("/tokenize", "{}"),
        ("/v1/chat/completions", r#"{"model":7,"messages":[]}"#),
    ] {
        let answer = post(path, body).await.unwrap();
        assert_eq!(answer.status(), 400, "{path} {body}");
        let text = answer.text().await.unwrap();
        assert!(text.starts_with(r#"{"error":{"message":""#), "{text}");
    }
    let stored = post("/v1/responses", r#"{"input":"x","previous_response_id":"resp_1"}"#).await.unwrap();
    assert_eq!(stored.status(), 404);
}

#[tokio::test]
async fn the_null_engine_answers_any_post_and_records_nothing() {
    let engine = start(1, |config| config.mode = Mode::Null).await;
    let got = engine.post("/v1/anything", &[], &json!({ "not": "looked at" })).await;
    assert_eq!((got.status, got.name.is_some()), (200, true));
    assert_eq!(got.json()["choices"][0]["message"]["content"], "ok");
    assert_eq!(engine.requests().await.len(), 0);
    assert_eq!(engine.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_dropped_engine_closes_its_port() {
    let engine = start(1, |_| {}).await;
    let address = engine.engine.address();
    assert_eq!(engine.get("/health").await.status, 200);
    drop(engine);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        assert!(std::time::Instant::now() < deadline, "still listening");
        tokio::task::yield_now().await;
    }
}
