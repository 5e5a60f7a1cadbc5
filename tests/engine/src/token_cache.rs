//! A bounded memory of texts already turned into tokens. Owns only that; what makes the tokens is an argument.
//!
//! Two generations: when the young one is full it becomes the old one and what the old one held is forgotten,
//! so both the bound and the cost are plain, and what is used survives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Generation = HashMap<Box<str>, Arc<[u32]>>;

/// Text → tokens, at most twice `bytes_max` of text and tokens.
pub(crate) struct TokenCache {
    bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    young: Generation,
    old: Generation,
    young_bytes: usize,
}

impl TokenCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// The tokens of `text`, made by `make` unless remembered.
    pub(crate) fn tokens(&self, text: &str, make: impl FnOnce() -> Vec<u32>) -> Arc<[u32]> {
        if let Some(tokens) = self.lock().find(text, self.bytes_max) {
            return tokens;
        }
        // Not under the lock: making may take long, and doing it twice is only slow.
        let tokens: Arc<[u32]> = make().into();
        self.lock().remember(text, &tokens, self.bytes_max);
        tokens
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn find(&mut self, text: &str, bytes_max: usize) -> Option<Arc<[u32]>> {
        if let Some(tokens) = self.young.get(text) {
            return Some(Arc::clone(tokens));
        }
        let tokens = self.old.get(text).map(Arc::clone)?;
        self.remember(text, &tokens, bytes_max);
        Some(tokens)
    }

    fn remember(&mut self, text: &str, tokens: &Arc<[u32]>, bytes_max: usize) {
        let bytes = text.len() + 4 * tokens.len() + 64;
        if bytes > bytes_max {
            return;
        }
        if self.young_bytes + bytes > bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(text.into(), Arc::clone(tokens)).is_none() {
            self.young_bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TokenCache;

    #[test]
    fn remembers_within_its_bound() {
        let cache = TokenCache::new(1000);
        let mut made = 0;
        let mut ask = |text: &str| {
            cache.tokens(text, || {
                made += 1;
                vec![1]
            });
            made
        };
        assert_eq!(ask("kept"), 1);
        assert_eq!(ask("kept"), 1);
        for i in 0..100 {
            ask(&format!("other {i}"));
            ask("kept");
        }
        assert_eq!(ask("kept"), 101, "what is used is not forgotten");
        assert_eq!(ask("other 0"), 102, "what is not used is");
    }
}
