//! What a new life of the service cannot know yet: bindings that Envoys still upload, workers that are still being declared.
//!
//! ```text
//!   gathering ── all workers are told, and their names resolve ──► gathered (for the rest of this life)
//!       an Envoy of another life keeps the topology it has          it gets ours
//! ```
//! Owns when an earlier life is evident, how long unknown sessions are left to the filters, and when the workers count as
//! complete. Without an earlier life nothing is withheld and nothing is unsure.

use super::State;
use super::binding::Slot;
use super::choice::pins;
use super::shared::Sharing;
use routing::contract::{Cached, PoolInfo, SessionRef, WatchQuery};
use routing::id::Epoch;
use routing::policy::mix;
use routing::time::{Millis, Timestamp};

/// How long after its start a service leaves sessions it does not know to the filters (decisions, race 10).
const UNSURE: Millis = Millis(2000);
/// Workers are complete once none came for this long and each that Envoys have bindings to is among them,
const QUIET: Millis = Millis(1000);
/// or this long after the first came, however many still come,
const GATHERING_MAX: Millis = Millis(30_000);
/// and names that do not resolve by then are not waited for: the resolver's own patience.
const NAMES_WAIT: Millis = Millis(5000);

/// What this life knows of an earlier one, and whether it has heard of all workers.
#[derive(Debug, Default)]
pub(super) struct Settling {
    began: Option<Timestamp>,
    earlier_life: bool,
    /// No worker is missing.
    all_told: bool,
    /// And each has an address, or will have none.
    gathered: bool,
    /// First and last declaration of a new worker.
    declared: Option<(Timestamp, Timestamp)>,
}

impl Settling {
    /// There was an earlier life.
    pub(super) const fn earlier_life(&mut self) {
        self.earlier_life = true;
    }

    /// There was one, and perhaps all of its workers are told.
    pub(super) const fn earlier_life_told(&mut self, all_told: bool) {
        self.earlier_life();
        self.all_told |= all_told;
    }

    /// A worker is declared that was not.
    pub(super) fn declared(&mut self, now: Timestamp) {
        self.declared = Some((self.declared.map_or(now, |(first, _)| first), now));
    }

    /// `missed`: Envoys have bindings to workers that are not declared yet, or may have.
    fn are_told(&self, now: Timestamp, missed: bool) -> bool {
        let told = |(first, last)| !missed && now.since(last) >= QUIET || now.since(first) >= GATHERING_MAX;
        self.declared.is_some_and(told)
    }
}

impl State {
    /// Whether a session is left to the filter: it knows the slot from its page or by rendezvous, and reports it.
    ///
    /// `session_known`: by us or by the cache of whoever asks.
    pub(super) fn is_unsure(&self, now: Timestamp, session_known: bool) -> bool {
        let settling = &self.settling;
        let young = settling.began.is_none_or(|began| now.since(began) < UNSURE);
        settling.earlier_life && (!settling.all_told || young && !session_known)
    }

    /// The same of a whole question: a session that can be served where it is known to be is none of the filter's.
    pub(super) fn leaves_to_filter(
        &self,
        now: Timestamp,
        pool: &PoolInfo,
        session: Option<SessionRef>,
        cached: Option<Cached>,
    ) -> bool {
        if !self.is_unsure(now, false) {
            return false;
        }
        let Some(session) = session.filter(|_| pins(pool)) else { return self.is_unsure(now, true) };
        let known = self.sessions.by_id(session.id);
        let record = known.and_then(|known| known.record).filter(|record| !record.is_expired(now));
        let held = known.and_then(|known| known.hold.as_ref()).map(|hold| hold.slot);
        let cached_slot = cached.map(|cached| Slot::new(cached.worker_hash, cached.rank));
        let mut places = [record.and_then(|record| record.slot()), held, cached_slot].into_iter().flatten();
        let served = places.any(|slot| self.usable(&pool.name, slot).is_some());
        !served && self.is_unsure(now, known.is_some() || cached.is_some())
    }

    /// Whether workers may be missing: nobody who has a topology of an earlier life may be given ours.
    #[must_use]
    pub const fn is_gathering(&self) -> bool {
        !self.settling.gathered
    }

    /// Before every command.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.settling.began.get_or_insert(now);
        self.gather(now);
    }

    /// Before and after every command: none sees what is over, and none is waited for to see what it changed.
    pub(super) fn gather(&mut self, now: Timestamp) {
        // Without the others' word nobody knows who is missing.
        let missed = self.parked.len() > 0 || self.sharing == Sharing::Apart;
        self.settling.all_told |= self.settling.are_told(now, missed);
        if self.settling.gathered || !self.settling.all_told {
            return;
        }
        let late = self.settling.began.is_some_and(|began| now.since(began) >= NAMES_WAIT);
        let mut endpoints = self.workers.iter().flat_map(|worker| &worker.endpoints);
        if late || endpoints.all(|endpoint| endpoint.resolved.is_some()) {
            self.settling.gathered = true;
            self.news = true;
        }
    }

    /// Whether a watcher holds a topology of another life. One that was told of this life but given no topology still does.
    pub(super) fn is_of_another_life(&self, query: &WatchQuery) -> bool {
        let ours = first_view(self.epoch)..=self.views;
        query.epoch != 0 && (query.epoch != self.epoch.0 || !ours.contains(&query.topology))
    }
}

/// Where the versions of this life's topologies begin: apart from those of other lives, and exact in JSON.
pub(super) fn first_view(epoch: Epoch) -> u64 {
    (mix(epoch.0, 0) >> 16) | 1
}
