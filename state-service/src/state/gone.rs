//! Workers that are not declared here, any more or yet, and at which sessions are bound: what they are called.
//!
//! Owns how many names are kept, which goes when there is no room, and whether a declaration is over. A record has a worker's hash
//! alone; whoever is told of one needs its name. Knows no session.

use super::limits::GONE_MAX;
use routing::hash::worker_hash;
use routing::id::WorkerId;
use std::collections::BTreeMap;

/// A worker's name, and which declaration of it was the last one here; 0: none, or it had no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) id: WorkerId,
    pub(super) generation: u64,
    number: u64,
}

/// Names by hash; past the limit the one kept for longest goes, and its sessions are not told of before they move.
#[derive(Debug, Default)]
pub(super) struct Gone {
    names: BTreeMap<u64, Name>,
    by_age: BTreeMap<u64, u64>,
    next: u64,
    /// Every declaration up to this number was told: what is not declared here is over.
    told_up_to: u64,
}

impl Gone {
    pub(super) fn by_hash(&self, hash: u64) -> Option<&Name> {
        self.names.get(&hash)
    }

    /// A worker was removed, or a session was bound to one that is not declared here.
    pub(super) fn remember(&mut self, id: &WorkerId, generation: u64) {
        let hash = worker_hash(id);
        let known = self.forget(hash);
        let generation = known.map_or(generation, |known| known.generation.max(generation));
        if self.names.len() >= GONE_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.names.remove(&oldest);
        }
        self.next += 1;
        self.by_age.insert(self.next, hash);
        self.names.insert(hash, Name { id: id.clone(), generation, number: self.next });
    }

    /// It is declared.
    pub(super) fn forget(&mut self, hash: u64) -> Option<Name> {
        let known = self.names.remove(&hash)?;
        self.by_age.remove(&known.number);
        Some(known)
    }

    /// Every declaration up to this number was told.
    pub(super) fn all_told(&mut self, up_to: u64) {
        self.told_up_to = self.told_up_to.max(up_to);
    }

    /// Whether a declaration of a worker that is not declared here was there and is over; without a number nobody can say.
    pub(super) fn is_over(&self, hash: u64, generation: u64) -> bool {
        let last = self.by_hash(hash).map_or(0, |name| name.generation);
        generation > 0 && generation <= last.max(self.told_up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_kept_for_longest_goes_first() {
        let id = |n: usize| WorkerId::parse(&format!("w{n}")).unwrap();
        let mut gone = Gone::default();
        (0..GONE_MAX).for_each(|n| gone.remember(&id(n), 1));
        // Kept anew, and what is known of its declarations stays.
        gone.remember(&id(0), 0);
        gone.remember(&id(GONE_MAX), 0);
        let knows = |n: usize| gone.by_hash(worker_hash(&id(n))).map(|name| name.generation);
        assert_eq!((knows(0), knows(1), knows(2), knows(GONE_MAX)), (Some(1), None, Some(1), Some(0)));
        assert_eq!((gone.names.len(), gone.by_age.len()), (GONE_MAX, GONE_MAX));
    }
}
