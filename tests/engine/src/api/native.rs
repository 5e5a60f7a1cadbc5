//! SGLang's own `POST /generate`: a text or tokens in, a text out; its rank is in the body alone. Streams nothing.

use serde_json::Value;

use super::{Call, finish_reason};
use crate::answer::{Answer, Refusal, ok};
use crate::ask;
use crate::generate::{Generations, Reply};
use crate::json::object;
use crate::model::Start;
use crate::rank_ask::{self, Endpoint};
use crate::ranks::Finish;

pub(crate) async fn answer(call: Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let fields = ask::fields(&call.body, &[])?;
    let tokens = match (fields.get("text"), fields.get("input_ids").and_then(Value::as_array)) {
        (Some(Value::String(text)), _) => ask::encode(shared, text.clone(), Start::Bos).await?,
        (_, Some(ids)) => {
            ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect::<Vec<u32>>().into()
        }
        _ => {
            return Err(Refusal::bad_request(
                "Either text, input_ids or input_embeds should be provided.",
                None,
            ));
        }
    };
    let limit = fields.get("sampling_params").and_then(|params| params.get("max_new_tokens"));
    let plan = ask::plan(shared, limit, Finish::Length, tokens.len())?;
    let rank = rank_ask::rank(shared, Endpoint::Native, &call.headers, &fields, &call.outcome)?;
    let prompt = ask::prompt(shared, &fields, &call.headers, tokens);
    let served = Generations::admit(shared, call.outcome, rank, vec![(prompt, plan)]).run().await;
    let id = fields.get("rid").and_then(Value::as_str).map_or_else(|| shared.fresh_id(""), str::to_owned);
    let whole = |reply: &Reply| {
        let meta = object! {
            "id": id, "finish_reason": object! { "type": finish_reason(reply.finish) },
            "prompt_tokens": reply.usage.prompt, "completion_tokens": reply.usage.completion,
            "cached_tokens": reply.usage.cached,
        };
        object! { "text": reply.text, "output_ids": reply.tokens, "meta_info": meta }
    };
    Ok(served.answer(|replies| ok(whole(&replies[0]))))
}
