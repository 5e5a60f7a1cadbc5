//! `POST /v1/responses`: OpenAI's response object over the chat template, with a BOS that chat does not have. Kept in memory for
//! `previous_response_id`, for `GET /v1/responses/ID` and `POST …/cancel`.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::{Call, chat, event};
use crate::answer::{Answer, Refusal, ok};
use crate::ask::{self, Fields, content_text, flag};
use crate::generate::{Format, Generations, Reply, Usage};
use crate::json::{Raw, object};
use crate::model::{Start, Word};
use crate::printed::Ordered;
use crate::rank_ask::{self, Endpoint};
use crate::ranks::Finish;
use crate::shared::{Shared, unix_seconds};
use crate::store::Stored;

pub(crate) async fn answer(call: Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let fields = ask::fields(&call.body, &[("input", "body.input")])?;
    ask::check_model(shared, &fields)?;
    let messages = messages(shared, &fields)?;
    let text = chat::render(shared, Some(&Value::Array(messages.clone())), &fields, &Ordered::Null)?;
    let tokens = ask::encode(shared, text, Start::Bos).await?;
    let plan = ask::plan(shared, fields.get("max_output_tokens"), Finish::Stop, tokens.len())?;
    let rank = rank_ask::rank(shared, Endpoint::Responses, &call.headers, &fields, &call.outcome)?;
    let prompt = ask::prompt(shared, &fields, &call.headers, tokens);
    let generations = Generations::admit(shared, call.outcome, rank, vec![(prompt, plan)]);
    let head = Head::new(shared, &fields, messages);
    if flag(&fields, "stream") {
        return Ok(generations.stream(Events { head, text: String::new(), finish: Finish::Stop, sent: 0 }));
    }
    if head.background {
        return Ok(in_background(head, generations));
    }
    let served = generations.run().await;
    Ok(served.answer(|replies| {
        let body = whole(&head, &replies[0]);
        head.keep(&body, &replies[0].text);
        ok(body)
    }))
}

/// Answers at once; the reply comes while nobody waits.
fn in_background(head: Head, generations: Generations) -> Answer {
    let queued = head.response("queued", None, &[], None);
    let (shared, id, messages) = (Arc::clone(&head.shared), head.id.clone(), head.messages.clone());
    let task = tokio::spawn(async move {
        let _ = generations.run().await.answer(|replies| {
            let body = whole(&head, &replies[0]);
            head.keep(&body, &replies[0].text);
            ok(body)
        });
    });
    let running = Some(task.abort_handle());
    shared.responses.put_new(&id, Stored { body: queued.clone(), messages, running });
    ok(queued)
}

/// `GET /v1/responses/ID` and `POST /v1/responses/ID/cancel`.
pub(crate) fn stored(shared: &Shared, method: &str, rest: &str) -> Result<Answer, Refusal> {
    match (method, rest.split_once('/')) {
        ("GET", None) => shared.responses.body(rest).map(ok).ok_or_else(|| unknown(rest)),
        ("POST", Some((id, "cancel"))) => {
            let ended =
                shared.responses.cancel(id, |body| Raw(body.0.replacen("\"queued\"", "\"cancelled\"", 1)));
            match ended {
                None => Err(unknown(id)),
                Some(Some(body)) => Ok(ok(body)),
                Some(None) => Err(Refusal {
                    param: Some("response_id"),
                    ..Refusal::new(
                        StatusCode::BAD_REQUEST,
                        "invalid_request_error",
                        "Cannot cancel a synchronous response.",
                    )
                }),
            }
        }
        (_, None | Some((_, "cancel"))) => Err(Refusal::plain(StatusCode::METHOD_NOT_ALLOWED)),
        _ => Err(Refusal::plain(StatusCode::NOT_FOUND)),
    }
}

fn unknown(id: &str) -> Refusal {
    let message = format!("Response with id '{id}' not found.");
    let refusal = Refusal::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
    Refusal { param: Some("response_id"), ..refusal }
}

