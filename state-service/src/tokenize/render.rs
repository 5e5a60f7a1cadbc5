//! From what a body asks to the one text (or the tokens) an engine would be prompted with.
//!
//! Owns the choice between a model's template and, where there are no tokens to be had, a plain rendering of our own. Knows no
//! tokenizer.

use super::Reason;
use super::body::{Asked, Chat, Prompt};
use super::json::Json;
use super::messages::{Contents, seen};
use super::template::Templates;

/// What is to be tokenised.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rendered {
    Text {
        text: String,
        /// Whether the tokenizer puts its own marks around it (BOS); a template may have put one as well: both count.
        marks: bool,
    },
    Tokens(Vec<u32>),
}

/// As the engine would.
///
/// # Errors
/// What cannot be compared.
pub(crate) fn render(prompt: Prompt, templates: Option<&Templates>) -> Result<Rendered, Reason> {
    match prompt.asked {
        Asked::Tokens(tokens) => Ok(Rendered::Tokens(tokens)),
        Asked::Text { text, marks } => Ok(Rendered::Text { text, marks }),
        Asked::Chat(mut chat) => {
            // Of a cut conversation nobody knows what follows.
            chat.add_generation_prompt &= prompt.whole;
            let text = templates.ok_or(Reason::NoTemplate)?.render(&chat)?;
            Ok(Rendered::Text { text, marks: chat.marks })
        }
    }
}

/// In an order of our own, the same for every turn of a conversation: tools, then message after message.
///
/// # Errors
/// What cannot be compared.
pub(crate) fn plain(prompt: &Prompt) -> Result<String, Reason> {
    match &prompt.asked {
        Asked::Tokens(tokens) => Ok(tokens.iter().map(|token| format!("{token} ")).collect()),
        Asked::Text { text, .. } => Ok(text.clone()),
        Asked::Chat(chat) => plain_chat(chat),
    }
}

fn plain_chat(chat: &Chat) -> Result<String, Reason> {
    let mut text = String::new();
    text.extend(chat.tools.as_ref().map(printed));
    for message in seen(&chat.messages, Contents::Text)? {
        for name in ["role", "content", "tool_calls"] {
            match message.get(name) {
                Some(Json::Text(part)) => text.push_str(part),
                Some(other) => text.push_str(&printed(other)),
                None => {}
            }
            text.push('\n');
        }
    }
    Ok(text)
}

fn printed(json: &Json) -> String {
    serde_json::to_string(json).unwrap_or_default()
}
