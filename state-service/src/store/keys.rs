//! The names of everything we keep in the store. All have one hash tag, so that one script may touch any of them in a cluster.

use super::error::StoreError;
use super::record::push_hex;
use routing::id::SessionId;

/// What makes all keys of one deployment live on one node of a cluster.
const TAG: &str = "{rankpin}";
/// Longest prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 64;

/// The names, for one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    base: String,
    pub(super) epoch: String,
    pub(super) log: String,
    pub(super) workers: String,
    pub(super) drains: String,
}

impl Keys {
    /// Checks the prefix: it is text of ours in patterns, too, and must bring no tag of its own.
    pub(super) fn new(prefix: &str) -> Result<Self, StoreError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(plain) {
            return Err(StoreError::Config(format!(
                "the key prefix must be 1 to {PREFIX_BYTES_MAX} ASCII letters, digits, `-`, `_`, `.` or `:`"
            )));
        }
        let base = format!("{prefix}:{TAG}");
        let name = |end: &str| format!("{base}:{end}");
        let (epoch, log, workers, drains) = (name("epoch"), name("log"), name("workers"), name("drains"));
        Ok(Self { epoch, log, workers, drains, base })
    }

    /// The record of a session.
    pub(super) fn session(&self, id: SessionId) -> String {
        let mut key = String::with_capacity(self.base.len() + 35);
        key.push_str(&self.base);
        key.push_str(":s:");
        let half = |shift: u32| u64::try_from((id.0 >> shift) & u128::from(u64::MAX)).unwrap_or(0);
        push_hex(&mut key, half(64), 16);
        push_hex(&mut key, half(0), 16);
        key
    }

    /// What a response id stands for.
    pub(super) fn alias(&self, id: SessionId) -> String {
        format!("{}:a:{id}", self.base)
    }

    /// Finds all records.
    pub(super) fn sessions(&self) -> String {
        format!("{}:s:*", self.base)
    }

    /// The session whose record a key is.
    pub(super) fn session_of(&self, key: &str) -> Option<SessionId> {
        SessionId::from_hex(key.strip_prefix(&self.base)?.strip_prefix(":s:")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_session_and_all_have_one_tag() {
        let keys = Keys::new("prod").unwrap();
        let key = keys.session(SessionId(0xab));
        assert_eq!(key, "prod:{rankpin}:s:000000000000000000000000000000ab");
        assert_eq!(keys.session_of(&key), Some(SessionId(0xab)));
        assert_eq!(keys.session_of("prod:{rankpin}:s:ab"), None);
        let (sessions, alias) = (keys.sessions(), keys.alias(SessionId(1)));
        for key in [&keys.epoch, &keys.log, &keys.workers, &keys.drains, &sessions, &alias] {
            assert!(key.starts_with("prod:{rankpin}:"), "{key}");
        }
    }

    #[test]
    fn a_prefix_that_could_be_a_pattern_or_a_tag_is_refused() {
        for prefix in ["", "a*", "{x}", "a b", &"p".repeat(65)] {
            assert!(matches!(Keys::new(prefix), Err(StoreError::Config(_))), "{prefix}");
        }
    }
}
