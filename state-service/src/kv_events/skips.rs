//! What decoders leave out, counted by reason. Every reason is one of these; nothing is left out silently.

macro_rules! skips {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// How often each reason came about.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Skips {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Skips {
            /// Each reason's word and count, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds what another decoder counted.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

skips! {
    /// Events of a type that is not known.
    unknown_type,
    /// Events that lack a field, or have one of another type than it has.
    malformed,
    /// Stores whose tokens are no token ids (pairs of EAGLE's trees, texts), or whose blocks differ too much to be told apart.
    not_indexable,
    /// Events of a tier that is not known.
    unknown_tier,
    /// Stores and removals without a block.
    empty,
    /// Removals that could not be read: the slot is cleared instead, or what they removed would be believed in for ever.
    unreadable_removal,
    /// Batches whose bytes end, or stop making sense, in the middle: the slot is cleared after what could be read.
    torn,
    /// Payloads that are no batch of events.
    not_a_batch,
}

impl Skips {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }
}
