//! Bodies of `/v1/responses` as vLLM (0.30–0.33) turns them into a chat: texts and messages. Calls, reasoning and tools are
//! rendered differently from version to version, and stored responses are known to the engine alone: not comparable.

use super::Reason;
use super::body::{Chat, with_kwargs};
use super::json::Json;

pub(super) fn chat(body: &Json) -> Result<Chat, Reason> {
    if ["previous_response_id", "conversation", "prompt", "previous_input_messages"]
        .iter()
        .any(|name| body.get(name).is_some())
    {
        return Err(Reason::Stored);
    }
    if body.get("tools").and_then(Json::list).is_some_and(|tools| !tools.is_empty()) {
        return Err(Reason::Items);
    }
    let mut messages = Vec::new();
    let instructions = body.text_of("instructions").filter(|text| !text.is_empty());
    messages.extend(instructions.map(|text| message("system", Json::of(text))));
    match body.get("input") {
        Some(Json::Text(text)) => messages.push(message("user", Json::of(text))),
        Some(Json::List(items)) => {
            for item in items {
                messages.push(converted(item)?);
            }
        }
        _ => return Err(Reason::Malformed),
    }
    let effort = body.get("reasoning").and_then(|reasoning| reasoning.get("effort"));
    let effort = effort.map(|effort| ("reasoning_effort".to_owned(), effort.clone()));
    let kwargs = with_kwargs(effort.into_iter().collect(), body);
    // This surface, unlike chat, has the tokenizer put its marks (seen on vLLM 0.32).
    Ok(Chat { messages, tools: None, kwargs, add_generation_prompt: true, marks: true })
}

fn converted(item: &Json) -> Result<Json, Reason> {
    if !item.is_map() {
        return Err(Reason::Malformed);
    }
    if item.text_of("type").is_some_and(|kind| kind != "message") {
        return Err(Reason::Items);
    }
    if matches!(item.text_of("status"), Some("in_progress" | "incomplete")) {
        return Err(Reason::Continued);
    }
    let role = item.text_of("role").ok_or(Reason::Malformed)?;
    Ok(message(role, item.get("content").cloned().ok_or(Reason::Malformed)?))
}

fn message(role: &str, content: Json) -> Json {
    Json::object([("role", Json::of(role)), ("content", content)])
}
