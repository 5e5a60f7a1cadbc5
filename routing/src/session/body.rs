//! Keys in a request's body, from the values its reader found.

use super::Source;
use super::key::{Found, Key, clean};
use crate::json::BodyFields;

/// Where a `conversation` that is an object has its id.
pub(super) const CONVERSATION_ID: &str = "/conversation/id";

/// The key at a source of the body.
pub(super) fn key(source: &Source, body: &BodyFields) -> Found {
    let first = source.pointers();
    let value = || first.iter().map(|pointer| text(pointer, body)).find(|found| *found != Found::Nothing);
    match source {
        Source::Body { .. } | Source::Conversation => value().unwrap_or(Found::Nothing),
        Source::ClaudeUser => first.first().map_or(Found::Nothing, |pointer| {
            body.text(pointer).and_then(claude_session).as_deref().map_or(Found::Nothing, clean)
        }),
        Source::Prompt => body.opening().map_or(Found::Nothing, |opening| {
            Found::Key(Key::made(&[b"", b"prompt", format!("{opening:032x}").as_bytes()]))
        }),
        Source::Header { .. }
        | Source::ClaudeCode
        | Source::Cookie { .. }
        | Source::Query { .. }
        | Source::Jwt(_) => Found::Nothing,
    }
}

fn text(pointer: &str, body: &BodyFields) -> Found {
    match body.text(pointer) {
        Some(text) => clean(text),
        None if body.too_long(pointer) => Found::TooLong,
        None => Found::Nothing,
    }
}

/// The session in Claude Code's `metadata.user_id`: `user_…_account_…_session_ID` (older clients), or a JSON object in a string
/// with a `session_id`.
fn claude_session(user: &[u8]) -> Option<Vec<u8>> {
    let user = user.trim_ascii();
    if user.starts_with(b"{") {
        let object: serde_json::Value = serde_json::from_slice(user).ok()?;
        return object.get("session_id")?.as_str().map(|id| id.as_bytes().to_vec());
    }
    let (account, session) = std::str::from_utf8(user).ok()?.rsplit_once("_session_")?;
    let known = account.strip_prefix("user_")?.contains("_account_");
    // `user_X_account__session_ID`: no account, so the two words meet.
    (known || account.ends_with("_account")).then(|| session.as_bytes().to_vec())
}
