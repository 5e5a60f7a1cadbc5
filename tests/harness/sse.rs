//! Server-sent events as the OpenAI API sends them: takes the `data:` lines out of a whole stream.

/// The payloads of all `data:` lines, in order.
#[must_use]
pub fn payloads(stream: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stream).into_owned();
    text.lines().filter_map(|line| line.strip_prefix("data:")).map(|data| data.trim().to_owned()).collect()
}

/// Whether the stream ended as it should, with `[DONE]`.
#[must_use]
pub fn is_whole(stream: &[u8]) -> bool {
    payloads(stream).last().is_some_and(|last| last == "[DONE]")
}
