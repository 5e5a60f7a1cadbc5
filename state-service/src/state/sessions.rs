//! The bounded table of sessions: records, holds, and the order in which they are forgotten.
//!
//! ```text
//!            hold                  commit
//!  (none) ────────────► held ────────────────► idle: bound, waits for its deadline ───► forgotten
//!     ▲  last owner gone │ ▲                     │  ▲                                      ▲
//!     └──────────────────┘ └─ slot gone, held ───┘  └── last owner gone                    │
//!                                    released: grave, waits for its deadline ──────────────┘
//! ```
//! A session is in exactly one of three indices by what it is now (held, idle, grave). Held ones are live: never evicted and
//! never expired. The service sees no running turns, but a running turn is touched, so oldest-first spares it.
//! Knows nothing of workers, policies or why something changes.

use super::binding::{Place, Record, Slot};
use super::journal::Journal;
use super::vms::VmId;
use routing::id::{HoldId, RankHash, RequestId, SessionId, Version};
use routing::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// One session.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) rank_hash: RankHash,
    pub(super) record: Option<Record>,
    pub(super) hold: Option<Box<Hold>>,
}

/// A choice no answer has committed yet. Lives as long as a request that owns it.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) id: HoldId,
    pub(super) slot: Slot,
    pub(super) version: Version,
    /// All replicas know of it.
    pub(super) claimed: bool,
    /// At most [`super::limits::OWNERS_MAX`].
    pub(super) owners: Vec<Owner>,
}

/// A request that owns a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) vm: VmId,
    pub(super) request: RequestId,
}

/// What a session is now, for the indices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Empty,
    Held,
    Idle(Timestamp),
    Grave(Timestamp),
}

/// Whether a new session finds a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// The oldest idle session made it.
    Evicted,
    /// Every session is held.
    Full,
}

/// All sessions.
#[derive(Debug)]
pub(super) struct Table {
    sessions_max: usize,
    tombstones_max: usize,
    entries: BTreeMap<SessionId, Session>,
    held: BTreeSet<SessionId>,
    idle: BTreeSet<(Timestamp, SessionId)>,
    graves: BTreeSet<(Timestamp, SessionId)>,
    /// Whose record changed when.
    journal: Journal,
    /// Emptied after every command.
    claims_over: Vec<(SessionId, Version)>,
}

impl Session {
    /// Highest sequence this session has here.
    pub(super) fn seq(&self) -> u64 {
        let record = self.record.map_or(0, |r| r.version.seq);
        record.max(self.hold.as_ref().map_or(0, |h| h.version.seq))
    }

    /// Version of the hold that all replicas know of.
    fn claim(&self) -> Option<Version> {
        self.hold.as_ref().filter(|hold| hold.claimed).map(|hold| hold.version)
    }

    fn standing(&self) -> Standing {
        match (&self.hold, self.record) {
            (Some(_), _) => Standing::Held,
            (None, None) => Standing::Empty,
            (None, Some(Record { place: Place::Bound(_), deadline, .. })) => Standing::Idle(deadline),
            (None, Some(Record { place: Place::Released, deadline, .. })) => Standing::Grave(deadline),
        }
    }
}

impl Table {
    pub(super) const fn new(sessions_max: usize, tombstones_max: usize, journal_max: usize) -> Self {
        Self {
            journal: Journal::new(journal_max),
            claims_over: Vec::new(),
            sessions_max,
            tombstones_max,
            entries: BTreeMap::new(),
            held: BTreeSet::new(),
            idle: BTreeSet::new(),
            graves: BTreeSet::new(),
        }
    }

    pub(super) fn by_id(&self, id: SessionId) -> Option<&Session> {
        self.entries.get(&id)
    }

