//! The bearer token of listeners: where it comes from and how it is compared. Does not know who may do what: one token, all rights.

use axum::http::{HeaderMap, header};
use std::path::Path;
use subtle::ConstantTimeEq;

/// Shortest token accepted, in bytes: 128 bits written as base64 are 22.
pub const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: u64 = 4096;

/// A secret shared with Envoy and the operator. Never printed.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("token file {path}: {source}")]
    Unreadable {
        /// As given.
        path: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Too short to be a secret.
    #[error(
        "token file {path} holds {len} bytes; a token has at least {TOKEN_BYTES_MIN} (try: openssl rand -base64 32)"
    )]
    TooShort {
        /// As given.
        path: String,
        /// Bytes without surrounding white space.
        len: usize,
    },
    /// Holds bytes that no header carries.
    #[error("token file {path}: a token is one line of visible ASCII, at most {TOKEN_BYTES_MAX} bytes")]
    NotOneLine {
        /// As given.
        path: String,
    },
}

impl Token {
    /// Reads a token; surrounding white space (the last newline) is not part of it.
    ///
    /// # Errors
    /// [`TokenError`]: the operator's file; the service does not start.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let shown = path.display().to_string();
        let bytes =
            std::fs::read(path).map_err(|source| TokenError::Unreadable { path: shown.clone(), source })?;
        let text = bytes.trim_ascii();
        if text.len() as u64 > TOKEN_BYTES_MAX || !text.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::NotOneLine { path: shown });
        }
        if text.len() < TOKEN_BYTES_MIN {
            return Err(TokenError::TooShort { path: shown, len: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// As a client sends it.
    #[must_use]
    pub fn as_header(&self) -> Vec<u8> {
        [b"Bearer ", &*self.0].concat()
    }

    /// Whether the request brings this token; the time taken does not depend on how much of it is right.
    #[must_use]
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        given.is_some_and(|given| bool::from(given.ct_eq(&self.0)))
    }
}

/// The scheme is case-insensitive (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Result<Token, TokenError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Token::read(file.path())
    }

    fn admits(token: &Token, value: &str) -> bool {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        token.admits(&headers)
    }

    #[test]
    fn only_the_whole_token_is_admitted() {
        let token = token("0123456789abcdef\n").unwrap();
        assert!(admits(&token, "Bearer 0123456789abcdef"));
        assert!(admits(&token, "bearer  0123456789abcdef"));
        for wrong in [
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeff",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "",
        ] {
            assert!(!admits(&token, wrong), "{wrong:?}");
        }
        assert!(!token.admits(&HeaderMap::new()));
    }

    #[test]
    fn a_file_that_holds_no_secret_is_refused() {
        assert!(matches!(token("short\n"), Err(TokenError::TooShort { len: 5, .. })));
        assert!(matches!(token("0123456789abcdef\nsecond line"), Err(TokenError::NotOneLine { .. })));
        assert!(matches!(Token::read(Path::new("/nonexistent")), Err(TokenError::Unreadable { .. })));
    }
}
