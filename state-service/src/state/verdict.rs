//! What is decided of one half of a request, as values: the binding it has, what is done, and the words for it.
//!
//! Owns how outcomes, refusals and reasons follow from what is done. Who decides is `judge.rs`, who does it is `route.rs`.

use super::binding::Slot;
use super::choice::Chosen;
use routing::contract::{Outcome, Policy, Refusal};
use routing::id::Version;

/// A live binding whose slot can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) slot: Slot,
    pub(super) version: Version,
    /// Learned from the caller's cache just now.
    pub(super) adopted: bool,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) act: Act,
    /// The binding that this turn keeps alive.
    pub(super) bound: Option<Bound>,
    /// Where the pool's round robin stands now.
    pub(super) turn: Option<u64>,
    /// Every slot was overloaded, so the least loaded was taken.
    pub(super) all_overloaded: bool,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    GoOn(Bound),
    /// The binding has the named rank from now on.
    AddRank(Slot),
    /// Goes where another first turn of this session goes.
    Join(Slot),
    Hold(Slot, Fresh),
    Unpinned(Slot, Loose),
    NoWorker,
    Refused(Refusal),
    /// Left to the filter: this service is new.
    Unsure,
}

/// Why there is a fresh hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fresh {
    /// The session was bound nowhere.
    First(Policy),
    Named,
    /// The bound slot is gone.
    Rebound,
    /// The bound slot carries too much for a soft session.
    Moved,
    /// The bound slot is excluded by the request's demands.
    Excluded,
}

/// Why a request is pinned nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loose {
    /// Nothing is pinned here.
    Plain(Policy),
    Named,
    /// Every session in the table is held.
    TableFull,
    /// Too many VMs were heard of.
    VmsFull,
    /// The request is over already.
    Over,
    /// The bound slot is overloaded.
    Spilled,
    /// The session is held where this request's demands exclude it.
    Excluded,
}

impl Bound {
    /// Goes where the session is bound.
    pub(super) const fn go_on(self) -> Verdict {
        Act::GoOn(self).keeping(Some(self))
    }
}

impl Chosen {
    /// What becomes of a request when nobody was chosen.
    pub(super) const fn refusal(self) -> Act {
        match self {
            Self::Caller => Act::Refused(Refusal::WorkerRequired),
            Self::Unmet => Act::Refused(Refusal::Unmet),
            Self::Overloaded => Act::Refused(Refusal::Overloaded),
            Self::Nobody | Self::Worker(..) => Act::NoWorker,
        }
    }
}

impl Act {
    /// A verdict about no binding.
    pub(super) const fn alone(self) -> Verdict {
        self.keeping(None)
    }

    pub(super) const fn keeping(self, bound: Option<Bound>) -> Verdict {
        Verdict { act: self, bound, turn: None, all_overloaded: false }
    }

    /// Where it goes.
    pub(super) const fn slot(self) -> Option<Slot> {
        match self {
            Self::GoOn(Bound { slot, .. })
            | Self::AddRank(slot)
            | Self::Join(slot)
            | Self::Hold(slot, _)
            | Self::Unpinned(slot, _) => Some(slot),
            Self::NoWorker | Self::Refused(_) | Self::Unsure => None,
        }
    }

    pub(super) const fn places(self) -> bool {
        matches!(self, Self::Hold(..) | Self::Unpinned(..))
    }

    /// Whether the cost of the prompt decided.
    pub(super) const fn is_by_prompt(self) -> bool {
        matches!(
            self,
            Self::Hold(_, Fresh::First(Policy::KvAware)) | Self::Unpinned(_, Loose::Plain(Policy::KvAware))
        )
    }

    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::GoOn(_) | Self::AddRank(_) => Outcome::Bound,
            Self::Join(_) | Self::Hold(..) => Outcome::Held,
            Self::Unpinned(..) => Outcome::Unpinned,
            Self::NoWorker => Outcome::NoWorker,
            Self::Refused(_) => Outcome::Refused,
            Self::Unsure => Outcome::Unsure,
        }
    }

    pub(super) const fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// One word for logs.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::GoOn(Bound { adopted: true, .. }) => "adopted",
            Self::GoOn(_) => "bound",
            Self::AddRank(_) => "rank_added",
            Self::Join(_) => "joined",
            Self::Hold(_, why) => why.word(),
            Self::Unpinned(_, why) => why.word(),
            Self::NoWorker => "no_worker",
            Self::Refused(refusal) => refusal_word(refusal),
            Self::Unsure => "settling",
        }
    }
}

impl Fresh {
    const fn word(self) -> &'static str {
        match self {
            Self::First(policy) => policy_word(policy),
            Self::Named => "named",
            Self::Rebound => "rebound",
            Self::Moved => "moved",
            Self::Excluded => "excluded",
        }
    }
}

impl Loose {
    const fn word(self) -> &'static str {
        match self {
            Self::Plain(policy) => policy_word(policy),
            Self::Named => "named",
            Self::TableFull => "table_full",
            Self::VmsFull => "vms_full",
            Self::Over => "over",
            Self::Spilled => "spilled",
            Self::Excluded => "excluded",
        }
    }
}

const fn policy_word(policy: Policy) -> &'static str {
    match policy {
        Policy::LeastLoaded => "least_loaded",
        Policy::RoundRobin => "round_robin",
        Policy::Random => "random",
        Policy::PowerOfTwo => "power_of_two",
        Policy::DeviceAware => "device_aware",
        Policy::Direct => "direct",
        Policy::KvAware => "kv_aware",
        Policy::SessionHash => "session_hash",
    }
}

const fn refusal_word(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::WorkerRequired => "worker_required",
        Refusal::WorkerUnknown => "worker_unknown",
        Refusal::RankUndeclared => "rank_undeclared",
        Refusal::BoundElsewhere => "bound_elsewhere",
        Refusal::Excluded => "excluded",
        Refusal::Unmet => "unmet",
        Refusal::Overloaded => "overloaded",
        Refusal::WorkerUnavailable => "worker_unavailable",
    }
}
