//! Each fault, by header and by order.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Asked, chat, start};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn statuses() {
    let engine = start(1, |_| {}).await;
    for (fault, status, retry_after) in [
        ("500", 500, None),
        ("502", 502, None),
        ("503", 503, None),
        ("504", 504, None),
        ("503-retry-after=7", 503, Some("7")),
        ("429=2", 429, Some("2")),
    ] {
        let got = engine.post(CHAT, &[("x-fake-fault", fault)], &chat("hi")).await;
        assert_eq!(
            (got.status, got.retry_after.as_deref(), got.rank),
            (status, retry_after, None),
            "{fault}"
        );
        assert_eq!(got.json()["error"]["code"], status);
    }
    assert_eq!(engine.post(CHAT, &[], &chat("hi")).await.status, 200);
}

#[tokio::test]
async fn slow_is_late_but_right() {
    let engine = start(1, |_| {}).await;
    let start = Instant::now();
    let got = engine.post(CHAT, &[("x-fake-fault", "slow=150")], &chat("hi")).await;
    assert!(start.elapsed() >= Duration::from_millis(150));
    assert_eq!((got.status, got.rank), (200, Some(0)));
}

fn raw(fault: &str, stream: bool) -> String {
    let body = json!({ "prompt": "hello", "max_tokens": 50, "stream": stream }).to_string();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-fake-fault: {fault}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn reset_is_rst_before_any_byte() {
    let engine = start(1, |_| {}).await;
    let (seen, end) = engine.raw(&raw("reset", false)).await;
    assert_eq!((seen.len(), end.unwrap_err().kind()), (0, ErrorKind::ConnectionReset));
    assert_eq!(engine.requests().await[0]["status"], json!(null), "recorded, and that nothing was answered");
}

#[tokio::test]
async fn die_mid_stream_is_a_head_some_events_and_rst() {
    let engine = start(1, |_| {}).await;
    let (seen, end) = engine.raw(&raw("die-mid-stream", true)).await;
    let text = String::from_utf8(seen).unwrap();
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert_eq!(text.matches("data: ").count(), 3, "{text}");
    assert!(!text.contains("[DONE]"));
}

#[tokio::test]
async fn die_mid_stream_cuts_a_whole_answer_in_half() {
    let engine = start(1, |_| {}).await;
    let (seen, end) = engine.raw(&raw("die-mid-stream", false)).await;
    let text = String::from_utf8(seen).unwrap();
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let promised: usize =
        head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    assert_eq!(body.len(), promised / 2);
}

#[tokio::test]
async fn hang_answers_nothing_and_lets_go_when_the_client_does() {
    let engine = start(1, |_| {}).await;
    let hung = engine.client.post(engine.engine.url() + CHAT).header("x-fake-fault", "hang");
    let hung = hung.body(chat("hi").to_string()).timeout(Duration::from_millis(200)).send().await;
    assert!(hung.unwrap_err().is_timeout());
    let deadline = Instant::now() + Duration::from_secs(10);
    while engine.get("/control/state").await.json()["in_flight"] != 0 {
        assert!(Instant::now() < deadline, "still in flight");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn ordered_faults_are_counted_confined_and_cleared() {
    let engine = start(1, |_| {}).await;
    engine.order_fault(json!({ "fault": "503", "times": 2, "path": CHAT })).await;
    let completion = json!({ "prompt": "x" });
    assert_eq!(engine.post("/v1/completions", &[], &completion).await.status, 200);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(engine.post(CHAT, &[], &chat("hi")).await.status);
    }
    assert_eq!(statuses, [503, 503, 200]);

    engine.order_fault(json!({ "fault": "500" })).await;
    for _ in 0..3 {
        assert_eq!(engine.post("/v1/completions", &[], &completion).await.status, 500);
    }
    assert_eq!(engine.get("/v1/models").await.status, 200, "without a path only POSTs");
    assert_eq!(engine.get("/health").await.status, 200);
    assert_eq!(
        engine.get("/control/fault").await.text,
        r#"{"faults":[{"fault":"500","times":null,"path":null}]}"#
    );
    engine.send("DELETE", "/control/fault", &[], None).await;
    assert_eq!(engine.post("/v1/completions", &[], &completion).await.status, 200);
}

#[tokio::test]
async fn health_fails_alone() {
    let engine = start(1, |_| {}).await;
    engine.order_fault(json!({ "fault": "health-503", "times": 1 })).await;
    assert_eq!(engine.post(CHAT, &[], &chat("hi")).await.status, 200);
    assert_eq!(engine.get("/health").await.status, 503);
    assert_eq!(engine.get("/health").await.status, 200);
    engine.order_fault(json!({ "fault": "health-hang" })).await;
    let probe =
        engine.client.get(engine.engine.url() + "/health").timeout(Duration::from_millis(100)).send().await;
    assert!(probe.unwrap_err().is_timeout());
    assert_eq!(engine.get("/ping").await.status, 200);
}

#[tokio::test]
async fn a_wrong_order_is_refused_with_a_sentence() {
    let engine = start(1, |_| {}).await;
    for wrong in [json!({ "fault": "404" }), json!({}), json!({ "fault": "500", "time": 1 })] {
        let got = engine.post("/control/fault", &[], &wrong).await;
        assert_eq!(got.status, 400, "{wrong}");
        assert!(got.json()["error"].is_string());
    }
}

/// A closed port refuses, ends what it has, and is the same port afterwards.
#[tokio::test]
async fn a_port_closes_and_opens_again_and_control_goes_on() {
    let engine = start(1, |config| config.control = Some(([127, 0, 0, 1], 0).into())).await;
    let control = engine.engine.control_address().unwrap();
    engine.order_fault(json!({ "fault": "hang", "times": 1 })).await;
    let waiting = engine.raw("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}");
    let closing = async {
        while engine.requests().await.is_empty() {
            tokio::task::yield_now().await;
        }
        door(&engine, control, "close").await;
    };
    let ((seen, _), ()) = tokio::join!(waiting, closing);
    assert!(seen.is_empty(), "an answer came before the end");
    for _ in 0..2 {
        let refused = tokio::net::TcpStream::connect(engine.engine.address()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let listing = engine.client.get(format!("http://{control}/control/requests")).send().await.unwrap();
        assert_eq!(listing.status(), 200);
        door(&engine, control, "open").await;
        assert_eq!(engine.post("/v1/chat/completions", &[], &chat("hi")).await.status, 200);
        door(&engine, control, "close").await;
    }
    let other = engine.client.get(format!("http://{control}/v1/models")).send().await.unwrap();
    assert_eq!(other.status(), 404, "the second address is for control alone");
}

async fn door(engine: &Asked, control: std::net::SocketAddr, what: &str) {
    let url = format!("http://{control}/control/{what}");
    assert_eq!(engine.client.post(url).send().await.unwrap().status(), 200);
}
