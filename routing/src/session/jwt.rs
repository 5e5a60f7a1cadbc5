//! A string claim of a bearer token. Nothing is verified here: whoever needs that has a verifying filter before this one.

use super::RequestView;
use super::source::named;
use crate::header;
use crate::json::{Paths, Reader};
use std::sync::Arc;

/// Longest header value read, in bytes; a longer one counts as absent.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Which claim, of the token in which header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As the config writes it.
    text: String,
    header: String,
    pointer: String,
    paths: Arc<Paths>,
}

/// What a token says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Absent,
    /// Longer than a reader keeps; with the token.
    TooLong(Vec<u8>),
    Text(Vec<u8>),
}

impl Claim {
    /// `NAME` or `/JSON/POINTER`, and `@HEADER` if it is not `authorization`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (claim, header) = match text.rsplit_once('@') {
            Some((claim, header)) => (claim, named(header)?.to_ascii_lowercase()),
            None => (text, header::http::AUTHORIZATION.to_owned()),
        };
        if claim.is_empty() || !claim.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("its claim is not visible ASCII");
        }
        let pointer = if claim.starts_with('/') {
            claim.to_owned()
        } else {
            format!("/{}", claim.replace('~', "~0").replace('/', "~1"))
        };
        let paths = Paths::new([pointer.as_str()]).map_err(|_| "its claim is no JSON pointer")?;
        Ok(Self { text: text.to_owned(), header, pointer, paths: Arc::new(paths) })
    }

    pub(super) fn word(&self) -> &str {
        &self.text
    }

    pub(super) fn read(&self, request: &impl RequestView) -> Value {
        let token = request.header(&self.header).filter(|token| token.len() <= TOKEN_BYTES_MAX);
        token.and_then(|token| self.in_token(&token)).unwrap_or(Value::Absent)
    }

    fn in_token(&self, value: &[u8]) -> Option<Value> {
        let token = bearer(value);
        let mut parts = token.split(|b| *b == b'.');
        let (payload, signature) = (parts.nth(1)?, parts.next());
        if signature.is_none() || parts.next().is_some() {
            return None;
        }
        let mut reader = Reader::new(&self.paths);
        reader.feed(&base64url(payload)?);
        let found = reader.finish().ok()?;
        match found.text(&self.pointer) {
            Some(text) => Some(Value::Text(text.to_vec())),
            None => found.too_long(&self.pointer).then(|| Value::TooLong(token.to_vec())),
        }
    }
}

/// The token behind `Bearer`; a header of its own may leave that word out.
fn bearer(value: &[u8]) -> &[u8] {
    const SCHEME: &[u8] = b"bearer ";
    let value = value.trim_ascii();
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token.trim_ascii(),
        _ => value,
    }
}

/// RFC 4648 section 5, padding optional.
fn base64url(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0u32, 0u32);
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if digits.len() % 4 == 1 {
        return None;
    }
    for byte in digits {
        bits = bits << 6 | u32::from(sextet(*byte)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(out)
}

const fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}
