//! Owners, each with when something happened to it, for a few seconds. Knows neither what nor why.

use super::bookings::Owner;
use routing::time::{Millis, Timestamp};
use std::collections::{BTreeMap, VecDeque};

/// Most owners. Past it the oldest is forgotten.
const OWNERS_MAX: usize = 16_384;
/// How long they are remembered: no route takes longer.
const TTL: Millis = Millis::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Recent {
    at: BTreeMap<Owner, Timestamp>,
    order: VecDeque<(Timestamp, Owner)>,
}

impl Recent {
    pub(super) fn note(&mut self, now: Timestamp, owner: Owner) {
        let old = |(at, _): &(Timestamp, Owner)| now.since(*at) > TTL;
        while self.order.len() >= OWNERS_MAX || self.order.front().is_some_and(old) {
            let Some((at, owner)) = self.order.pop_front() else { break };
            if self.at.get(&owner) == Some(&at) {
                self.at.remove(&owner);
            }
        }
        self.at.insert(owner, now);
        self.order.push_back((now, owner));
    }

    pub(super) fn has(&self, now: Timestamp, owner: Owner) -> bool {
        self.at.get(&owner).is_some_and(|at| now.since(*at) <= TTL)
    }

    /// Forgets it, too.
    pub(super) fn take(&mut self, now: Timestamp, owner: Owner) -> bool {
        self.at.remove(&owner).is_some_and(|at| now.since(at) <= TTL)
    }
}
