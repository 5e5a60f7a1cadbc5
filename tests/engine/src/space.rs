//! What a prompt's blocks are apart from their tokens: whose they are. Owns the namespace and what events tell of it.

use crate::prefix_cache::BlockHash;

/// The namespace of one prompt, and who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// Where its chains begin.
    pub(crate) root: BlockHash,
    /// Its adapter: the engine's own number, from 1, and the name.
    pub(crate) lora: Option<(u64, String)>,
    /// Its `cache_salt`.
    pub(crate) salt: Option<String>,
    /// Its session, as the engine reads it.
    pub(crate) session: Option<String>,
    /// Whether its events tell every block it uses, not only those that are new (`kv_cache_report_mode: full`).
    pub(crate) tells_all: bool,
}

impl Space {
    /// Of a model, or of an adapter over it, and a salt.
    #[must_use]
    pub(crate) fn new(model: &str, lora: Option<(u64, String)>, salt: Option<&str>) -> Self {
        let name = lora.as_ref().map_or_else(|| model.to_owned(), |(_, lora)| format!("{model}\n{lora}"));
        let root = BlockHash::root(&name, salt);
        Self { root, lora, salt: salt.map(str::to_owned), session: None, tells_all: false }
    }
}
