//! What Python prints of a body's tools and calls into a prompt: every object in the order it came, as `json.dumps` of what vLLM's
//! models make of them. Written from vLLM's own output; shares no code with who has to print the same.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// JSON whose objects keep their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ordered {
    /// Also where there is nothing.
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

impl Ordered {
    /// A body, or nothing of one that is no JSON.
    pub(crate) fn of(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or(Self::Null)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(members) = self else { return None };
        // Of a name given twice Python keeps the last.
        members
            .iter()
            .rev()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value)
            .filter(|v| **v != Self::Null)
    }

    pub(crate) fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    fn member(&self, name: &str) -> (String, Self) {
        (name.to_owned(), self.get(name).cloned().unwrap_or(Self::Null))
    }

    /// The member put in place of what stood there.
    fn with(&self, name: &str, value: Self) -> Self {
        let Self::Map(members) = self else { return self.clone() };
        let mut members = members.clone();
        match members.iter_mut().find(|(own, _)| own == name) {
            Some((_, old)) => *old = value,
            None => members.push((name.to_owned(), value)),
        }
        Self::Map(members)
    }
}

/// The tools of a chat body; none where there are none.
pub(crate) fn tools(body: &Ordered) -> Option<String> {
    let tools = body.get("tools")?.list();
    (!tools.is_empty()).then(|| Ordered::List(tools.iter().map(tool).collect()).to_string())
}

/// The calls of the message at this place; none where there are none.
pub(crate) fn calls(body: &Ordered, message: usize) -> Option<String> {
    let calls = body.get("messages")?.list().get(message)?.get("tool_calls")?.list();
    (!calls.is_empty()).then(|| Ordered::List(calls.iter().map(call).collect()).to_string())
}

/// The three fields of a function that the model knows first, there or not, and then the others.
fn tool(given: &Ordered) -> Ordered {
    let Some(function) = given.get("function") else { return given.clone() };
    let known = ["name", "description", "parameters"];
    let mut members = known.map(|name| function.member(name)).to_vec();
    if let Ordered::Map(all) = function {
        members.extend(all.iter().filter(|(name, _)| !known.contains(&name.as_str())).cloned());
    }
    let kind = ("type".to_owned(), Ordered::Text("function".to_owned()));
    Ordered::Map(vec![kind, ("function".to_owned(), Ordered::Map(members))])
}

/// Arguments are an object, from the text that clients send.
fn call(given: &Ordered) -> Ordered {
    let Some(function) = given.get("function") else { return given.clone() };
    let arguments = match function.get("arguments") {
        Some(Ordered::Text(text)) => match Ordered::of(text.as_bytes()) {
            Ordered::Null => Ordered::Map(Vec::new()),
            value => value,
        },
        Some(value) => value.clone(),
        None => Ordered::Map(Vec::new()),
    };
    given.with("function", function.with("arguments", arguments))
}

/// As `json.dumps(…, ensure_ascii=False)`.
impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Self::Map(members) => {
                let members: Vec<String> =
                    members.iter().map(|(name, value)| format!("{}: {value}", quoted(name))).collect();
                write!(f, "{{{}}}", members.join(", "))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Ordered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Ordered, E> {
        Ok(Ordered::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Ordered, E> {
        Ok(Ordered::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Ordered, E> {
        Ok(Ordered::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Ordered, E> {
        Ok(Ordered::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Ordered, E> {
        Ok(serde_json::Number::from_f64(value).map_or(Ordered::Null, Ordered::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Ordered, E> {
        Ok(Ordered::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Ordered, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Ordered::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Ordered, A::Error> {
        let mut map = Vec::new();
        while let Some(member) = members.next_entry()? {
            map.push(member);
        }
        Ok(Ordered::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_printed_as_vllm_does() {
        let body = Ordered::of(
            "{\"tools\": [{\"function\": {\"strict\": true, \"parameters\": {\"type\": \"object\", \"properties\": {\"b\": {}, \"a\": 1.5}}, \
             \"name\": \"größe<&>\"}, \"type\": \"function\"}]}"
                .as_bytes(),
        );
        let expected = "[{\"type\": \"function\", \"function\": {\"name\": \"größe<&>\", \"description\": null, \"parameters\": \
                        {\"type\": \"object\", \"properties\": {\"b\": {}, \"a\": 1.5}}, \"strict\": true}}]";
        assert_eq!(tools(&body).unwrap(), expected);
        assert_eq!(tools(&Ordered::of(b"{\"tools\": []}")), None);
    }

    #[test]
    fn arguments_of_calls_are_objects() {
        let body = Ordered::of(
            br#"{"messages": [{}, {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"z\":1,\"a\":[]}"}}]}]}"#,
        );
        let expected =
            r#"[{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": []}}}]"#;
        assert_eq!(calls(&body, 1).unwrap(), expected);
        assert_eq!((calls(&body, 0), calls(&body, 2)), (None, None));
    }
}
