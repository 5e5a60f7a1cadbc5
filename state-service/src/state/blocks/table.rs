//! A map from 64-bit hashes to small numbers, in 12 bytes an entry: what the index has most of. Knows neither handles nor blocks.
//!
//! Open addressing with linear probing. A key's home is its share of the whole table, not its low bits, so growing is one pass from left
//! to right on both sides; removal moves followers back, so that churn leaves nothing behind.

/// The one value that cannot be stored.
pub(super) const VACANT: u32 = u32::MAX;
const ENTRIES_MIN: usize = 8;
/// Below this a table is not worth shrinking.
const SHRINK_MIN: usize = 64;

/// Low and high half of the key, and the value's complement: 12 bytes aligned to 4, all zero when vacant, as fresh memory is.
type Entry = [u32; 3];
const EMPTY: Entry = [0; 3];

const fn entry(key: u64, value: u32) -> Entry {
    [key as u32, (key >> 32) as u32, !value]
}

const fn key(entry: Entry) -> u64 {
    (entry[1] as u64) << 32 | entry[0] as u64
}

const fn value(entry: Entry) -> u32 {
    !entry[2]
}

const fn is_vacant(entry: Entry) -> bool {
    entry[2] == 0
}

/// Keys with a value each.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    len: usize,
}

impl Table {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    pub(super) fn get(&self, key: u64) -> Option<u32> {
        let found = self.probe(key).ok()?;
        self.entries.get(found).copied().map(value)
    }

    /// Stores `value`, which is not [`VACANT`]; gives back the one it replaces.
    pub(super) fn insert(&mut self, key: u64, number: u32) -> Option<u32> {
        if (self.len + 1) * 4 > self.entries.len() * 3 {
            self.rebuild((self.entries.len() * 2).max(ENTRIES_MIN));
        }
        let (Ok(found) | Err(found)) = self.probe(key);
        let before = std::mem::replace(self.entries.get_mut(found)?, entry(key, number));
        self.len += usize::from(is_vacant(before));
        (!is_vacant(before)).then_some(value(before))
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<u32> {
        let found = self.probe(key).ok()?;
        let number = value(*self.entries.get(found)?);
        self.close(found);
        self.len -= 1;
        if self.entries.len() > SHRINK_MIN && self.len * 5 < self.entries.len() {
            self.rebuild(self.len * 2 + ENTRIES_MIN);
        }
        Some(number)
    }

    /// All values, in the table's own order, which depends on nothing but the calls so far.
    pub(super) fn values(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter(|entry| !is_vacant(**entry)).map(|entry| value(*entry))
    }

    /// The entry of `key`, or the vacant one where it belongs. Ends, as some are vacant; an empty table has `Err(0)`.
    #[inline]
    fn probe(&self, key: u64) -> Result<usize, usize> {
        let mut at = home(key, self.entries.len());
        loop {
            match self.entries.get(at) {
                Some(entry) if is_vacant(*entry) => return Err(at),
                Some(entry) if self::key(*entry) == key => return Ok(at),
                Some(_) => at += 1,
                None if at == 0 => return Err(0),
                None => at = 0,
            }
        }
    }

    /// Vacates an entry and moves those back that were pushed past it.
    fn close(&mut self, mut hole: usize) {
        let count = self.entries.len();
        let after = |at: usize| if at + 1 == count { 0 } else { at + 1 };
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + count - from };
        let mut at = after(hole);
        while let Some(&entry) = self.entries.get(at).filter(|entry| !is_vacant(**entry)) {
            if distance(home(key(entry), count), at) >= distance(hole, at) {
                self.put(hole, entry);
                hole = at;
            }
            at = after(at);
        }
        self.put(hole, EMPTY);
    }

    fn put(&mut self, at: usize, entry: Entry) {
        if let Some(place) = self.entries.get_mut(at) {
            *place = entry;
        }
    }

    fn rebuild(&mut self, count: usize) {
        let old = std::mem::replace(&mut self.entries, vec![EMPTY; count]);
        for entry in old.into_iter().filter(|entry| !is_vacant(*entry)) {
            let mut at = home(key(entry), count);
            while self.entries.get(at).is_some_and(|taken| !is_vacant(*taken)) {
                at = if at + 1 == count { 0 } else { at + 1 };
            }
            self.put(at, entry);
        }
    }

    /// Reads where these keys begin, so that what is done with them next waits for memory once, not once for each.
    #[inline]
    pub(super) fn touch(&self, keys: impl Iterator<Item = u64>) {
        let entry = |key| self.entries.get(home(key, self.entries.len()));
        let read = keys.filter_map(entry).fold(0, |read, entry| read ^ entry[2]);
        std::hint::black_box(read);
    }
}

/// Where the probing for `key` begins: high bits of a product, so that counted keys spread too.
#[inline]
const fn home(key: u64, count: usize) -> usize {
    let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((spread as u128 * count as u128) >> 64) as usize
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
            // Few keys, then many: it grows, churns and shrinks. Low ones cluster.
            let span = if round / 10_000 % 2 == 0 { 300 } else { 20_000 };
            let key = draw(&mut state) % span;
            if draw(&mut state) % 3 == 0 {
                assert_eq!(table.remove(key), model.remove(&key));
            } else {
                assert_eq!(table.insert(key, round), model.insert(key, round));
            }
            assert_eq!(table.len(), model.len());
            assert_eq!(table.get(key), model.get(&key).copied());
        }
        for (key, value) in &model {
            assert_eq!(table.get(*key), Some(*value));
        }
        let mut values: Vec<_> = table.values().collect();
        values.sort_unstable();
        let mut expected: Vec<_> = model.values().copied().collect();
        expected.sort_unstable();
        assert_eq!(values, expected);
    }

    #[test]
    fn keys_that_share_a_home_are_kept_apart() {
        let mut table = Table::new();
        // Multiples of the inverse of the multiplier are spread to 0, 1, 2…: all begin at entry 0.
        let inverse = 0xF1DE_83E1_9937_733D_u64;
        assert_eq!(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(inverse), 1);
        let keys: Vec<u64> = (0..500u64).map(|n| n.wrapping_mul(inverse)).collect();
        for (value, key) in (0..).zip(&keys) {
            assert_eq!(table.insert(*key, value), None);
        }
        for (value, key) in (0u32..).zip(&keys).collect::<Vec<_>>().into_iter().rev() {
            assert_eq!((table.get(*key), table.remove(*key)), (Some(value), Some(value)));
        }
        assert_eq!((table.len(), table.get(0)), (0, None));
    }

    #[test]
    fn it_gives_memory_back() {
        let mut table = Table::new();
        (0..100_000).for_each(|key| drop(table.insert(key, 1)));
        let full = table.bytes();
        assert!(full <= 100_000 * 12 * 8 / 3, "at least three eighths are used: {full}");
        (0..99_000).for_each(|key| drop(table.remove(key)));
        assert!(table.bytes() < full / 20, "{} of {full}", table.bytes());
    }
}
