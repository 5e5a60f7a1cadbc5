//! What the bench of the JSON reader reads, and the two ways of reading it. Does not know clocks.

use routing::json::{Paths, Reader};
use std::sync::Arc;

/// Bytes of the body.
const BODY_BYTES: usize = 100_000;
/// Readings in one call of the example, so that the time of a call is worth taking.
pub(crate) const READS_A_CALL: usize = 50;
/// As much as Envoy hands over at once.
const CHUNK_BYTES: usize = 16 * 1024;
const POINTER: &str = "/prompt_cache_key";
const KEY: &[u8] = b"conv-7f3a9c51";

/// What an agent writes: prose, code with escaped quotes and line ends, a word beyond ASCII.
const PROSE: &str = "The build fails because the worker still holds the old lease when the probe comes back; we retry with a bound. ";
const CODE: &str =
    "    let Some(slot) = table.get(\\\"home\\\") else { return None };\\n    // caf\u{e9}: keep it\\n";

/// A chat body of about [`BODY_BYTES`] whose key is its last member.
pub(crate) fn body() -> Vec<u8> {
    let mut text = "{\"model\":\"chat\",\"stream\":true,\"temperature\":0.7,\"messages\":[".to_owned();
    text.push_str("{\"role\":\"system\",\"content\":\"You are a careful engineer.\"}");
    let mut turn = 0;
    while text.len() < BODY_BYTES - 1500 {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        text.push_str(&format!(",{{\"role\":\"{role}\",\"content\":[{{\"type\":\"text\",\"text\":\""));
        text.push_str(&PROSE.repeat(4 + turn % 5));
        text.push_str(&CODE.repeat(turn % 4));
        text.push_str("\"}]}");
        turn += 1;
    }
    text.push_str("],\"prompt_cache_key\":\"conv-7f3a9c51\"}");
    text.into_bytes()
}

/// The reader over the body, as it comes: whether it found the key.
pub(crate) fn streamed(paths: &Arc<Paths>, body: &[u8]) -> bool {
    let mut reader = Reader::new(paths);
    for chunk in body.chunks(CHUNK_BYTES) {
        reader.feed(chunk);
    }
    reader.finish().is_ok_and(|found| found.text(POINTER) == Some(KEY))
}

/// The paths of a listener that reads bodies: all default sources.
pub(crate) fn paths() -> Arc<Paths> {
    Arc::new(Paths::new(routing::header::SESSION_BODY_DEFAULT.iter().copied()).unwrap_or_default())
}

/// A parse of the whole document into values: whether it found the key.
pub(crate) fn whole(body: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    value.pointer(POINTER).and_then(serde_json::Value::as_str).map(str::as_bytes) == Some(KEY)
}
