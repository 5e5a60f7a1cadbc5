//! What becomes of bookings and expectations, one named number for each outcome.

/// What becomes of bookings, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::state) enum Count {
    /// Booked at a choice.
    Made,
    /// Freed by the end of their request.
    Ended,
    /// First byte came.
    Prefilled,
    /// The engine had nothing waiting.
    PrefilledByGauges,
    /// Freed because their VM died, or their slot went.
    Orphaned,
    /// Freed by their time.
    Expired,
    /// Freed for want of room.
    Evicted,
    /// Not made: the request had ended before its route came.
    EndedFirst,
    /// Made without a look at what they share with others, for want of room.
    Unfollowed,
    /// Not made: too many slots.
    NoSeat,
    /// Expectations given up for want of room.
    ExpectedDropped,
}

impl Count {
    pub(super) const ALL: [Self; 11] = [
        Self::Made,
        Self::Ended,
        Self::Prefilled,
        Self::PrefilledByGauges,
        Self::Orphaned,
        Self::Expired,
        Self::Evicted,
        Self::EndedFirst,
        Self::Unfollowed,
        Self::NoSeat,
        Self::ExpectedDropped,
    ];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Ended => "ended",
            Self::Prefilled => "prefilled",
            Self::PrefilledByGauges => "prefilled_by_gauges",
            Self::Orphaned => "orphaned",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::EndedFirst => "ended_first",
            Self::Unfollowed => "unfollowed",
            Self::NoSeat => "no_seat",
            Self::ExpectedDropped => "expected_dropped",
        }
    }
}
