//! What was found in a body.

use super::paths::Paths;
use std::fmt;
use std::sync::Arc;

/// What stands at one pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing, or no string.
    #[default]
    Absent,
    /// A string, unescaped.
    Text(Vec<u8>),
    /// A string longer than [`super::VALUE_BYTES_MAX`].
    TooLong,
}

/// The values found in one body. Not printable on purpose: they may be session keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BodyFields {
    paths: Arc<Paths>,
    slots: Vec<Slot>,
    opening: Option<u128>,
}

impl fmt::Debug for BodyFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.slots.iter().filter(|slot| **slot != Slot::Absent).count();
        write!(f, "BodyFields({found} of {})", self.slots.len())
    }
}

impl BodyFields {
    /// Those of a request whose body was not read, or could not be.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    pub(super) const fn new(paths: Arc<Paths>, slots: Vec<Slot>, opening: Option<u128>) -> Self {
        Self { paths, slots, opening }
    }

    /// The string at a pointer, unescaped; `None` if there is none, it is no string, is too long, or was not asked for.
    #[must_use]
    pub fn text(&self, pointer: &str) -> Option<&[u8]> {
        match self.slot(pointer) {
            Some(Slot::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether a string stands there that is longer than [`super::VALUE_BYTES_MAX`].
    #[must_use]
    pub fn too_long(&self, pointer: &str) -> bool {
        self.slot(pointer) == Some(&Slot::TooLong)
    }

    /// Hash of how the conversation begins: model, system and instructions, and everything up to its first user turn. The same in each
    /// turn of a conversation whose client repeats these bytes; the same, too, for two conversations that begin alike.
    /// `None` unless asked for ([`Paths::with_opening`]), or without a user turn.
    #[must_use]
    pub const fn opening(&self) -> Option<u128> {
        self.opening
    }

    fn slot(&self, pointer: &str) -> Option<&Slot> {
        self.slots.get(self.paths.position(pointer)?)
    }
}
