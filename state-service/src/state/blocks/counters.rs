//! What became of the blocks of all events, by outcome and by reason. Knows no metrics format.

/// Why blocks of an event were not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ignored {
    /// No tokens or a block size of 0: what offload connectors publish that do not describe their blocks.
    Placeholder,
    /// Blocks of another size than the pool's, partial tails among them.
    OtherBlockSize,
    /// Tokens and hashes do not pair: some blocks of the range were masked, so that no token's position is known.
    Misshapen,
    /// A cache group of another kind, or another group than the slot's scored one.
    OtherGroup,
    /// The block before the first is not known here.
    UnknownParent,
    /// A removal of what is not known here.
    UnknownRemoved,
    /// The slot is not, or no longer, one of the index.
    UnknownSlot,
    /// The index, or the slot's share of it, is full.
    OverLimit,
}

/// Blocks by outcome since the index began. Every block of every event is in exactly one of them, `moved` and `twins` apart, which
/// are among `stored`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounters {
    /// Handles that were new to their slot and tier.
    pub stored: u64,
    /// Of these, for a block the slot held there under another handle.
    pub twins: u64,
    /// Of these, handles that stood for another block before: the newest meaning counts.
    pub moved: u64,
    /// Announced again: one more copy.
    pub again: u64,
    /// Copies that were not counted, as there are too many.
    pub uncounted: u64,
    /// Handles removed with their last copy.
    pub removed: u64,
    /// Copies removed while others stay.
    pub copies_removed: u64,
    /// Events that cleared a slot.
    pub clears: u64,
    /// See [`Ignored::Placeholder`].
    pub placeholder: u64,
    /// See [`Ignored::OtherBlockSize`].
    pub other_block_size: u64,
    /// See [`Ignored::Misshapen`].
    pub misshapen: u64,
    /// See [`Ignored::OtherGroup`].
    pub other_group: u64,
    /// See [`Ignored::UnknownParent`].
    pub unknown_parent: u64,
    /// See [`Ignored::UnknownRemoved`].
    pub unknown_removed: u64,
    /// See [`Ignored::UnknownSlot`].
    pub unknown_slot: u64,
    /// See [`Ignored::OverLimit`].
    pub over_limit: u64,
}

impl KvCounters {
    /// Counts blocks that were not taken in.
    pub fn ignore(&mut self, reason: Ignored, blocks: usize) {
        let count = match reason {
            Ignored::Placeholder => &mut self.placeholder,
            Ignored::OtherBlockSize => &mut self.other_block_size,
            Ignored::Misshapen => &mut self.misshapen,
            Ignored::OtherGroup => &mut self.other_group,
            Ignored::UnknownParent => &mut self.unknown_parent,
            Ignored::UnknownRemoved => &mut self.unknown_removed,
            Ignored::UnknownSlot => &mut self.unknown_slot,
            Ignored::OverLimit => &mut self.over_limit,
        };
        *count = count.saturating_add(u64::try_from(blocks).unwrap_or(u64::MAX));
    }

    /// Blocks not taken in, by reason, under the names metrics give them.
    #[must_use]
    pub const fn ignored(&self) -> [(&'static str, u64); 8] {
        [
            ("placeholder", self.placeholder),
            ("other_block_size", self.other_block_size),
            ("misshapen", self.misshapen),
            ("other_group", self.other_group),
            ("unknown_parent", self.unknown_parent),
            ("unknown_removed", self.unknown_removed),
            ("unknown_slot", self.unknown_slot),
            ("over_limit", self.over_limit),
        ]
    }
}
