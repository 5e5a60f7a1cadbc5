//! Where a text can be cut so that its parts have the tokens of the whole: just behind added tokens.
//!
//! Tokenizers take added tokens out of the raw text first, the leftmost and then the longest, and treat what lies between by
//! itself. So what follows such a token does not depend on what precedes it, and the other way round. Not cut at: tokens that
//! are matched after normalization, that take blanks behind them, that look like words; none at all where a token must be a
//! word of its own. Parts are encoded from the token on, never as if the text began behind it. Knows no tokenizer.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

/// Least distance between two cuts, in bytes. A cut's place depends on what precedes it alone: the next turn has the same.
pub(crate) const STEP: usize = 1024;

/// One place to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Where the token starts, in bytes.
    pub(crate) from: usize,
    /// Where it ends: the cut.
    pub(crate) at: usize,
    pub(crate) id: u32,
}

/// The added tokens of a tokenizer.
pub(crate) struct Cuts {
    /// All that are taken out of the raw text; `None`: nothing can be cut.
    finder: Option<AhoCorasick>,
    /// By pattern: its id, if the text can be cut behind it.
    usable: Vec<Option<u32>>,
}

impl Cuts {
    /// From `tokenizer.json`.
    pub(crate) fn of(json: &Value) -> Self {
        let none = Self { finder: None, usable: Vec::new() };
        let Some(tokens) = json.get("added_tokens").and_then(Value::as_array) else { return none };
        let set = |token: &Value, name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
        let dropout = json.get("model").and_then(|model| model.get("dropout")).is_some_and(|p| !p.is_null());
        if dropout || tokens.iter().any(|token| set(token, "single_word")) {
            return none;
        }
        let mut patterns: Vec<&str> = Vec::new();
        let mut usable = Vec::new();
        for token in tokens.iter().filter(|token| !set(token, "normalized")) {
            let content = token.get("content").and_then(Value::as_str).filter(|text| !text.is_empty());
            let id = token.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            let Some(content) = content else { continue };
            patterns.push(content);
            usable.push(id.filter(|_| !set(token, "rstrip") && is_marked(content)));
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns).ok();
        Self { finder: finder.filter(|_| usable.iter().any(Option::is_some)), usable }
    }

    /// The places in a text, at least [`STEP`] apart.
    pub(crate) fn places(&self, text: &str) -> Vec<Cut> {
        let Some(finder) = &self.finder else { return Vec::new() };
        let mut next = STEP;
        let mut cuts = Vec::new();
        for found in finder.find_iter(text) {
            let id = self.usable.get(found.pattern().as_usize()).copied().flatten();
            if let Some(id) = id.filter(|_| found.end() >= next) {
                cuts.push(Cut { from: found.start(), at: found.end(), id });
                next = found.end() + STEP;
            }
        }
        cuts
    }
}

/// Neither end is a letter, a digit or a blank.
fn is_marked(content: &str) -> bool {
    let plain = |c: char| !c.is_alphanumeric() && !c.is_whitespace();
    content.chars().next().is_some_and(plain) && content.chars().next_back().is_some_and(plain)
}
