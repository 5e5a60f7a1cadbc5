//! One model's tokens with nothing around them: for measuring, and for comparing ways with each other. The service has
//! [`Tokenizer`](super::Tokenizer).

use super::body::{Surface, read};
use super::encode::Which;
use super::local::{Files, Local};
use super::prefix::Room;
use super::reason::{Counters, Reason};
use super::render::Rendered;
use super::system_clock;
use routing::block::{Chain, Namespace, seed};
use std::path::Path;
use std::sync::Arc;

/// A loaded model.
pub struct Trial {
    local: Local,
    counters: Arc<Counters>,
}

impl Trial {
    /// Reads a model's folder.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn load(folder: &Path, which: Which) -> Result<Self, String> {
        let files = Files { folder: folder.to_owned(), template: None, kwargs: Vec::new(), which };
        let counters = Arc::new(Counters::default());
        let local = Local::load(&files, None, system_clock, Arc::clone(&counters));
        local.map(|local| Self { local, counters }).map_err(|error| error.to_string())
    }

    /// Whether `fastokens` does the work.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.local.is_fast()
    }

    /// What the template makes of a body of `/v1/chat/completions`.
    ///
    /// # Errors
    /// What cannot be compared.
    pub fn text(&self, body: &str) -> Result<String, Reason> {
        match self.local.render(read(Surface::Chat, body, true)?)? {
            Rendered::Text { text, .. } => Ok(text),
            Rendered::Tokens(_) => Err(Reason::Surface),
        }
    }

    /// All tokens of a text, from nothing.
    ///
    /// # Errors
    /// The tokenizer refuses it.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, Reason> {
        self.local.tokens(text)
    }

    /// The blocks of a text, its known beginning taken from earlier ones.
    ///
    /// # Errors
    /// The tokenizer refuses it.
    pub fn chain(&self, text: &str, block_size: u32) -> Result<Chain, Reason> {
        let room = Room { seed: seed(Namespace::default()), block_size, marks: false };
        self.local.chain_of(text, room)
    }

    /// Forgets all earlier prompts.
    pub fn forget(&mut self) {
        self.local.forget();
    }

    /// Bytes that were known and bytes that were tokenised; how often a split was refused.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, u64) {
        let (known, encoded) = self.counters.bytes();
        (known, encoded, self.counters.splits_refused())
    }
}
