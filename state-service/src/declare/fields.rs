//! Reading JSON objects field by field, keeping every fault with its path instead of stopping at the first.
//!
//! Owns [`Fault`], [`Faults`] and the reader. Knows nothing of what the fields mean.

use routing::config::{Field, Kind};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

/// Most faults kept of one document; one more line says that there were others.
const FAULTS_MAX: usize = 64;
/// Characters shown of an offending text.
const SHOWN_MAX: usize = 80;

/// One thing wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, as `endpoints[0].dp_size`; empty for the document itself.
    pub path: String,
    /// What is wrong, with the offending value.
    pub problem: String,
    /// What would be right; says nothing that `problem` says.
    pub allowed: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "(document)" } else { &self.path };
        write!(f, "{path}: {} (allowed: {})", self.problem, self.allowed)
    }
}

/// Everything wrong with a document, in the order of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The faults, at most [`FAULTS_MAX`].
    pub list: Vec<Fault>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

impl Faults {
    pub(crate) fn add(&mut self, path: &str, problem: String, allowed: &str) {
        if !self.is_full() {
            self.list.push(Fault { path: path.to_owned(), problem, allowed: allowed.to_owned() });
        }
    }

    /// Whether more are not kept.
    pub(super) const fn is_full(&self) -> bool {
        self.list.len() >= FAULTS_MAX
    }

    /// The value, when nothing was wrong. A value that is missing without a fault is a fault of its own.
    pub(crate) fn or<T>(mut self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.list.is_empty() => Ok(value),
            _ => {
                if self.list.is_empty() {
                    self.add("", "could not be read".to_owned(), "a JSON object");
                }
                Err(self)
            }
        }
    }
}

/// The document as JSON, in which each field is given once.
pub(crate) fn document(body: &[u8], faults: &mut Faults) -> Option<Value> {
    super::unique::parse(body, faults)
        .map_err(|e| faults.add("", format!("is not JSON: {e}"), "a JSON object"))
        .ok()
}

