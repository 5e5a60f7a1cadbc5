//! What the engine tells tests about what it was asked.

use serde_json::json;

use crate::support::{chat, start};

#[tokio::test]
async fn a_request_is_recorded_as_received() {
    let engine = start(2, |config| config.dp_start = 4).await;
    // Nothing a JSON library would print back the same.
    let body =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}] , \"x\":0.70, \"seed\":18446744073709551615}";
    let raw = format!(
        "POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: x\r\nX-Data-Parallel-Rank: 1\r\nX-Twice: a\r\nX-Twice: b\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (seen, end) = engine.raw(&raw).await;
    end.unwrap();
    assert!(seen.starts_with(b"HTTP/1.1 200"));
    let record = &engine.requests().await[0];
    let headers = json!([
        ["host", "x"],
        ["x-data-parallel-rank", "1"],
        ["x-twice", "a"],
        ["x-twice", "b"],
        ["connection", "close"],
        ["content-length", body.len().to_string()]
    ]);
    assert_eq!(record["headers"], headers);
    assert_eq!(record["path"], "/v1/chat/completions?a=b");
    assert_eq!((&record["rank_header"], &record["rank"]), (&json!("1"), &json!(5)));
    assert_eq!((&record["body_bytes"], &record["status"]), (&json!(body.len()), &json!(200)));
    assert_eq!(record["cached_tokens"], 0);
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let kept = BASE64_STANDARD.decode(record["body_base64"].as_str().unwrap()).unwrap();
    assert_eq!(kept, body.as_bytes());
    use sha2::{Digest as _, Sha256};
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(record["body_sha256"], digest);
}

#[tokio::test]
async fn sequence_goes_on_after_clearing_and_probes_are_not_recorded() {
    let engine = start(1, |_| {}).await;
    engine.post("/v1/chat/completions", &[], &chat("hi")).await;
    engine.get("/health").await;
    engine.get("/metrics").await;
    assert_eq!(engine.requests().await.len(), 1);
    engine.post("/control/requests/clear", &[], &json!({})).await;
    assert_eq!(engine.requests().await.len(), 0);
    engine.get("/v1/models").await;
    let records = engine.requests().await;
    assert_eq!((&records[0]["sequence"], &records[0]["rank_header"]), (&json!(1), &json!(null)));
}

#[tokio::test]
async fn every_answer_names_the_engine() {
    let engine = start(1, |config| config.name = "worker-b".to_owned()).await;
    for path in ["/health", "/v1/models", "/metrics", "/control/state", "/nowhere"] {
        assert_eq!(engine.get(path).await.name.as_deref(), Some("worker-b"), "{path}");
    }
    assert_eq!(engine.get("/nowhere").await.status, 404);
}

#[tokio::test]
async fn state_shows_ranks_at_work() {
    let engine = start(2, |config| config.decode_us_per_token = 2_000_000).await;
    let body = json!({ "prompt": "hello", "max_tokens": 100, "stream": true });
    let running = engine.send("POST", "/v1/completions", &[("x-data-parallel-rank", "1")], Some(&body)).await;
    let state = engine.get("/control/state").await.json();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let count = |state: &serde_json::Value| {
        state["ranks"][1]["running"].as_u64().unwrap() + state["ranks"][1]["waiting"].as_u64().unwrap()
    };
    assert_eq!((count(&state), &state["ranks"][0]["running"]), (1, &json!(0)));
    drop(running);
    while count(&engine.get("/control/state").await.json()) != 0 {
        assert!(std::time::Instant::now() < deadline, "the client is gone, the turn is not");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
