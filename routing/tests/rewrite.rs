//! The rank in a body: ours alone, and every other byte as the client wrote it.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::engine::BODY_FIELDS;
use routing::rewrite::set_field;

fn rewritten(body: &str) -> Option<String> {
    let new = set_field(body.as_bytes(), "routed_dp_rank", 3, &BODY_FIELDS)?;
    Some(String::from_utf8(new).unwrap())
}

#[test]
fn ours_goes_in_and_the_clients_goes_out() {
    for (body, expected) in [
        (r#"{}"#, r#"{"routed_dp_rank":3}"#),
        ("{ \n}", "{\"routed_dp_rank\":3 \n}"),
        (r#"{"model":"m"}"#, r#"{"routed_dp_rank":3,"model":"m"}"#),
        (" { \"a\" : 1.50 ,\"b\":[ ]} \n", " {\"routed_dp_rank\":3, \"a\" : 1.50 ,\"b\":[ ]} \n"),
        (r#"{"routed_dp_rank":7}"#, r#"{"routed_dp_rank":3}"#),
        (r#"{"routed_dp_rank":7,"a":1}"#, r#"{"routed_dp_rank":3,"a":1}"#),
        (r#"{"a":1,"data_parallel_rank":{"x":[7]}}"#, r#"{"routed_dp_rank":3,"a":1}"#),
        (r#"{"a":1,"data_parallel_rank":7 , "b":2}"#, r#"{"routed_dp_rank":3,"a":1, "b":2}"#),
        (
            r#"{"routed_dp_rank":1,"a":1,"routed_dp_rank":2,"data_parallel_rank":0}"#,
            r#"{"routed_dp_rank":3,"a":1}"#,
        ),
        (
            r#"{"routed_dp_rank":1,"data_parallel_rank":0,"a":{},"b":""}"#,
            r#"{"routed_dp_rank":3,"a":{},"b":""}"#,
        ),
        // As Python reads names: escaped or not.
        (r#"{"routed\u005fdp_r\u0061nk":1,"a":2}"#, r#"{"routed_dp_rank":3,"a":2}"#),
        (r#"{"data\u005Fparallel_rank":1}"#, r#"{"routed_dp_rank":3}"#),
        // Not these: deeper, longer, shorter, in a text, in other letters.
        (r#"{"x":{"routed_dp_rank":1}}"#, r#"{"routed_dp_rank":3,"x":{"routed_dp_rank":1}}"#),
        (
            r#"{"routed_dp_rank2":1,"routed_dp_ran":2}"#,
            r#"{"routed_dp_rank":3,"routed_dp_rank2":1,"routed_dp_ran":2}"#,
        ),
        (r#"{"x":"\"routed_dp_rank\":1"}"#, r#"{"routed_dp_rank":3,"x":"\"routed_dp_rank\":1"}"#),
        (r#"{"Routed_dp_rank":1}"#, r#"{"routed_dp_rank":3,"Routed_dp_rank":1}"#),
        (r#"{"routed\u005fdp_rank\u0000":1}"#, r#"{"routed_dp_rank":3,"routed\u005fdp_rank\u0000":1}"#),
    ] {
        assert_eq!(rewritten(body).as_deref(), Some(expected), "{body}");
    }
}

#[test]
fn what_is_no_object_stays_as_it_is() {
    let bodies = [
        "",
        " ",
        "null",
        "3",
        "\"x\"",
        "[]",
        "[{}]",
        "{",
        "}",
        "{]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\":1}x",
        "{\"a\":1}{}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":1e}",
        "{\"a\":-}",
        "{\"a\":tru}",
        "{\"a\":truex}",
        "{\"a\":NaN}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"\\u12",
        "{\"a\":[1,]}",
        "{\"a\":[,1]}",
        "{\"a\":[1 2]}",
        "{\"a\":{\"b\":1]}",
        "{\"a\":[}",
        "{\"a\":1;}",
        "\u{feff}{}",
        "{\"a\" 1}",
        "{\"",
        "{\"a\":{1:2}}",
        "{\"a\":{\"b\":1,}}",
        "{\"a\":{\"b\"}}",
    ];
    for body in bodies {
        assert_eq!(rewritten(body), None, "{body:?}");
    }
    assert_eq!(set_field(b"{\"a\":\"\xff\"}", "routed_dp_rank", 3, &BODY_FIELDS), None, "no UTF-8");
    assert_eq!(set_field(b"{\0}\0", "routed_dp_rank", 3, &BODY_FIELDS), None, "UTF-16");
}

#[test]
fn no_depth_is_too_deep() {
    let depth = 200_000;
    let body = format!("{{\"a\":{}1{}}}", "[{\"x\":".repeat(depth), "}]".repeat(depth));
    assert!(rewritten(&body).unwrap().ends_with(&body[1..]));
    assert_eq!(rewritten(&body[..body.len() - 2]), None);
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde::de::IgnoredAny;
    use serde_json::{Map, Value};

    /// Members in order, repeated names and all.
    #[derive(Debug, PartialEq)]
    struct Members(Vec<(String, Value)>);

    impl<'de> Deserialize<'de> for Members {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Visit;
            impl<'de> serde::de::Visitor<'de> for Visit {
                type Value = Members;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                    let mut members = Vec::new();
                    while let Some(member) = map.next_entry()? {
                        members.push(member);
                    }
                    Ok(Members(members))
                }
            }
            from.deserialize_map(Visit)
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9f64..1e9).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::vec((name(), inner), 0..6)
                    .prop_map(|members| Value::Object(Map::from_iter(members))),
            ]
        })
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            1 => Just("data_parallel_rank".to_owned()),
            1 => Just("routed_dp_rank".to_owned()),
            2 => any::<String>(),
            2 => "[a-c]{0,2}",
        ]
    }

    fn space() -> impl Strategy<Value = String> {
        prop_oneof![3 => Just(String::new()), 1 => "[ \t\r\n]{1,3}"]
    }

    /// A name in quotes; some letters escaped.
    fn written(name: &str, escape_every: usize) -> String {
        let plain = serde_json::to_string(name).unwrap();
        if escape_every == 0 || plain.contains('\\') {
            return plain;
        }
        let inner = &plain[1..plain.len() - 1];
        let letter = |(at, c): (usize, char)| match u32::from(c) {
            code @ ..=0xffff if at % escape_every == 0 => format!("\\u{code:04x}"),
            _ => c.to_string(),
        };
        format!("\"{}\"", inner.chars().enumerate().map(letter).collect::<String>())
    }

    prop_compose! {
        fn member()(name in name(), value in value(), every in 0usize..4, pretty in any::<bool>(), gaps in [space(), space(), space(), space()]) -> String {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let [a, b, c, d] = gaps;
            format!("{a}{}{b}:{c}{text}{d}", written(&name, every))
        }
    }

    proptest! {
        #[test]
        fn as_serde_would_and_not_a_byte_more(
            members in proptest::collection::vec(member(), 0..8), before in space(), after in space(), rank in any::<u32>(), old in any::<bool>()
        ) {
            let field = BODY_FIELDS[usize::from(!old)];
            let body = format!("{before}{{{}}}{after}", members.join(","));
            let new = set_field(body.as_bytes(), field, rank, &BODY_FIELDS).unwrap();
            let is_ours = |member: &String| {
                let Members(one) = serde_json::from_str(&format!("{{{member}}}")).unwrap();
                BODY_FIELDS.contains(&one[0].0.as_str())
            };
            // Byte for byte: what is kept is what was written.
            let mut expected = vec![format!("\"{field}\":{rank}")];
            expected.extend(members.iter().filter(|member| !is_ours(member)).cloned());
            prop_assert_eq!(std::str::from_utf8(&new).unwrap(), format!("{before}{{{}}}{after}", expected.join(",")));
            // And as a JSON reader sees it.
            let (Members(old_members), Members(new_members)): (Members, Members) =
                (serde_json::from_str(&body).unwrap(), serde_json::from_slice(&new).unwrap());
            let mut wanted = vec![(field.to_owned(), Value::from(rank))];
            wanted.extend(old_members.into_iter().filter(|(name, _)| !BODY_FIELDS.contains(&name.as_str())));
            prop_assert_eq!(new_members, wanted);
        }

        #[test]
        fn is_json_where_serde_says_so(
            members in proptest::collection::vec(member(), 0..4), cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..4)
        ) {
            let mut body = format!("{{{}}}", members.join(",")).into_bytes();
            for (at, byte, how) in cuts {
                let at = at.index(body.len().max(1));
                match how {
                    _ if body.is_empty() => {}
                    0 => drop(body.remove(at)),
                    1 => body[at] = b"{}[]\",:\\0123456789eE+-. \ntfnu"[usize::from(byte) % 29],
                    _ => body.insert(at, b"{}[]\",:\\0123456789eE+-. \ntfnu"[usize::from(byte) % 29]),
                }
            }
            let is_object = std::str::from_utf8(&body).is_ok()
                && serde_json::from_slice::<IgnoredAny>(&body).is_ok()
                && body.trim_ascii_start().first() == Some(&b'{');
            prop_assert_eq!(set_field(&body, "routed_dp_rank", 3, &BODY_FIELDS).is_some(), is_object, "{:?}", String::from_utf8_lossy(&body));
        }

        #[test]
        fn no_bytes_hurt(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = set_field(&body, "routed_dp_rank", 3, &BODY_FIELDS);
        }
    }
}