/// The conversation: what a named response ended, then what is new.
fn messages(shared: &Shared, fields: &Fields) -> Result<Vec<Value>, Refusal> {
    let mut messages = match fields.get("previous_response_id").and_then(Value::as_str) {
        Some(id) => shared.responses.messages(id).ok_or_else(|| unknown(id))?,
        None => Vec::new(),
    };
    if let Some(instructions) = fields.get("instructions").and_then(Value::as_str) {
        messages.retain(|message| message["role"] != "system");
        messages.insert(0, json!({ "role": "system", "content": instructions }));
    }
    match fields.get("input") {
        Some(Value::Array(items)) => messages.extend(items.iter().map(item)),
        input => messages.push(json!({ "role": "user", "content": content_text(input) })),
    }
    Ok(messages)
}

/// An input item as the template's message.
fn item(item: &Value) -> Value {
    let text = |key| item.get(key).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "function_call" => {
            json!({ "role": "assistant", "content": format!("{}({})", text("name"), text("arguments")) })
        }
        "function_call_output" => json!({ "role": "tool", "content": content_text(item.get("output")) }),
        _ => {
            let role = item.get("role").and_then(Value::as_str).unwrap_or("user");
            json!({ "role": role, "content": content_text(item.get("content")) })
        }
    }
}

/// What a response repeats of its request, and its ids.
struct Head {
    id: String,
    message_id: String,
    created: u64,
    model: String,
    fields: Fields,
    shared: Arc<Shared>,
    messages: Vec<Value>,
    /// Kept for later, unless the request says otherwise.
    store: bool,
    background: bool,
}

impl Head {
    fn new(shared: &Arc<Shared>, fields: &Fields, messages: Vec<Value>) -> Self {
        let echoed = [
            "previous_response_id",
            "instructions",
            "metadata",
            "tools",
            "max_output_tokens",
            "user",
            "temperature",
            "top_p",
        ];
        let kept = |(key, value): (&String, &Value)| {
            let keep = echoed.contains(&key.as_str()) && !value.is_null();
            keep.then(|| (key.clone(), value.clone()))
        };
        Self {
            id: shared.fresh_id("resp_"),
            message_id: shared.fresh_id("msg_"),
            created: unix_seconds(),
            model: shared.config.model.clone(),
            fields: fields.iter().filter_map(kept).collect(),
            shared: Arc::clone(shared),
            messages,
            store: fields.get("store").and_then(Value::as_bool).unwrap_or(true),
            background: flag(fields, "background"),
        }
    }

    /// Keeps the finished response.
    fn keep(&self, body: &Raw, text: &str) {
        if self.store {
            let mut messages = self.messages.clone();
            messages.push(json!({ "role": "assistant", "content": text }));
            self.shared.responses.put(&self.id, Stored { body: body.clone(), messages, running: None });
        }
    }

    fn echo(&self, key: &str) -> Option<&Value> {
        self.fields.get(key)
    }

    fn number(&self, key: &str) -> f64 {
        self.echo(key).and_then(Value::as_f64).unwrap_or(1.0)
    }

    fn response(&self, status: &str, incomplete: Option<&Raw>, output: &[Raw], usage: Option<&Raw>) -> Raw {
        object! {
            "id": self.id, "created_at": self.created, "incomplete_details": incomplete,
            "instructions": self.echo("instructions"), "metadata": self.echo("metadata"), "model": self.model,
            "object": "response", "output": output, "parallel_tool_calls": true,
            "temperature": self.number("temperature"), "tool_choice": "none",
            "tools": self.echo("tools").cloned().unwrap_or(Value::Array(Vec::new())),
            "top_p": self.number("top_p"), "background": self.background,
            "max_output_tokens": self.echo("max_output_tokens"), "max_tool_calls": (),
            "previous_response_id": self.echo("previous_response_id"), "prompt": (), "reasoning": (), "service_tier": "auto", "status": status,
            "text": (), "top_logprobs": (), "truncation": "disabled", "usage": usage, "user": self.echo("user"),
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": (), "ec_transfer_params": (),
            "input_messages": (), "output_messages": (),
        }
    }

