//! What a stream is told, and what it wants done: its words, without a rule.

use super::Link;
use crate::state::kv_event::KvBatch;

/// One batch as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number, from 0 in each life of the publisher.
    pub seq: u64,
    /// Hash of its payload: with the number it tells whether two frames are one.
    pub stamp: u64,
    /// What it says.
    pub batch: KvBatch,
}

/// Which of the replays asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// Something that happened to the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A connection was made, for the first time or again: what was published before is not known.
    Connected,
    /// How the rank's events reach us from now on.
    Link(Link),
    /// Another source is to be listened to: nothing of what the one before said may be believed.
    Gone,
    /// What was applied is not in the slot any more; whether it is wanted `again`, as far as it can be replayed.
    Dropped {
        /// See there.
        again: bool,
    },
    /// A live batch.
    Live(Frame),
    /// A replayed batch.
    Replayed(Attempt, Frame),
    /// More of the batch that came before, which was too long to be taken at once. Nothing else of the rank's source comes between.
    More {
        /// Its number.
        seq: u64,
        /// What comes next of it.
        batch: KvBatch,
    },
    /// The replay is complete.
    ReplayEnd(Attempt),
    /// The replay broke off, or could not begin.
    ReplayFailed(Attempt, ReplayFailure),
    /// The rank answered so many requests.
    Served(u32),
    /// Time passes.
    Tick,
}

/// Whether asking again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFailure {
    /// The publisher has no replay socket, or none is known.
    Unavailable,
    /// Nothing accepts connections there.
    Unreachable,
    /// It broke, or said nothing in time.
    Broken,
}

/// What to do about it, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Apply to the slot.
    Apply(KvBatch),
    /// Forget everything of the slot.
    Clear,
    /// Ask the publisher for everything from a number on; one asked for before is of no interest any more.
    AskReplay {
        /// Bears the answers.
        attempt: Attempt,
        /// First number wanted.
        from: u64,
    },
    /// Count it.
    Count(Count),
}

/// What is counted of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    /// Batches applied.
    Applied,
    /// Batches that had been applied already.
    Duplicate,
    /// Numbers left out by the live stream.
    Gap,
    /// Publishers that began anew.
    Epoch,
    /// Replays asked for.
    ReplayAsked,
    /// Batches that a replay brought.
    Replayed,
    /// Replays that did not go back far enough.
    RingShort,
    /// Replays that broke off, did not begin, or were late.
    ReplayFailed,
    /// Answers to a replay that is of no interest any more.
    ReplayLate,
    /// Live batches dropped because too many waited for a replay; another replay brings them.
    HeldDropped,
    /// Live batches of a source that is not listened to any more.
    SourceGone,
    /// Times a slot went cold.
    Cold,
}

impl Count {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 12] = [
        Self::Applied,
        Self::Duplicate,
        Self::Gap,
        Self::Epoch,
        Self::ReplayAsked,
        Self::Replayed,
        Self::RingShort,
        Self::ReplayFailed,
        Self::ReplayLate,
        Self::HeldDropped,
        Self::SourceGone,
        Self::Cold,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Gap => "gap",
            Self::Epoch => "epoch",
            Self::ReplayAsked => "replay_asked",
            Self::Replayed => "replayed",
            Self::RingShort => "ring_short",
            Self::ReplayFailed => "replay_failed",
            Self::ReplayLate => "replay_late",
            Self::HeldDropped => "held_dropped",
            Self::SourceGone => "source_gone",
            Self::Cold => "cold",
        }
    }
}
