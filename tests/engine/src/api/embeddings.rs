//! `POST /v1/embeddings`: vectors made from the tokens' hash. Never reads the rank header, caches nothing.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use super::{Call, completions::token_lists};
use crate::answer::{Answer, Refusal, ok};
use crate::ask;
use crate::generate::{Generations, Usage};
use crate::json::{Raw, object};
use crate::model::Start;
use crate::prefix_cache::BlockHash;
use crate::shared::unix_seconds;

const DIMENSIONS: usize = 64;
const DIMENSIONS_MAX: u64 = 4096;

pub(crate) async fn answer(call: Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let fields = ask::fields(&call.body, &[("input", "body.input")])?;
    ask::check_model(shared, &fields)?;
    let inputs = token_lists(shared, fields.get("input"), Start::Bos).await?;
    for tokens in &inputs {
        ask::plan(shared, None, crate::ranks::Finish::Stop, tokens.len())?;
    }
    let wanted =
        fields.get("dimensions").and_then(Value::as_u64).map(|wanted| wanted.clamp(1, DIMENSIONS_MAX));
    let dimensions = wanted.and_then(|wanted| usize::try_from(wanted).ok()).unwrap_or(DIMENSIONS);
    let encoded = fields.get("encoding_format").and_then(Value::as_str) == Some("base64");
    let root = BlockHash::root(&shared.config.model, None);
    let item = |(index, tokens): (usize, &std::sync::Arc<[u32]>)| {
        let vector = vector(root.chain(tokens).value(), dimensions);
        let embedding = if encoded { base64_floats(&vector) } else { float_list(&vector) };
        object! { "index": index, "object": "embedding", "embedding": embedding }
    };
    let prompt = inputs.iter().map(|tokens| tokens.len()).sum();
    let usage = Usage { prompt, ..Usage::default() };
    let body = object! {
        "id": shared.fresh_id("embd-"), "object": "list", "created": unix_seconds(),
        "model": shared.config.model, "data": inputs.iter().enumerate().map(item).collect::<Vec<_>>(),
        "usage": object! {
            "prompt_tokens": usage.prompt, "total_tokens": usage.total(), "completion_tokens": 0,
            "prompt_tokens_details": (),
        },
    };
    // Counts as a request on the rank the engine would have chosen.
    let served = Generations::admit_pooling(shared, &call.outcome, prompt);
    Ok(served.answer(|()| ok(body)))
}

/// A unit vector that depends on the seed alone.
fn vector(seed: u64, dimensions: usize) -> Vec<f32> {
    let raw: Vec<f64> = (0..dimensions as u64)
        .map(|at| {
            let mixed = (seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((mixed >> 40) as f64 / f64::from(1_u32 << 23)) - 1.0
        })
        .collect();
    let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    raw.iter().map(|x| (x / length) as f32).collect()
}

fn float_list(vector: &[f32]) -> Raw {
    let list: Vec<String> = vector.iter().map(|x| format!("{x:?}")).collect();
    Raw(format!("[{}]", list.join(",")))
}

fn base64_floats(vector: &[f32]) -> Raw {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    Raw(format!("\"{}\"", BASE64_STANDARD.encode(bytes)))
}
