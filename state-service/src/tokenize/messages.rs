//! Messages as the engine hands them to its chat template: after vLLM's `parse_chat_messages` (0.29–0.33).
//!
//! Owns contents (text, parts), calls' arguments, which members stay. Knows no surface and no template beyond how it wants
//! contents.

use super::Reason;
use super::json::Json;

/// How a template wants contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// A text; parts are joined by line ends.
    Text,
    /// A list of parts; a text is a list of one.
    Parts,
}

/// All messages, as templates see them.
///
/// # Errors
/// What has no tokens that the text would tell; what is no message.
pub(crate) fn seen(messages: &[Json], contents: Contents) -> Result<Vec<Json>, Reason> {
    messages.iter().map(|message| one(message, contents)).collect()
}

fn one(message: &Json, contents: Contents) -> Result<Json, Reason> {
    let role = message.text_of("role").ok_or(Reason::Malformed)?;
    let texts = texts(message.get("content"))?;
    // A tool's answer is a text in any case.
    let content = match (contents, role) {
        (Contents::Parts, role) if role != "tool" => {
            Json::List(texts.iter().map(|text| part(text)).collect())
        }
        _ => Json::Text(texts.join("\n")),
    };
    let mut members = vec![("role".to_owned(), Json::of(role)), ("content".to_owned(), content)];
    let mut keep = |name: &str, value: Json| members.push((name.to_owned(), value));
    if role == "assistant" {
        assistant(message, &mut keep)?;
    }
    if let (Some(id), "tool") = (message.get("tool_call_id"), role) {
        keep("tool_call_id", id.clone());
    }
    if let Some(name) = message.text_of("name") {
        keep("name", Json::of(name));
    }
    if role == "developer" {
        keep("tools", message.get("tools").cloned().unwrap_or(Json::Null));
    }
    Ok(Json::Map(members))
}

fn assistant(message: &Json, keep: &mut impl FnMut(&str, Json)) -> Result<(), Reason> {
    if let Some(calls) = message.get("tool_calls") {
        let calls = calls.list().ok_or(Reason::Malformed)?;
        if !calls.is_empty() {
            keep("tool_calls", Json::List(calls.iter().map(call).collect::<Result<_, _>>()?));
        }
    }
    // Newer engines say `reasoning`, older ones `reasoning_content`; templates of either kind are out there.
    if let Some(reasoning) = message.get("reasoning").or_else(|| message.get("reasoning_content")) {
        keep("reasoning", reasoning.clone());
        keep("reasoning_content", reasoning.clone());
    }
    Ok(())
}

fn part(text: &str) -> Json {
    Json::object([("type", Json::of("text")), ("text", Json::of(text))])
}

fn texts(content: Option<&Json>) -> Result<Vec<&str>, Reason> {
    match content {
        None => Ok(Vec::new()),
        Some(Json::Text(text)) => Ok(vec![text]),
        Some(Json::List(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for part in parts {
                texts.extend(text_of_part(part)?);
            }
            Ok(texts)
        }
        Some(_) => Err(Reason::Malformed),
    }
}

fn text_of_part(part: &Json) -> Result<Option<&str>, Reason> {
    if let Json::Text(text) = part {
        return Ok(Some(text));
    }
    let member = match part.text_of("type") {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        Some(_) => return Err(Reason::Multimodal),
        None => return Err(Reason::Malformed),
    };
    Ok(part.text_of(member))
}

/// A call whose arguments are an object: from the text that clients send, or an empty one when that is no JSON.
fn call(given: &Json) -> Result<Json, Reason> {
    let Json::Map(members) = given else { return Err(Reason::Malformed) };
    let Some(Json::Map(function)) = given.get("function") else { return Err(Reason::Malformed) };
    let arguments = match given.get("function").and_then(|function| function.get("arguments")) {
        Some(Json::Text(text)) => Json::parse(text).unwrap_or(Json::Map(Vec::new())),
        Some(value @ (Json::Map(_) | Json::List(_))) => value.clone(),
        _ => Json::Map(Vec::new()),
    };
    let function = Json::Map(replaced(function, "arguments", arguments));
    Ok(Json::Map(replaced(members, "function", function)))
}

fn replaced(members: &[(String, Json)], name: &str, value: Json) -> Vec<(String, Json)> {
    let mut members = members.to_vec();
    match members.iter_mut().find(|(known, _)| known == name) {
        Some(member) => member.1 = value,
        None => members.push((name.to_owned(), value)),
    }
    members
}
