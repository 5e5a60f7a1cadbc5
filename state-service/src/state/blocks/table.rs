//! A map from 64-bit hashes to small numbers, in 12 bytes an entry and one of the table's own: what the index has most of. Knows neither
//! handles nor blocks.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;

/// The one value that cannot be stored: whoever packs values below it need not fear for the largest.
pub(super) const VACANT: u32 = u32::MAX;
/// Below this a table is not worth shrinking.
const SHRINK_MIN: usize = 64;

/// Low and high half of the key, and the value: 12 bytes aligned to 4.
type Entry = [u32; 3];

/// Keys with a value each.
#[derive(Debug, Default)]
pub(super) struct Table(HashTable<Entry>);

impl Table {
    pub(super) const fn new() -> Self {
        Self(HashTable::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }

    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        self.0.find(spread(key), |entry| self::key(entry) == key).map(|entry| entry[2])
    }

    /// Stores `value`; gives back the one it replaces.
    #[inline]
    pub(super) fn insert(&mut self, key: u64, value: u32) -> Option<u32> {
        match self.0.entry(spread(key), |entry| self::key(entry) == key, hash) {
            Slot::Occupied(mut entry) => Some(std::mem::replace(&mut entry.get_mut()[2], value)),
            Slot::Vacant(place) => {
                place.insert([key as u32, (key >> 32) as u32, value]);
                None
            }
        }
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<u32> {
        let found = self.0.find_entry(spread(key), |entry| self::key(entry) == key).ok()?;
        let (entry, _) = found.remove();
        if self.0.capacity() > SHRINK_MIN && self.0.len() < self.0.capacity() / 6 {
            self.0.shrink_to(self.0.len() * 2, hash);
        }
        Some(entry[2])
    }

    /// All values, in the table's own order, which depends on nothing but the calls so far.
    pub(super) fn values(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|entry| entry[2])
    }

    /// Entries in `max` buckets from one on, and the bucket to go on from. Good for as long as nothing is stored or removed.
    pub(super) fn from(&self, from: usize, max: usize) -> (Vec<(u64, u32)>, Option<usize>) {
        let (all, end) = (self.0.num_buckets(), from.saturating_add(max));
        let entries = (from..end.min(all)).filter_map(|bucket| self.0.get_bucket(bucket));
        (entries.map(|entry| (key(entry), entry[2])).collect(), (end < all).then_some(end))
    }

    /// Looks these keys up for nothing, so that what is done with them next waits for memory once, not once for each.
    #[inline]
    pub(super) fn touch(&self, keys: impl Iterator<Item = u64>) {
        std::hint::black_box(keys.filter(|key| self.get(*key).is_some()).count());
    }
}

#[inline]
const fn key(entry: &Entry) -> u64 {
    (entry[1] as u64) << 32 | entry[0] as u64
}

#[inline]
const fn hash(entry: &Entry) -> u64 {
    spread(key(entry))
}

/// Engines may count instead of hashing: high bits of a product depend on all of the key, and the table looks at both ends.
#[inline]
const fn spread(key: u64) -> u64 {
    key.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn draw(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn it_is_a_map() {
        let (mut table, mut model, mut state) = (Table::new(), BTreeMap::new(), 7);
        for round in 0..60_000u32 {
            // Few keys, then many: it grows, churns and shrinks.
            let span = if round / 10_000 % 2 == 0 { 300 } else { 20_000 };
            let key = draw(&mut state) % span;
            if draw(&mut state).is_multiple_of(3) {
                assert_eq!(table.remove(key), model.remove(&key));
            } else {
                assert_eq!(table.insert(key, round), model.insert(key, round));
            }
            assert_eq!((table.len(), table.get(key)), (model.len(), model.get(&key).copied()));
        }
        let mut values: Vec<_> = table.values().collect();
        values.sort_unstable();
        let mut expected: Vec<_> = model.values().copied().collect();
        expected.sort_unstable();
        assert_eq!(values, expected);
    }

    #[test]
    fn it_gives_memory_back() {
        let mut table = Table::new();
        (0..100_000).for_each(|key| assert_eq!(table.insert(key, 1), None));
        let full = table.bytes();
        assert!(full <= 100_000 * 13 * 16 / 7, "at least seven sixteenths are used: {full}");
        (0..99_000).for_each(|key| assert_eq!(table.remove(key), Some(1)));
        assert!(table.bytes() < full / 20, "{} of {full}", table.bytes());
    }
}