/// One object being read. Every field asked for is known; [`Fields::close`] refuses the rest.
pub(crate) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(crate) fn open(path: &str, value: &'a Value, faults: &mut Faults) -> Option<Self> {
        let Value::Object(map) = value else {
            faults.add(path, is_a(value), "a JSON object");
            return None;
        };
        Some(Self { path: path.to_owned(), map, known: Vec::new() })
    }

    /// Path of a field.
    pub(crate) fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether the field is given; `null` counts as absent.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// The field's value; `null` counts as absent.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name).filter(|v| !v.is_null())
    }

    pub(crate) fn text(&mut self, faults: &mut Faults, name: &'static str) -> Option<&'a str> {
        let value = self.take(name)?;
        let text = value.as_str();
        if text.is_none() {
            faults.add(&self.at(name), is_a(value), "a string");
        }
        text
    }

    pub(crate) fn short_text(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        max: usize,
    ) -> Option<String> {
        let text = self.text(faults, name)?;
        check_length(&self.at(name), text, max, faults).then(|| text.to_owned())
    }

    pub(crate) fn parsed<T, E: fmt::Display>(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        allowed: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(faults, name)?;
        parse(text).map_err(|e| faults.add(&self.at(name), format!("{} {e}", shown(text)), allowed)).ok()
    }

    pub(crate) fn required<T, E: fmt::Display>(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        allowed: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        if self.map.get(name).is_none_or(Value::is_null) {
            faults.add(&self.at(name), "is missing".to_owned(), allowed);
        }
        self.parsed(faults, name, allowed, parse)
    }

    /// A number as its field is declared.
    pub(crate) fn integer(&mut self, faults: &mut Faults, field: &Field) -> u32 {
        let (default, min, max) = match field.kind {
            Kind::Integer { default, min, max, .. } => (default, min, max),
            _ => (0, 0, u64::from(u32::MAX)),
        };
        let [default, min, max] = [default, min, max].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        self.optional_number(faults, field.name(), min..=max).unwrap_or(default)
    }

    pub(crate) fn optional_number(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        range: RangeInclusive<u32>,
    ) -> Option<u32> {
        let value = self.take(name)?;
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| range.contains(n));
        if number.is_none() {
            let quotes = if value.is_string() { ", without quotes" } else { "" };
            let allowed = format!("a whole number in {}..={}{quotes}", range.start(), range.end());
            faults.add(&self.at(name), no_number(value), &allowed);
        }
        number
    }

    /// One of the words of a field; the first is the default.
    pub(crate) fn word<T: Copy + Default, const N: usize>(
        &mut self,
        faults: &mut Faults,
        field: &Field,
        words: &[(&str, T); N],
    ) -> T {
        let default = words.first().map_or_else(T::default, |(_, value)| *value);
        self.choice_or(faults, field.name(), words, default)
    }

    pub(crate) fn choice_or<T: Copy>(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        words: &[(&str, T)],
        default: T,
    ) -> T {
        let Some(value) = self.take(name) else { return default };
        let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
        found.map_or_else(
            || {
                let allowed = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
                let problem = value
                    .as_str()
                    .map_or_else(|| is_a(value), |word| format!("{} is not known", shown(word)));
                faults.add(&self.at(name), problem, &allowed);
                default
            },
            |(_, word)| *word,
        )
    }

    pub(crate) fn list(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        min: usize,
        max: usize,
    ) -> &'a [Value] {
        let values = match self.take(name) {
            None => &[],
            Some(Value::Array(values)) => values.as_slice(),
            Some(other) => {
                faults.add(&self.at(name), is_a(other), "a list");
                return &[];
            }
        };
        if values.len() < min || values.len() > max {
            let allowed = format!("{min}..={max} entries");
            faults.add(&self.at(name), format!("has {} entries", values.len()), &allowed);
        }
        values.get(..max).unwrap_or(values)
    }

    pub(crate) fn texts(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        max: usize,
        bytes_max: usize,
    ) -> Vec<String> {
        let at = self.at(name);
        let mut texts = Vec::new();
        for (i, value) in self.list(faults, name, 0, max).iter().enumerate() {
            let path = format!("{at}[{i}]");
            match value.as_str() {
                Some(text) if check_length(&path, text, bytes_max, faults) => texts.push(text.to_owned()),
                Some(_) => {}
                None => faults.add(&path, is_a(value), "a string"),
            }
        }
        texts
    }

    pub(crate) fn labels(
        &mut self,
        faults: &mut Faults,
        name: &'static str,
        max: usize,
        bytes_max: usize,
    ) -> BTreeMap<String, String> {
        let at = self.at(name);
        let Some(value) = self.take(name) else { return BTreeMap::new() };
        let Some(inner) = Fields::open(&at, value, faults) else { return BTreeMap::new() };
        if inner.map.len() > max {
            faults.add(&at, format!("has {} entries", inner.map.len()), &format!("0..={max} entries"));
        }
        let mut labels = BTreeMap::new();
        for (key, value) in inner.map.iter().take(max) {
            let path = inner.at(key);
            match value.as_str() {
                Some(text) if check_length(&path, text, bytes_max, faults) => {
                    labels.insert(key.clone(), text.to_owned());
                }
                Some(_) => {}
                None => faults.add(&path, is_a(value), "a string"),
            }
        }
        labels
    }

    /// Refuses every field that nobody asked for.
    pub(crate) fn close(self, faults: &mut Faults) {
        for name in self.map.keys().filter(|name| !self.known.contains(&name.as_str())) {
            faults.add(&self.at(name), "unknown field".to_owned(), &self.known.join(", "));
        }
    }
}

fn check_length(path: &str, text: &str, max: usize, faults: &mut Faults) -> bool {
    let good = (1..=max).contains(&text.len());
    if !good {
        faults.add(path, format!("is {} bytes long", text.len()), &format!("1..={max} bytes"));
    }
    good
}

/// What is wrong with a value that is no number in its range.
fn no_number(value: &Value) -> String {
    match value {
        Value::Number(n) if n.is_f64() => format!("{n} is not whole"),
        Value::Number(n) => format!("{n} is out of range"),
        other => is_a(other),
    }
}

/// `is a list`: the type alone, for a value of the wrong one; of a string also its beginning.
fn is_a(value: &Value) -> String {
    match value {
        Value::Null => "is null".to_owned(),
        Value::Bool(_) => "is a boolean".to_owned(),
        Value::Number(_) => "is a number".to_owned(),
        Value::String(text) => format!("{} is a string", shown(text)),
        Value::Array(_) => "is a list".to_owned(),
        Value::Object(_) => "is an object".to_owned(),
    }
}

/// An offending text in quotes, at most [`SHOWN_MAX`] characters of it.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX).and_then(|(end, _)| text.get(..end)) {
        Some(beginning) => format!("{beginning:?}…"),
        None => format!("{text:?}"),
    }
}
