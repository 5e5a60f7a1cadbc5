//! A streaming JSON reader: finds the few string values it was asked for, keeps nothing else of the document.
//!
//! Owns the grammar (RFC 8259), JSON pointers (RFC 6901) and their limits. Deliberately does not know what a value is good for.
//! - Any chunking gives the same result.
//! - Of repeated members the last wins, as engines read them: a later one that is no string, or a later parent, takes the value away.
//! - Malformed text is told, and gives no value at all. Not checked: whether strings that nobody asked for are UTF-8.

mod cursor;
mod fields;
mod number;
mod opening;
mod paths;
mod reader;
mod scan;
mod text;

pub use fields::BodyFields;
pub use paths::{Paths, PointerError};
pub use reader::{Fault, Progress, Reader};

/// Longest value kept, in bytes after unescaping; a longer one is told as too long, not cut.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Most containers inside one another; a deeper document is refused like a malformed one ([`Fault::TooDeep`]).
pub const DEPTH_MAX: usize = 128;
