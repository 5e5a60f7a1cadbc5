//! Places in the log, as the server gives them.

use std::fmt;

/// A place in the log: milliseconds of the server's clock and a number within.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// When.
    pub ms: u64,
    /// Which one of that millisecond.
    pub seq: u64,
}

impl StreamId {
    /// Reads `MS-SEQ`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (ms, seq) = text.split_once('-')?;
        Some(Self { ms: ms.parse().ok()?, seq: seq.parse().ok()? })
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.ms, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_shown() {
        let id = StreamId { ms: 17, seq: 4 };
        assert_eq!(StreamId::parse(&id.to_string()), Some(id));
        assert_eq!([StreamId::parse("17"), StreamId::parse("a-1"), StreamId::parse("-")], [None; 3]);
        assert!(StreamId { ms: 9, seq: 9 } < StreamId { ms: 10, seq: 0 });
    }
}
