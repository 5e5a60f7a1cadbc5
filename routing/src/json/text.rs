//! A string while it is read: its escapes, its limit. Does not know what it is.

use super::VALUE_BYTES_MAX;
use super::cursor::Cursor;
use super::fields::Slot;
use super::reader::Fault;
use super::scan;

/// Where inside a string the reader stands; a chunk may end anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// Between characters.
    Plain,
    /// Behind a backslash.
    Escape,
    /// Inside the digits of `\uXXXX`.
    Digits {
        /// How many are still to come.
        left: u8,
        /// Those read.
        value: u16,
    },
}

/// The string being read. Keeps its bytes only when told to.
#[derive(Debug, Default)]
pub(super) struct Text {
    kept: Vec<u8>,
    keeps: bool,
    overflow: bool,
    /// First half of a surrogate pair whose second is not read yet.
    high: Option<u16>,
}

impl Text {
    /// A string begins.
    #[inline]
    pub(super) fn begin(&mut self, keeps: bool) {
        self.keeps = keeps;
        if keeps {
            self.kept.clear();
            self.overflow = false;
            self.high = None;
        }
    }

    /// The bytes of a kept string that has ended; `None` if it was too long or is not kept.
    #[inline]
    pub(super) fn bytes(&mut self) -> Option<&[u8]> {
        if !self.keeps {
            return None;
        }
        self.flush();
        (!self.overflow).then_some(&self.kept)
    }

    /// The same as a value.
    pub(super) fn slot(&mut self) -> Slot {
        match self.bytes() {
            Some(bytes) => Slot::Text(bytes.to_vec()),
            None => Slot::TooLong,
        }
    }

    /// Reads on, until the closing quote (`None`: it is consumed) or the end of the chunk.
    ///
    /// # Errors
    /// A byte that no string may hold.
    #[inline]
    pub(super) fn read(&mut self, inside: Inside, cursor: &mut Cursor<'_>) -> Result<Option<Inside>, Fault> {
        let mut inside = inside;
        loop {
            if inside != Inside::Plain {
                inside = self.escaped(inside, cursor)?;
                if inside != Inside::Plain {
                    return Ok(Some(inside));
                }
            }
            let rest = cursor.rest();
            let end = scan::plain(rest)?;
            if self.keeps {
                self.push(rest.get(..end).unwrap_or_default());
            }
            cursor.skip(end);
            match cursor.next() {
                None => return Ok(Some(Inside::Plain)),
                Some(b'"') => return Ok(None),
                // The usual escape in a string that nobody wants: nothing to keep.
                Some(_) if !self.keeps && cursor.peek().is_some_and(is_short_escape) => cursor.skip(1),
                Some(_) => inside = Inside::Escape,
            }
        }
    }

    /// Reads an escape on; [`Inside::Plain`] once it is whole.
    fn escaped(&mut self, inside: Inside, cursor: &mut Cursor<'_>) -> Result<Inside, Fault> {
        let mut inside = inside;
        while inside != Inside::Plain {
            let Some(byte) = cursor.next() else { break };
            inside = match inside {
                Inside::Digits { left, value } => self.digit(left, value, byte)?,
                Inside::Plain | Inside::Escape => self.escape(byte)?,
            };
        }
        Ok(inside)
    }

    fn escape(&mut self, byte: u8) -> Result<Inside, Fault> {
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return Ok(Inside::Digits { left: 4, value: 0 }),
            _ => return Err(Fault::Malformed),
        };
        if self.keeps {
            self.push(&[plain]);
        }
        Ok(Inside::Plain)
    }

    fn digit(&mut self, left: u8, value: u16, byte: u8) -> Result<Inside, Fault> {
        let digit =
            char::from(byte).to_digit(16).and_then(|d| u16::try_from(d).ok()).ok_or(Fault::Malformed)?;
        let value = value << 4 | digit;
        if left > 1 {
            return Ok(Inside::Digits { left: left - 1, value });
        }
        if self.keeps {
            self.unit(value);
        }
        Ok(Inside::Plain)
    }

    /// One UTF-16 unit. Half a pair alone stands as U+FFFD, which no key may hold.
    fn unit(&mut self, unit: u16) {
        let pair = self.high.take();
        match (pair, unit) {
            (Some(high), 0xdc00..=0xdfff) => {
                let code = 0x1_0000 + ((u32::from(high) & 0x3ff) << 10) + (u32::from(unit) & 0x3ff);
                self.character(char::from_u32(code));
            }
            (lone, _) => {
                if lone.is_some() {
                    self.character(None);
                }
                match unit {
                    0xd800..=0xdbff => self.high = Some(unit),
                    _ => self.character(char::from_u32(u32::from(unit))),
                }
            }
        }
    }

    fn character(&mut self, character: Option<char>) {
        let mut bytes = [0; 4];
        let text = character.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut bytes);
        self.keep(text.as_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.flush();
            self.keep(bytes);
        }
    }

    /// A first half that no second followed.
    fn flush(&mut self) {
        if self.high.take().is_some() {
            self.character(None);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.overflow |= self.kept.len() + bytes.len() > VALUE_BYTES_MAX;
        if !self.overflow {
            self.kept.extend_from_slice(bytes);
        }
    }
}

/// Whether this byte behind a backslash is the whole escape.
const fn is_short_escape(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')
}
