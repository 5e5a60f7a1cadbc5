//! `POST /v1/completions`: a text, tokens, or a list of either; BOS before text.

use std::sync::Arc;

use hyper::HeaderMap;
use serde_json::Value;

use super::{Call, DONE, Extras, Identity, data, final_usage, finish_reason, running_usage, usage};
use crate::answer::{Answer, Refusal, ok};
use crate::ask::{self, Fields, Plan, Prompt, flag};
use crate::generate::{Format, Generations, Reply, Usage};
use crate::json::{Raw, object};
use crate::model::{Start, Word};
use crate::rank_ask::{self, Endpoint};
use crate::ranks::Finish;
use crate::shared::Shared;

/// Prompts one request may carry.
const PROMPTS_MAX: usize = 1024;

pub(crate) async fn answer(call: Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let fields = ask::fields(&call.body, &[])?;
    ask::check_model(shared, &fields)?;
    let prompts = prompts(shared, &fields, &call.headers).await?;
    let rank = rank_ask::rank(shared, Endpoint::Completions, &call.headers, &fields, &call.outcome)?;
    let generations = Generations::admit(shared, call.outcome, rank, prompts);
    let (identity, extras) = (Identity::new(shared, "cmpl-"), Extras::read(&fields));
    if flag(&fields, "stream") {
        return Ok(generations.stream(Chunks { identity, extras }));
    }
    let served = generations.run().await;
    Ok(served.answer(|replies| ok(whole(&identity, extras, &replies))))
}

async fn prompts(
    shared: &Arc<Shared>,
    fields: &Fields,
    headers: &HeaderMap,
) -> Result<Vec<(Prompt, Plan)>, Refusal> {
    let start = match fields.get("add_special_tokens") {
        Some(Value::Bool(false)) => Start::Plain,
        _ => Start::Bos,
    };
    let mut prompts = Vec::new();
    for tokens in token_lists(shared, fields.get("prompt"), start).await? {
        let plan = ask::plan(shared, fields.get("max_tokens"), Finish::Length, tokens.len())?;
        prompts.push((ask::prompt(shared, fields, headers, tokens), plan));
    }
    Ok(prompts)
}

/// The tokens of a `prompt` or `input`: string, list of strings, list of tokens, list of such lists.
pub(crate) async fn token_lists(
    shared: &Arc<Shared>,
    prompt: Option<&Value>,
    start: Start,
) -> Result<Vec<Arc<[u32]>>, Refusal> {
    let refused =
        || Refusal::bad_request("Either prompt or prompt_embeds must be provided and non-empty.", None);
    let one = match prompt {
        Some(Value::String(text)) => return Ok(vec![ask::encode(shared, text.clone(), start).await?]),
        Some(Value::Array(list)) if !list.is_empty() && list.len() <= PROMPTS_MAX && !list[0].is_number() => {
            list
        }
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            return Ok(vec![token_list(list).ok_or_else(refused)?]);
        }
        _ => return Err(refused()),
    };
    let mut lists = Vec::with_capacity(one.len());
    for item in one {
        lists.push(match item {
            Value::String(text) => ask::encode(shared, text.clone(), start).await?,
            Value::Array(tokens) => token_list(tokens).ok_or_else(refused)?,
            _ => return Err(refused()),
        });
    }
    Ok(lists)
}

fn token_list(list: &[Value]) -> Option<Arc<[u32]>> {
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    list.iter().map(token).collect::<Option<Vec<u32>>>().filter(|tokens| !tokens.is_empty()).map(Arc::from)
}

fn whole(identity: &Identity, extras: Extras, replies: &[Reply]) -> Raw {
    let choice = |(index, reply): (usize, &Reply)| {
        object! {
            "index": index, "text": reply.text, "logprobs": (), "finish_reason": finish_reason(reply.finish),
            "stop_reason": (), "token_ids": extras.ids(&reply.tokens), "prompt_logprobs": (),
            "prompt_token_ids": extras.ids(&reply.prompt), "routed_experts": (),
        }
    };
    let total = replies.iter().fold(Usage::default(), |sum, reply| sum.plus(reply.usage));
    object! {
        "id": identity.id, "object": "text_completion", "created": identity.created, "model": identity.model,
        "choices": replies.iter().enumerate().map(choice).collect::<Vec<_>>(), "service_tier": (),
        "system_fingerprint": identity.fingerprint, "usage": usage(&total), "kv_transfer_params": (),
        "ec_transfer_params": (), "metrics": (),
    }
}

struct Chunks {
    identity: Identity,
    extras: Extras,
}

impl Chunks {
    fn chunk(&self, choices: &[Raw]) -> Raw {
        let Identity { id, created, model, .. } = &self.identity;
        object! {
            "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices,
        }
    }
}

impl Format for Chunks {
    fn begin(&mut self, _index: usize, _prompt: &[u32], _usage: &Usage) -> String {
        String::new()
    }

    fn word(&mut self, index: usize, word: &Word, last: Option<Finish>, usage: &Usage) -> String {
        let choice = object! {
            "index": index, "text": &*word.text, "logprobs": (), "finish_reason": last.map(finish_reason),
            "stop_reason": (), "prompt_token_ids": (), "token_ids": self.extras.ids(&[word.token]),
        };
        let mut chunk = self.chunk(&[choice]);
        if self.extras.running_usage {
            chunk = chunk.with("usage", running_usage(usage));
        }
        data(&chunk)
    }

    fn end(&mut self, usage: &Usage) -> String {
        if !self.extras.final_usage {
            return DONE.to_owned();
        }
        let chunk = self.chunk(&[]).with("usage", final_usage(usage));
        data(&chunk.with("system_fingerprint", &self.identity.fingerprint)) + DONE
    }
}
