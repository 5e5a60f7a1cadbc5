//! Events that come by another way than ZeroMQ: a TensorRT-LLM that is polled, and batches that somebody pushes.

use super::fleet::{Fleet, tokens};
use e2e::EngineSpec;
use serde_json::{Value, json};

/// Each question takes away what it is answered; one that failed has lost what it would have been told.
#[tokio::test(flavor = "multi_thread")]
async fn a_tensorrt_llm_is_polled_and_cold_once_a_question_failed() {
    let spec = EngineSpec::new("w0", 1).engine("trtllm", "1.2.0").with(&["--kv-poll", "1000"]);
    let fleet = Fleet::start(vec![spec.declaring("kv_events", json!("discover"))]).await;
    fleet.linked("w0", 0, "up").await;
    let engine = fleet.engine("w0");
    let blocks = |count: usize| move |shown: &Value| shown["blocks"]["gpu"] == count;
    engine.compute(&tokens(1, 4), None).await.unwrap();
    let shown = fleet.until("w0", 0, "four blocks", blocks(4)).await;
    assert_eq!(shown["cold"], false);
    engine.close().await.unwrap();
    fleet.linked("w0", 0, "connecting").await;
    let shown = fleet.shown("w0", 0).await;
    assert_eq!((&shown["blocks"]["gpu"], &shown["cold"]), (&0.into(), &true.into()));
    engine.open().await.unwrap();
    fleet.linked("w0", 0, "up").await;
    engine.compute(&tokens(2, 3), None).await.unwrap();
    fleet.until("w0", 0, "three blocks", blocks(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_pushed() {
    let fleet = Fleet::undeclared(vec![EngineSpec::new("w0", 2)]).await;
    fleet.declare("w0", json!("off")).await;
    let stored = |block: u32| json!({"type": "stored", "hashes": [block], "tokens": tokens(block, 1), "block_size": 16});
    let push = async |rank: u32, seq: u64, events: Value| {
        let body = json!({"worker": "w0", "rank": rank, "seq": seq, "events": events}).to_string();
        fleet.service.call("POST", "/v1/kv-events", Some(&body)).await.unwrap()
    };
    let said = push(1, 0, json!([stored(1), stored(2)])).await;
    assert_eq!((said.status, &said.body), (200, &json!({"next_seq": 1, "cold": false})));
    let said = push(1, 0, json!([stored(1), stored(2)])).await;
    assert_eq!(said.body, json!({"next_seq": 1, "cold": false}), "the same again is known");
    let shown = fleet.shown("w0", 1).await;
    assert_eq!((&shown["link"], &shown["blocks"]["gpu"]), (&"pushed".into(), &2.into()));
    // A number is left out, and nobody can replay it.
    let said = push(1, 2, json!([stored(3)])).await;
    assert_eq!(said.body, json!({"next_seq": 3, "cold": true}));
    assert_eq!(fleet.shown("w0", 1).await["blocks"]["gpu"], 1);
    let said = push(1, 3, json!([{"type": "cleared"}, stored(4), stored(5)])).await;
    assert_eq!(said.body, json!({"next_seq": 4, "cold": false}));
    // Backwards, with other contents: another life.
    push(1, 0, json!([stored(6)])).await;
    assert_eq!(fleet.shown("w0", 1).await["blocks"]["gpu"], 1);

    let said = push(2, 0, json!([stored(1)])).await;
    assert!((400..500).contains(&said.status), "there is no rank 2: {said:?}");
    let bad = json!([{"type": "moved"}, {"type": "stored", "hashes": ["x"], "tokens": [1], "block_size": 0}]);
    let said = push(1, 1, bad).await;
    assert_eq!(said.status, 400);
    let text = said.body.to_string();
    for path in ["events[0].type", "events[1].hashes[0]", "events[1].block_size"] {
        assert!(text.contains(path), "{path} is missing in {text}");
    }
    assert_eq!(fleet.shown("w0", 1).await["last_seq"], 0, "nothing of it was applied");
}
