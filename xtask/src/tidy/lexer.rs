//! Rust text cut into code and string literals, comments taken away, line numbers kept. Enough of the language
//! for a scan by words; no parser.

/// One Rust file as the rules see it.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The code; comments and the insides of literals are blanks, every line break is where it was.
    pub(crate) code: String,
    /// Each string literal and the line it starts on, from 1.
    pub(crate) strings: Vec<(usize, String)>,
}

impl Source {
    /// Never fails: text that is not Rust gives some code.
    pub(crate) fn lex(text: &str) -> Self {
        let mut lexer = Lexer { rest: text, line: 1, source: Self::default() };
        while lexer.step() {}
        lexer.source
    }

    /// Lines of code with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    source: Source,
}

impl Lexer<'_> {
    /// Takes one comment, literal or character; false at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            self.blank(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.blank(block_comment(self.rest));
        } else if let Some((prefix, hashes)) = self.raw_string() {
            self.raw_literal(prefix, hashes);
        } else if first == '"' {
            self.literal();
        } else if let Some(length) = char_literal(self.rest) {
            self.blank(length);
        } else {
            self.keep(first);
        }
        true
    }

    fn keep(&mut self, character: char) {
        self.source.code.push(character);
        self.line += usize::from(character == '\n');
        self.rest = self.rest.get(character.len_utf8()..).unwrap_or_default();
    }

    /// Replaces the next `length` bytes by blanks.
    fn blank(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, ""));
        for character in gone.chars() {
            self.source.code.push(if character == '\n' { '\n' } else { ' ' });
            self.line += usize::from(character == '\n');
        }
        self.rest = rest;
    }

    fn literal(&mut self) {
        let inside = self.rest.get(1..).unwrap_or_default();
        let mut escaped = false;
        let end = inside.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        let end = end.unwrap_or(inside.len());
        self.string(1, end, 1);
    }

    fn raw_literal(&mut self, prefix: usize, hashes: usize) {
        let open = prefix + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let inside = self.rest.get(open..).unwrap_or_default();
        let end = inside.find(&close).unwrap_or(inside.len());
        self.string(open, end, close.len());
    }

    /// A literal of `open` bytes, `length` bytes of content, `close` bytes. Quotes stay, so that code reads on.
    fn string(&mut self, open: usize, length: usize, close: usize) {
        let content = self.rest.get(open..open + length).unwrap_or_default().to_owned();
        self.source.strings.push((self.line, content));
        self.source.code.push('"');
        self.blank(open + length + close);
        self.source.code.push('"');
    }

    /// Length of `r`, `br` or `cr` and the number of hashes, where a raw string starts.
    fn raw_string(&self) -> Option<(usize, usize)> {
        if self.source.code.chars().next_back().is_some_and(is_word) {
            return None;
        }
        let prefix = ["r", "br", "cr"].into_iter().find(|prefix| self.rest.starts_with(prefix))?.len();
        let after = self.rest.get(prefix..)?;
        let hashes = after.len() - after.trim_start_matches('#').len();
        after.get(hashes..)?.starts_with('"').then_some((prefix, hashes))
    }
}

/// Length of a comment with the comments inside it.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0usize);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Length of a character literal; `None` for a lifetime and anything else.
fn char_literal(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        let after = inside.get(2..)?;
        return after.find('\'').map(|end| end + 4);
    }
    let after = inside.get(first.len_utf8()..)?;
    after.starts_with('\'').then_some(first.len_utf8() + 2)
}

/// Whether a character can be part of an identifier.
pub(crate) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Whether `word` stands in `line` with no identifier character around it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_not_code() {
        let source = Source::lex("a // tokio\n/* x /* y */\n tokio */ b \"tokio\\\"\" c\n");
        assert!(!source.code.contains("tokio"));
        assert_eq!(source.code.lines().count(), 3);
        assert!(source.code.contains('b') && source.code.contains('c'));
        assert_eq!(source.strings, [(3, "tokio\\\"".to_owned())]);
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        let source = Source::lex("f(r#\"x-a \"quoted\" \"#, br\"\\\", r\"z\") g");
        let texts: Vec<_> = source.strings.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["x-a \"quoted\" ", "\\", "z"]);
        assert!(source.code.ends_with(" g"));
    }

    #[test]
    fn lifetimes_are_code_and_quotes_in_characters_are_not_strings() {
        let source = Source::lex("fn f<'a>(x: &'a str) { '\"'; '\\''; b'\\\\'; r#type } // end");
        assert!(source.strings.is_empty());
        assert!(source.code.contains("<'a>") && source.code.contains("r#type"));
    }

    #[test]
    fn unfinished_text_ends() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "'é"] {
            Source::lex(text);
        }
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe") && !has_word("catalog::x", "log"));
    }
}
