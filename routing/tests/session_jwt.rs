//! Keys and scopes in the claims of a token.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::Headers;
use routing::session::{Found, Key, Search, Source, Sources, Subagents, scope};

/// What a list finds in a head.
fn find(sources: &[Source], request: &Headers) -> Found {
    match Sources::new(sources.to_vec(), Subagents::Own, &[]).in_head(request) {
        Search::Done(found) => found,
        Search::NeedsBody => panic!("a source of the head is not in the body"),
    }
}

fn found(texts: &[&str], headers: &[(&str, &str)]) -> Found {
    let sources: Vec<Source> = texts.iter().map(|text| Source::parse(text).unwrap()).collect();
    find(&sources, &Headers::of(headers))
}

fn key(text: &str) -> Found {
    Found::Key(Key::new(text.as_bytes()).unwrap())
}

/// A token whose payload is this text; the signature is nobody's business.
fn token(payload: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = "eyJhbGciOiJub25lIn0.".to_owned();
    for bytes in payload.as_bytes().chunks(3) {
        let bits =
            bytes.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
        for digit in 0..=bytes.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]));
        }
    }
    text + ".c2ln"
}

#[test]
fn a_claim_of_a_token_may_be_the_key() {
    let bearer = |payload: &str| format!("Bearer {}", token(payload));
    let of = |source: &str, value: &str| found(&[source], &[("authorization", value)]);
    assert_eq!(of("jwt:sub", &bearer(r#"{"sub":"k"}"#)), key("k"));
    assert_eq!(of("jwt:sub", &bearer(r#"{"iss":"x","sub":"k~~??","exp":1}"#)), key("k~~??"));
    assert_eq!(of("jwt:sub", &bearer(r#"{"sub":"k"}"#).replace("Bearer", "bEARER")), key("k"));
    assert_eq!(of("jwt:/org/id", &bearer(r#"{"org":{"id":"k"}}"#)), key("k"));
    assert_eq!(of("jwt:https://a.b/c", &bearer(r#"{"https://a.b/c":"k"}"#)), key("k"));
    let own = token(r#"{"sub":"k"}"#);
    assert_eq!(found(&["jwt:sub@X-Token"], &[("x-token", &own)]), key("k"));
    for absent in [
        "",
        "Bearer",
        "Bearer x",
        "Bearer a.b",
        "Bearer a.!.c",
        &bearer("{}"),
        &bearer(r#"{"sub":7}"#),
        &bearer(r#"{"sub":"a b"}"#),
        &bearer("not json"),
        &format!("{}.more", bearer(r#"{"sub":"k"}"#)),
        &bearer(r#"{"sub":"k"}"#).replace(".c2ln", ""),
        &bearer(&format!(r#"{{"sub":"k","x":"{}"}}"#, "x".repeat(16_000))),
    ] {
        assert_eq!(of("jwt:sub", absent), Found::Nothing, "{absent:.60}");
    }
    assert_eq!(of("jwt:sub", &bearer(&format!(r#"{{"sub":"{}"}}"#, "k".repeat(257)))), Found::TooLong);
    // Every length of the payload: each rest of the base64.
    for length in 1..20 {
        let name = "k".repeat(length);
        assert_eq!(of("jwt:sub", &bearer(&format!(r#"{{"sub":"{name}"}}"#))), key(&name));
    }
}

#[test]
fn a_claim_may_be_the_scope_and_a_body_may_not() {
    let list = [Source::parse_scope("jwt:/org/id").unwrap()];
    let of = |payload: &str| {
        scope(&list, &Headers::of(&[("authorization", &format!("Bearer {}", token(payload)))]))
    };
    assert_ne!(of(r#"{"org":{"id":"a"}}"#), of(r#"{"org":{"id":"b"}}"#));
    assert_eq!(of(r#"{"org":{"id":"a"},"exp":1}"#), of(r#"{"exp":2,"org":{"id":"a"}}"#));
    assert_ne!(of(r#"{"org":{"id":"two words"}}"#), of("{}"), "no rule of keys in a scope");
    let long = |byte: &str| of(&format!(r#"{{"org":{{"id":"{}"}}}}"#, byte.repeat(5000)));
    assert!(long("a") != long("b") && long("a") != of("{}"), "a claim too long to keep still parts tenants");
    assert!(Source::parse_scope("body:/user").is_err());
}
