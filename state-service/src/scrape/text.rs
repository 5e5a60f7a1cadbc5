//! Prometheus text, as far as gauges of engines need it: one line in, one sample out, and lines out of chunks.
//!
//! Owns the syntax and its bounds: a line that is too long or broken is no sample, never an error. Knows no engine.

/// Longest line that is looked at; the rest of a longer one is passed over.
pub(super) const LINE_BYTES_MAX: usize = 16 << 10;

/// One sample of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    /// Name of its family.
    pub(crate) name: &'a str,
    labels: &'a str,
    /// As written; may be no number.
    pub(super) value: f64,
}

impl<'a> Sample<'a> {
    /// `name{label="value",…} value [timestamp]`; `None` for comments and whatever else is no sample.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        let end = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
        let (name, rest) = line.split_at_checked(end)?;
        if name.is_empty() || name.starts_with('#') {
            return None;
        }
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => (rest, after_labels(rest)?),
            None => ("", rest),
        };
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }

    /// A label's value as written, escapes included.
    pub(crate) fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, value, after) = next_label(rest)?;
            if key == name {
                return Some(value);
            }
            rest = after;
        }
    }
}

/// What follows the closing brace.
fn after_labels(mut rest: &str) -> Option<&str> {
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        rest = next_label(rest)?.2;
    }
}

/// The first label, its value, and what follows both; `None` at the end of the labels or where they are broken.
fn next_label(rest: &str) -> Option<(&str, &str, &str)> {
    let (key, rest) = rest.trim_start().split_once('=')?;
    if key.contains('}') || key.contains('"') {
        return None;
    }
    let rest = rest.trim_start().strip_prefix('"')?;
    let (value, rest) = rest.split_at_checked(closing_quote(rest)?)?;
    let rest = rest.strip_prefix('"')?.trim_start();
    Some((key.trim(), value, rest.strip_prefix(',').unwrap_or(rest)))
}

/// Where the first quote is that no backslash escapes.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

/// Cuts chunks into lines, keeping one line at most.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    /// The line under way is too long: passed over to its end.
    over: bool,
}

impl Lines {
    /// Takes a chunk and gives each line that it ends.
    pub(super) fn feed(&mut self, chunk: &[u8], mut line: impl FnMut(&[u8])) {
        let mut parts = chunk.split(|byte| *byte == b'\n');
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            self.add(part);
            self.end(&mut line);
        }
        self.add(last);
    }

    /// The last line, which no newline ends.
    pub(super) fn finish(mut self, mut line: impl FnMut(&[u8])) {
        self.end(&mut line);
    }

    fn add(&mut self, part: &[u8]) {
        self.over |= self.begun.len() + part.len() > LINE_BYTES_MAX;
        if !self.over {
            self.begun.extend_from_slice(part);
        }
    }

    fn end(&mut self, line: &mut impl FnMut(&[u8])) {
        if !std::mem::take(&mut self.over) {
            line(&self.begun);
        }
        self.begun.clear();
    }
}
