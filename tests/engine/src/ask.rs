//! What all generating endpoints read from a body in the same way: model, limits, salt, text of contents.
//! Refuses what the engine refuses, in its words; does not know any one endpoint.

use std::sync::Arc;

use hyper::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

use crate::answer::Refusal;
use crate::config::{Kind, Version};
use crate::model::Start;
use crate::ranks::Finish;
use crate::shared::Shared;
use crate::space::Space;

/// Text longer than this is encoded off the runtime's threads.
const INLINE_TEXT_BYTES_MAX: usize = 256 << 10;
/// Tokens of a reply nobody limited.
const REPLY_TOKENS: usize = 16;

/// A body that is a JSON object.
pub(crate) type Fields = Map<String, Value>;

/// A prompt and the namespace its blocks live in.
#[derive(Clone)]
pub(crate) struct Prompt {
    pub(crate) tokens: Arc<[u32]>,
    pub(crate) space: Arc<Space>,
}

/// How long a reply gets and why it ends there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) tokens: usize,
    pub(crate) finish: Finish,
}

/// The body as an object that has the required fields.
pub(crate) fn fields(body: &[u8], required: &[(&str, &'static str)]) -> Result<Fields, Refusal> {
    let fields = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err(schema("model_attributes_type", "body", "Input should be a valid dictionary")),
        Err(_) => return Err(schema("json_invalid", "body.0", "JSON decode error")),
    };
    let missing: Vec<&str> =
        required.iter().filter(|(key, _)| !fields.contains_key(*key)).map(|(_, place)| *place).collect();
    if missing.is_empty() { Ok(fields) } else { Err(Refusal::missing(&missing, fields.len())) }
}

fn schema(kind: &str, place: &'static str, sentence: &str) -> Refusal {
    let message =
        format!("1 validation error:\n  {{'type': '{kind}', 'loc': '{place}', 'msg': '{sentence}'}}");
    Refusal { param: Some(place), ..Refusal::new(StatusCode::BAD_REQUEST, "Bad Request", message) }
}

/// A missing or null model is the served one; another is a 404.
pub(crate) fn check_model(shared: &Shared, fields: &Fields) -> Result<(), Refusal> {
    match fields.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(asked)) => check_model_name(shared, asked),
        Some(_) => Err(schema("string_type", "body.model", "Input should be a valid string")),
    }
}

/// SGLang also serves its model's adapters, as `model:adapter`.
pub(crate) fn check_model_name(shared: &Shared, asked: &str) -> Result<(), Refusal> {
    let served = &shared.config.model;
    let base = asked.split_once(':').map_or(asked, |(base, _)| base);
    if asked == served
        || shared.config.loras.iter().any(|lora| lora == asked)
        || (shared.config.kind == Kind::Sglang && base == served)
    {
        return Ok(());
    }
    let message = match shared.config.kind {
        Kind::Vllm => format!("The model `{asked}` does not exist. Valid aliases: {served}."),
        Kind::Sglang | Kind::Trtllm => format!("The model `{asked}` does not exist."),
    };
    let refusal = Refusal::new(StatusCode::NOT_FOUND, "NotFoundError", message);
    Err(Refusal { param: Some("model"), ..refusal })
}

/// The tokens of a prompt's text, refused when they cannot fit.
pub(crate) async fn encode(shared: &Arc<Shared>, text: String, start: Start) -> Result<Arc<[u32]>, Refusal> {
    let at_least = shared.model.tokens_at_least(&text);
    if at_least > shared.config.max_model_len {
        return Err(too_long(shared, at_least));
    }
    if text.len() <= INLINE_TEXT_BYTES_MAX {
        return Ok(shared.model.encode(&text, start));
    }
    let shared = Arc::clone(shared);
    let encoded = tokio::task::spawn_blocking(move || shared.model.encode(&text, start)).await;
    encoded.map_err(|_| Refusal::plain(StatusCode::INTERNAL_SERVER_ERROR))
}

/// Puts a prompt into its namespace.
pub(crate) fn prompt(shared: &Shared, fields: &Fields, headers: &HeaderMap, tokens: Arc<[u32]>) -> Prompt {
    let salt = fields.get("cache_salt").and_then(Value::as_str);
    let space = Space {
        session: session(shared, fields, headers),
        tells_all: tells_all(shared, fields),
        ..Space::new(&shared.config.model, lora(shared, fields), salt)
    };
    Prompt { tokens, space: Arc::new(space) }
}

