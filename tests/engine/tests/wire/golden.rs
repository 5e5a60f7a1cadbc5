//! The same questions a real vLLM was asked, and what it answered.

use fake_engine::{EngineConfig, Version};
use serde_json::{Value, json};

use crate::support::{Asked, start};

const EXCHANGES: &str = include_str!("../../golden/vllm-0.32.0.jsonl");
const METRICS: &str = include_str!("../../golden/vllm-0.32.0-metrics.txt");

/// What the real one left null or out because its flags for it were off, or not on.
const DETAILS: [&str; 4] =
    ["prompt_tokens_details", "cached_tokens", "created_cache_tokens", "multimodal_tokens"];
const ANTHROPIC_CACHE: &str = "cache_read_input_tokens";

fn exchanges() -> Vec<Value> {
    EXCHANGES.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn like_the_real_one() -> Asked {
    let change = |config: &mut EngineConfig| {
        config.version = Version(0, 32, 0);
        config.block_size = 32;
        config.max_model_len = 1024;
    };
    start(2, change).await
}

async fn ask(engine: &Asked, exchange: &Value, body: Option<&Value>) -> crate::support::Got {
    let headers: Vec<(&str, &str)> = exchange["req_headers"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
        .collect();
    let (method, path) = (exchange["method"].as_str().unwrap(), exchange["path"].as_str().unwrap());
    crate::support::read(engine.send(method, path, &headers, body).await).await
}

fn body(exchange: &Value) -> Option<Value> {
    let mut body = exchange["req_body"].clone();
    // The real one was started with --enable-force-include-usage; here a request asks for the same.
    if body["stream_options"].is_object() {
        body["stream_options"]["continuous_usage_stats"] = json!(true);
    }
    (!body.is_null()).then_some(body)
}

#[tokio::test]
async fn every_exchange_has_the_real_ones_shape() {
    let engine = like_the_real_one().await;
    for exchange in exchanges() {
        let label = exchange["label"].as_str().unwrap();
        let got = ask(&engine, &exchange, body(&exchange).as_ref()).await;
        let real = exchange["resp"].as_str().unwrap();
        assert_eq!(got.status, exchange["status"].as_u64().unwrap() as u16, "{label}: {}", got.text);
        assert_eq!(got.content_type.as_deref(), exchange["resp_headers"]["content-type"].as_str(), "{label}");
        assert_eq!(keys(&got.text), keys(real), "{label}\n{}\n{real}", got.text);
        if got.content_type.as_deref().is_some_and(|kind| kind.contains("json")) {
            let (mine, theirs) = (got.json(), serde_json::from_str(real).unwrap());
            compare(label, "", &mine, &theirs);
        }
    }
}

#[tokio::test]
async fn errors_and_constants_are_the_real_ones_to_the_letter() {
    let engine = like_the_real_one().await;
    let exact =
        ["GET /health", "GET /ping", "GET /version", "GET /load", "GET /is_sleeping", "GET /is_paused"];
    let mut compared = 0;
    for exchange in exchanges() {
        let label = exchange["label"].as_str().unwrap();
        if exchange["status"] != 200 || exact.contains(&label) || label == "reset_prefix_cache" {
            let got = ask(&engine, &exchange, body(&exchange).as_ref()).await;
            assert_eq!(got.text, exchange["resp"].as_str().unwrap(), "{label}");
            compared += 1;
        }
    }
    assert_eq!(compared, 12);
}

#[tokio::test]
async fn token_prompts_are_counted_as_the_real_one_counts() {
    let engine = like_the_real_one().await;
    let mut compared = 0;
    for exchange in exchanges() {
        let label = exchange["label"].as_str().unwrap();
        let prompt = &exchange["req_body"]["prompt"];
        if exchange["status"] != 200 || !(prompt[0].is_number() || prompt[0][0].is_number()) {
            continue;
        }
        let mine = ask(&engine, &exchange, body(&exchange).as_ref()).await.json()["usage"].clone();
        let real: Value = serde_json::from_str(exchange["resp"].as_str().unwrap()).unwrap();
        let mut real = real["usage"].clone();
        if real["prompt_tokens_details"].is_null() {
            real["prompt_tokens_details"] = mine["prompt_tokens_details"].clone();
        }
        assert_eq!(mine, real, "{label}");
        compared += 1;
    }
    assert_eq!(compared, 5, "among them the 64 of 96 found in the cache");
}

#[tokio::test]
async fn event_frames_are_the_real_ones() {
    let engine = like_the_real_one().await;
    let exchange = exchanges().into_iter().find(|exchange| exchange["label"] == "chat_stream_usage").unwrap();
    let got = ask(&engine, &exchange, body(&exchange).as_ref()).await;
    let frames = |text: &str| -> Vec<Vec<String>> { text.split("\n\n").map(keys).collect() };
    let real = exchange["resp"].as_str().unwrap();
    assert_eq!(frames(&got.text), frames(real));
    assert!(got.text.ends_with("\n\ndata: [DONE]\n\n"));
    assert!(
        got.text.split("\n\n").filter(|frame| !frame.is_empty()).all(|frame| frame.starts_with("data: "))
    );
}

#[tokio::test]
async fn metrics_have_the_real_ones_families_and_labels() {
    let engine = like_the_real_one().await;
    engine.post("/v1/chat/completions", &[], &crate::support::chat("hello")).await;
    let got = engine.get("/metrics").await;
    assert_eq!(got.content_type.as_deref(), Some("text/plain; version=1.0.0; charset=utf-8"));
    let families = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("# ")).map(str::to_owned).collect()
    };
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    let real = METRICS.lines().filter(|line| !line.contains("_created")).collect::<Vec<_>>().join("\n");
    assert_eq!(sorted(families(&got.text)), sorted(families(&real)));
    let series = |text: &str| -> Vec<String> {
        let plain = |line: &&str| line.starts_with("vllm:") && !line.contains("cache_config_info");
        text.lines().filter(plain).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let mine = series(&got.text);
    let absent: Vec<String> = series(&real).into_iter().filter(|name| !mine.contains(name)).collect();
    // Reasons this engine has no way to end for.
    let endings = ["error", "repetition"];
    assert!(absent.iter().all(|name| endings.iter().any(|reason| name.contains(reason))), "{absent:?}");
    assert!(got.text.contains("block_size=\"32\"") && got.text.contains("num_gpu_blocks=\"4096\""));
}

/// The keys of a JSON text, or of several in one stream, in the order they stand, without what flags add.
fn keys(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('"') {
        let body = &rest[start + 1..];
        let mut escaped = false;
        let is_end = |c: char| {
            let end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            end
        };
        let end = body.find(is_end).expect("a string that ends");
        rest = &body[end + 1..];
        if rest.starts_with(':') {
            keys.push(body[..end].to_owned());
        }
    }
    // Where the real one has such a key, `compare` asks for it.
    keys.retain(|key| !DETAILS.contains(&key.as_str()) && key != ANTHROPIC_CACHE);
    keys
}

/// Same types all the way down; where the real one has null for want of a flag, anything.
fn compare(label: &str, path: &str, mine: &Value, real: &Value) {
    match (mine, real) {
        (Value::Object(mine), Value::Object(real)) => {
            for (key, value) in real {
                let own = mine.get(key).unwrap_or_else(|| panic!("{label}: no {path}.{key}"));
                compare(label, &format!("{path}.{key}"), own, value);
            }
        }
        (Value::Array(mine), Value::Array(real)) => {
            assert_eq!(mine.is_empty(), real.is_empty(), "{label}: {path}");
            mine.iter().zip(real).for_each(|(mine, real)| compare(label, &format!("{path}[]"), mine, real));
        }
        (_, Value::Null) if path.ends_with(".prompt_tokens_details") => {}
        _ => assert_eq!(kind(mine), kind(real), "{label}: {path}: {mine} for {real}"),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
