//! Identifiers as types, so that no bare string or integer crosses a module with an unclear meaning.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{borrow::Borrow, fmt};

/// Longest worker id, pool name and label, in bytes: they become cluster names and header values.
pub const NAME_BYTES_MAX: usize = 63;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text was empty.
    #[error("must not be empty")]
    Empty,
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("is {len} bytes long, at most {NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// A byte that may not stand in an Envoy cluster name or header value.
    #[error("may hold only ASCII letters, digits, '-', '_' and '.', found {found:?}")]
    Byte {
        /// The first offending character.
        found: char,
    },
}

fn check_name(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { len: text.len() });
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))) {
        Some(found) => Err(NameError::Byte { found }),
        None => Ok(()),
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);
        impl $name {
            /// Checks and keeps a name: 1..=63 bytes of ASCII letters, digits, `-`, `_`, `.`.
            ///
            /// # Errors
            /// [`NameError`] says which rule the text breaks.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                check_name(text).map(|()| Self(text.into()))
            }
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                Self::parse(&text).map_err(D::Error::custom)
            }
        }
    };
}

name_type!(
    /// A worker as its operator names it; stable across restarts of the engine.
    WorkerId
);
name_type!(
    /// Workers that serve the same models under one policy.
    PoolName
);

/// What names a session everywhere: xxh3_128 of secret, scope, pool, phase and key. The key itself is never kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

impl SessionId {
    /// The first eight hex digits: enough to follow a session in a log, too little to name it elsewhere.
    #[must_use]
    pub fn prefix(self) -> String {
        (0..8)
            .map(|nth| char::from_digit(((self.0 >> (124 - 4 * nth)) & 15) as u32, 16).unwrap_or('-'))
            .collect()
    }

    /// Reads 32 hex digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let plain = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix())
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        Self::from_hex(&text).ok_or_else(|| D::Error::custom("a session id is 32 hex digits"))
    }
}

/// xxh3_64 (seed 0) of the trimmed key bytes; chooses a rank inside a worker and depends on the key alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RankHash(pub u64);

/// A data-parallel rank, numbered globally: `dp_start .. dp_start + dp_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version of a binding, compared as a pair: a new bind or move takes `max(own, seen) + 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// Grows with every bind, move and release of this session.
    pub seq: u64,
    /// Who wrote it: breaks ties between writers that could not talk.
    pub writer: u64,
}

/// One life of a VM or of a service process; a restart is a new epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Position in the service's log of changes, inside one [`Epoch`] of the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub u64);

/// Names a hold: one first turn's choice that no answer has committed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HoldId(pub u64);

/// One request inside one VM's life; with the VM's epoch it is unique in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);
