//! JSON as Python reads it: members keep their order, of two with one name the last counts, at the place of the first.
//!
//! Owns the value, its way in (a whole text, or the head of one) and out. Knows no prompt. Depth is bounded by serde_json (128).
//! Not as Python: an integer beyond 64 bits becomes a float, and a float of more than 15 digits may be off by its last bit.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::HashMap;
use std::fmt;

/// Members up to which a name is looked for one by one.
const FEW_MEMBERS: usize = 16;

/// A JSON value whose objects keep their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

impl Json {
    /// Reads a whole text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Reads the head of a text: what is open at its end is closed there.
    pub(crate) fn parse_head(text: &str) -> Option<Self> {
        Self::parse(&closed(text)?)
    }

    /// A member that is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&Json> {
        let Self::Map(members) = self else { return None };
        members.iter().find(|(key, _)| key == name).map(|(_, value)| value).filter(|v| **v != Self::Null)
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn list(&self) -> Option<&[Json]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    pub(crate) fn is_map(&self) -> bool {
        matches!(self, Self::Map(_))
    }

    /// A member that is a text.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Self::text)
    }

    /// Whether a member is `true`.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.get(name) == Some(&Self::Bool(true))
    }

    pub(crate) fn object<const N: usize>(members: [(&str, Json); N]) -> Self {
        Self::Map(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    pub(crate) fn of(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::UInt(value), Json::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::of(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut members = Members::default();
        while let Some((name, value)) = entries.next_entry::<String, Json>()? {
            members.put(name, value);
        }
        Ok(Json::Map(members.list))
    }
}

/// Members as they come; an index of names once there are many, so that an object of thousands costs no more than its text.
#[derive(Default)]
struct Members {
    list: Vec<(String, Json)>,
    places: HashMap<String, usize>,
}

impl Members {
    fn put(&mut self, name: String, value: Json) {
        let place = match self.places.is_empty() {
            true => self.list.iter().position(|(known, _)| *known == name),
            false => self.places.get(&name).copied(),
        };
        match place.and_then(|place| self.list.get_mut(place)) {
            Some(known) => known.1 = value,
            None => self.push(name, value),
        }
    }

    fn push(&mut self, name: String, value: Json) {
        if self.list.len() == FEW_MEMBERS {
            self.places = self.list.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
        }
        if self.list.len() >= FEW_MEMBERS {
            self.places.insert(name.clone(), self.list.len());
        }
        self.list.push((name, value));
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::UInt(value) => serializer.serialize_u64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(list) => list.serialize(serializer),
            Self::Map(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

/// Where a cut text can be ended: behind everything before `at`, with `open` containers to close.
#[derive(Clone, Copy)]
struct Safe {
    at: usize,
    open: usize,
}

/// The head of a text made whole: a text value that is cut ends at the cut, anything else that is cut is left out. `None` when
/// there is not even an opened container.
fn closed(text: &str) -> Option<String> {
    let mut scan = Scan { stack: Vec::new(), safe: None, value_next: true };
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'"' => match string_end(bytes, at) {
                Some(end) => scan.string(end),
                None => return Some(scan.end_in_string(text, at)),
            },
            b'{' | b'[' => scan.open(*byte, at),
            b'}' | b']' => scan.close(at)?,
            b':' => scan.colon(at),
            b',' => scan.comma(at),
            b' ' | b'\t' | b'\n' | b'\r' => at + 1,
            _ => match bytes.iter().skip(at).position(|b| b",]} \t\r\n".contains(b)) {
                Some(length) => scan.value(at + length),
                None => break,
            },
        };
    }
    let safe = scan.safe?;
    Some(format!("{}{}", text.get(..safe.at)?, closers(&scan.stack, safe.open)))
}

struct Scan {
    /// What closes each open container.
    stack: Vec<char>,
    safe: Option<Safe>,
    /// Whether a string that starts here is a value, not a name.
    value_next: bool,
}

impl Scan {
    fn value(&mut self, end: usize) -> usize {
        self.safe = Some(Safe { at: end, open: self.stack.len() });
        end
    }

    fn string(&mut self, end: usize) -> usize {
        if self.value_next { self.value(end) } else { end }
    }

    fn open(&mut self, byte: u8, at: usize) -> usize {
        self.stack.push(if byte == b'{' { '}' } else { ']' });
        self.value_next = byte == b'[';
        self.value(at + 1)
    }

    fn close(&mut self, at: usize) -> Option<usize> {
        self.stack.pop()?;
        self.value_next = false;
        Some(self.value(at + 1))
    }

    fn colon(&mut self, at: usize) -> usize {
        self.value_next = true;
        at + 1
    }

    fn comma(&mut self, at: usize) -> usize {
        self.value_next = self.stack.last() == Some(&']');
        at + 1
    }

    /// The text ends within the string that starts at `from`.
    fn end_in_string(&self, text: &str, from: usize) -> String {
        if self.value_next {
            let inside = text.get(..whole_escapes(text, from)).unwrap_or_default();
            return format!("{inside}\"{}", closers(&self.stack, self.stack.len()));
        }
        let safe = self.safe.unwrap_or(Safe { at: 0, open: 0 });
        format!("{}{}", text.get(..safe.at).unwrap_or_default(), closers(&self.stack, safe.open))
    }
}

fn closers(stack: &[char], open: usize) -> String {
    stack.iter().take(open).rev().collect()
}

/// Just past the closing quote of the string that starts at `from`.
fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Where the last whole escape or character of an unclosed string ends. Half of a surrogate pair goes, too.
fn whole_escapes(text: &str, from: usize) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut pair_from) = (from + 1, None);
    while let Some(byte) = bytes.get(at) {
        let length = match (byte, bytes.get(at + 1)) {
            (b'\\', Some(b'u')) => 6,
            (b'\\', _) => 2,
            _ => 1,
        };
        if at + length > bytes.len() {
            break;
        }
        let high = length == 6
            && matches!(
                bytes.get(at + 2..at + 4),
                Some([b'd' | b'D', b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B'])
            );
        pair_from = if high { Some(at) } else { None };
        at += length;
    }
    pair_from.unwrap_or(at)
}
