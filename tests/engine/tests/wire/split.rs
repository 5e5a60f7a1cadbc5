//! Prompts computed apart from replies: the decode engine asks the prefiller that a header names, on the rank that is named.

use fake_engine::{Role, Version};
use serde_json::json;

use crate::support::{chat, start};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn the_named_prefiller_computes_on_the_named_rank() {
    let prefill = start(4, |config| (config.role, config.name) = (Role::Prefill, "p0".to_owned())).await;
    let decode = start(2, |config| config.role = Role::Decode).await;
    let to = prefill.engine.address().to_string();
    let mut body = chat("hello");
    body["stream"] = json!(true);
    let headers = [
        ("x-prefiller-host-port", &*to),
        ("x-prefill-dp-rank", "3"),
        ("x-data-parallel-rank", "1"),
        ("x-session-id", "s-1"),
    ];
    let got = decode.send("POST", CHAT, &headers, Some(&body)).await;
    let header = |name: &str| got.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(
        (header("x-engine-name").as_deref(), header("x-engine-rank").as_deref()),
        (Some("fake-engine"), Some("1"))
    );
    assert_eq!(
        (header("x-prefill-engine-name").as_deref(), header("x-prefill-engine-rank").as_deref()),
        (Some("p0"), Some("3"))
    );
    assert!(got.text().await.unwrap().ends_with("data: [DONE]\n\n"), "streamed by the decode engine");
    let asked = prefill.requests().await.pop().unwrap();
    assert_eq!(
        (&asked["rank_header"], &asked["rank"], &asked["path"]),
        (&json!("3"), &json!(3), &json!(CHAT))
    );
    let headers: Vec<(String, String)> = serde_json::from_value(asked["headers"].clone()).unwrap();
    assert!(headers.contains(&("x-session-id".to_owned(), "s-1".to_owned())));
    assert!(!headers.iter().any(|(name, _)| name.starts_with("x-prefill")), "{headers:?}");
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let sent = BASE64_STANDARD.decode(asked["body_base64"].as_str().unwrap()).unwrap();
    let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
    assert_eq!((&sent["max_tokens"], &sent["stream"]), (&json!(1), &json!(false)));
}

#[tokio::test]
async fn without_a_prefiller_it_replies_alone_and_only_a_decoder_asks_one() {
    let prefill = start(1, |_| {}).await;
    let to = prefill.engine.address().to_string();
    let decode = start(1, |config| config.role = Role::Decode).await;
    let alone = decode.send("POST", CHAT, &[], Some(&chat("hi"))).await;
    assert_eq!((alone.status().as_u16(), alone.headers().get("x-prefill-engine-name")), (200, None));
    let both = start(1, |config| config.version = Version(0, 33, 0)).await;
    assert_eq!(both.post(CHAT, &[("x-prefiller-host-port", &to)], &chat("hi")).await.status, 200);
    assert!(prefill.requests().await.is_empty());
}

#[tokio::test]
async fn a_prefiller_that_fails_fails_the_request() {
    let prefill = start(2, |_| {}).await;
    let decode = start(1, |config| config.role = Role::Decode).await;
    let to = prefill.engine.address().to_string();
    prefill.order_fault(json!({ "fault": "503", "times": 1 })).await;
    let out_of_range = [("x-prefiller-host-port", &*to), ("x-prefill-dp-rank", "7")];
    for headers in [&out_of_range[..1], &out_of_range, &[("x-prefiller-host-port", "127.0.0.1:1")]] {
        let got = decode.post(CHAT, headers, &chat("hi")).await;
        assert_eq!((got.status, got.rank), (502, None), "{headers:?}");
    }
}
