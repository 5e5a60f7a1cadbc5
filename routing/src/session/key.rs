//! What a key may be, and the session it names. Does not know where keys stand.

use crate::hash::{self, Phase};
use crate::id::{RankHash, SessionId};

/// Longest accepted key, in bytes; a longer one is the client's fault (400).
pub const KEY_BYTES_MAX: usize = 256;

/// Stands in keys that are made of more than one value; not visible ASCII, so no client can forge one with a single value.
pub(super) const SEPARATOR: u8 = 0x1f;

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
    /// The key, and where it stood.
    Key(Key),
}

impl Found {
    /// The same, found there.
    pub(super) fn at(self, origin: Origin) -> Self {
        match self {
            Self::Key(key) => Self::Key(Key { origin, ..key }),
            Self::Nothing | Self::TooLong => self,
        }
    }
}

/// Where a key stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere in a request: an operator gave it.
    Given,
    /// In the source of this index.
    Source(usize),
    /// In this header, which names the parent of a sub-agent.
    Parent(&'static str),
}

/// A key's bytes, trimmed and checked. Not printable on purpose. Keys are equal by their bytes, wherever they stood.
#[derive(Clone)]
pub struct Key {
    bytes: Vec<u8>,
    origin: Origin,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Key {}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({} bytes)", self.bytes.len())
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

    /// A key that is made, not sent: no client's value is equal to it.
    pub(super) fn made(parts: &[&[u8]]) -> Self {
        Self { bytes: parts.join(&SEPARATOR), origin: Origin::Given }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The key as its client wrote it, to be handed on to the engine; `None` for a key that is made of several values.
    #[must_use]
    pub fn as_sent(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok().filter(|_| !self.bytes.contains(&SEPARATOR))
    }

    /// Where it stood.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// The session of this key in a pool.
    #[must_use]
    pub fn session(&self, secret: &[u8], scope: &[u8], pool: &str) -> Session {
        self.session_of(secret, scope, pool, Phase::Aggregated)
    }

    /// The session of this key in one phase of a pool.
    #[must_use]
    pub fn session_of(&self, secret: &[u8], scope: &[u8], pool: &str, phase: Phase) -> Session {
        Session {
            id: hash::session_id(secret, scope, pool, phase, &self.bytes),
            rank_hash: hash::rank_hash(&self.bytes),
        }
    }
}

/// Whether a raw value will do as a key, but for its length.
pub(super) fn usable(raw: &[u8]) -> bool {
    visible(raw.trim_ascii())
}

fn visible(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic)
}

/// A raw value as a key: trimmed; empty or with a byte outside visible ASCII it is none.
pub(super) fn clean(raw: &[u8]) -> Found {
    let key = raw.trim_ascii();
    if !visible(key) {
        return Found::Nothing;
    }
    if key.len() > KEY_BYTES_MAX {
        return Found::TooLong;
    }
    Found::Key(Key { bytes: key.to_vec(), origin: Origin::Given })
}
