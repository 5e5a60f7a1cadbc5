//! The store as its document tells of it, in plain Rust: sessions' bindings with claims that live for a while, a log of changes, and a
//! memory that it may lose. Shares no code with `state-service/src/store`.

use crate::planted::Bug;
use routing::contract::SessionRef;
use routing::hash::worker_hash;
use routing::id::{SessionId, Version};
use routing::time::{Millis, Timestamp};
use state_service::state::{Binding, Note};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

/// How long a claim lives that is not renewed.
pub(crate) const CLAIM: Millis = Millis(5000);
/// A record is kept so much longer than it lives.
const LINGER: Millis = Millis(600_000);

/// A binding or a claim, with its end by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    binding: Binding,
    until: Timestamp,
}

/// What is known of a session.
#[derive(Clone, Debug, Default)]
struct Record {
    binding: Option<Kept>,
    claim: Option<Kept>,
}

/// One entry of the log.
#[derive(Clone, Debug)]
struct Logged {
    id: u64,
    writer: u64,
    bindings: Vec<Kept>,
    notes: Vec<Note>,
}

/// An entry as a follower reads it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) writer: u64,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) notes: Vec<Note>,
}

/// Answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Bound(Binding),
    Held(Binding),
    Claimed(Binding),
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// Which memory this is.
    pub(crate) memory: u64,
    records: BTreeMap<SessionId, Record>,
    log: VecDeque<Logged>,
    last: u64,
    /// Most entries that the log keeps.
    log_max: usize,
}

/// The newer one is greater: the version, then a release over a slot, then the slot, then the later end.
fn compared(kept: &Kept) -> (Version, bool, u64, u32, Timestamp) {
    let target = kept.binding.target.as_ref();
    let (worker, rank) = target
        .map_or((0, 0), |target| (worker_hash(&target.worker), target.rank.map_or(u32::MAX, |rank| rank.0)));
    (kept.binding.version, target.is_none(), worker, rank, kept.until)
}

fn order(bug: Option<Bug>, one: &Kept, other: &Kept) -> Ordering {
    if bug == Some(Bug::LaterEndsWin) {
        return one.until.cmp(&other.until);
    }
    compared(one).cmp(&compared(other))
}

impl Kept {
    fn new(now: Timestamp, binding: &Binding) -> Self {
        Self { until: now + binding.expires_in_ms, binding: binding.clone() }
    }

    fn told(&self, now: Timestamp) -> Binding {
        Binding { expires_in_ms: self.until.since(now), ..self.binding.clone() }
    }

    fn is_live(&self, now: Timestamp) -> bool {
        now <= self.until
    }
}

impl Model {
    pub(crate) const fn new(memory: u64, log_max: usize) -> Self {
        Self { memory, records: BTreeMap::new(), log: VecDeque::new(), last: 0, log_max }
    }

