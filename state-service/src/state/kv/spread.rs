//! Hashes of what is hashed already: block hashes, and workers by theirs. One multiplication spreads them over a table.
//!
//! Whoever makes up some of his own spoils his own choices.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds the hasher of a table.
pub(super) type Spread = BuildHasherDefault<Spreading>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spreading(u64);

impl Hasher for Spreading {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
