//! `POST /v1/chat/completions`: messages through the chat template, no BOS.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Call, DONE, Extras, Identity, data, final_usage, finish_reason, running_usage, usage};
use crate::answer::{Answer, Refusal, ok};
use crate::ask::{self, Fields, content_text, flag};
use crate::generate::{Format, Generations, Reply, Usage};
use crate::json::{Raw, object};
use crate::model::{Generate, Start, Word};
use crate::printed::{self, Ordered};
use crate::rank_ask::{self, Endpoint};
use crate::ranks::Finish;
use crate::shared::Shared;

pub(crate) async fn answer(call: Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let fields = ask::fields(&call.body, &[("messages", "body.messages")])?;
    ask::check_model(shared, &fields)?;
    let text = render(shared, fields.get("messages"), &fields, &Ordered::of(&call.body))?;
    let tokens = ask::encode(shared, text, Start::Plain).await?;
    let limit =
        fields.get("max_completion_tokens").filter(|limit| !limit.is_null()).or(fields.get("max_tokens"));
    let plan = ask::plan(shared, limit, Finish::Stop, tokens.len())?;
    let rank = rank_ask::rank(shared, Endpoint::Chat, &call.headers, &fields, &call.outcome)?;
    let prompt = ask::prompt(shared, &fields, &call.headers, tokens);
    let generations = Generations::admit(shared, call.outcome, rank, vec![(prompt, plan)]);
    let (identity, extras) = (Identity::new(shared, "chatcmpl-"), Extras::read(&fields));
    if flag(&fields, "stream") {
        return Ok(generations.stream(Chunks { identity, extras }));
    }
    let served = generations.run().await;
    Ok(served.answer(|replies| ok(whole(&identity, extras, &replies))))
}

/// The prompt of a conversation, with its tools and calls as they stand in `body`, with the mark of the assistant's turn unless told not to.
pub(crate) fn render(
    shared: &Arc<Shared>,
    messages: Option<&Value>,
    fields: &Fields,
    body: &Ordered,
) -> Result<String, Refusal> {
    let messages = messages.and_then(Value::as_array).into_iter().flatten().enumerate();
    let messages = messages.map(|(at, one)| message(one, printed::calls(body, at))).collect();
    let tools = printed::tools(body);
    let generate = match fields.get("add_generation_prompt") {
        Some(Value::Bool(false)) => Generate::Nothing,
        _ => Generate::Reply,
    };
    let rendered = shared.model.render(&Value::Array(messages), tools.as_deref(), generate);
    rendered.map_err(|error| Refusal::bad_request(error.to_string(), None))
}

/// What the template reads of a message.
fn message(message: &Value, calls: Option<String>) -> Value {
    let mut seen = Map::new();
    let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
    seen.insert("role".to_owned(), role.into());
    seen.insert("content".to_owned(), content_text(message.get("content")).into());
    if let Some(calls) = calls.filter(|_| role == "assistant") {
        seen.insert("tool_calls".to_owned(), calls.into());
    }
    Value::Object(seen)
}

fn whole(identity: &Identity, extras: Extras, replies: &[Reply]) -> Raw {
    let choice = |(index, reply): (usize, &Reply)| {
        let message = object! {
            "role": "assistant", "content": reply.text, "refusal": (), "annotations": (), "audio": (),
            "function_call": (), "reasoning": (),
        };
        object! {
            "index": index, "message": message, "logprobs": (), "finish_reason": finish_reason(reply.finish),
            "stop_reason": (), "token_ids": extras.ids(&reply.tokens), "routed_experts": (),
        }
    };
    let total = replies.iter().fold(Usage::default(), |sum, reply| sum.plus(reply.usage));
    object! {
        "id": identity.id, "object": "chat.completion", "created": identity.created, "model": identity.model,
        "choices": replies.iter().enumerate().map(choice).collect::<Vec<_>>(), "service_tier": (),
        "system_fingerprint": identity.fingerprint, "usage": usage(&total), "prompt_logprobs": (),
        "prompt_token_ids": replies.first().and_then(|reply| extras.ids(&reply.prompt)), "prompt_text": (),
        "kv_transfer_params": (), "ec_transfer_params": (), "metrics": (),
    }
}

struct Chunks {
    identity: Identity,
    extras: Extras,
}

impl Chunks {
    fn chunk(&self, choices: &[Raw], usage: Option<Raw>) -> Raw {
        let Identity { id, created, model, .. } = &self.identity;
        let chunk = object! {
            "id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices,
        };
        match usage {
            Some(usage) => chunk.with("usage", usage),
            None => chunk,
        }
    }

    fn running(&self, usage: &Usage) -> Option<Raw> {
        self.extras.running_usage.then(|| running_usage(usage))
    }
}

impl Format for Chunks {
    fn begin(&mut self, index: usize, prompt: &[u32], usage: &Usage) -> String {
        let delta = object! { "role": "assistant", "content": "" };
        let choice = object! { "index": index, "delta": delta, "logprobs": (), "finish_reason": () };
        let chunk = self.chunk(&[choice], self.running(usage));
        data(&chunk.with("prompt_token_ids", self.extras.ids(prompt)).with("prompt_text", ()))
    }

    fn word(&mut self, index: usize, word: &Word, last: Option<Finish>, usage: &Usage) -> String {
        let mut choice = object! {
            "index": index, "delta": object! { "content": &*word.text }, "logprobs": (),
            "finish_reason": last.map(finish_reason),
        };
        if last.is_some() {
            choice = choice.with("stop_reason", ());
        }
        let choice = choice.with("token_ids", self.extras.ids(&[word.token]));
        data(&self.chunk(&[choice], self.running(usage)))
    }

    fn end(&mut self, usage: &Usage) -> String {
        if !self.extras.final_usage {
            return DONE.to_owned();
        }
        let chunk = self.chunk(&[], Some(final_usage(usage)));
        data(&chunk.with("system_fingerprint", &self.identity.fingerprint)) + DONE
    }
}
