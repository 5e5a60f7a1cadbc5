//! The engine's endpoints, one file each, and what they share: the call, ids, usage, event framing.

pub(crate) mod audio;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod info;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod native;
pub(crate) mod responses;
pub(crate) mod tokenize;

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::body::Bytes;
use serde_json::Value;

use crate::ask::{Fields, flag};
use crate::generate::Usage;
use crate::json::{Raw, object};
use crate::ranks::Finish;
use crate::record::Outcome;
use crate::shared::{Shared, unix_seconds};

/// A request with its body, on its way into an endpoint.
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) outcome: Outcome,
}

/// What every piece of one reply repeats.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

impl Identity {
    pub(crate) fn new(shared: &Shared, prefix: &str) -> Self {
        let config = &shared.config;
        let ranks = config.dp_start + config.ranks;
        Self {
            id: shared.fresh_id(prefix),
            created: unix_seconds(),
            model: config.model.clone(),
            fingerprint: format!("{}-{}-dp{ranks}-00000000", config.kind.word(), config.version),
        }
    }
}

/// What a client wants to read besides the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras {
    /// `return_token_ids`
    pub(crate) token_ids: bool,
    /// `stream_options.include_usage`
    pub(crate) final_usage: bool,
    /// `stream_options.continuous_usage_stats`
    pub(crate) running_usage: bool,
}

impl Extras {
    pub(crate) fn read(fields: &Fields) -> Self {
        let options = fields.get("stream_options").and_then(Value::as_object);
        let option = |key| options.is_some_and(|options| flag(options, key));
        Self {
            token_ids: flag(fields, "return_token_ids"),
            final_usage: option("include_usage"),
            running_usage: option("include_usage") && option("continuous_usage_stats"),
        }
    }

    pub(crate) fn ids(self, tokens: &[u32]) -> Option<Vec<u32>> {
        self.token_ids.then(|| tokens.to_vec())
    }
}

/// The usage of a whole reply.
pub(crate) fn usage(usage: &Usage) -> Raw {
    object! {
        "prompt_tokens": usage.prompt, "total_tokens": usage.total(), "completion_tokens": usage.completion,
        "prompt_tokens_details": prompt_details(usage), "completion_tokens_details": (),
    }
}

/// The usage in a chunk: shorter than the whole reply's.
pub(crate) fn running_usage(usage: &Usage) -> Raw {
    object! {
        "prompt_tokens": usage.prompt, "total_tokens": usage.total(), "completion_tokens": usage.completion,
        "completion_tokens_details": (),
    }
}

/// The usage in the last chunk.
pub(crate) fn final_usage(usage: &Usage) -> Raw {
    object! {
        "prompt_tokens": usage.prompt, "total_tokens": usage.total(), "completion_tokens": usage.completion,
        "prompt_tokens_details": prompt_details(usage),
    }
}

fn prompt_details(usage: &Usage) -> Raw {
    object! { "cached_tokens": usage.cached, "created_cache_tokens": (), "multimodal_tokens": () }
}

pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

/// One unnamed event.
pub(crate) fn data(body: &Raw) -> String {
    format!("data: {}\n\n", body.0)
}

/// One named event.
pub(crate) fn event(name: &str, body: &Raw) -> String {
    format!("event: {name}\ndata: {}\n\n", body.0)
}

/// The end of an unnamed stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";
