//! An engine's names for the blocks it keeps in one tier. A name may be announced several times, once for each copy the engine made of
//! the block, and is known until as many removals came. Does not know what a block is.

use super::super::kv_event::EngineHash;
use super::segments::Place;
use super::table::Table;
use std::collections::BTreeMap;

/// Copies of a handle beyond the first that are counted. Past it removals come too early here, which costs warmth only.
const COPIES_MAX: u16 = u16::MAX;

/// Handles with the place of their block.
#[derive(Debug, Default)]
pub(super) struct Handles {
    pub(super) places: Table,
    /// Copies beyond the first. Few blocks have any.
    pub(super) copies: BTreeMap<u64, u16>,
}

/// What announcing a handle meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    New,
    Again,
    /// Again, but the copy was one too many to count.
    Uncounted,
    /// It stood for the block there before, with all its copies.
    Moved(Place),
}

/// What removing a handle meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgotten {
    Unknown,
    /// Other copies stay.
    Copy,
    /// It was the last copy of the block there.
    Last(Place),
}

impl Handles {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.bytes() + self.copies.len() * size_of::<(u64, u16)>()
    }

    pub(super) fn get(&self, hash: EngineHash) -> Option<Place> {
        self.places.get(hash.0).map(Place::from_bits)
    }

    pub(super) fn announce(&mut self, hash: EngineHash, place: Place) -> Announced {
        match self.places.insert(hash.0, place.bits()).map(Place::from_bits) {
            None => Announced::New,
            Some(before) if before == place => self.copy(hash),
            Some(before) => {
                self.copies.remove(&hash.0);
                Announced::Moved(before)
            }
        }
    }

    fn copy(&mut self, hash: EngineHash) -> Announced {
        let copies = self.copies.entry(hash.0).or_default();
        if *copies == COPIES_MAX {
            return Announced::Uncounted;
        }
        *copies += 1;
        Announced::Again
    }

    pub(super) fn forget(&mut self, hash: EngineHash) -> Forgotten {
        if !self.copies.is_empty()
            && let Some(copies) = self.copies.get_mut(&hash.0)
        {
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(&hash.0);
            }
            return Forgotten::Copy;
        }
        self.places
            .remove(hash.0)
            .map_or(Forgotten::Unknown, |place| Forgotten::Last(Place::from_bits(place)))
    }

    /// To be called before a run of calls for these.
    pub(super) fn touch(&self, hashes: &[EngineHash]) {
        self.places.touch(hashes.iter().map(|hash| hash.0));
    }

    /// The places of all handles, some of them twice.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.places.values().map(Place::from_bits)
    }
}