/// The adapter asked for: one that was declared, or what SGLang finds behind the model's name.
fn lora(shared: &Shared, fields: &Fields) -> Option<(u64, String)> {
    let asked = fields.get("model").and_then(Value::as_str)?;
    let behind = asked.split_once(':').filter(|_| shared.config.kind == Kind::Sglang).map(|(_, name)| name);
    let declared = shared.config.loras.iter().zip(1..).find(|(name, _)| **name == asked);
    declared.map(|(name, id)| (id, name.clone())).or_else(|| behind.map(|name| (1, name.to_owned())))
}

/// The session as the engine reads it: from the body, else vLLM's header, else its extra arguments.
fn session(shared: &Shared, fields: &Fields, headers: &HeaderMap) -> Option<String> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let in_body = text(fields.get("session_id"));
    match shared.config.kind {
        Kind::Vllm if shared.config.version >= Version(0, 28, 0) => in_body
            .or_else(|| headers.get("x-session-id")?.to_str().ok().map(str::to_owned))
            .or_else(|| text(fields.get("vllm_xargs").and_then(|args| args.get("session_id")))),
        Kind::Sglang => in_body,
        Kind::Vllm | Kind::Trtllm => None,
    }
}

/// vLLM's `kv_cache_report_mode: full`, from 0.26 on.
fn tells_all(shared: &Shared, fields: &Fields) -> bool {
    let mode = fields.get("vllm_xargs").and_then(|args| args.get("kv_cache_report_mode"));
    let has = shared.config.kind == Kind::Vllm && shared.config.version >= Version(0, 26, 0);
    has && mode.and_then(Value::as_str) == Some("full")
}

/// How long the reply to a prompt of `prompt_tokens` is.
pub(crate) fn plan(
    shared: &Shared,
    max_tokens: Option<&Value>,
    unlimited: Finish,
    prompt_tokens: usize,
) -> Result<Plan, Refusal> {
    let limit = shared.config.max_model_len;
    if prompt_tokens >= limit {
        return Err(too_long(shared, prompt_tokens));
    }
    let Some(asked) = max_tokens.and_then(Value::as_u64) else {
        return Ok(Plan { tokens: REPLY_TOKENS.min(limit - prompt_tokens), finish: unlimited });
    };
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    match asked {
        0 => Err(Refusal::bad_request("max_tokens must be at least 1, got 0.", Some("max_tokens"))),
        _ if asked > limit - prompt_tokens => Err(reply_too_long(limit, asked, prompt_tokens)),
        _ => Ok(Plan { tokens: asked, finish: Finish::Length }),
    }
}

fn too_long(shared: &Shared, tokens: usize) -> Refusal {
    let limit = shared.config.max_model_len;
    let message = format!(
        "This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input \
         tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input \
         prompt. (parameter=input_tokens, value={tokens})"
    );
    Refusal::bad_request(message, Some("input_tokens"))
}

fn reply_too_long(limit: usize, asked: usize, tokens: usize) -> Refusal {
    let message = format!(
        "This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and \
         your prompt contains {tokens} input tokens, for a total of {} tokens. Please reduce the length of the \
         input prompt or the number of requested output tokens. (parameter=input_tokens, value={tokens})",
        tokens.saturating_add(asked)
    );
    Refusal::bad_request(message, Some("input_tokens"))
}

/// Whether a flag of the body is set.
pub(crate) fn flag(fields: &Fields, key: &str) -> bool {
    fields.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// The text of a content that is a string, a list of parts, or nothing.
pub(crate) fn content_text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        // As vLLM joins them where the template wants text.
        Some(Value::Array(parts)) => parts.iter().map(part_text).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

/// What is not text stands as its type in brackets: its bytes are no tokens of this model.
fn part_text(part: &Value) -> String {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
    match (part, kind) {
        (Value::String(text), _) => text.clone(),
        (_, "text" | "input_text" | "output_text") => {
            part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned()
        }
        (_, "tool_use") => format!("[tool_use {}]", part.get("input").unwrap_or(&Value::Null)),
        (_, "tool_result") => content_text(part.get("content")),
        (_, other) => format!("[{other}]"),
    }
}
