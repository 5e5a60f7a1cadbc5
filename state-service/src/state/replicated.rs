//! What replicas and hosts agree on about sessions: bindings of other writers applied here, and ours told to them.
//!
//! Owns what an applied binding does, and what it waits for: a worker or rank not declared here yet is awaited, not denied, so that
//! nobody is pulled off a slot by someone who learned of it late. Which record wins is `binding.rs`'s to say, in which order changes
//! are told `journal.rs`'s. Knows neither stores nor streams.

use super::State;
use super::binding::{Merged, Place, Record, Slot};
use super::choice::pins;
use super::error::StateError;
use super::journal::{OWN, STORE};
use super::parked::{Kept, Life, Told};
use super::report::{HoldEnd, Joined};
use super::sessions::Session;
use super::workers::Worker;
use routing::contract::{KeptSlot, SessionRef, Target};
use routing::hash::worker_hash;
use routing::id::{SessionId, Version, WorkerId};
use routing::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// One session as replicas and hosts tell each other: the state of a join, whose greater version wins whatever the order and
/// however often it comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The session.
    #[serde(flatten)]
    pub session: SessionRef,
    /// Compared as a pair.
    pub version: Version,
    /// Where it is bound; absent: released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// From now until it is forgotten, if nothing happens. Never decides between versions.
    pub expires_in_ms: Millis,
    /// Which declaration of the worker its maker knew; 0: it has no numbers for them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u64,
}

/// What became of one that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing was known.
    Inserted,
    /// It was known; the later end counts.
    Refreshed,
    /// What was known was older.
    ReplacedNewer,
    /// What is known is newer.
    IgnoredConflict,
    /// What is known is a newer release.
    IgnoredStale,
    /// Its worker or rank is not declared here yet: it waits for it.
    Parked,
    /// It is over, of a version nobody can have given, of a pool that keeps no bindings, or there is no room.
    Rejected,
}

/// A place in the order of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

/// What changed after a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Each session once, as it is now.
    pub bindings: Vec<Binding>,
    /// To go on from.
    pub position: Position,
    /// Not everything after the position asked for is known any more: read all of them, then go on from `position`.
    pub gap: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(generation: &u64) -> bool {
    *generation == 0
}

impl State {
    pub(super) fn apply_bindings(
        &mut self,
        now: Timestamp,
        writer: u64,
        bindings: &[Binding],
    ) -> Vec<Outcome> {
        let outcomes = bindings.iter().map(|binding| self.apply_binding(now, writer, binding));
        let outcomes: Vec<Outcome> = outcomes.collect();
        for outcome in &outcomes {
            *match outcome {
                Outcome::Inserted | Outcome::ReplacedNewer => &mut self.counters.applied,
                Outcome::Refreshed | Outcome::IgnoredConflict | Outcome::IgnoredStale => {
                    &mut self.counters.applied_old
                }
                Outcome::Parked => &mut self.counters.applied_parked,
                Outcome::Rejected => &mut self.counters.applied_rejected,
            } += 1;
        }
        outcomes
    }

    fn apply_binding(&mut self, now: Timestamp, writer: u64, binding: &Binding) -> Outcome {
        if binding.expires_in_ms == Millis(0) || !self.plausible(binding.version) {
            return Outcome::Rejected;
        }
        let Some(place) = self.place_of(now, writer, binding) else { return Outcome::Parked };
        if let Place::Bound(slot) = place
            && !self.pins_at(slot.worker)
        {
            return Outcome::Rejected;
        }
        let record = Record { version: binding.version, place, deadline: now + binding.expires_in_ms };
        self.sessions.write_for(writer);
        let joined = self.merge_record(binding.session, record);
        self.sessions.write_for(OWN);
        let Some(joined) = joined else { return Outcome::Rejected };
        self.tell_envoys(binding.session, record, &joined);
        let outcome = outcome_of(&joined);
        if writer == STORE && matches!(outcome, Outcome::IgnoredConflict | Outcome::IgnoredStale) {
            // The store does not know ours, or forgot it: a commit for a worker that was away, or a write that a failover lost.
            self.sessions.tell_again(binding.session.id);
        }
        outcome
    }

    /// Where a binding is, as it is kept here; `None`: that slot is not declared yet, and the binding waits for it.
    fn place_of(&mut self, now: Timestamp, writer: u64, binding: &Binding) -> Option<Place> {
        let Some(Target { worker, rank }) = &binding.target else { return Some(Place::Released) };
        let Binding { session, version, expires_in_ms, generation, .. } = *binding;
        let slot = KeptSlot { worker_hash: worker_hash(worker), rank: *rank };
        let told = Told::Writer { writer, generation };
        let kept = Kept { session, version, slot, life: Life::Left(expires_in_ms), told };
        if self.is_awaited(&kept) {
            self.park(now, kept);
            return None;
        }
        if self.workers.by_hash(slot.worker_hash).is_none() {
            self.gone.remember(worker, generation);
        }
        Some(Place::Bound(self.slot_kept(slot)))
    }

    /// A slot as it is kept; of a worker that is gone, as it was told.
    pub(super) fn slot_kept(&self, slot: KeptSlot) -> Slot {
        let worker = self.workers.by_hash(slot.worker_hash);
        worker.map_or_else(|| Slot::new(slot.worker_hash, slot.rank), |worker| worker.slot_of(slot.rank))
    }

