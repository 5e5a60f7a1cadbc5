//! Reads msgpack from a slice, without trusting a byte of it: every declared length is compared with what is left before anything
//! is made of it, and nothing recurses. Knows no events.

/// The bytes end too early, or are no msgpack, or are another type than asked for. Where the reader stands then is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// What is left to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

type Read<T> = Result<T, Unreadable>;

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes between an earlier place of the same reader and this one.
    pub(super) fn since(self, mark: Self) -> &'a [u8] {
        mark.rest.get(..mark.rest.len().saturating_sub(self.rest.len())).unwrap_or_default()
    }

    #[inline]
    pub(super) fn peek(&self) -> Read<u8> {
        self.rest.first().copied().ok_or(Unreadable)
    }

    #[inline]
    fn byte(&mut self) -> Read<u8> {
        let (first, rest) = self.rest.split_first().ok_or(Unreadable)?;
        self.rest = rest;
        Ok(*first)
    }

    #[inline]
    fn bytes<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Unreadable)?;
        self.rest = rest;
        Ok(*head)
    }

    fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Unreadable)?;
        self.rest = rest;
        Ok(head)
    }

    fn len16(&mut self) -> Read<usize> {
        self.bytes().map(|b| usize::from(u16::from_be_bytes(b)))
    }

    fn len32(&mut self) -> Read<usize> {
        self.bytes().and_then(|b| usize::try_from(u32::from_be_bytes(b)).map_err(|_| Unreadable))
    }

    /// So many values, of a byte each at least, must follow.
    const fn capped(&self, count: usize, bytes_each: usize) -> Read<usize> {
        if count <= self.rest.len() / bytes_each { Ok(count) } else { Err(Unreadable) }
    }

    /// Steps over a nil, if one is next.
    #[inline]
    pub(super) fn nil(&mut self) -> bool {
        match self.rest.split_first() {
            Some((0xc0, rest)) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Opens an array: so many values follow, and there are bytes for them.
    #[inline]
    pub(super) fn array(&mut self) -> Read<usize> {
        let count = match self.byte()? {
            tag @ 0x90..=0x9f => usize::from(tag & 0x0f),
            0xdc => self.len16()?,
            0xdd => self.len32()?,
            _ => return Err(Unreadable),
        };
        self.capped(count, 1)
    }

    /// Opens a map: so many keys with a value each follow, and there are bytes for them.
    pub(super) fn map(&mut self) -> Read<usize> {
        let count = match self.byte()? {
            tag @ 0x80..=0x8f => usize::from(tag & 0x0f),
            0xde => self.len16()?,
            0xdf => self.len32()?,
            _ => return Err(Unreadable),
        };
        self.capped(count, 2)
    }

    /// A text; bytes that are no UTF-8 are none.
    pub(super) fn text(&mut self) -> Read<&'a str> {
        let len = match self.byte()? {
            tag @ 0xa0..=0xbf => usize::from(tag & 0x1f),
            0xd9 => self.bytes::<1>().map(|[b]| usize::from(b))?,
            0xda => self.len16()?,
            0xdb => self.len32()?,
            _ => return Err(Unreadable),
        };
        std::str::from_utf8(self.take(len)?).map_err(|_| Unreadable)
    }

    /// A text, or `None` for nil.
    pub(super) fn text_or_nil(&mut self) -> Read<Option<&'a str>> {
        if self.nil() { Ok(None) } else { self.text().map(Some) }
    }

    /// Raw bytes.
    pub(super) fn bin(&mut self) -> Read<&'a [u8]> {
        let len = match self.byte()? {
            0xc4 => self.bytes::<1>().map(|[b]| usize::from(b))?,
            0xc5 => self.len16()?,
            0xc6 => self.len32()?,
            _ => return Err(Unreadable),
        };
        self.take(len)
    }

    /// A whole number as 64 bits of two's complement: `-1` and `u64::MAX` are the same.
    #[inline]
    pub(super) fn bits(&mut self) -> Read<u64> {
        Ok(match self.byte()? {
            tag @ 0x00..=0x7f => u64::from(tag),
            tag @ 0xe0..=0xff => i64::from(tag.cast_signed()).cast_unsigned(),
            0xcc => self.bytes().map(|[b]| u64::from(b))?,
            0xcd => self.bytes().map(|b| u64::from(u16::from_be_bytes(b)))?,
            0xce => self.bytes().map(|b| u64::from(u32::from_be_bytes(b)))?,
            0xcf => self.bytes().map(u64::from_be_bytes)?,
            0xd0 => self.bytes().map(|b| i64::from(i8::from_be_bytes(b)).cast_unsigned())?,
            0xd1 => self.bytes().map(|b| i64::from(i16::from_be_bytes(b)).cast_unsigned())?,
            0xd2 => self.bytes().map(|b| i64::from(i32::from_be_bytes(b)).cast_unsigned())?,
            0xd3 => self.bytes().map(|b| i64::from_be_bytes(b).cast_unsigned())?,
            _ => return Err(Unreadable),
        })
    }

    /// A whole number in the range of `u32`. A negative one has its high bits set and is none.
    #[inline]
    pub(super) fn u32(&mut self) -> Read<u32> {
        match self.rest {
            [tag @ 0x00..=0x7f, rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(*tag))
            }
            [0xcd, a, b, rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(u16::from_be_bytes([*a, *b])))
            }
            [0xce, a, b, c, d, rest @ ..] => {
                self.rest = rest;
                Ok(u32::from_be_bytes([*a, *b, *c, *d]))
            }
            _ => self.bits().and_then(|n| u32::try_from(n).map_err(|_| Unreadable)),
        }
    }

    /// Steps over one value, whatever is in it.
    pub(super) fn skip(&mut self) -> Read<()> {
        let mut left = 1_usize;
        while left > 0 {
            left = left - 1 + self.skip_head()?;
            // Each value to come has a byte: a bomb of nested arrays ends here and not when its bytes are used up.
            self.capped(left, 1)?;
        }
        Ok(())
    }

    /// Steps over a value without those inside it, and tells how many these are.
    fn skip_head(&mut self) -> Read<usize> {
        let tag = self.peek()?;
        let width = match tag {
            0x80..=0x8f | 0xde | 0xdf => return self.map().map(|n| n * 2),
            0x90..=0x9f | 0xdc | 0xdd => return self.array(),
            0xa0..=0xbf => 1 + usize::from(tag & 0x1f),
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 1,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xce | 0xd2 | 0xca => 5,
            0xcf | 0xd3 | 0xcb => 9,
            0xd4..=0xd8 => 2 + (1 << (tag - 0xd4)),
            _ => return self.skip_long(tag),
        };
        self.take(width).map(|_| 0)
    }

    /// Values that say their length: texts, bytes and extensions.
    fn skip_long(&mut self, tag: u8) -> Read<usize> {
        self.byte()?;
        let len = match tag {
            0xc4 | 0xc7 | 0xd9 => self.bytes().map(|[b]| usize::from(b))?,
            0xc5 | 0xc8 | 0xda => self.len16()?,
            0xc6 | 0xc9 | 0xdb => self.len32()?,
            _ => return Err(Unreadable),
        };
        let kind = usize::from(matches!(tag, 0xc7..=0xc9));
        self.take(len).and_then(|_| self.take(kind)).map(|_| 0)
    }
}
