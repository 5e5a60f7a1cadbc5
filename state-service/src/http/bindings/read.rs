//! Body of `POST /v1/bindings/apply`: bounded before anything is kept. A fault of the body refuses it; a fault of one binding refuses
//! that one. Pure: JSON in, bindings or reasons out.

use super::super::problem::Fault;
use crate::declare::{self, Faults, Fields, NAME_ALLOWED};
use crate::state::Binding;
use routing::contract::{SessionRef, Target};
use routing::id::{Rank, RankHash, SessionId, Version, WorkerId};
use routing::time::Millis;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::value::{RawValue, Value};
use std::fmt;
use std::ops::RangeInclusive;

/// Most bindings of one body.
pub(super) const BINDINGS_MAX: usize = 4096;
/// Largest JSON text of one binding.
const BINDING_BYTES_MAX: usize = 2048;
/// Longest life of a binding: a year.
const EXPIRES_MS_MAX: u64 = 31_536_000_000;
/// Versions beyond it were given by nobody.
const SEQ_MAX: u64 = 1 << 62;

/// A binding, or why it is none.
pub(super) type Told = Result<Binding, String>;

/// A body whose bindings are not read yet.
pub(super) struct Asked<'a> {
    pub(super) host: String,
    pub(super) bindings: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    writer: &'a RawValue,
    #[serde(borrow)]
    bindings: &'a RawValue,
}

/// Reads the frame of a body.
pub(super) fn body(bytes: &[u8]) -> Result<Asked<'_>, Fault> {
    let Body { writer, bindings } = serde_json::from_slice(bytes).map_err(|error| fault("", &error))?;
    let host = serde_json::from_str(writer.get()).map_err(|error| fault("writer", &error))?;
    let Bounded(bindings) =
        serde_json::from_str(bindings.get()).map_err(|error| fault("bindings", &error))?;
    Ok(Asked { host, bindings })
}

fn fault(path: &str, error: &serde_json::Error) -> Fault {
    let problem = match error.classify() {
        serde_json::error::Category::Data => without_place(&error.to_string()),
        _ => format!("is not JSON: line {}, column {}", error.line(), error.column()),
    };
    let allowed = match path {
        "bindings" => format!("a list of at most {BINDINGS_MAX} bindings"),
        "writer" => "a string".to_owned(),
        _ => r#"{"writer": …, "bindings": […]}"#.to_owned(),
    };
    Fault { path: path.to_owned(), problem, allowed }
}

/// Line and column of a part mean nothing to its sender.
fn without_place(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(what, _)| what).to_owned()
}

/// A list of which no more is kept than may be.
struct Bounded<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Bounded<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Bounded<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bounded<'de>, A::Error> {
                let mut kept = Vec::new();
                while let Some(one) = list.next_element()? {
                    if kept.len() == BINDINGS_MAX {
                        return Err(de::Error::custom("has too many entries"));
                    }
                    kept.push(one);
                }
                Ok(Bounded(kept))
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

/// Reads one binding; `writer` gave its version unless it says who did.
pub(super) fn binding(text: &RawValue, writer: u64) -> Told {
    let text = text.get();
    if text.len() > BINDING_BYTES_MAX {
        return Err(format!("{} bytes long (allowed: at most {BINDING_BYTES_MAX})", text.len()));
    }
    let mut faults = Faults::default();
    let value = declare::document(text.as_bytes(), &mut faults);
    let binding = value.and_then(|value| parts(&value, writer, &mut faults));
    faults.or(binding).map_err(|faults| faults.to_string().replace('\n', "; "))
}

fn parts(value: &Value, writer: u64, faults: &mut Faults) -> Option<Binding> {
    let mut fields = Fields::open("", value, faults)?;
    let id = fields.required(faults, "id", "32 hex digits, as `rankpin hash KEY` prints them", |text| {
        SessionId::from_hex(text).ok_or("is no session id")
    });
    let rank_hash = number(&mut fields, faults, "rank_hash", 0..=u64::MAX);
    let version = version(&mut fields, writer, faults);
    let target = fields.take("target").map(|value| target(value, faults));
    let expires_in_ms = number(&mut fields, faults, "expires_in_ms", 1..=EXPIRES_MS_MAX);
    let generation = optional(&mut fields, faults, "generation", 0..=u64::MAX).unwrap_or(0);
    fields.close(faults);
    // A target that could not be read is a fault: it must not become a release.
    let target = target.map_or(Some(None), |target| target.map(Some))?;
    let session = SessionRef { id: id?, rank_hash: RankHash(rank_hash?) };
    Some(Binding { session, version: version?, target, expires_in_ms: Millis(expires_in_ms?), generation })
}

fn version(fields: &mut Fields<'_>, writer: u64, faults: &mut Faults) -> Option<Version> {
    let Some(value) = fields.take("version") else {
        faults.add("version", "is missing".to_owned(), r#"{"seq": …, "writer": …}"#);
        return None;
    };
    let mut parts = Fields::open("version", value, faults)?;
    let seq = number(&mut parts, faults, "seq", 1..=SEQ_MAX);
    let writer = optional(&mut parts, faults, "writer", 0..=u64::MAX).unwrap_or(writer);
    parts.close(faults);
    Some(Version { seq: seq?, writer })
}

fn target(value: &Value, faults: &mut Faults) -> Option<Target> {
    let mut parts = Fields::open("target", value, faults)?;
    let worker = parts.required(faults, "worker", NAME_ALLOWED, WorkerId::parse);
    let rank = parts.optional_number(faults, "rank", 0..=u32::MAX - 1).map(Rank);
    parts.close(faults);
    Some(Target { worker: worker?, rank })
}

fn number(
    fields: &mut Fields<'_>,
    faults: &mut Faults,
    name: &'static str,
    range: RangeInclusive<u64>,
) -> Option<u64> {
    if !fields.has(name) {
        faults.add(&fields.at(name), "is missing".to_owned(), &within(&range));
    }
    optional(fields, faults, name, range)
}

fn optional(
    fields: &mut Fields<'_>,
    faults: &mut Faults,
    name: &'static str,
    range: RangeInclusive<u64>,
) -> Option<u64> {
    let value = fields.take(name)?;
    let number = value.as_u64().filter(|number| range.contains(number));
    if number.is_none() {
        let shown: String = value.to_string().chars().take(40).collect();
        faults.add(&fields.at(name), format!("{shown} is not"), &within(&range));
    }
    number
}

fn within(range: &RangeInclusive<u64>) -> String {
    format!("a whole number in {}..={}", range.start(), range.end())
}
