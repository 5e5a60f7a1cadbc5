//! Which sessions' records changed, in order, each once: what replicas and hosts follow.
//!
//! Owns the order, who wrote what, and how far back it goes. Coalesced per session, so the newest is never dropped and nothing
//! grows with the number of changes. Knows no record.

use routing::id::SessionId;
use std::collections::BTreeMap;

/// The writer of what was not applied for anybody.
pub(super) const OWN: u64 = 0;
/// The writer of what came from the store that replicas share: it is not told what it told, and where it is nobody else follows.
pub const STORE: u64 = 1;

/// Sessions by their latest change; the one whose change is oldest is forgotten past `max`.
#[derive(Debug)]
pub(super) struct Journal {
    max: usize,
    /// Number of the last change.
    last: u64,
    /// What came at or before it is not all there.
    floor: u64,
    changes: BTreeMap<u64, Change>,
    of: BTreeMap<SessionId, u64>,
    writer: u64,
}

/// The latest change of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) session: SessionId,
    pub(super) writer: u64,
}

impl Journal {
    pub(super) const fn new(max: usize) -> Self {
        Self { max, last: 0, floor: 0, changes: BTreeMap::new(), of: BTreeMap::new(), writer: OWN }
    }

    /// From now on changes are this writer's.
    pub(super) const fn write_for(&mut self, writer: u64) {
        self.writer = writer;
    }

    /// A session's record changed.
    pub(super) fn note(&mut self, session: SessionId) {
        self.last += 1;
        if let Some(before) = self.of.insert(session, self.last) {
            self.changes.remove(&before);
        }
        self.changes.insert(self.last, Change { session, writer: self.writer });
        if self.changes.len() > self.max
            && let Some((number, oldest)) = self.changes.pop_first()
        {
            // What only the store could miss, it told: or else replicas that tell everything anew, and so change each other's ends by
            // the time a message takes, would make each other do so again for ever.
            if oldest.writer != STORE {
                self.floor = number;
            }
            self.of.remove(&oldest.session);
        }
    }

    /// Its record is gone: there is nothing to tell any more.
    pub(super) fn forget(&mut self, session: SessionId) {
        if let Some(number) = self.of.remove(&session) {
            self.changes.remove(&number);
        }
    }

    /// Number of the last change.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Whether everything after that number is there.
    pub(super) const fn reaches(&self, after: u64) -> bool {
        after >= self.floor && after <= self.last
    }

    /// What changed after that number, in order.
    pub(super) fn after(&self, after: u64) -> impl Iterator<Item = (u64, Change)> {
        self.changes.range(after.saturating_add(1)..).map(|(number, change)| (*number, *change))
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }
}