    fn complete(&self, text: &str, finish: Finish, counted: &Usage) -> Raw {
        let (status, incomplete) = match finish {
            Finish::Stop => ("completed", None),
            Finish::Length => ("incomplete", Some(object! { "reason": "max_output_tokens" })),
        };
        let output = [self.message("completed", &[part(text)])];
        self.response(status, incomplete.as_ref(), &output, Some(&usage(counted)))
    }

    fn message(&self, status: &str, content: &[Raw]) -> Raw {
        object! {
            "id": self.message_id, "content": content, "role": "assistant", "status": status, "type": "message",
            "phase": (),
        }
    }
}

fn part(text: &str) -> Raw {
    object! { "annotations": Vec::<Raw>::new(), "text": text, "type": "output_text", "logprobs": () }
}

fn usage(counted: &Usage) -> Raw {
    let none = Vec::<Raw>::new;
    let input = object! {
        "cached_tokens": counted.cached, "cache_write_tokens": counted.written, "input_tokens_per_turn": none(),
        "cached_tokens_per_turn": none(),
    };
    let output = object! {
        "reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": none(),
        "tool_output_tokens_per_turn": none(),
    };
    object! {
        "input_tokens": counted.prompt, "input_tokens_details": input, "output_tokens": counted.completion,
        "output_tokens_details": output, "total_tokens": counted.total(),
    }
}

fn whole(head: &Head, reply: &Reply) -> Raw {
    head.complete(&reply.text, reply.finish, &reply.usage)
}

struct Events {
    head: Head,
    text: String,
    finish: Finish,
    sent: u64,
}

impl Events {
    /// An event with the next sequence number.
    fn next(&mut self, kind: &str, body: Raw) -> String {
        let body = body.with("sequence_number", self.sent).with("type", kind);
        self.sent += 1;
        event(kind, &body)
    }

    /// Where in the response the text stands.
    fn place(&self, first_key: &str, first: Raw) -> Raw {
        let place = object! { "content_index": 0, "item_id": self.head.message_id, "output_index": 0 };
        place.with(first_key, first)
    }
}

impl Format for Events {
    fn begin(&mut self, _index: usize, _prompt: &[u32], _usage: &Usage) -> String {
        let started = self.head.response("in_progress", None, &[], None);
        let item = self.head.message("in_progress", &[]);
        let added = self.place("part", part(""));
        self.next("response.created", object! { "response": started.clone() })
            + &self.next("response.in_progress", object! { "response": started })
            + &self.next("response.output_item.added", object! { "item": item, "output_index": 0 })
            + &self.next("response.content_part.added", added)
    }

    fn word(&mut self, _index: usize, word: &Word, last: Option<Finish>, _usage: &Usage) -> String {
        self.finish = last.unwrap_or(self.finish);
        self.text.push_str(&word.text);
        let body = self.place("logprobs", Raw("[]".to_owned())).with("delta", &*word.text);
        self.next("response.output_text.delta", body)
    }

    fn end(&mut self, usage: &Usage) -> String {
        let text = std::mem::take(&mut self.text);
        let done = self.place("logprobs", Raw("[]".to_owned())).with("text", &text);
        let part_done = self.place("part", part(&text));
        let item = self.head.message("completed", &[part(&text)]);
        let response = self.head.complete(&text, self.finish, usage);
        self.head.keep(&response, &text);
        self.next("response.output_text.done", done)
            + &self.next("response.content_part.done", part_done)
            + &self.next("response.output_item.done", object! { "item": item, "output_index": 0 })
            + &self.next("response.completed", object! { "response": response })
    }
}
