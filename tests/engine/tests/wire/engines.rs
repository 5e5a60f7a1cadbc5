//! What is told apart by engine and version: where a rank is read, how it is refused, what `/metrics` says.

use fake_engine::{EngineConfig, Kind, Version};
use serde_json::{Value, json};

use crate::support::{Asked, chat, start};

const HEADER: &str = "X-Data-Parallel-Rank";

async fn engine(kind: Kind, version: Version, ranks: u32) -> Asked {
    start(ranks, |config: &mut EngineConfig| (config.kind, config.version) = (kind, version)).await
}

fn bodies() -> [(&'static str, Value); 4] {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    [
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/completions", json!({ "prompt": "hi", "max_tokens": 2 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/responses", json!({ "input": "hi", "max_output_tokens": 2 })),
    ]
}

/// Paths on which rank 2 of 3 served although nothing but the ask leads there: the first of a fresh engine would go to 0.
async fn honoured(
    kind: Kind,
    version: Version,
    ask: impl Fn(&mut Value) -> Option<&'static str>,
) -> Vec<&'static str> {
    let mut paths = Vec::new();
    let native = ("/generate", json!({ "text": "hi", "sampling_params": { "max_new_tokens": 2 } }));
    for (path, mut body) in bodies().into_iter().chain((kind == Kind::Sglang).then_some(native)) {
        let engine = engine(kind, version, 3).await;
        let header = ask(&mut body);
        let headers: Vec<_> = header.map(|value| (HEADER, value)).into_iter().collect();
        let got = engine.post(path, &headers, &body).await;
        assert_eq!(got.status, 200, "{path}: {}", got.text);
        if got.rank == Some(2) {
            paths.push(path);
        } else {
            assert_eq!(got.rank, Some(0), "{path}: the engine's own choice");
        }
    }
    paths
}

#[tokio::test]
async fn vllm_by_version() {
    let by_header = |_: &mut Value| Some("2");
    let three = ["/v1/chat/completions", "/v1/completions", "/v1/messages"];
    assert!(honoured(Kind::Vllm, Version(0, 11, 0), by_header).await.is_empty());
    assert_eq!(honoured(Kind::Vllm, Version(0, 32, 0), by_header).await, three);
    let all = bodies().map(|(path, _)| path);
    assert_eq!(honoured(Kind::Vllm, Version(0, 33, 0), by_header).await, all);
    let in_body = |body: &mut Value| {
        body["data_parallel_rank"] = json!(2);
        None
    };
    assert!(honoured(Kind::Vllm, Version(0, 33, 0), in_body).await.is_empty());
}

#[tokio::test]
async fn sglang_by_version() {
    let by_header = |_: &mut Value| Some("2");
    assert!(honoured(Kind::Sglang, Version(0, 5, 9), by_header).await.is_empty());
    let three = ["/v1/chat/completions", "/v1/completions", "/v1/messages"];
    assert_eq!(honoured(Kind::Sglang, Version(0, 5, 10), by_header).await, three);
    let four = bodies().map(|(path, _)| path);
    assert_eq!(honoured(Kind::Sglang, Version(0, 5, 20), by_header).await, four);
    let old = |body: &mut Value| {
        body["data_parallel_rank"] = json!(2);
        None
    };
    let new = |body: &mut Value| {
        body["routed_dp_rank"] = json!(2);
        None
    };
    let read = ["/v1/chat/completions", "/v1/completions", "/generate"];
    assert_eq!(honoured(Kind::Sglang, Version(0, 4, 9), old).await, ["/generate"]);
    assert_eq!(honoured(Kind::Sglang, Version(0, 5, 7), old).await, read);
    assert!(honoured(Kind::Sglang, Version(0, 5, 9), new).await.is_empty());
    assert_eq!(honoured(Kind::Sglang, Version(0, 5, 10), new).await, read);
    assert_eq!(honoured(Kind::Sglang, Version(0, 5, 10), old).await, read);
    let both = |body: &mut Value| {
        body["routed_dp_rank"] = json!(1);
        Some("2")
    };
    assert_eq!(honoured_but_generate(both).await, three, "the header wins");
}

