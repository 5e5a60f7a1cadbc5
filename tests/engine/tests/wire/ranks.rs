//! The rank header on the wire, endpoint by endpoint, and caches that belong to one rank.

use fake_engine::{Numbering, Version};
use serde_json::{Value, json};

use crate::support::{chat, start};

const HEADER: &str = "X-data-parallel-rank";

fn bodies() -> [(&'static str, Value); 4] {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    [
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/completions", json!({ "prompt": "hi", "max_tokens": 2 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/responses", json!({ "input": "hi", "max_output_tokens": 2 })),
    ]
}

#[tokio::test]
async fn the_header_chooses_on_every_generating_endpoint() {
    let engine = start(2, |_| {}).await;
    for (path, body) in bodies() {
        for (value, rank) in [("1", 1), ("0", 0), ("+1", 1), ("01", 1), ("-0", 0)] {
            let got = engine.post(path, &[(HEADER, value)], &body).await;
            assert_eq!((got.status, got.rank), (200, Some(rank)), "{path} {value}");
        }
    }
}

#[tokio::test]
async fn out_of_range_is_the_real_ones_400() {
    let engine = start(2, |_| {}).await;
    for (path, body) in bodies() {
        for (value, number) in [("2", "2"), ("-1", "-1"), ("1_0", "10")] {
            let got = engine.post(path, &[(HEADER, value)], &body).await;
            let message = format!("data_parallel_rank {number} is out of range [0, 2).");
            let expected = format!(
                r#"{{"error":{{"message":"{message}","type":"BadRequestError","param":null,"code":400}}}}"#
            );
            assert_eq!((got.status, got.text), (400, expected), "{path} {value}");
        }
    }
}

#[tokio::test]
async fn what_is_no_integer_is_ignored_and_the_engine_takes_turns() {
    let engine = start(3, |_| {}).await;
    let mut ranks = Vec::new();
    for value in ["abc", "", "1.0", "1,0", "0x1", "1_"] {
        let got = engine.post("/v1/chat/completions", &[(HEADER, value)], &chat("hi")).await;
        assert_eq!(got.status, 200, "{value:?}");
        ranks.push(got.rank.unwrap());
    }
    assert_eq!(ranks, [0, 1, 2, 0, 1, 2]);
}

#[tokio::test]
async fn numbering_and_start() {
    let global = |config: &mut fake_engine::EngineConfig| {
        config.dp_start = 4;
        config.numbering = Numbering::Global;
    };
    let engine = start(4, global).await;
    let ask =
        async |value| engine.post("/v1/completions", &[(HEADER, value)], &json!({ "prompt": "x" })).await;
    assert_eq!(ask("5").await.rank, Some(5));
    assert_eq!(ask("8").await.status, 400);
    assert_eq!(ask("1").await.status, 400);

    let engine = start(4, |config| config.dp_start = 4).await;
    let ask =
        async |value| engine.post("/v1/completions", &[(HEADER, value)], &json!({ "prompt": "x" })).await;
    assert_eq!(ask("1").await.rank, Some(5), "a local number, told globally");
    assert_eq!(ask("5").await.status, 400);
    let sources = engine.get("/kv_event_sources").await.json();
    assert_eq!(sources.as_object().unwrap().keys().collect::<Vec<_>>(), ["4", "5", "6", "7"]);
}

#[tokio::test]
async fn who_never_reads_the_header() {
    let engine = start(2, |config| config.version = Version(0, 32, 0)).await;
    let embed = engine.post("/v1/embeddings", &[(HEADER, "9")], &json!({ "input": "hi" })).await;
    assert_eq!((embed.status, embed.rank), (200, Some(0)));
    let response = engine.post("/v1/responses", &[(HEADER, "9")], &json!({ "input": "hi" })).await;
    assert_eq!((response.status, response.rank), (200, Some(1)));
    assert_eq!(engine.post("/tokenize", &[(HEADER, "9")], &json!({ "prompt": "hi" })).await.rank, None);
}

#[tokio::test]
async fn a_conversation_hits_on_its_rank_only() {
    let engine = start(2, |_| {}).await;
    let mut messages =
        vec![json!({ "role": "user", "content": "Tell me a long story about the harbour at night." })];
    let mut before = 0;
    for turn in 0..4 {
        let body = json!({ "messages": messages, "max_tokens": 40 });
        let got = engine.post("/v1/chat/completions", &[(HEADER, "1")], &body).await;
        // All whole blocks of what was computed before: everything but the last generated token.
        assert_eq!(got.cached(), before / 16 * 16, "turn {turn}");
        before = got.json()["usage"]["total_tokens"].as_u64().unwrap() - 1;
        messages.push(got.json()["choices"][0]["message"].clone());
        messages.push(json!({ "role": "user", "content": "And then?" }));
    }
    let elsewhere = json!({ "messages": messages, "max_tokens": 1 });
    assert_eq!(engine.post("/v1/chat/completions", &[(HEADER, "0")], &elsewhere).await.cached(), 0);
    assert_eq!(engine.post("/reset_prefix_cache", &[], &json!({})).await.text, r#"{"success":true}"#);
    assert_eq!(engine.post("/v1/chat/completions", &[(HEADER, "1")], &elsewhere).await.cached(), 0);
}

#[tokio::test]
async fn routes_and_salts_do_not_share() {
    let engine = start(1, |_| {}).await;
    let text = "The harbour wakes before the town does. ".repeat(8);
    let salted =
        |salt: Value| json!({ "messages": [{ "role": "user", "content": text }], "cache_salt": salt });
    let ask = async |salt: Value| engine.post("/v1/chat/completions", &[], &salted(salt)).await.cached();
    assert_eq!(ask(json!("a")).await, 0);
    assert_eq!(ask(json!("b")).await, 0);
    assert!(ask(json!("a")).await > 0);
    let response =
        engine.post("/v1/responses", &[], &json!({ "input": text, "cache_salt": "a" })).await.json();
    assert_eq!(
        response["usage"]["input_tokens_details"]["cached_tokens"], 0,
        "a BOS in front changes every block"
    );
    let again = engine.post("/v1/responses", &[], &json!({ "input": text, "cache_salt": "a" })).await.json();
    assert!(again["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    let message =
        json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 1, "cache_salt": "a" });
    let anthropic = engine.post("/v1/messages", &[], &message).await.json();
    assert!(anthropic["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 0, "the same tokens as chat");
}

#[tokio::test]
async fn tokens_of_an_answer_can_be_asked_for() {
    let engine = start(1, |_| {}).await;
    let mut body = chat("hello world");
    body["return_token_ids"] = json!(true);
    let got = engine.post("/v1/chat/completions", &[], &body).await.json();
    let told = engine.post("/tokenize", &[], &json!({ "messages": body["messages"] })).await.json();
    assert_eq!(got["prompt_token_ids"], told["tokens"]);
    assert_eq!(got["choices"][0]["token_ids"].as_array().unwrap().len(), 8);
    let text = engine.post("/tokenize", &[], &json!({ "prompt": "hello world" })).await.json();
    assert_eq!((text["tokens"][0].as_u64(), &text["count"]), (Some(0), &json!(4)));
}
