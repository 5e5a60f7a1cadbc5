//! How a source of keys is written in the config. Does not know requests.

use super::jwt::Claim;
use crate::header;
use crate::json::{Paths, PointerError};

/// The forms a source may take, for error messages.
pub const SOURCE_FORMS: &str = "\"header:NAME\", \"cookie:NAME\", \"query:NAME\", \"body:/JSON/POINTER\" or \"jwt:CLAIM\" (\"jwt:CLAIM@HEADER\")";
/// The forms a part of the scope may take.
pub const SCOPE_FORMS: &str =
    "\"header:NAME\", \"cookie:NAME\", \"query:NAME\" or \"jwt:CLAIM\" (\"jwt:CLAIM@HEADER\")";

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
    /// A string in the JSON body.
    Body {
        /// Its JSON pointer.
        pointer: String,
    },
    /// OpenAI's `conversation`: a string, or an object with an `id`.
    Conversation,
    /// `metadata.user_id` in the two forms of Claude Code; any other text there names a user, not a session, and is none.
    ClaudeUser,
    /// A claim of a bearer token, unverified: what must be trusted is verified before.
    Jwt(Claim),
    /// How the conversation begins: two that begin alike are one. Never by default.
    Prompt,
}

/// Pointers whose values have a meaning of their own.
const CONVERSATION: &str = "/conversation";
const CLAUDE_USER: &str = "/metadata/user_id";

impl Source {
    /// Reads one entry of the config.
    ///
    /// # Errors
    /// A sentence that says why the text is no source.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (kind, name) = text.split_once(':').ok_or("has no kind")?;
        let name = name.trim();
        match kind {
            "header" => Self::header(named(name)?),
            "cookie" => Ok(Self::Cookie { name: named(name)?.to_owned() }),
            "query" => Ok(Self::Query { name: named(name)?.to_owned() }),
            "body" => Self::body(name),
            "jwt" => Claim::parse(name).map(Self::Jwt),
            _ => Err("unknown kind"),
        }
    }

    /// Reads one entry of the scope: as [`Self::parse`], but nothing in the body, which must not decide who a tenant is.
    ///
    /// # Errors
    /// A sentence that says why the text is no part of a scope.
    pub fn parse_scope(text: &str) -> Result<Self, &'static str> {
        match Self::parse(text) {
            Ok(source) if source.is_in_body() => Err("a scope is not read from the body"),
            parsed => parsed,
        }
    }

    pub(super) fn header(name: &str) -> Result<Self, &'static str> {
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

    pub(super) fn body(pointer: &str) -> Result<Self, &'static str> {
        match Paths::new([pointer]) {
            Ok(_) if pointer == CONVERSATION => Ok(Self::Conversation),
            Ok(_) if pointer == CLAUDE_USER => Ok(Self::ClaudeUser),
            Ok(_) => Ok(Self::Body { pointer: pointer.to_owned() }),
            Err(error) => Err(sentence(error)),
        }
    }

    /// Whether it stands in the body.
    #[must_use]
    pub const fn is_in_body(&self) -> bool {
        matches!(self, Self::Body { .. } | Self::Conversation | Self::ClaudeUser | Self::Prompt)
    }

    /// Whether it names a session of Claude Code, which its agent header narrows.
    pub(super) const fn names_claude(&self) -> bool {
        matches!(self, Self::ClaudeCode | Self::ClaudeUser)
    }

    /// What a reader of the body must look for.
    pub(super) fn pointers(&self) -> Vec<String> {
        match self {
            Self::Body { pointer } => vec![pointer.clone()],
            Self::Conversation => vec![CONVERSATION.to_owned(), super::body::CONVERSATION_ID.to_owned()],
            Self::ClaudeUser => vec![CLAUDE_USER.to_owned()],
            Self::Header { .. }
            | Self::ClaudeCode
            | Self::Cookie { .. }
            | Self::Query { .. }
            | Self::Jwt(_)
            | Self::Prompt => Vec::new(),
        }
    }

    /// As the config writes it.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::Header { spellings } => {
                format!("header:{}", spellings.first().map_or("", String::as_str))
            }
            Self::ClaudeCode => format!("header:{}", header::CLAUDE_SESSION),
            Self::Cookie { name } => format!("cookie:{name}"),
            Self::Query { name } => format!("query:{name}"),
            Self::Body { pointer } => format!("body:{pointer}"),
            Self::Conversation => format!("body:{CONVERSATION}"),
            Self::ClaudeUser => format!("body:{CLAUDE_USER}"),
            Self::Jwt(claim) => format!("jwt:{}", claim.word()),
            Self::Prompt => "prompt".to_owned(),
        }
    }
}

/// The rules of names of headers, cookies and parameters.
pub(super) fn named(name: &str) -> Result<&str, &'static str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(plain) {
        return Err("its name is not letters, digits, '-', '_' or '.'");
    }
    Ok(name)
}

const fn sentence(error: PointerError) -> &'static str {
    match error {
        PointerError::NoSlash => "a JSON pointer begins with '/'",
        PointerError::Tilde => "in a JSON pointer '~' is written '~0', and '/' inside a name '~1'",
        PointerError::TooLong => "its pointer is longer than 256 bytes",
    }
}
