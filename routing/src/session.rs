//! Finding the session key of a request (affinity section 2), and the two numbers derived from it.
//!
//! Header names compare without case, and `-` and `_` are the same letter. The key's bytes never leave this module.

use crate::hash::{self, Phase};
use crate::header;
use crate::id::{RankHash, SessionId};

/// Longest accepted key, in bytes; a longer one is the client's fault (400).
pub const KEY_BYTES_MAX: usize = 256;

/// The forms a source may take, for error messages.
pub const SOURCE_FORMS: &str = "\"header:NAME\", \"cookie:NAME\" or \"query:NAME\"";

/// Where a key may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A request header, under each spelling with `-` or `_`.
    Header {
        /// Spellings tried, in order.
        spellings: Vec<String>,
    },
    /// Claude Code's session header, narrowed by its sub-agent header.
    ClaudeCode,
    /// A cookie.
    Cookie {
        /// Its name.
        name: String,
    },
    /// A query parameter, percent-decoded.
    Query {
        /// Its name.
        name: String,
    },
}

impl Source {
    /// Reads one entry of the config.
    ///
    /// # Errors
    /// A sentence that says why the text is no source.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (kind, name) = text.split_once(':').ok_or("has no kind")?;
        let name = name.trim();
        if name.is_empty()
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        {
            return Err("its name is not letters, digits, '-', '_' or '.'");
        }
        match kind {
            "header" => Self::header(name),
            "cookie" => Ok(Self::Cookie { name: name.to_owned() }),
            "query" => Ok(Self::Query { name: name.to_owned() }),
            "body" | "jwt" => Err("body and jwt sources are not available in this version"),
            _ => Err("unknown kind"),
        }
    }

    fn header(name: &str) -> Result<Self, &'static str> {
        let lower = name.to_ascii_lowercase();
        let dashed = lower.replace('_', "-");
        if header::NEVER_A_KEY.contains(&dashed.as_str()) {
            return Err("it is new on each request, so it would scatter every conversation");
        }
        if dashed == header::CLAUDE_SESSION {
            return Ok(Self::ClaudeCode);
        }
        let mut spellings = vec![lower];
        for other in [dashed.clone(), dashed.replace('-', "_")] {
            if !spellings.contains(&other) {
                spellings.push(other);
            }
        }
        Ok(Self::Header { spellings })
    }
}

/// The default list of affinity section 2.
#[must_use]
pub fn default_sources() -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    for name in header::SESSION_DEFAULT {
        if let Ok(source) = Source::header(name)
            && !sources.contains(&source)
        {
            sources.push(source);
        }
    }
    sources
}

/// What a request shows of itself. A lookup may cost the caller something, so it is asked only when needed.
pub trait RequestView {
    /// First value of a header; the name is lower-case.
    fn header(&self, name: &str) -> Option<Vec<u8>>;
}

/// A session as the filter knows it for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Names it everywhere.
    pub id: SessionId,
    /// Picks its rank inside a worker.
    pub rank_hash: RankHash,
}

/// Result of looking for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No source had a usable value: no session.
    Nothing,
    /// A key longer than [`KEY_BYTES_MAX`].
    TooLong,
    /// The key.
    Key(Key),
}

/// A key's bytes, trimmed and checked. Not printable on purpose.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

impl Key {
    /// A key from text given by an operator (`rankpin hash`), under the same rules as one from a request.
    #[must_use]
    pub fn new(raw: &[u8]) -> Option<Self> {
        match clean(raw) {
            Found::Key(key) => Some(key),
            Found::Nothing | Found::TooLong => None,
        }
    }

    /// The session of this key in a pool.
    #[must_use]
    pub fn session(&self, secret: &[u8], scope: &[u8], pool: &str) -> Session {
        Session {
            id: hash::session_id(secret, scope, pool, Phase::Aggregated, &self.0),
            rank_hash: hash::rank_hash(&self.0),
        }
    }
}

/// The first usable key, in the order of `sources`.
#[must_use]
pub fn find(sources: &[Source], request: &impl RequestView) -> Found {
    for source in sources {
        match key_of(source, request) {
            Found::Nothing => {}
            found => return found,
        }
    }
    Found::Nothing
}

/// The scope: the values of all its sources, length-prefixed; an absent value counts as empty.
#[must_use]
pub fn scope(sources: &[Source], request: &impl RequestView) -> Vec<u8> {
    let mut scope = Vec::new();
    for source in sources {
        let value = value_of(source, request, |_| true).unwrap_or_default();
        let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
        scope.extend_from_slice(&len.to_le_bytes());
        scope.extend_from_slice(&value);
    }
    scope
}

fn key_of(source: &Source, request: &impl RequestView) -> Found {
    let found = value_of(source, request, usable).as_deref().map_or(Found::Nothing, clean);
    match (source, found) {
        (Source::ClaudeCode, Found::Key(key)) => narrowed(key, request),
        (_, found) => found,
    }
}

/// The first value the source has that will do: an empty spelling never hides the next one.
fn value_of(source: &Source, request: &impl RequestView, will_do: fn(&[u8]) -> bool) -> Option<Vec<u8>> {
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
    }
}

/// The header under its name with `-`, or with `_`, which some clients make of it.
fn either_spelling(request: &impl RequestView, name: &str, will_do: fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let value = |name: &str| request.header(name).filter(|value| will_do(value));
    value(name).or_else(|| value(&name.replace('-', "_")))
}

fn usable(raw: &[u8]) -> bool {
    visible(raw.trim_ascii())
}

/// Separates session and agent; not visible ASCII, so no client can forge another's pair with a header, cookie or query.
const AGENT_SEPARATOR: u8 = 0x1f;

fn narrowed(Key(mut bytes): Key, request: &impl RequestView) -> Found {
    if let Some(agent) = either_spelling(request, header::CLAUDE_AGENT, usable) {
        bytes.push(AGENT_SEPARATOR);
        bytes.extend_from_slice(agent.trim_ascii());
    }
    if bytes.len() > KEY_BYTES_MAX { Found::TooLong } else { Found::Key(Key(bytes)) }
}

fn visible(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic)
}

fn clean(raw: &[u8]) -> Found {
    let key = raw.trim_ascii();
    if !visible(key) {
        return Found::Nothing;
    }
    if key.len() > KEY_BYTES_MAX { Found::TooLong } else { Found::Key(Key(key.to_vec())) }
}

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
