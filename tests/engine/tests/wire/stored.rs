//! Responses that are kept: continued, asked for again, cancelled; only by the engine that made them.

use fake_engine::EngineConfig;
use serde_json::{Value, json};

use crate::support::{Asked, start};

const PATH: &str = "/v1/responses";

async fn engine() -> Asked {
    start(1, |_: &mut EngineConfig| {}).await
}

fn unknown(id: &str) -> Value {
    json!({ "error": {
        "message": format!("Response with id '{id}' not found."), "type": "invalid_request_error",
        "param": "response_id", "code": 404,
    }})
}

#[tokio::test]
async fn a_chain_is_a_conversation() {
    let engine = engine().await;
    let text = "Tell me a long story about the harbour at night and the boats in it.";
    let first = engine.post(PATH, &[], &json!({ "input": text, "max_output_tokens": 40 })).await.json();
    let id = first["id"].as_str().unwrap();
    assert_eq!(engine.get(&format!("{PATH}/{id}")).await.json(), first);
    let next = json!({ "input": "And then?", "max_output_tokens": 4, "previous_response_id": id });
    let second = engine.post(PATH, &[], &next).await.json();
    assert_eq!(second["previous_response_id"], first["id"]);
    let usage = |one: &Value, pointer: &str| one["usage"].pointer(pointer).and_then(Value::as_u64).unwrap();
    assert!(usage(&second, "/input_tokens") > usage(&first, "/total_tokens"), "with all that was said");
    let cached = usage(&second, "/input_tokens_details/cached_tokens");
    assert!(cached >= usage(&first, "/input_tokens") / 16 * 16, "{cached}");
}

#[tokio::test]
async fn a_stream_is_kept_at_its_end() {
    let engine = engine().await;
    let got = engine.post(PATH, &[], &json!({ "input": "hi", "max_output_tokens": 3, "stream": true })).await;
    let last = got.text.trim_end().rsplit("\n\n").next().unwrap();
    let last: Value = serde_json::from_str(last.split_once("data: ").unwrap().1).unwrap();
    let id = last["response"]["id"].as_str().unwrap();
    assert!(
        got.text.find(id).unwrap() < got.text.find("output_text.delta").unwrap(),
        "told with the first event"
    );
    assert_eq!(engine.get(&format!("{PATH}/{id}")).await.json(), last["response"]);
}

#[tokio::test]
async fn nobody_else_knows_it_nor_this_one_when_told_not_to_keep_it() {
    let (engine, other) = (engine().await, engine().await);
    let id =
        engine.post(PATH, &[], &json!({ "input": "hi" })).await.json()["id"].as_str().unwrap().to_owned();
    let forgotten = engine.post(PATH, &[], &json!({ "input": "hi", "store": false })).await.json();
    for (engine, id) in [(&other, &*id), (&engine, forgotten["id"].as_str().unwrap()), (&engine, "resp_none")]
    {
        let answers = [
            engine.get(&format!("{PATH}/{id}")).await,
            engine.post(&format!("{PATH}/{id}/cancel"), &[], &json!({})).await,
            engine.post(PATH, &[], &json!({ "input": "x", "previous_response_id": id })).await,
        ];
        for got in answers {
            assert_eq!((got.status, got.json()), (404, unknown(id)));
        }
    }
}

#[tokio::test]
async fn only_what_runs_in_the_background_can_be_cancelled() {
    let slow = |config: &mut EngineConfig| config.decode_us_per_token = 10_000_000;
    let engine = start(1, slow).await;
    let ask = json!({ "input": "hi", "max_output_tokens": 500, "background": true });
    let queued = engine.post(PATH, &[], &ask).await.json();
    assert_eq!(queued["status"], "queued");
    let at = format!("{PATH}/{}", queued["id"].as_str().unwrap());
    assert_eq!(engine.get(&at).await.json()["status"], "queued");
    let ended = engine.post(&format!("{at}/cancel"), &[], &json!({})).await;
    assert_eq!((ended.status, &ended.json()["status"]), (200, &json!("cancelled")));
    assert_eq!(engine.get(&at).await.json(), ended.json());
    let again = engine.post(&format!("{at}/cancel"), &[], &json!({})).await;
    assert_eq!(again.json()["error"]["message"], "Cannot cancel a synchronous response.");
    assert_eq!(again.status, 400);
}
