//! Bodies of `/v1/messages` as vLLM (0.29–0.33) turns them into a chat. Knows no template.

use super::Reason;
use super::body::{Chat, tool_dump, with_kwargs};
use super::json::Json;

/// What Claude Code puts in front of its system prompt: it differs with each request, and vLLM leaves it out.
const BILLING: &str = "x-anthropic-billing-header";

pub(super) fn chat(body: &Json) -> Result<Chat, Reason> {
    let given = body.get("messages").and_then(Json::list).ok_or(Reason::Malformed)?;
    let mut messages = Vec::new();
    messages.extend(system(body, given)?);
    for message in given.iter().filter(|message| message.text_of("role") != Some("system")) {
        convert(message, &mut messages)?;
    }
    let effort = body.get("output_config").and_then(|config| config.get("effort"));
    let effort = effort.map(|effort| ("reasoning_effort".to_owned(), effort.clone()));
    let kwargs = with_kwargs(effort.into_iter().collect(), body);
    Ok(Chat { messages, tools: tools(body)?, kwargs, add_generation_prompt: true, marks: false })
}

/// The top-level system prompt and all system messages in one.
fn system(body: &Json, messages: &[Json]) -> Result<Option<Json>, Reason> {
    let mut text = String::new();
    let within = messages.iter().filter(|message| message.text_of("role") == Some("system"));
    for content in body.get("system").into_iter().chain(within.filter_map(|message| message.get("content"))) {
        match content {
            Json::Text(part) => text.push_str(part),
            Json::List(blocks) => {
                let parts = blocks.iter().filter(|block| block.text_of("type") == Some("text"));
                let parts = parts.filter_map(|block| block.text_of("text"));
                text.extend(parts.filter(|part| !part.starts_with(BILLING)));
            }
            _ => return Err(Reason::Malformed),
        }
    }
    Ok((!text.is_empty()).then(|| message("system", Json::Text(text))))
}

fn message(role: &str, content: Json) -> Json {
    Json::object([("role", Json::of(role)), ("content", content)])
}

/// What the blocks of one message add up to.
#[derive(Default)]
struct Parts {
    texts: Vec<String>,
    calls: Vec<Json>,
    thinking: Option<String>,
}

fn convert(given: &Json, out: &mut Vec<Json>) -> Result<(), Reason> {
    let role = given.text_of("role").ok_or(Reason::Malformed)?;
    let blocks = match given.get("content") {
        Some(Json::Text(text)) => {
            out.push(message(role, Json::of(text)));
            return Ok(());
        }
        Some(Json::List(blocks)) => blocks,
        _ => return Err(Reason::Malformed),
    };
    let mut parts = Parts::default();
    for block in blocks {
        add(block, role, &mut parts, out)?;
    }
    if role != "user" || !parts.texts.is_empty() {
        out.push(joined(role, parts));
    }
    Ok(())
}

fn joined(role: &str, parts: Parts) -> Json {
    let mut members = vec![("role".to_owned(), Json::of(role))];
    members.extend(parts.thinking.map(|text| ("reasoning".to_owned(), Json::Text(text))));
    if !parts.calls.is_empty() {
        members.push(("tool_calls".to_owned(), Json::List(parts.calls)));
    }
    let part = |text: &String| Json::object([("type", Json::of("text")), ("text", Json::of(text))]);
    match parts.texts.as_slice() {
        [] => {}
        [text] => members.push(("content".to_owned(), Json::of(text))),
        texts => members.push(("content".to_owned(), Json::List(texts.iter().map(part).collect()))),
    }
    Json::Map(members)
}

fn add(block: &Json, role: &str, parts: &mut Parts, out: &mut Vec<Json>) -> Result<(), Reason> {
    match block.text_of("type") {
        Some("text") => {
            parts.texts.extend(block.text_of("text").filter(|t| !t.is_empty()).map(str::to_owned))
        }
        Some("thinking") => {
            if let Some(text) = block.text_of("thinking") {
                parts.thinking.get_or_insert_default().push_str(text);
            }
        }
        Some("redacted_thinking") => {}
        Some("tool_use") => parts.calls.push(call(block)?),
        Some("tool_result") if role == "user" => out.push(result(block)?),
        // Images and documents; results in other roles are printed as Python prints objects.
        Some(_) => return Err(Reason::Multimodal),
        None => return Err(Reason::Malformed),
    }
    Ok(())
}

fn call(block: &Json) -> Result<Json, Reason> {
    let empty = Json::Map(Vec::new());
    let arguments =
        serde_json::to_string(block.get("input").unwrap_or(&empty)).map_err(|_| Reason::Malformed)?;
    let text = |name| Json::of(block.text_of(name).unwrap_or_default());
    let function = Json::object([("name", text("name")), ("arguments", Json::Text(arguments))]);
    Ok(Json::object([("id", text("id")), ("type", Json::of("function")), ("function", function)]))
}

fn result(block: &Json) -> Result<Json, Reason> {
    let content = match block.get("content") {
        None => String::new(),
        Some(Json::Text(text)) => text.clone(),
        Some(Json::List(items)) => {
            if items.iter().any(|item| item.text_of("type").is_some_and(|kind| kind != "text")) {
                return Err(Reason::Multimodal);
            }
            items.iter().filter_map(|item| item.text_of("text")).collect::<Vec<_>>().join("\n")
        }
        Some(_) => return Err(Reason::Malformed),
    };
    let id = Json::of(block.text_of("tool_use_id").unwrap_or_default());
    Ok(Json::object([("role", Json::of("tool")), ("tool_call_id", id), ("content", Json::Text(content))]))
}

fn tools(body: &Json) -> Result<Option<Json>, Reason> {
    let Some(tools) = body.get("tools") else { return Ok(None) };
    let tools = tools.list().ok_or(Reason::Malformed)?;
    let tools = tools.iter().map(|tool| tool_dump(&function(tool)?)).collect::<Option<Vec<_>>>();
    let tools = tools.ok_or(Reason::Malformed)?;
    Ok((!tools.is_empty()).then_some(Json::List(tools)))
}

fn function(tool: &Json) -> Option<Json> {
    let mut schema = tool.get("input_schema").filter(|schema| schema.is_map())?.clone();
    if let Json::Map(members) = &mut schema
        && !members.iter().any(|(name, _)| name == "type")
    {
        members.push(("type".to_owned(), Json::of("object")));
    }
    let field = |name| tool.get(name).cloned().unwrap_or(Json::Null);
    Some(Json::object([
        ("name", field("name")),
        ("description", field("description")),
        ("parameters", schema),
        ("defer_loading", field("defer_loading")),
    ]))
}
