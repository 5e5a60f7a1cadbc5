//! Finding the session key of a request (affinity section 2), and the two numbers derived from it.
//!
//! Header names compare without case, and `-` and `_` are the same letter. A key's bytes leave this module
//! only for the engine that wants them ([`Key::as_sent`]).
//! Here: the way through the list of sources. `source` is how a source is written, `key` what a key may be, `head`, `body` and `jwt`
//! read their kinds of source.

mod body;
mod head;
mod jwt;
mod key;
mod source;

pub use key::{Found, KEY_BYTES_MAX, Key, Origin, Session};
pub use source::{SCOPE_FORMS, SOURCE_FORMS, Source};

use crate::header;
use crate::json::{BodyFields, Paths, Reader};
use std::sync::Arc;

/// What a request shows of itself. A lookup may cost the caller something, so it is asked only when needed.
pub trait RequestView {
    /// First value of a header; the name is lower-case.
    fn header(&self, name: &str) -> Option<Vec<u8>>;
}

/// Whose binding a sub-agent has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subagents {
    /// Its own: each agent of a session is a session.
    #[default]
    Own,
    /// That of its siblings, under a key no client can send; the root keeps its own.
    Parent,
}

/// Result of looking at the head alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Search {
    /// Decided: no source before this one is in the body.
    Done(Found),
    /// A body source comes before any that the head has. Ask [`Sources::with_body`], with [`BodyFields::none`] if the body is not read.
    NeedsBody,
}

/// Where a session key may stand, first hit wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    list: Vec<Source>,
    subagents: Subagents,
    paths: Arc<Paths>,
}

impl std::ops::Deref for Sources {
    type Target = [Source];

    fn deref(&self) -> &[Source] {
        &self.list
    }
}

impl Sources {
    /// A list in its order. `asked` are JSON pointers that the caller wants from the same reading, beside the keys; one that is no
    /// pointer is left out.
    #[must_use]
    pub fn new(list: Vec<Source>, subagents: Subagents, asked: &[&str]) -> Self {
        let mut paths = Paths::default();
        let pointers = list.iter().flat_map(Source::pointers);
        for pointer in pointers.chain(asked.iter().map(|pointer| (*pointer).to_owned())) {
            // A source's pointer was checked when it was parsed.
            let _ = paths.add(&pointer);
        }
        if list.contains(&Source::Prompt) {
            paths = paths.with_opening();
        }
        Self { list, subagents, paths: Arc::new(paths) }
    }

    /// Looks at the head alone.
    #[must_use]
    pub fn in_head(&self, request: &impl RequestView) -> Search {
        self.search(request, None)
    }

    /// Looks at the head and at what was found in the body.
    #[must_use]
    pub fn with_body(&self, request: &impl RequestView, body: &BodyFields) -> Found {
        match self.search(request, Some(body)) {
            Search::Done(found) => found,
            Search::NeedsBody => Found::Nothing,
        }
    }

    /// Whether a key may stand in the body.
    #[must_use]
    pub fn wants_body(&self) -> bool {
        self.list.iter().any(Source::is_in_body)
    }

    /// A reader of one request's body: all keys of this list, and what else was asked for.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(&self.paths)
    }

    /// Where a key was found, as the config writes it (`header:x-session-id`); for people.
    #[must_use]
    pub fn source_word(&self, key: &Key) -> String {
        match key.origin() {
            Origin::Given => "given".to_owned(),
            Origin::Parent(name) => format!("header:{name}"),
            Origin::Source(index) => self.list.get(index).map(Source::word).unwrap_or_default(),
        }
    }

    fn search(&self, request: &impl RequestView, body: Option<&BodyFields>) -> Search {
        if self.subagents == Subagents::Parent
            && let Some(found) = head::parent(request)
        {
            return Search::Done(found);
        }
        for (index, source) in self.list.iter().enumerate() {
            let found = match (source.is_in_body(), body) {
                (true, None) => return Search::NeedsBody,
                (true, Some(body)) => body::key(source, body),
                (false, _) => head::key(source, request),
            };
            let found =
                if source.names_claude() { head::narrowed(found, self.subagents, request) } else { found };
            if found != Found::Nothing {
                return Search::Done(found.at(Origin::Source(index)));
            }
        }
        Search::Done(Found::Nothing)
    }
}

/// The default list of affinity section 2, as far as it is in the head.
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

/// The default sources in the body, which come behind those of the head where body reading is on.
#[must_use]
pub fn default_body_sources() -> Vec<Source> {
    header::SESSION_BODY_DEFAULT.iter().filter_map(|pointer| Source::body(pointer).ok()).collect()
}

/// The scope: the values of all its sources, length-prefixed; an absent value counts as empty.
#[must_use]
pub fn scope(sources: &[Source], request: &impl RequestView) -> Vec<u8> {
    let mut scope = Vec::new();
    for source in sources {
        let value = head::scope_value(source, request).unwrap_or_default();
        let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
        scope.extend_from_slice(&len.to_le_bytes());
        scope.extend_from_slice(&value);
    }
    scope
}
