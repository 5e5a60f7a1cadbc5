//! A position in the chunk that is being read. Does not know the grammar.

/// One chunk and how far it is read.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    chunk: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(chunk: &'a [u8]) -> Self {
        Self { chunk, at: 0 }
    }

    /// Bytes read so far.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// What is not read yet.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.chunk.get(self.at..).unwrap_or_default()
    }

    /// Bytes read, from an earlier position on.
    pub(super) fn since(&self, from: usize) -> &'a [u8] {
        self.chunk.get(from..self.at).unwrap_or_default()
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.chunk.get(self.at).copied()
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes).min(self.chunk.len());
    }

    /// Skips what may stand between tokens.
    #[inline]
    pub(super) fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }
}
