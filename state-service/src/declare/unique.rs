//! JSON in which each field is given once. `serde_json` alone takes the last of several, and a typing error with it.
//!
//! Knows no fields: it finds what is given twice, and where.

use super::fields::Faults;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Reads a document; what is given twice becomes a fault, and the last of it the value.
///
/// # Errors
/// What is no JSON.
pub(super) fn parse(body: &[u8], faults: &mut Faults) -> serde_json::Result<Value> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = At { path: Path::Document, faults }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Where a value is. Written out only for a fault: a document may be deep and its names long.
#[derive(Clone, Copy)]
enum Path<'a> {
    Document,
    Field(&'a Path<'a>, &'a str),
    Entry(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document => Ok(()),
            Self::Field(Path::Document, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Entry(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

struct At<'p, 'f> {
    path: Path<'p>,
    faults: &'f mut Faults,
}

impl<'de> DeserializeSeed<'de> for At<'_, '_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = Path::Entry(&self.path, list.len());
            let Some(value) = entries.next_element_seed(At { path, faults: &mut *self.faults })? else {
                break;
            };
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = Path::Field(&self.path, &name);
            if map.contains_key(&name) && !self.faults.is_full() {
                self.faults.add(&path.to_string(), "is given twice".to_owned(), "each field once");
            }
            let value = fields.next_value_seed(At { path, faults: &mut *self.faults })?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn faults(text: &str) -> Vec<String> {
        let mut faults = Faults::default();
        parse(text.as_bytes(), &mut faults).unwrap();
        faults.list.into_iter().map(|fault| fault.path).collect()
    }

    #[test]
    fn what_is_given_twice_is_told_with_its_path() {
        assert_eq!(faults(r#"{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}"#), [""; 0]);
        assert_eq!(faults(r#"{"a":1,"a":1,"a":2}"#), ["a", "a"]);
        assert_eq!(faults(r#"{"a":[1,{"b":{"c":1,"d":2,"c":3}}],"\u0061":0}"#), ["a[1].b.c", "a"]);
        assert_eq!(faults(r#"[[{"x":1,"x":2}]]"#), ["[0][0].x"]);
    }

    #[test]
    fn many_faults_under_a_long_name_stay_cheap() {
        let twice = r#"{"x":1,"x":1},"#.repeat(20_000);
        let text = format!(r#"{{"{}":[{}1]}}"#, "n".repeat(200_000), twice);
        assert_eq!(faults(&text).len(), 64);
    }

    #[test]
    fn what_is_no_json_is_refused_as_before() {
        for text in ["", "{", "{} x", "[1,]", "nul", &"[".repeat(200)] {
            let ours = parse(text.as_bytes(), &mut Faults::default()).map_err(|e| e.to_string());
            assert_eq!(ours, serde_json::from_str::<Value>(text).map_err(|e| e.to_string()), "{text}");
            assert!(ours.is_err());
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::btree_map(".{0,4}", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn anything_else_reads_as_serde_json_reads_it(value in json()) {
            let (text, mut faults) = (value.to_string(), Faults::default());
            let theirs: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(parse(text.as_bytes(), &mut faults).unwrap(), theirs);
            prop_assert!(faults.list.is_empty());
        }
    }
}