/// As [`honoured`] of SGLang 0.5.10, without the endpoint that reads the body alone.
async fn honoured_but_generate(ask: impl Fn(&mut Value) -> Option<&'static str>) -> Vec<&'static str> {
    let mut paths = Vec::new();
    for (path, mut body) in bodies().into_iter().take(3) {
        let engine = engine(Kind::Sglang, Version(0, 5, 10), 3).await;
        let header = ask(&mut body).unwrap();
        if engine.post(path, &[(HEADER, header)], &body).await.rank == Some(2) {
            paths.push(path);
        }
    }
    paths
}

#[tokio::test]
async fn sglang_refuses_what_vllm_ignores() {
    let engine = engine(Kind::Sglang, Version(0, 5, 10), 2).await;
    let got = engine.post("/v1/chat/completions", &[(HEADER, "abc")], &chat("hi")).await;
    let message = "Invalid X-Data-Parallel-Rank header: must be an integer, got 'abc'";
    assert_eq!((got.status, &got.json()["message"]), (400, &json!(message)), "{}", got.text);
    let got = engine.post("/v1/chat/completions", &[(HEADER, "5")], &chat("hi")).await;
    assert_eq!((got.status, &got.json()["message"]), (400, &json!("routed_dp_rank=5 out of range [0, 2)")));
    let over = [(HEADER, "0"), ("x-override-routed-dp-rank", "1")];
    assert_eq!(engine.post("/v1/chat/completions", &over, &chat("hi")).await.rank, Some(0), "not in 0.5.10");
    let newer = start(2, |config| (config.kind, config.version) = (Kind::Sglang, Version(0, 5, 15))).await;
    assert_eq!(newer.post("/v1/chat/completions", &over, &chat("hi")).await.rank, Some(1));
    let mut body = chat("hi");
    body["data_parallel_rank"] = json!("1");
    assert_eq!(engine.post("/v1/chat/completions", &[], &body).await.status, 400);
    let record = engine.requests().await.pop().unwrap();
    assert_eq!(record["rank_in_body"], "data_parallel_rank=\"1\"");
}

#[tokio::test]
async fn trtllm_pins_conversations_and_reads_no_rank() {
    let engine = engine(Kind::Trtllm, Kind::Trtllm.newest(), 4).await;
    let ask = async |headers: &[(&str, &str)], body: &Value| {
        let got = engine.post("/v1/chat/completions", headers, body).await;
        assert_eq!(got.status, 200, "{}", got.text);
        (got.rank.unwrap(), engine.requests().await.pop().unwrap()["conversation"].clone())
    };
    let mut ranks = std::collections::BTreeSet::new();
    for id in 0..16 {
        let id = format!("conversation-{id}");
        let (rank, told) = ask(&[("x-session-id", &id), (HEADER, "3")], &chat("hi")).await;
        assert_eq!(told, json!(id));
        for headers in [
            [("x-session-id", ""), ("x-correlation-id", &*id)],
            [("x-session-affinity", &*id), ("x-multi-turn-session-id", "other")],
        ] {
            assert_eq!(ask(&headers, &chat("hi")).await.0, rank, "{headers:?}");
        }
        let mut body = chat("hi");
        body["conversation_params"] = json!({ "conversation_id": id });
        assert_eq!(ask(&[("x-session-id", "other")], &body).await, (rank, json!(id)), "the body first");
        ranks.insert(rank);
    }
    assert_eq!(ranks.len(), 4, "conversations spread");
    assert_eq!(ask(&[], &chat("hi")).await.1, Value::Null);
}

#[tokio::test]
async fn another_model_is_each_ones_own_404() {
    for (kind, pointer) in [(Kind::Vllm, "/error/code"), (Kind::Sglang, "/code"), (Kind::Trtllm, "/code")] {
        let engine = engine(kind, kind.newest(), 1).await;
        for (path, mut body) in bodies() {
            body["model"] = json!("nope");
            let got = engine.post(path, &[], &body).await;
            assert_eq!(
                (got.status, got.json().pointer(pointer)),
                (404, Some(&json!(404))),
                "{kind:?} {path}"
            );
            assert!(got.text.contains("`nope` does not exist"));
        }
        let adapter = json!({ "model": "tiny:lora-1", "prompt": "hi" });
        let served = engine.post("/v1/completions", &[], &adapter).await.status;
        assert_eq!(served, if kind == Kind::Sglang { 200 } else { 404 });
        assert_eq!(engine.get("/v1/models").await.json()["data"][0]["id"], "tiny");
    }
}

/// The value of a series.
fn sample(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

#[tokio::test]
async fn gauges_are_what_a_test_sets() {
    let engine = start(2, |config| config.dp_start = 4).await;
    let set = async |gauges: Value| engine.post("/control/gauges", &[], &gauges).await.status;
    assert_eq!(set(json!({ "rank": 5, "running": 7, "waiting": 3, "kv_usage": 0.97 })).await, 200);
    assert_eq!(set(json!({ "rank": 5, "runing": 7 })).await, 400);
    let text = engine.get("/metrics").await.text;
    let of = |name: &str, rank: u32| {
        sample(&text, &format!("vllm:{name}{{engine=\"{rank}\",model_name=\"tiny\"}}"))
    };
    assert_eq!((of("num_requests_running", 5), of("num_requests_running", 4)), (Some(7.0), Some(0.0)));
    assert_eq!((of("num_requests_waiting", 5), of("kv_cache_usage_perc", 5)), (Some(3.0), Some(0.97)));
    assert_eq!(set(json!({ "rank": 4, "absent": true })).await, 200);
    let text = engine.get("/metrics").await.text;
    assert!(!text.contains("engine=\"4\"") && text.contains("engine=\"5\""));
    assert_eq!(engine.send("DELETE", "/control/gauges", &[], None).await.status(), 200);
    let text = engine.get("/metrics").await.text;
    assert_eq!(sample(&text, "vllm:num_requests_running{engine=\"5\",model_name=\"tiny\"}"), Some(0.0));
}

#[tokio::test]
async fn each_engine_has_its_own_dialect() {
    for (version, old, new) in [((0, 9, 1), true, false), ((0, 11, 1), true, true), ((0, 12, 0), false, true)]
    {
        let version = Version(version.0, version.1, version.2);
        let text = engine(Kind::Vllm, version, 1).await.get("/metrics").await.text;
        let has = |name: &str| text.contains(&format!("vllm:{name}{{"));
        assert_eq!((has("gpu_cache_usage_perc"), has("kv_cache_usage_perc")), (old, new), "{version}");
    }
    let sglang = start(2, |config| {
        (config.kind, config.version, config.tp_size) = (Kind::Sglang, Kind::Sglang.newest(), 2);
        config.dp_start = 4;
    })
    .await;
    sglang.post("/control/gauges", &[], &json!({ "rank": 5, "running": 7, "kv_usage": 0.5 })).await;
    let text = sglang.get("/metrics").await.text;
    let running: Vec<&str> =
        text.lines().filter(|line| line.starts_with("sglang:num_running_reqs{")).collect();
    assert_eq!(running.len(), 4, "a series a rank and tensor-parallel rank");
    assert_eq!(
        running.iter().filter(|line| line.contains("dp_rank=\"1\"") && line.ends_with(" 7.0")).count(),
        2
    );
    let single = engine(Kind::Sglang, Kind::Sglang.newest(), 1).await.get("/metrics").await.text;
    assert!(!single.contains("dp_rank") && single.contains("sglang:token_usage{"));
    let trtllm = engine(Kind::Trtllm, Kind::Trtllm.newest(), 2).await;
    trtllm.post("/control/gauges", &[], &json!({ "running": 2, "waiting": 1, "kv_usage": 0.25 })).await;
    let text = trtllm.get("/prometheus/metrics").await.text;
    let of =
        |name: &str| sample(&text, &format!("trtllm_{name}{{engine_type=\"unified\",model_name=\"tiny\"}}"));
    assert_eq!(
        (of("num_requests_running"), of("num_requests_waiting"), of("kv_cache_utilization")),
        (Some(4.0), Some(2.0), Some(0.25))
    );
    assert_eq!(trtllm.get("/metrics").await.json()[0]["numActiveRequests"], 4);
}

#[tokio::test]
async fn a_sound_is_a_form_and_goes_to_any_rank() {
    let engine = start(2, |_| {}).await;
    let form = |model: &str| {
        format!(
            "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n{}\r\n--x--\r\n",
            "s".repeat(100_000)
        )
    };
    let post = async |path: &str, body: String| {
        let request = engine.client.post(engine.engine.url() + path).header(HEADER, "9").body(body);
        request.header("content-type", "multipart/form-data; boundary=x").send().await.unwrap()
    };
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        let got = crate::support::read(post(path, form("tiny")).await).await;
        assert_eq!((got.status, &got.json()["text"]), (200, &json!("100000 bytes of sound")));
        assert_eq!(post(path, form("nope")).await.status(), 404);
        assert_eq!(post(path, "{}".to_owned()).await.status(), 400);
    }
}
