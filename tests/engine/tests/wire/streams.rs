//! Event framing of each endpoint, and that a stream says what a whole answer says.

use serde_json::{Value, json};

use crate::support::{Got, start};

fn events(got: &Got) -> Vec<(Option<String>, String)> {
    assert_eq!(got.content_type.as_deref(), Some("text/event-stream; charset=utf-8"));
    assert!(got.text.ends_with("\n\n"));
    got.text.trim_end_matches('\n').split("\n\n").map(event).collect()
}

fn event(frame: &str) -> (Option<String>, String) {
    let (name, data) = match frame.split_once('\n') {
        Some((name, data)) => (Some(name.strip_prefix("event: ").unwrap().to_owned()), data),
        None => (None, frame),
    };
    (name, data.strip_prefix("data: ").unwrap().to_owned())
}

fn parsed(events: &[(Option<String>, String)]) -> Vec<Value> {
    events
        .iter()
        .filter(|(_, data)| data != "[DONE]")
        .map(|(_, data)| serde_json::from_str(data).unwrap())
        .collect()
}

#[tokio::test]
async fn chat_and_completions_say_the_same_streamed() {
    let engine = start(1, |_| {}).await;
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 9 });
    let completion = json!({ "prompt": ["hi", "bye"], "max_tokens": 9 });
    for (path, body, text) in
        [("/v1/chat/completions", chat, "/message/content"), ("/v1/completions", completion, "/text")]
    {
        let whole = engine.post(path, &[], &body).await.json();
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let got = engine.post(path, &[], &streamed).await;
        assert_eq!(got.rank, Some(0));
        let events = events(&got);
        assert_eq!(events.last().unwrap().1, "[DONE]");
        for choice in whole["choices"].as_array().unwrap() {
            let said: String =
                parsed(&events).iter().filter_map(|chunk| piece(chunk, &choice["index"])).collect();
            assert_eq!(said, choice.pointer(text).unwrap().as_str().unwrap());
        }
        assert!(
            parsed(&events).iter().all(|chunk| chunk.get("usage").is_none()),
            "usage only when asked for"
        );
    }
}

fn piece(chunk: &Value, index: &Value) -> Option<String> {
    let choice = &chunk["choices"][0];
    let text = choice["delta"]["content"].as_str().or(choice["text"].as_str())?;
    (&choice["index"] == index).then(|| text.to_owned())
}

#[tokio::test]
async fn usage_comes_last_when_asked_for() {
    let engine = start(1, |_| {}).await;
    let body = json!({ "prompt": "hi", "max_tokens": 3, "stream": true, "stream_options": { "include_usage": true } });
    let chunks = parsed(&events(&engine.post("/v1/completions", &[], &body).await));
    assert_eq!(chunks.len(), 4);
    assert_eq!(chunks[3]["choices"], json!([]));
    assert_eq!(
        (&chunks[3]["usage"]["completion_tokens"], &chunks[3]["usage"]["prompt_tokens"]),
        (&json!(3), &json!(3))
    );
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn responses_are_named_and_numbered() {
    let engine = start(1, |_| {}).await;
    let whole =
        engine.post("/v1/responses", &[], &json!({ "input": "hi", "max_output_tokens": 2 })).await.json();
    let body = json!({ "input": "hi", "max_output_tokens": 2, "stream": true });
    let events = events(&engine.post("/v1/responses", &[], &body).await);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_deref().unwrap()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names, expected);
    for (number, (event, name)) in parsed(&events).iter().zip(names).enumerate() {
        assert_eq!((&event["sequence_number"], &event["type"]), (&json!(number), &json!(name)));
    }
    let last = &parsed(&events)[9]["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!((&last["status"], &last["usage"]["output_tokens"]), (&json!("incomplete"), &json!(2)));
}

#[tokio::test]
async fn messages_follow_anthropics_order() {
    let engine = start(1, |_| {}).await;
    let body = json!({ "max_tokens": 2, "stream": true, "messages": [{ "role": "user", "content": "hi" }] });
    let events = events(&engine.post("/v1/messages", &[], &body).await);
    let names: Vec<Option<&str>> = events.iter().map(|(name, _)| name.as_deref()).collect();
    let delta = Some("content_block_delta");
    let start = [Some("message_start"), Some("content_block_start"), delta, delta];
    let end = [Some("content_block_stop"), Some("message_delta"), Some("message_stop"), None];
    assert_eq!(names, [start, end].concat());
    let delta = &parsed(&events)[5];
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(2))
    );
}
