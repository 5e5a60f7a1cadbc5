//! What may be seen of a state: sessions for operators, sizes of all that grows, readiness. Changes nothing.

use super::State;
use super::binding::Slot;
use super::command::Readiness;
use super::workers::Worker;
use routing::contract::Target;
use routing::id::{RankHash, SessionId, Version};
use routing::time::{Millis, Timestamp};

/// One session as an operator may see it: never its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: SessionId,
    /// What picks its rank.
    pub rank_hash: RankHash,
    /// Held, bound or released.
    pub state: SessionState,
    /// Where; absent when released, or when its worker is gone.
    pub target: Option<Target>,
    /// Version of the binding, or the one a commit of the hold will give it.
    pub version: Version,
    /// Until it is forgotten if nothing happens; zero for holds, which do not end by time.
    pub expires_in: Millis,
    /// The response id by which it was asked for.
    pub alias: Option<SessionId>,
}

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Chosen for so many requests, none of which was answered yet.
    Held {
        /// Requests that own the hold.
        owners: usize,
    },
    /// Pinned.
    Bound,
    /// Ended; remembered so that late news cannot raise it.
    Released,
}

/// How much there is of everything that grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Sessions held or bound.
    pub sessions: usize,
    /// Of these, held.
    pub holds: usize,
    /// Releases remembered.
    pub tombstones: usize,
    /// Response ids known.
    pub aliases: usize,
    /// Workers.
    pub workers: usize,
    /// VMs alive.
    pub vms: usize,
    /// Nodes seen on xDS.
    pub nodes: usize,
    /// Moves remembered.
    pub moves: usize,
    /// Uploaded bindings that wait for their worker.
    pub parked: usize,
    /// Bound turns that wait for their slot.
    pub waiting: usize,
    /// Sessions whose latest change can still be followed.
    pub journal: usize,
}

impl State {
    /// How much there is of everything that grows.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            sessions: self.sessions.live_len(),
            holds: self.sessions.held_len(),
            tombstones: self.sessions.graves_len(),
            aliases: self.aliases.len(),
            workers: self.workers.len(),
            vms: self.vms.len(),
            nodes: self.nodes.len(),
            moves: self.moves.len(),
            parked: self.parked.len(),
            waiting: self.waiting.len(),
            journal: self.sessions.journal().len(),
        }
    }

    /// One session; `None` when it is unknown or its time is over.
    #[must_use]
    pub fn session(&self, now: Timestamp, id: SessionId) -> Option<SessionView> {
        self.own_session(now, id).or_else(|| {
            let behind = self.session_of_alias(now, id)?;
            Some(SessionView { alias: Some(id), ..self.own_session(now, behind.id)? })
        })
    }

    fn own_session(&self, now: Timestamp, id: SessionId) -> Option<SessionView> {
        let session = self.sessions.by_id(id)?;
        let target = |slot: Slot| Some(self.workers.by_hash(slot.worker)?.target(slot));
        let view = |state, slot: Option<Slot>, version, expires_in| SessionView {
            id,
            rank_hash: session.rank_hash,
            state,
            target: slot.and_then(target),
            version,
            expires_in,
            alias: None,
        };
        if let Some(hold) = &session.hold {
            let state = SessionState::Held { owners: hold.owners.len() };
            return Some(view(state, Some(hold.slot), hold.version, Millis(0)));
        }
        let record = session.record.filter(|record| !record.is_expired(now))?;
        let state = if record.slot().is_some() { SessionState::Bound } else { SessionState::Released };
        Some(view(state, record.slot(), record.version, record.deadline.since(now)))
    }

    /// Whether requests can be placed.
    #[must_use]
    pub fn ready(&self) -> Readiness {
        match (self.workers.iter().next(), self.workers.iter().any(Worker::is_usable)) {
            (None, _) => Readiness::NoWorker,
            (Some(_), false) => Readiness::AllDown,
            (Some(_), true) => Readiness::Ready,
        }
    }
}
