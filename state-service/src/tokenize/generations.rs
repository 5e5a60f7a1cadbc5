//! A map with a bound in bytes: two generations, the older one goes when the younger has half of the room.
//!
//! What was asked for in a generation lives on in the next. Knows no clock and nothing of what it keeps.

use std::collections::HashMap;
use std::hash::Hash;

/// Bytes that an entry takes in the map beside its own.
const ENTRY_BYTES: usize = 96;

struct Entry<V> {
    value: V,
    bytes: usize,
}

/// Holds at most `bytes_max`, and what one [`Generations::put`] adds.
pub(crate) struct Generations<K, V> {
    young: HashMap<K, Entry<V>>,
    old: HashMap<K, Entry<V>>,
    young_bytes: usize,
    old_bytes: usize,
    bytes_max: usize,
}

impl<K: Eq + Hash + Copy, V: Clone> Generations<K, V> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_bytes: 0, old_bytes: 0, bytes_max }
    }

    /// Without letting it live longer.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key)).map(|entry| &entry.value)
    }

    /// Puts it into the younger generation; a known key keeps its value. Says whether it was not there.
    pub(crate) fn keep(&mut self, key: K, value: &V, bytes: usize) -> bool {
        if self.young.contains_key(&key) {
            return false;
        }
        let entry = match self.old.remove(&key) {
            Some(entry) => {
                self.old_bytes = self.old_bytes.saturating_sub(entry.bytes);
                entry
            }
            None => Entry { value: value.clone(), bytes: bytes + ENTRY_BYTES },
        };
        self.young_bytes += entry.bytes;
        self.young.insert(key, entry);
        true
    }

    /// Lets the older generation go, if the younger one has filled its half.
    pub(crate) fn turn(&mut self) {
        if self.young_bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.young_bytes + self.old_bytes
    }
}