    /// It comes back with nothing.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.memory + 1, self.log_max);
    }

    fn record(&mut self, now: Timestamp, id: SessionId) -> &mut Record {
        let record = self.records.entry(id).or_default();
        record.binding.take_if(|kept| now > kept.until + LINGER);
        record.claim.take_if(|kept| now > kept.until + LINGER);
        record
    }

    pub(crate) fn claim(&mut self, now: Timestamp, proposal: &Binding, leaves: Option<Version>) -> Claim {
        let record = self.record(now, proposal.session.id);
        let bound = record.binding.as_ref().filter(|kept| kept.is_live(now));
        let is_news = |kept: &&Kept| leaves.is_none_or(|leaves| kept.binding.version > leaves);
        if let Some(kept) = bound.filter(|kept| kept.binding.target.is_some()).filter(is_news) {
            return Claim::Bound(kept.told(now));
        }
        if let Some(held) = record.claim.as_mut().filter(|kept| kept.is_live(now)) {
            if held.binding.version.writer != proposal.version.writer {
                return Claim::Held(held.told(now));
            }
            held.until = now + CLAIM;
            return Claim::Claimed(held.told(now));
        }
        let known = [&record.binding, &record.claim].into_iter().flatten();
        let above = known.map(|kept| kept.binding.version.seq + 1).max().unwrap_or(0);
        let version = Version { seq: proposal.version.seq.max(above), ..proposal.version };
        let binding = Binding { version, expires_in_ms: CLAIM, ..proposal.clone() };
        record.claim = Some(Kept::new(now, &binding));
        Claim::Claimed(binding)
    }

    pub(crate) fn renew(&mut self, now: Timestamp, claims: &[(SessionId, Version)]) {
        for (id, version) in claims {
            let claim = self.record(now, *id).claim.as_mut();
            if let Some(kept) = claim.filter(|kept| kept.binding.version == *version) {
                kept.until = now + CLAIM;
            }
        }
    }

    pub(crate) fn unclaim(&mut self, now: Timestamp, claims: &[(SessionId, Version)]) {
        for (id, version) in claims {
            self.record(now, *id).claim.take_if(|kept| kept.binding.version == *version);
        }
    }

    /// True when there is an entry more to follow.
    pub(crate) fn merge(
        &mut self,
        now: Timestamp,
        bug: Option<Bug>,
        writer: u64,
        bindings: &[Binding],
        notes: &[Note],
    ) -> bool {
        let mut changed = Vec::new();
        for binding in bindings {
            let theirs = Kept::new(now, binding);
            let record = self.record(now, binding.session.id);
            let known = record.binding.as_ref();
            if known.is_none_or(|ours| order(bug, &theirs, ours) == Ordering::Greater) {
                changed.push(theirs.clone());
                record.binding = Some(theirs);
            }
            record.claim.take_if(|claim| claim.binding.version <= binding.version);
        }
        if changed.is_empty() && notes.is_empty() {
            return false;
        }
        self.last += 1;
        self.log.push_back(Logged { id: self.last, writer, bindings: changed, notes: notes.to_vec() });
        while self.log.len() > self.log_max {
            self.log.pop_front();
        }
        true
    }

    /// What came after a cursor, and the cursor after it; `None`: not everything is there.
    pub(crate) fn follow(&self, now: Timestamp, cursor: u64) -> Option<(Vec<Entry>, u64)> {
        let first = self.log.front().map_or(self.last + 1, |entry| entry.id);
        if cursor > self.last || cursor + 1 < first {
            return None;
        }
        let after = self.log.iter().filter(|entry| entry.id > cursor);
        let read = |entry: &Logged| Entry {
            writer: entry.writer,
            bindings: entry.bindings.iter().map(|kept| kept.told(now)).collect(),
            notes: entry.notes.clone(),
        };
        Some((after.map(read).collect(), self.last))
    }

    /// Where the log ends, and all sessions there are.
    pub(crate) fn sessions(&self) -> (u64, Vec<SessionId>) {
        (self.last, self.records.keys().copied().collect())
    }

    pub(crate) fn read(&self, now: Timestamp, ids: &[SessionId]) -> Vec<Binding> {
        let kept = ids.iter().filter_map(|id| self.records.get(id)?.binding.as_ref());
        kept.map(|kept| kept.told(now)).collect()
    }

    /// The live binding or release of a session.
    pub(crate) fn binding(&self, now: Timestamp, id: SessionId) -> Option<Binding> {
        let kept = self.records.get(&id)?.binding.as_ref()?;
        kept.is_live(now).then(|| kept.told(now))
    }

    /// Sessions that somebody has claimed.
    pub(crate) fn claimed(&self, now: Timestamp) -> Vec<SessionRef> {
        let claims = self.records.values().filter_map(|record| record.claim.as_ref());
        claims.filter(|kept| kept.is_live(now)).map(|kept| kept.binding.session).collect()
    }
}
