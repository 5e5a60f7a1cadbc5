//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's shapes over the chat template.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Call, DONE, chat, event};
use crate::answer::{Answer, Refusal, ok};
use crate::ask::{self, Fields, content_text, flag};
use crate::generate::{Format, Generations, Reply, Usage};
use crate::json::{Raw, object};
use crate::model::{Start, Word};
use crate::printed::Ordered;
use crate::rank_ask::{self, Endpoint};
use crate::ranks::Finish;
use crate::shared::Shared;

pub(crate) async fn answer(call: Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let required = [("messages", "body.messages"), ("max_tokens", "body.max_tokens")];
    let fields = ask::fields(&call.body, &required)?;
    ask::check_model(shared, &fields)?;
    let tokens = tokens(shared, &fields).await?;
    let plan = ask::plan(shared, fields.get("max_tokens"), Finish::Stop, tokens.len())?;
    let rank = rank_ask::rank(shared, Endpoint::Messages, &call.headers, &fields, &call.outcome)?;
    let prompt = ask::prompt(shared, &fields, &call.headers, tokens);
    let generations = Generations::admit(shared, call.outcome, rank, vec![(prompt, plan)]);
    let (id, model) = (shared.fresh_id("chatcmpl-"), shared.config.model.clone());
    if flag(&fields, "stream") {
        return Ok(generations.stream(Events { id, model, finish: Finish::Stop }));
    }
    let served = generations.run().await;
    Ok(served.answer(|replies| ok(whole(&id, &model, &replies[0]))))
}

pub(crate) async fn count_tokens(call: Call) -> Result<Answer, Refusal> {
    let fields = ask::fields(&call.body, &[("messages", "body.messages")])?;
    ask::check_model(&call.shared, &fields)?;
    let tokens = tokens(&call.shared, &fields).await?;
    Ok(ok(object! { "input_tokens": tokens.len() }))
}

async fn tokens(shared: &Arc<Shared>, fields: &Fields) -> Result<Arc<[u32]>, Refusal> {
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system").filter(|system| !system.is_null()) {
        messages.push(json!({ "role": "system", "content": content_text(Some(system)) }));
    }
    messages.extend(fields.get("messages").and_then(Value::as_array).into_iter().flatten().cloned());
    let text = chat::render(shared, Some(&Value::Array(messages)), fields, &Ordered::Null)?;
    ask::encode(shared, text, Start::Plain).await
}

fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
    }
}

/// `input_tokens` is the whole prompt, as the engine counts it; what was cached is told beside it.
fn usage(usage: &Usage) -> Raw {
    object! {
        "input_tokens": usage.prompt, "output_tokens": usage.completion, "cache_read_input_tokens": usage.cached,
    }
}

fn whole(id: &str, model: &str, reply: &Reply) -> Raw {
    object! {
        "id": id, "type": "message", "role": "assistant",
        "content": [object! { "type": "text", "text": reply.text }], "model": model,
        "stop_reason": stop_reason(reply.finish), "usage": usage(&reply.usage),
    }
}

struct Events {
    id: String,
    model: String,
    finish: Finish,
}

impl Format for Events {
    fn begin(&mut self, _index: usize, _prompt: &[u32], counted: &Usage) -> String {
        let message = object! {
            "id": self.id, "type": "message", "role": "assistant", "content": Vec::<Raw>::new(),
            "model": self.model, "stop_reason": (), "stop_sequence": (), "usage": usage(counted),
        };
        let start = object! { "type": "message_start", "message": message };
        let block = object! {
            "type": "content_block_start", "index": 0, "content_block": object! { "type": "text", "text": "" },
        };
        event("message_start", &start) + &event("content_block_start", &block)
    }

    fn word(&mut self, _index: usize, word: &Word, last: Option<Finish>, _usage: &Usage) -> String {
        self.finish = last.unwrap_or(self.finish);
        let delta = object! { "type": "text_delta", "text": &*word.text };
        event("content_block_delta", &object! { "type": "content_block_delta", "index": 0, "delta": delta })
    }

    fn end(&mut self, counted: &Usage) -> String {
        let stop = object! { "type": "content_block_stop", "index": 0 };
        let delta = object! { "stop_reason": stop_reason(self.finish), "stop_sequence": () };
        let closing = object! { "type": "message_delta", "delta": delta, "usage": usage(counted) };
        event("content_block_stop", &stop)
            + &event("message_delta", &closing)
            + &event("message_stop", &object! { "type": "message_stop" })
            + DONE
    }
}
