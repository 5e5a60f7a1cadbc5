//! Bodies made to hurt: whatever they are, they are refused or read, in bounded time, without a panic.

use super::model::{CHATML, THINKING, local};
use crate::tokenize::body::{BODY_BYTES_MAX, Surface, read};
use crate::tokenize::json::Json;
use crate::tokenize::local::Local;
use crate::tokenize::render::plain;
use crate::tokenize::{Reason, Which};
use proptest::prelude::*;
use serde_json::{Value, json};

const SURFACES: [Surface; 4] = [Surface::Chat, Surface::Completions, Surface::Messages, Surface::Responses];

/// Every way through, whole and as a head.
fn take(local: &Local, body: &str) {
    for surface in SURFACES {
        for whole in [true, false] {
            if let Ok(prompt) = read(surface, body, whole) {
                let _ = plain(&prompt);
                let _ = local.chain(prompt, None, 16);
            }
        }
    }
}

#[test]
fn bodies_made_to_hurt() {
    let local = local(CHATML, Which::Fast);
    let many = |what: &str, n: usize| what.repeat(n);
    let bodies = [
        String::new(),
        many("[", 100_000),
        format!("{}1{}", many("{\"messages\":", 5000), many("}", 5000)),
        format!("{{\"messages\":{}{}}}", many("[", 200), many("]", 200)),
        r#"{"messages":[{"role":"user","content":1e999}]}"#.to_owned(),
        r#"{"messages":[{"role":"user","content":123456789012345678901234567890}]}"#.to_owned(),
        r#"{"prompt":[4294967296]}"#.to_owned(),
        r#"{"prompt":[18446744073709551615]}"#.to_owned(),
        r#"{"prompt":[]}"#.to_owned(),
        r#"{"prompt":"\ud800"}"#.to_owned(),
        r#"{"prompt":""}"#.to_owned(),
        r#"{"messages":[],"tools":[[]],"chat_template_kwargs":[]}"#.to_owned(),
        r#"{"messages":[null,1,[]],"system":7,"input":[null]}"#.to_owned(),
        r#"{"messages":[{"role":["user"],"content":{}}],"tools":"x"}"#.to_owned(),
        r#"{"messages":[{"role":"assistant","tool_calls":[{"function":null}]}]}"#.to_owned(),
        r#"{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"[[[["}}]}]}"#.to_owned(),
        r#"{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"messages":3}}"#.to_owned(),
        format!("{{\"prompt\":\"{}\"}}", many("<|im_end|>", 20_000)),
        format!(
            "{{\"messages\":[{}]}}",
            many("{\"role\":\"user\",\"content\":\"\"},", 2000).trim_end_matches(',')
        ),
        format!("{{{}\"prompt\":\"a\"}}", (0..20_000).map(|n| format!("\"k{n}\":{n},")).collect::<String>()),
        "{\"prompt\":\"\u{0}\u{feff}\u{202e}\"}".to_owned(),
    ];
    for body in &bodies {
        take(&local, body);
    }
    assert_eq!(read(Surface::Chat, &many(" ", BODY_BYTES_MAX + 1), true).err(), Some(Reason::TooLong));
    assert_eq!(read(Surface::Chat, &many("[", 100_000), true).err(), Some(Reason::Malformed));
}

/// A template that never ends is stopped.
#[test]
fn a_template_cannot_run_for_ever() {
    let local = local(
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        Which::Fast,
    );
    let prompt = read(Surface::Chat, r#"{"messages":[]}"#, true).unwrap();
    assert_eq!(local.chain(prompt, None, 16).err(), Some(Reason::TooCostly));
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 1024.0)),
        prop::sample::select(vec![1e300, -1e-300, f64::MAX, f64::MIN_POSITIVE, 0.0, -0.0])
            .prop_map(Value::from),
        "[ -~é<|>]{0,20}".prop_map(Value::from),
        prop::sample::select(vec!["user", "assistant", "tool", "system", "text", "tool_use", "message"])
            .prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "messages",
        "role",
        "content",
        "type",
        "text",
        "tools",
        "function",
        "arguments",
        "tool_calls",
        "input",
        "prompt",
        "system",
        "thinking",
        "name",
        "parameters",
        "input_schema",
        "chat_template_kwargs",
        "instructions",
        "documents",
    ]);
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|members| members
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<Value>()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The right names with the wrong values anywhere.
    #[test]
    fn any_json_is_read_or_refused(messages in json_value(), other in json_value()) {
        thread_local!(static LOCAL: Local = local(THINKING, Which::Fast));
        let body = json!({ "messages": messages, "prompt": other, "input": other, "tools": messages, "system": other }).to_string();
        LOCAL.with(|local| take(local, &body));
    }

    /// Values go in and out unchanged.
    #[test]
    fn json_is_what_serde_json_reads(value in json_value()) {
        let own = Json::parse(&value.to_string()).unwrap();
        let again: Value = serde_json::from_str(&serde_json::to_string(&own).unwrap()).unwrap();
        let theirs: Value = serde_json::from_str(&value.to_string()).unwrap();
        prop_assert_eq!(again, theirs);
    }
}
