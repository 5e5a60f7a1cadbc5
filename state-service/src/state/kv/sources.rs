//! Where a rank's events come from as its worker is declared, and what becomes of what is known of it when that changes.
//!
//! Whatever came from another address, or another way, is of an engine that may not be there any more: it is forgotten at once. A rank
//! that is declared off, where choices are made by events, is known to be one, so that its silence has a cause.

use super::super::kv_stream::{Input, Link};
use super::super::workers::Worker;
use super::{Kv, has_rank};
use crate::declare::Address;
use crate::declare::kv_events::KvEvents;
use routing::contract::Engine;
use routing::time::Timestamp;

/// What a declaration says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    kv_events: KvEvents,
    engine: Engine,
    address: Address,
}

impl Source {
    pub(super) fn of(worker: &Worker, rank: u32) -> Option<Self> {
        let spec = &worker.spec;
        let serves = |start: u32, count: u32| (start..start.saturating_add(count)).contains(&rank);
        let endpoint = spec.endpoints.iter().find(|endpoint| serves(endpoint.dp_start, endpoint.dp_size))?;
        let address = endpoint.address.clone();
        Some(Self { kv_events: spec.kv_events.clone(), engine: spec.engine, address })
    }

    /// Where the rank serves.
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }
}

/// Whether nobody listens to its ranks. `by_events`: its pool chooses by events.
fn is_off(worker: &Worker, by_events: bool) -> bool {
    match worker.spec.kv_events {
        KvEvents::Off => true,
        KvEvents::Auto => !by_events,
        KvEvents::Discover | KvEvents::At(_) => false,
    }
}

impl Kv {
    /// To be called when a worker was declared. Ranks that it has no more are gone already.
    pub(super) fn settle_sources(&mut self, now: Timestamp, worker: &Worker, by_events: bool) {
        let off = is_off(worker, by_events);
        let of_worker = self.ranks.range((worker.hash, 0)..=(worker.hash, u32::MAX));
        let other = of_worker.filter(|(key, rank)| Source::of(worker, key.1).as_ref() != Some(&rank.source));
        for key in other.map(|(key, _)| *key).collect::<Vec<_>>() {
            let (input, link) = match off {
                true => (Input::Link(Link::Off), Link::Off),
                false => (Input::Gone, Link::Undiscovered),
            };
            let effects = self.step(now, key, input);
            // It asks for no replay: there is nobody to ask.
            self.carry_out(key, &worker.spec.id, effects, &mut Vec::new());
            self.sources += 1;
            let source = Source::of(worker, key.1);
            if let (Some(rank), Some(source)) = (self.ranks.get_mut(&key), source) {
                (rank.source, rank.link, rank.source_number) = (source, link, self.sources);
            }
        }
        if off && by_events && !self.placements.contains_key(&worker.spec.pool) {
            self.note_off(now, worker);
        }
    }

    /// Of ranks of which nothing is known yet: others may be pushed.
    fn note_off(&mut self, now: Timestamp, worker: &Worker) {
        let start = worker.spec.rank_start();
        for rank in start..start.saturating_add(worker.spec.rank_count()) {
            let key = (worker.hash, rank);
            if !self.ranks.contains_key(&key) && self.rank(worker, rank).is_some() {
                self.step(now, key, Input::Link(Link::Off));
            }
        }
    }

    /// Changes whenever what is known of a worker's ranks was forgotten for their source: whoever listens must begin anew, also where
    /// the declaration came back to what it was before anybody looked.
    pub(super) fn source_number(&self, worker: &Worker) -> u64 {
        let of_worker = self.ranks.range((worker.hash, 0)..=(worker.hash, u32::MAX));
        of_worker.map(|(_, rank)| rank.source_number).max().unwrap_or(0)
    }

    /// Whether a link is one that nobody asked for: a task that is about to end may still tell of its connection.
    pub(super) fn is_unasked(worker: &Worker, rank: u32, link: Link) -> bool {
        let listening = !matches!(link, Link::Pushed | Link::Off);
        has_rank(worker, rank) && listening && worker.spec.kv_events == KvEvents::Off
    }
}
