//! The prompt of a question: what a pool looks for among what its engines cache.

use serde::{Deserialize, Serialize};

/// Most token ids or block hashes in one question.
pub const PROMPT_TOKENS_MAX: usize = 1 << 20;

/// A prompt, as its caller has it. Never logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// The request as the client sent it; the service makes tokens of it.
    Text {
        /// Its path: what the engine makes of the body.
        path: String,
        /// Its body, JSON, or the head of it.
        body: String,
        /// Whether that is all of the body.
        whole: bool,
    },
    /// Its tokens.
    Tokens {
        /// At most [`PROMPT_TOKENS_MAX`].
        ids: Vec<u32>,
        /// The adapter it is for, as the engine calls it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lora: Option<String>,
        /// Its `cache_salt`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        salt: Option<String>,
    },
    /// Its blocks, hashed as [`crate::block`] does.
    Blocks {
        /// Chained hash of each full block, in order; at most [`PROMPT_TOKENS_MAX`].
        hashes: Vec<u64>,
        /// Tokens of a block: others than the pool's are of no use.
        block_size: u32,
        /// Tokens of the prompt, those past the last full block included.
        tokens: u32,
    },
}

/// How much of a prompt is cached where its request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlap {
    /// Leading blocks that the slot holds, in whichever tier.
    pub blocks: u32,
    /// Full blocks of the prompt.
    pub of: u32,
}
