//! Keys in a request's head: headers, cookies, query parameters, and the headers by which agents tell of one another.

use super::key::{Found, Key, Origin, SEPARATOR, clean, usable};
use super::{KEY_BYTES_MAX, RequestView, Source, Subagents, jwt};
use crate::header;

/// The key at a source of the head.
pub(super) fn key(source: &Source, request: &impl RequestView) -> Found {
    if let Source::Jwt(claim) = source {
        return match claim.read(request) {
            jwt::Value::Absent => Found::Nothing,
            jwt::Value::TooLong(_) => Found::TooLong,
            jwt::Value::Text(text) => clean(&text),
        };
    }
    value(source, request, usable).as_deref().map_or(Found::Nothing, clean)
}

/// The value at a source as part of a scope: whatever its bytes are.
pub(super) fn scope_value(source: &Source, request: &impl RequestView) -> Option<Vec<u8>> {
    let Source::Jwt(claim) = source else { return value(source, request, |_| true) };
    match claim.read(request) {
        jwt::Value::Absent => None,
        // The token stands for its claim, so that no two tenants meet.
        jwt::Value::TooLong(token) => Some(token),
        jwt::Value::Text(text) => Some(text),
    }
}

/// The first value the source has that will do: an empty spelling never hides the next one.
fn value(source: &Source, request: &impl RequestView, will_do: fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let header = |name: &str| request.header(name).filter(|value| will_do(value));
    match source {
        Source::Header { spellings } => spellings.iter().find_map(|name| header(name)),
        Source::ClaudeCode => either_spelling(request, header::CLAUDE_SESSION, will_do),
        Source::Cookie { name } => {
            request.header(header::http::COOKIE).and_then(|line| cookie(&line, name, will_do))
        }
        Source::Query { name } => {
            request.header(header::http::PATH).and_then(|path| query(&path, name, will_do))
        }
        Source::Jwt(_) | Source::Body { .. } | Source::Conversation | Source::ClaudeUser | Source::Prompt => {
            None
        }
    }
}

/// The header under its name with `-`, or with `_`, which some clients make of it.
fn either_spelling(request: &impl RequestView, name: &str, will_do: fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let value = |name: &str| request.header(name).filter(|value| will_do(value));
    value(name).or_else(|| value(&name.replace('-', "_")))
}

/// The key of a Claude Code session for the agent that sends it.
pub(super) fn narrowed(found: Found, subagents: Subagents, request: &impl RequestView) -> Found {
    let Found::Key(key) = found else { return found };
    let Some(agent) = either_spelling(request, header::CLAUDE_AGENT, usable) else { return Found::Key(key) };
    match subagents {
        Subagents::Parent => Found::Key(siblings(key.bytes())),
        Subagents::Own => {
            let narrowed = Key::made(&[key.bytes(), agent.trim_ascii()]);
            if narrowed.bytes().len() > KEY_BYTES_MAX { Found::TooLong } else { Found::Key(narrowed) }
        }
    }
}

/// The key of a sub-agent that names its parent, under [`Subagents::Parent`].
pub(super) fn parent(request: &impl RequestView) -> Option<Found> {
    header::PARENTS.iter().find_map(|name| {
        let value = either_spelling(request, name, usable)?;
        let found = match clean(&value) {
            Found::Key(parent) => Found::Key(siblings(parent.bytes())),
            other => other,
        };
        Some(found.at(Origin::Parent(name)))
    })
}

/// One key for all sub-agents of a session; not that of the session itself.
fn siblings(parent: &[u8]) -> Key {
    Key::made(&[parent, b""])
}

const _: () = assert!(!SEPARATOR.is_ascii_graphic());

fn cookie(line: &[u8], name: &str, will_do: fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    line.split(|b| *b == b';').find_map(|pair| {
        let pair = pair.trim_ascii();
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        let unquoted = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value);
        will_do(unquoted).then(|| unquoted.to_vec())
    })
}

fn query(path: &[u8], name: &str, will_do: fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let path = path.split(|b| *b == b'#').next()?;
    let query = path.splitn(2, |b| *b == b'?').nth(1)?;
    query.split(|b| *b == b'&').find_map(|pair| {
        let mut halves = pair.splitn(2, |b| *b == b'=');
        let (key, value) = (halves.next()?, halves.next().unwrap_or_default());
        (percent_decoded(key) == name.as_bytes())
            .then(|| percent_decoded(value))
            .filter(|value| will_do(value))
    })
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| tail.split_at_checked(2)).flatten();
        let decoded = escaped.and_then(|(digits, after)| hex_byte(digits).map(|value| (value, after)));
        match decoded {
            Some((value, after)) => {
                out.push(value);
                rest = after;
            }
            None => {
                out.push(if byte == b'+' { b' ' } else { byte });
                rest = tail;
            }
        }
    }
    out
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok().filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u8::from_str_radix(text, 16).ok()
}
