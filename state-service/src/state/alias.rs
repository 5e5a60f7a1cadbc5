//! Response ids: what an engine called an answer of a session, hashed, so that a request that names the answer finds the session.
//!
//! Owns the bounded table of them: renewed when learned or used, forgotten after the pool's idle ttl, oldest first when there
//! is no room. Knows nothing of bindings: an alias outlives the release of its session, whose next turn binds anew.

use super::State;
use super::choice::pins;
use super::limits::EXPIRED_PER_TICK_MAX;
use super::shared::{ALIASES_UNTOLD_MAX, Sharing};
use routing::contract::{RouteRequest, SessionRef};
use routing::id::{PoolName, SessionId};
use routing::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// What a response id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alias {
    session: SessionRef,
    until: Timestamp,
}

/// All response ids known.
#[derive(Debug)]
pub(super) struct Aliases {
    max: usize,
    entries: BTreeMap<SessionId, Alias>,
    by_age: BTreeSet<(Timestamp, SessionId)>,
}

impl Aliases {
    pub(super) const fn new(max: usize) -> Self {
        Self { max, entries: BTreeMap::new(), by_age: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Of two sessions of one alias the one told last counts. True when another alias had to go.
    fn learn(&mut self, id: SessionId, alias: Alias) -> bool {
        if let Some(before) = self.entries.insert(id, alias) {
            self.by_age.remove(&(before.until, id));
        }
        self.by_age.insert((alias.until, id));
        let over = self.entries.len() > self.max;
        if over && let Some((_, oldest)) = self.by_age.pop_first() {
            self.entries.remove(&oldest);
        }
        over
    }

    /// The session behind an alias, unless its time is over.
    fn behind(&self, now: Timestamp, id: SessionId) -> Option<SessionRef> {
        self.entries.get(&id).filter(|alias| now <= alias.until).map(|alias| alias.session)
    }

    /// Forgets at most `max` whose time is over; how many.
    fn expire(&mut self, now: Timestamp, max: usize) -> u64 {
        let mut forgotten = 0;
        while forgotten < max {
            let Some((until, id)) = self.by_age.first().copied().filter(|(until, _)| *until < now) else {
                break;
            };
            self.by_age.remove(&(until, id));
            self.entries.remove(&id);
            forgotten += 1;
        }
        u64::try_from(forgotten).unwrap_or(u64::MAX)
    }

    /// Both views tell of the same aliases.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let ages: BTreeSet<_> = self.entries.iter().map(|(id, alias)| (alias.until, *id)).collect();
        assert_eq!(ages, self.by_age);
        assert!(self.entries.len() <= self.max);
    }
}

impl State {
    /// An engine named an answer of a session.
    pub(super) fn alias_told(&mut self, now: Timestamp, id: SessionId, session: SessionRef, pool: &PoolName) {
        if self.sharing != Sharing::Single {
            self.aliases_untold.push_back((id, session, pool.clone()));
            if self.aliases_untold.len() > ALIASES_UNTOLD_MAX {
                self.aliases_untold.pop_front();
                self.counters.aliases_not_shared += 1;
            }
        }
        self.learn_alias(now, id, session, pool);
    }

    pub(super) fn learn_alias(
        &mut self,
        now: Timestamp,
        id: SessionId,
        session: SessionRef,
        pool: &PoolName,
    ) {
        let Some(pool) = self.pools.get(pool).filter(|pool| pins(pool)) else {
            self.counters.alias_unstored += 1;
            return;
        };
        let evicted = self.aliases.learn(id, Alias { session, until: now + pool.ttl_ms });
        self.counters.alias_learned += 1;
        self.counters.alias_evicted += u64::from(evicted);
    }

    /// The session of a request that knows only an answer of it.
    pub(super) fn behind(&self, now: Timestamp, request: &RouteRequest) -> Option<SessionRef> {
        let alias = request.alias.filter(|_| request.session.is_none())?;
        self.aliases.behind(now, alias)
    }

    /// The same, and the alias lives on.
    pub(super) fn resolve(&mut self, now: Timestamp, request: &RouteRequest) -> Option<SessionRef> {
        let alias = request.alias.filter(|_| request.session.is_none())?;
        let found = self.behind(now, request).zip(self.pools.get(&request.pool));
        let Some((session, pool)) = found else {
            self.counters.alias_unknown += 1;
            return None;
        };
        self.aliases.learn(alias, Alias { session, until: now + pool.ttl_ms });
        self.counters.alias_found += 1;
        Some(session)
    }

    /// The session behind an alias, for people.
    pub(super) fn session_of_alias(&self, now: Timestamp, id: SessionId) -> Option<SessionRef> {
        self.aliases.behind(now, id)
    }

    /// Whether a response id is known.
    #[must_use]
    pub fn knows_alias(&self, now: Timestamp, id: SessionId) -> bool {
        self.session_of_alias(now, id).is_some()
    }

    pub(super) fn expire_aliases(&mut self, now: Timestamp) {
        self.counters.alias_expired += self.aliases.expire(now, EXPIRED_PER_TICK_MAX);
    }
}
