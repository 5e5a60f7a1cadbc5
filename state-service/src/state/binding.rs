//! A session's replicated record, and the join that merges two of them.
//!
//! Records form a semilattice under [`merge`]: the greatest by (version, place, deadline) wins, so any order and any
//! duplication of the same records end in the same one. The deadline never decides between versions. Holds are local and
//! never merged; they live in `sessions.rs`.

use routing::id::{Rank, Version};
use routing::time::Timestamp;

/// Worker, by hash, and rank. Sixteen bytes; keeps its meaning when a worker goes and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot {
    pub(super) worker: u64,
    /// `u32::MAX`: worker only.
    rank: u32,
}

impl Slot {
    pub(super) fn new(worker: u64, rank: Option<Rank>) -> Self {
        Self { worker, rank: rank.map_or(u32::MAX, |r| r.0) }
    }

    pub(super) fn rank(self) -> Option<Rank> {
        (self.rank != u32::MAX).then_some(Rank(self.rank))
    }
}

/// Where a session is. A release outranks a slot of the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Bound(Slot),
    Released,
}

/// What replicas agree on about one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    pub(super) version: Version,
    pub(super) place: Place,
    pub(super) deadline: Timestamp,
}

impl Record {
    /// Judged when reading: an expired record counts as absent for whoever binds anew.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        now > self.deadline
    }

    pub(super) const fn slot(&self) -> Option<Slot> {
        match self.place {
            Place::Bound(slot) => Some(slot),
            Place::Released => None,
        }
    }
}

/// What a merge did, as its caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// Nothing was known.
    Inserted,
    /// The same version and place; the later deadline counts.
    Refreshed,
    /// Ours was older.
    ReplacedNewer,
    /// The same version with another place: two writers of one version. The greater place stays.
    EqualConflict,
    /// Ours is newer.
    IgnoredConflict,
    /// Ours is a newer release.
    IgnoredStale,
}

/// Joins `theirs` into `ours`.
pub(super) fn merge(ours: Option<Record>, theirs: Record) -> (Record, Merged) {
    let Some(ours) = ours else { return (theirs, Merged::Inserted) };
    let merged = match (theirs.version.cmp(&ours.version), ours.place) {
        (std::cmp::Ordering::Greater, _) => Merged::ReplacedNewer,
        (std::cmp::Ordering::Equal, place) if place == theirs.place => Merged::Refreshed,
        (std::cmp::Ordering::Equal, _) => Merged::EqualConflict,
        (std::cmp::Ordering::Less, Place::Bound(_)) => Merged::IgnoredConflict,
        (std::cmp::Ordering::Less, Place::Released) => Merged::IgnoredStale,
    };
    (ours.max(theirs), merged)
}
