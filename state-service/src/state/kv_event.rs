//! What an engine says about its cache, whatever the wire it came by: the input of the block index. Knows no encoding, no sequence
//! numbers, no sockets.

/// Events of one engine step, in the engine's order. Whose they are (worker, rank) is known from the socket they came by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvBatch {
    /// Order matters: removals come before the stores that took their place.
    pub events: Vec<KvEvent>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks are cached now, each after the one before it.
    Stored {
        /// The engine's names for them.
        hashes: Vec<EngineHash>,
        /// The block before the first; `None` when that is the first of its sequence.
        parent: Option<EngineHash>,
        /// The tokens of all of them.
        tokens: Vec<u32>,
        /// Tokens of a block; 0 in placeholders.
        block_size: u32,
        /// Where they are kept.
        tier: Tier,
        /// Adapter they were computed with.
        lora: Option<Box<str>>,
        /// The request's `cache_salt`. Engines name it on the first block of a sequence only; what follows inherits it.
        salt: Option<Box<str>>,
        /// A hash of what the tokens do not say (images and the like), 0 when there is nothing. It applies to every block of the
        /// event: a decoder splits events whose blocks differ in it.
        extra: u64,
        /// Cache group of a hybrid model; 0 where there is one.
        group: u32,
        /// Whether that group is of the kind that is scored (full attention, or not said).
        kind_ok: bool,
    },
    /// Blocks are gone from a tier.
    Removed {
        /// The engine's names for them.
        hashes: Vec<EngineHash>,
        /// Where they were kept.
        tier: Tier,
        /// Cache group of a hybrid model; 0 where there is one.
        group: u32,
    },
    /// Nothing is cached any more.
    Cleared,
}

/// An engine's name for a block: the low 64 bits of whatever the wire carried. Means nothing outside the rank it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

/// Where a block is kept, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The device's memory; also when nothing is said.
    Gpu,
    /// The host's memory.
    Host,
    /// Anything slower.
    Disk,
}
