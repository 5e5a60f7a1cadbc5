//! Where the plain part of a string ends: the innermost loop, and most of a body's bytes.
//!
//! Short strings (names, words, what stands between two escapes) are read eight bytes at a time, as calling `memchr` costs more than
//! they do; what is longer goes to `memchr`, and once more over the same bytes for control characters.

use super::reader::Fault;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = ONES << 7;
/// Words tried before `memchr`.
const WORDS_FIRST: usize = 4;

/// How many bytes stand before the first quote or backslash, or before the end of what there is.
///
/// # Errors
/// One of them is below 0x20, which strings hold only escaped.
#[inline]
pub(super) fn plain(bytes: &[u8]) -> Result<usize, Fault> {
    let (words, _) = bytes.as_chunks::<8>();
    let mut at = 0;
    for word in words.iter().take(WORDS_FIRST) {
        let found = special(u64::from_le_bytes(*word));
        if found != 0 {
            at += (found.trailing_zeros() / 8) as usize;
            return if bytes.get(at).is_some_and(|byte| *byte < 0x20) {
                Err(Fault::Malformed)
            } else {
                Ok(at)
            };
        }
        at += 8;
    }
    long(bytes.get(at..).unwrap_or_default()).map(|more| at + more)
}

fn long(bytes: &[u8]) -> Result<usize, Fault> {
    let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    if has_control(bytes.get(..end).unwrap_or_default()) { Err(Fault::Malformed) } else { Ok(end) }
}

/// Marks the bytes that are a quote, a backslash or below 0x20; exact up to the first that is marked.
const fn special(word: u64) -> u64 {
    let (quote, backslash) = (word ^ (ONES * b'"' as u64), word ^ (ONES * b'\\' as u64));
    let quote = quote.wrapping_sub(ONES) & !quote;
    let backslash = backslash.wrapping_sub(ONES) & !backslash;
    (quote | backslash | below_blank(word)) & HIGH
}

const fn below_blank(word: u64) -> u64 {
    word.wrapping_sub(ONES * 0x20) & !word
}

fn has_control(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else { return bytes.iter().any(|byte| *byte < 0x20) };
    let (words, _) = bytes.as_chunks::<8>();
    // The last eight may be read twice: cheaper than a loop over what is left.
    let mut found = below_blank(u64::from_le_bytes(*last));
    for word in words {
        found |= below_blank(u64::from_le_bytes(*word));
    }
    found & HIGH != 0
}