    /// Whether a binding's worker or rank may be there by a declaration that did not come here yet. One that is gone, as its number
    /// says, is not awaited: who asks next binds anew, here as anywhere.
    pub(super) fn is_awaited(&self, kept: &Kept) -> bool {
        let worker = self.workers.by_hash(kept.slot.worker_hash);
        let Told::Writer { generation, .. } = kept.told else { return worker.is_none() };
        let Some(worker) = worker else { return !self.gone.is_over(kept.slot.worker_hash, generation) };
        let newer = generation == 0 || worker.generation == 0 || generation > worker.generation;
        newer && kept.slot.rank.is_some() && !worker.has_rank(kept.slot.rank)
    }

    /// Whether sessions of a worker are bound at all; unknown ones may be.
    #[must_use]
    pub fn keeps_bindings_of(&self, worker: &WorkerId) -> bool {
        self.pins_at(worker_hash(worker))
    }

    fn pins_at(&self, worker: u64) -> bool {
        let pins_there = |worker: &Worker| self.pools.get(&worker.spec.pool).is_some_and(pins);
        self.workers.by_hash(worker).is_none_or(pins_there)
    }

    /// Whoever may pin another place, what is released, or the same place under an older version, whose release would be late, is told.
    fn tell_envoys(&mut self, session: SessionRef, theirs: Record, joined: &Joined) {
        self.counters.holds_gave_way += u64::from(joined.hold == HoldEnd::Ended);
        let moved = joined.before.is_some_and(|before| before.version != joined.now.version);
        let released = joined.before.is_none() && joined.now.slot().is_none();
        if moved || released || theirs.place != joined.now.place {
            self.publish(session, joined.now);
        }
    }

    /// The declaration of a worker has this number: the higher, the newer.
    pub(super) fn number_declaration(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        generation: u64,
    ) -> Result<(), StateError> {
        let worker = self.worker_mut(id)?;
        worker.generation = worker.generation.max(generation);
        let hash = worker.hash;
        self.unpark(now, hash);
        Ok(())
    }

    /// Every declaration up to this number was told: what waits for one that is not among them waits for nothing.
    pub(super) fn declared_up_to(&mut self, now: Timestamp, generation: u64) {
        self.gone.all_told(generation);
        for worker in self.parked.workers() {
            self.unpark(now, worker);
        }
    }

    /// What changed after a position, but for what `not_of` wrote; at most `max` changes looked at.
    #[must_use]
    pub fn changes(&self, now: Timestamp, after: Position, not_of: u64, max: usize) -> Changes {
        let journal = self.sessions.journal();
        if !journal.reaches(after.0) {
            return Changes { bindings: Vec::new(), position: Position(journal.last()), gap: true };
        }
        let mut changes = Changes { bindings: Vec::new(), position: after, gap: false };
        for (number, change) in journal.after(after.0).take(max) {
            changes.position = Position(number);
            if change.writer == not_of && not_of != OWN {
                continue;
            }
            let session = self.sessions.by_id(change.session);
            changes.bindings.extend(session.and_then(|known| self.as_told(now, change.session, known)));
        }
        changes
    }

    /// Where the order of changes ends now.
    #[must_use]
    pub const fn position(&self) -> Position {
        Position(self.sessions.journal().last())
    }

    /// All bindings and releases from a session on, at most `max` looked at; and the session to go on from.
    #[must_use]
    pub fn bindings_from(
        &self,
        now: Timestamp,
        from: SessionId,
        max: usize,
    ) -> (Vec<Binding>, Option<SessionId>) {
        let mut bindings = Vec::new();
        let mut sessions = self.sessions.from(from);
        for (id, session) in sessions.by_ref().take(max) {
            bindings.extend(self.as_told(now, *id, session));
        }
        (bindings, sessions.next().map(|(id, _)| *id))
    }

    /// What is known of one session.
    #[must_use]
    pub fn binding_of(&self, now: Timestamp, id: SessionId) -> Option<Binding> {
        self.sessions.by_id(id).and_then(|known| self.as_told(now, id, known))
    }

    /// A session as others are told; `None`: it has no record, its time is over, or nobody here knows what its worker
    /// is called.
    fn as_told(&self, now: Timestamp, id: SessionId, session: &Session) -> Option<Binding> {
        let record = session.record.filter(|record| !record.is_expired(now))?;
        let (target, generation) = match record.slot() {
            None => (None, 0),
            Some(slot) => self.target_told(slot).map(|(target, generation)| (Some(target), generation))?,
        };
        Some(Binding {
            session: SessionRef { id, rank_hash: session.rank_hash },
            version: record.version,
            target,
            expires_in_ms: record.deadline.since(now),
            generation,
        })
    }

    /// What a slot is called, and by which declaration; also of a worker that is gone: the others may have it, or forget it too.
    fn target_told(&self, slot: Slot) -> Option<(Target, u64)> {
        if let Some(worker) = self.workers.by_hash(slot.worker) {
            return Some((worker.target(slot), worker.generation));
        }
        let gone = self.gone.by_hash(slot.worker)?;
        Some((Target { worker: gone.id.clone(), rank: slot.rank() }, gone.generation))
    }
}

const fn outcome_of(joined: &Joined) -> Outcome {
    match joined.merged {
        Merged::Inserted => Outcome::Inserted,
        Merged::Refreshed => Outcome::Refreshed,
        Merged::ReplacedNewer => Outcome::ReplacedNewer,
        // One version, two places: the one known here, or neither, goes on under a new version.
        Merged::EqualConflict | Merged::IgnoredConflict => Outcome::IgnoredConflict,
        Merged::IgnoredStale => Outcome::IgnoredStale,
    }
}
