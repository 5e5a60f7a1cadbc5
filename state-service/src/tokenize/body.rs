//! What a request's body asks to be prompted with: a conversation, a text or tokens.
//!
//! Owns the fields of chat bodies and completions; those of other surfaces are in `anthropic` and `responses`. After vLLM's
//! schemas (0.29–0.33). Knows no template and no tokenizer.

use super::json::Json;
use super::{Reason, anthropic, responses};

/// Longest body, in bytes; nothing is read of a longer one.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Where a body is sent, which decides what its prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Surface {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/messages`
    Messages,
    /// `/v1/responses`
    Responses,
}

impl Surface {
    /// Of a request's path, its query left aside, and what a gateway puts before it.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        const BY_END: [(&str, Surface); 4] = [
            ("/v1/chat/completions", Surface::Chat),
            ("/v1/completions", Surface::Completions),
            ("/v1/messages", Surface::Messages),
            ("/v1/responses", Surface::Responses),
        ];
        let path = path.split('?').next().unwrap_or_default();
        BY_END.iter().find(|(end, _)| path.ends_with(end)).map(|(_, surface)| *surface)
    }
}

/// What is to be tokenised.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    Chat(Chat),
    Text {
        text: String,
        /// Whether the tokenizer puts its own marks around it (BOS).
        marks: bool,
    },
    Tokens(Vec<u32>),
}

/// A conversation, in the words of `/v1/chat/completions`.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Json>,
    /// As `tool.model_dump()` has them; `None` when there are none.
    pub(crate) tools: Option<Json>,
    /// What the template gets besides, later ones win.
    pub(crate) kwargs: Vec<(String, Json)>,
    pub(crate) add_generation_prompt: bool,
    /// Whether the tokenizer puts its own marks around it (BOS): chat no, responses yes.
    pub(crate) marks: bool,
}

/// A body, read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompt {
    pub(crate) asked: Asked,
    pub(crate) model: Option<String>,
    /// `cache_salt`: part of the namespace.
    pub(crate) salt: Option<String>,
    /// Whether all of it is here.
    pub(crate) whole: bool,
}

/// Reads a body, or (`whole: false`) the head of one.
///
/// # Errors
/// Why its prompt cannot be compared.
pub(crate) fn read(surface: Surface, body: &str, whole: bool) -> Result<Prompt, Reason> {
    if body.len() > BODY_BYTES_MAX {
        return Err(Reason::TooLong);
    }
    let json = if whole { Json::parse(body) } else { Json::parse_head(body) };
    let mut body = json.filter(Json::is_map).ok_or(Reason::Malformed)?;
    if !whole {
        leave_out_what_is_cut(&mut body);
    }
    if body.get("truncate_prompt_tokens").is_some() {
        return Err(Reason::Truncated);
    }
    let asked = match surface {
        Surface::Chat => Asked::Chat(chat(&body)?),
        Surface::Completions => completion(&body)?,
        Surface::Messages => Asked::Chat(anthropic::chat(&body)?),
        Surface::Responses => Asked::Chat(responses::chat(&body)?),
    };
    let text = |name| body.text_of(name).map(str::to_owned);
    Ok(Prompt { asked, model: text("model"), salt: text("cache_salt"), whole })
}

/// Of a last message whose role is not there yet nothing can be said.
fn leave_out_what_is_cut(body: &mut Json) {
    let Json::Map(members) = body else { return };
    for (name, value) in members {
        if let ("messages" | "input", Json::List(messages)) = (name.as_str(), value) {
            messages.pop_if(|message| message.text_of("role").is_none());
        }
    }
}

fn chat(body: &Json) -> Result<Chat, Reason> {
    if body.is_set("continue_final_message") {
        return Err(Reason::Continued);
    }
    if body.get("chat_template").is_some() {
        return Err(Reason::OwnTemplate);
    }
    let messages = body.get("messages").and_then(Json::list).ok_or(Reason::Malformed)?;
    let mut kwargs = Vec::new();
    for name in ["documents", "reasoning_effort"] {
        kwargs.extend(body.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    Ok(Chat {
        messages: messages.to_vec(),
        tools: tools(body)?,
        kwargs: with_kwargs(kwargs, body),
        add_generation_prompt: body.get("add_generation_prompt") != Some(&Json::Bool(false)),
        marks: body.is_set("add_special_tokens"),
    })
}

/// `chat_template_kwargs` after what is already known.
pub(super) fn with_kwargs(mut kwargs: Vec<(String, Json)>, body: &Json) -> Vec<(String, Json)> {
    if let Some(Json::Map(members)) = body.get("chat_template_kwargs") {
        kwargs.extend(members.iter().cloned());
    }
    kwargs
}

fn tools(body: &Json) -> Result<Option<Json>, Reason> {
    let Some(tools) = body.get("tools") else { return Ok(None) };
    let tools = tools.list().ok_or(Reason::Malformed)?;
    if tools.is_empty() {
        return Ok(None);
    }
    let dumped = tools.iter().map(|tool| tool_dump(tool.get("function")?)).collect::<Option<Vec<_>>>();
    dumped.map(|list| Some(Json::List(list))).ok_or(Reason::Malformed)
}

/// A function as vLLM's `model_dump` has it: its three fields first, there or not, then whatever else was given.
pub(super) fn tool_dump(function: &Json) -> Option<Json> {
    let Json::Map(members) = function else { return None };
    let field = |name: &str| (name.to_owned(), function.get(name).cloned().unwrap_or(Json::Null));
    let mut dumped: Vec<_> = ["name", "description", "parameters"].map(field).into();
    let extra = members.iter().filter(|(name, value)| match name.as_str() {
        "name" | "description" | "parameters" => false,
        // Its serialiser leaves this one out.
        "defer_loading" => *value != Json::Null,
        _ => true,
    });
    dumped.extend(extra.cloned());
    Some(Json::object([("type", Json::of("function")), ("function", Json::Map(dumped))]))
}

fn completion(body: &Json) -> Result<Asked, Reason> {
    if body.get("prompt_embeds").is_some() {
        return Err(Reason::Multimodal);
    }
    let marks = body.get("add_special_tokens") != Some(&Json::Bool(false));
    match body.get("prompt") {
        Some(Json::Text(text)) => Ok(Asked::Text { text: text.clone(), marks }),
        // Independent requests of which the first stands for all.
        Some(Json::List(list)) => match list.first() {
            Some(Json::Text(text)) => Ok(Asked::Text { text: text.clone(), marks }),
            Some(Json::List(ids)) => token_ids(ids),
            Some(Json::Int(_)) => token_ids(list),
            _ => Err(Reason::Malformed),
        },
        _ => Err(Reason::Malformed),
    }
}

fn token_ids(list: &[Json]) -> Result<Asked, Reason> {
    let id = |value: &Json| match value {
        Json::Int(id) => u32::try_from(*id).ok(),
        _ => None,
    };
    list.iter().map(id).collect::<Option<Vec<_>>>().map(Asked::Tokens).ok_or(Reason::Malformed)
}
