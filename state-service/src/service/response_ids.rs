//! Response ids that this replica does not know: the store is asked, once for each request that names one, before it is placed.
//!
//! Owns when it is asked and how long that may take. What an id stands for here is the state's to say.

use super::Service;
use crate::state::{Command, Note};
use crate::store::KeptAlias;
use routing::contract::{Entry, RouteRequest};
use routing::id::SessionId;
use routing::time::Millis;
use std::time::Duration;
use tokio::time::timeout;

/// Longest that a request waits for what its response id stands for; half of its own deadline at most.
const LOOK_UP_MAX: Millis = Millis(100);

impl Service {
    /// Learns what a request's response id stands for from the store. One that nobody knows is a first turn.
    pub(super) async fn find_alias(&self, request: &RouteRequest) {
        let (Some(replicas), Some(alias)) = (self.replicas(), self.unknown_alias(request)) else { return };
        let wait = Millis(request.deadline_ms.0 / 2).min(LOOK_UP_MAX);
        let found = timeout(Duration::from_millis(wait.0), replicas.alias(alias)).await;
        if let Ok(Ok(Some(KeptAlias { alias, session, pool }))) = found
            && pool == request.pool
        {
            self.apply(Command::Note(Box::new(Note::Alias { alias, session, pool })));
        }
    }

    /// The response id by which alone a request knows its session, if nobody told of it here or with the request.
    fn unknown_alias(&self, request: &RouteRequest) -> Option<SessionId> {
        let alias = request.alias.filter(|_| request.session.is_none())?;
        let is_told = |entry: &Entry| matches!(entry, Entry::Alias { alias: told, .. } if *told == alias);
        let told = request.unsent.iter().any(is_told);
        (!told && !self.lock().knows_alias(self.clock.now(), alias)).then_some(alias)
    }

    /// Response ids among notes, and how long each is kept.
    pub(crate) fn aliases_kept(&self, notes: &[Note]) -> Vec<(KeptAlias, Millis)> {
        let state = self.lock();
        let kept = |note: &Note| {
            let Note::Alias { alias, session, pool } = note else { return None };
            let ttl = state.pools().find(|known| known.name == *pool)?.ttl_ms;
            Some((KeptAlias { alias: *alias, session: *session, pool: pool.clone() }, ttl))
        };
        notes.iter().filter_map(kept).collect()
    }
}
