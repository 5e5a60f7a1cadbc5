//! One JSON document, read field by field after the table in `fields`. Collects faults; knows no field by name.

use super::ConfigErrors;
use super::fields::{Field, HEADER_RULE, Kind, fields};
use crate::session::Source;
use serde_json::{Map, Value};

/// Largest config text read, in bytes.
const CONFIG_BYTES_MAX: usize = 1 << 20;
/// Longest text of the document that a fault repeats, in bytes.
const SHOWN_BYTES_MAX: usize = 80;

/// A document and its faults so far. A field that is wrong reads as its default.
pub(super) struct Document {
    root: Map<String, Value>,
    errors: ConfigErrors,
}

impl Document {
    /// Reads the text; an empty one is an empty object. Unknown names are faults.
    pub(super) fn new(text: &[u8]) -> Self {
        let mut errors = ConfigErrors::default();
        let root = object(text, &mut errors);
        let mut document = Self { root, errors };
        document.check_names("", &document.root.clone());
        for group in children("") {
            match document.root.get(group).cloned() {
                _ if children(group).is_empty() => {}
                None => {}
                Some(Value::Object(inside)) => document.check_names(group, &inside),
                Some(_) => document.errors.add(group, "is not an object", "a JSON object"),
            }
        }
        document
    }

    /// The result, if there was no fault.
    pub(super) fn finish<T>(self, result: T) -> Result<T, ConfigErrors> {
        if self.errors.0.is_empty() { Ok(result) } else { Err(self.errors) }
    }

    pub(super) fn fault(&mut self, field: &Field, problem: &str, allowed: &str) {
        self.errors.add(field.path, problem, allowed);
    }

    pub(super) fn integer(&mut self, field: &Field) -> u64 {
        let Kind::Integer { default, min, max, .. } = field.kind else { return 0 };
        let Some(value) = self.value(field) else { return default };
        match value.as_u64() {
            Some(number) if (min..=max).contains(&number) => number,
            _ => self.refused(field, &value, default),
        }
    }

    pub(super) fn flag(&mut self, field: &Field) -> bool {
        match self.value(field) {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(value) => self.refused(field, &value, false),
        }
    }

    /// What the field's word stands for; `meanings` in the order of its words.
    pub(super) fn word<T: Copy>(&mut self, field: &Field, meanings: [T; 2]) -> T {
        let [default, other] = meanings;
        let (Kind::Word(words), Some(value)) = (field.kind, self.value(field)) else { return default };
        match words.iter().position(|word| value.as_str() == Some(word)) {
            Some(0) => default,
            Some(_) => other,
            None => self.refused(field, &value, default),
        }
    }

    /// Its value is not repeated in a fault: it may be a secret.
    pub(super) fn text(&mut self, field: &Field) -> String {
        let Kind::Text { default, bytes_max, .. } = field.kind else { return String::new() };
        match self.value(field) {
            None => default.to_owned(),
            Some(Value::String(text)) if text.len() <= bytes_max => text,
            Some(_) => {
                self.fault(field, "is not a text, or too long", &field.allowed());
                default.to_owned()
            }
        }
    }

    /// A text of the field's forms; empty when left out.
    pub(super) fn form(&mut self, field: &Field) -> String {
        match self.value(field) {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(value) => self.refused(field, &value, String::new()),
        }
    }

    pub(super) fn header(&mut self, field: &Field) -> String {
        let Kind::Header { default } = field.kind else { return String::new() };
        let Some(value) = self.value(field) else { return default.to_owned() };
        match value.as_str().and_then(header_name) {
            Some(name) => name,
            None => self.refused(field, &value, default.to_owned()),
        }
    }

    pub(super) fn headers(&mut self, field: &Field) -> Vec<String> {
        let Kind::Headers { default, max } = field.kind else { return Vec::new() };
        match self.list(field, max) {
            None => default.iter().map(|name| (*name).to_owned()).collect(),
            Some(list) => {
                self.each(field, &list, HEADER_RULE, |text| header_name(text).ok_or("is no header name"))
            }
        }
    }

    pub(super) fn sources(
        &mut self,
        field: &Field,
        parse: fn(&str) -> Result<Source, &'static str>,
    ) -> Option<Vec<Source>> {
        let Kind::Sources { forms, max } = field.kind else { return None };
        let list = self.list(field, max)?;
        Some(self.each(field, &list, forms, parse))
    }

    fn list(&mut self, field: &Field, max: usize) -> Option<Vec<Value>> {
        match self.value(field)? {
            Value::Array(list) if list.len() <= max => Some(list),
            _ => {
                self.fault(field, "is not a list, or too long", &field.allowed());
                None
            }
        }
    }

    fn each<T>(
        &mut self,
        field: &Field,
        list: &[Value],
        allowed: &str,
        parse: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Vec<T> {
        let mut parsed = Vec::with_capacity(list.len());
        for (index, value) in list.iter().enumerate() {
            match parse(value.as_str().unwrap_or_default()) {
                Ok(one) => parsed.push(one),
                Err(problem) => self.errors.add(
                    format!("{}[{index}]", field.path),
                    format!("is {}: {problem}", shown(value)),
                    allowed,
                ),
            }
        }
        parsed
    }

    fn refused<T>(&mut self, field: &Field, value: &Value, default: T) -> T {
        self.errors.add(field.path, format!("is {}", shown(value)), field.allowed());
        default
    }

    fn value(&self, field: &Field) -> Option<Value> {
        match field.parent() {
            "" => self.root.get(field.name()).cloned(),
            parent => self.root.get(parent)?.get(field.name()).cloned(),
        }
    }

    fn check_names(&mut self, group: &str, object: &Map<String, Value>) {
        let known = children(group);
        for name in object.keys().filter(|name| !known.contains(&name.as_str())) {
            let name = short(name);
            let path = if group.is_empty() { name } else { format!("{group}.{name}") };
            self.errors.add(path, "is not a known field", known.join(", "));
        }
    }
}

/// Names of the fields and objects inside an object of the config.
fn children(group: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for field in fields() {
        let name = match (group, field.path.split_once('.')) {
            ("", Some((parent, _))) => parent,
            ("", None) => field.path,
            (_, Some((parent, name))) if parent == group => name,
            _ => continue,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn object(text: &[u8], errors: &mut ConfigErrors) -> Map<String, Value> {
    if text.len() > CONFIG_BYTES_MAX {
        errors.add("$", format!("is {} bytes long", text.len()), format!("at most {CONFIG_BYTES_MAX} bytes"));
        return Map::new();
    }
    if text.iter().all(u8::is_ascii_whitespace) {
        return Map::new();
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => return object,
        Ok(_) => errors.add("$", "is not a JSON object", "a JSON object"),
        Err(error) => errors.add("$", format!("is not JSON: {error}"), "a JSON object"),
    }
    Map::new()
}

/// A header's name as requests show it: lower-case.
pub(super) fn header_name(text: &str) -> Option<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (!text.is_empty() && text.len() <= 255 && text.bytes().all(plain)).then(|| text.to_ascii_lowercase())
}

/// A value as a fault shows it.
pub(super) fn shown(value: &Value) -> String {
    short(&value.to_string())
}

pub(super) fn short(text: &str) -> String {
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    format!("{}…", text.get(..end).unwrap_or_default())
}