    /// All that have a record or a hold, from an id on.
    pub(super) fn from(&self, id: SessionId) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.entries.range(id..)
    }

    pub(super) const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Whose changes those are that follow.
    pub(super) const fn write_for(&mut self, writer: u64) {
        self.journal.write_for(writer);
    }

    /// As if its record had changed just now.
    pub(super) fn tell_again(&mut self, id: SessionId) {
        self.journal.note(id);
    }

    /// Sessions held or bound.
    pub(super) fn live_len(&self) -> usize {
        self.held.len() + self.idle.len()
    }

    /// Sessions held, from an id on.
    pub(super) fn held_from(&self, id: SessionId) -> impl Iterator<Item = SessionId> {
        self.held.range(id..).copied()
    }

    /// Claims whose hold ended since this was asked last: committed, given up, or another one's by now.
    pub(super) fn take_claims_over(&mut self) -> Vec<(SessionId, Version)> {
        std::mem::take(&mut self.claims_over)
    }

    pub(super) fn held_len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn graves_len(&self) -> usize {
        self.graves.len()
    }

    /// Whether `id` is held or bound, or might become so without anybody giving way.
    fn has_free_room(&self, id: SessionId) -> bool {
        let standing = self.entries.get(&id).map_or(Standing::Empty, Session::standing);
        matches!(standing, Standing::Held | Standing::Idle(_)) || self.live_len() < self.sessions_max
    }

    /// Whether [`Self::make_room`] would find some.
    pub(super) fn has_room(&self, id: SessionId) -> bool {
        self.has_free_room(id) || !self.idle.is_empty()
    }

    /// Makes sure that `id` may become held or bound.
    pub(super) fn make_room(&mut self, id: SessionId) -> Room {
        if self.has_free_room(id) {
            return Room::Free;
        }
        match self.idle.pop_first() {
            Some((_, oldest)) => {
                self.forget_one(oldest);
                Room::Evicted
            }
            None => Room::Full,
        }
    }

    /// Changes a session, made if need be, and puts it where it belongs now; an empty one is forgotten.
    /// Returns what `change` returned, and how many tombstones gave way.
    pub(super) fn edit<R>(
        &mut self,
        id: SessionId,
        rank_hash: RankHash,
        change: impl FnOnce(&mut Session) -> R,
    ) -> R {
        let session = self.entries.entry(id).or_insert(Session { rank_hash, record: None, hold: None });
        let (before, record, claim) = (session.standing(), session.record, session.claim());
        let result = change(session);
        let (after, now) = (session.standing(), session.record);
        // A binding of that version, or a newer one, ends its claim by itself.
        let ended = |claim: &Version| {
            session.claim() != Some(*claim) && now.is_none_or(|record| record.version < *claim)
        };
        self.claims_over.extend(claim.filter(ended).map(|claim| (id, claim)));
        if after == Standing::Empty {
            self.entries.remove(&id);
        }
        self.move_standing(id, before, after);
        match now {
            Some(_) if now != record => self.journal.note(id),
            None if record.is_some() => self.journal.forget(id),
            Some(_) | None => {}
        }
        result
    }

    fn forget_one(&mut self, id: SessionId) {
        self.entries.remove(&id);
        self.journal.forget(id);
    }

    /// Every session is in the one index where it belongs.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.entries.len(), self.live_len() + self.graves_len());
        assert!(self.live_len() <= self.sessions_max && self.graves_len() <= self.tombstones_max);
        for (id, session) in &self.entries {
            let placed = match session.standing() {
                Standing::Empty => false,
                Standing::Held => self.held.contains(id),
                Standing::Idle(deadline) => self.idle.contains(&(deadline, *id)),
                Standing::Grave(deadline) => self.graves.contains(&(deadline, *id)),
            };
            assert!(placed, "{id}");
        }
    }

    fn move_standing(&mut self, id: SessionId, before: Standing, after: Standing) {
        if before == after {
            return;
        }
        match before {
            Standing::Empty => {}
            Standing::Held => drop(self.held.remove(&id)),
            Standing::Idle(deadline) => drop(self.idle.remove(&(deadline, id))),
            Standing::Grave(deadline) => drop(self.graves.remove(&(deadline, id))),
        }
        match after {
            Standing::Empty => {}
            Standing::Held => drop(self.held.insert(id)),
            Standing::Idle(deadline) => drop(self.idle.insert((deadline, id))),
            Standing::Grave(deadline) => drop(self.graves.insert((deadline, id))),
        }
    }

    /// Forgets the oldest tombstones past the limit; how many.
    pub(super) fn trim_graves(&mut self) -> u64 {
        let mut trimmed = 0;
        while self.graves.len() > self.tombstones_max {
            let Some((_, oldest)) = self.graves.pop_first() else { break };
            self.forget_one(oldest);
            trimmed += 1;
        }
        trimmed
    }

    /// Forgets at most `max` of each kind whose time has come: (sessions, tombstones).
    pub(super) fn expire(&mut self, now: Timestamp, max: usize) -> (u64, u64) {
        let sessions = over(&mut self.idle, now, max);
        let tombstones = over(&mut self.graves, now, max);
        sessions.iter().chain(&tombstones).for_each(|id| self.forget_one(*id));
        (count(&sessions), count(&tombstones))
    }

    /// Takes dead VMs' requests out of every hold; how many holds had no other owner.
    pub(super) fn bury_owners(&mut self, dead: &BTreeSet<VmId>) -> u64 {
        let held: Vec<SessionId> = self.held.iter().copied().collect();
        held.into_iter().map(|id| u64::from(self.bury_owners_of(id, dead))).sum()
    }

    fn bury_owners_of(&mut self, id: SessionId, dead: &BTreeSet<VmId>) -> bool {
        self.edit(id, RankHash(0), |session| {
            let Some(hold) = &mut session.hold else { return false };
            hold.owners.retain(|owner| !dead.contains(&owner.vm));
            let orphaned = hold.owners.is_empty();
            if orphaned {
                session.hold = None;
            }
            orphaned
        })
    }
}

/// Takes out at most `max` whose time has come.
fn over(index: &mut BTreeSet<(Timestamp, SessionId)>, now: Timestamp, max: usize) -> Vec<SessionId> {
    let mut over = Vec::new();
    while over.len() < max {
        let Some((deadline, id)) = index.first().copied().filter(|(deadline, _)| *deadline < now) else {
            break;
        };
        index.remove(&(deadline, id));
        over.push(id);
    }
    over
}

fn count(ids: &[SessionId]) -> u64 {
    u64::try_from(ids.len()).unwrap_or(u64::MAX)
}
