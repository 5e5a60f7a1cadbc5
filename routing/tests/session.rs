//! Which bytes of a request name its conversation (affinity section 2; cases A1, A2, A8–A10, A15).

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::Headers;
use routing::hash::{Phase, session_id};
use routing::header;
use routing::session::{
    Found, KEY_BYTES_MAX, Key, Search, Source, Sources, Subagents, default_sources, scope,
};

fn sources(texts: &[&str]) -> Vec<Source> {
    texts.iter().map(|text| Source::parse(text).unwrap()).collect()
}

/// What a list finds in a head.
fn find(sources: &[Source], request: &Headers) -> Found {
    match Sources::new(sources.to_vec(), Subagents::Own, &[]).in_head(request) {
        Search::Done(found) => found,
        Search::NeedsBody => panic!("a source of the head is not in the body"),
    }
}

fn found(texts: &[&str], headers: &[(&str, &str)]) -> Found {
    find(&sources(texts), &Headers::of(headers))
}

fn by_default(headers: &[(&str, &str)]) -> Found {
    find(&default_sources(), &Headers::of(headers))
}

fn key(text: &str) -> Found {
    Found::Key(Key::new(text.as_bytes()).unwrap())
}

fn query_of(path: &str) -> Found {
    found(&["query:sid"], &[(":path", path)])
}

fn cookie_of(line: &str) -> Found {
    found(&["cookie:sid"], &[("cookie", line)])
}

#[test]
fn a_request_without_a_key_has_no_session() {
    assert_eq!(by_default(&[]), Found::Nothing);
    assert_eq!(by_default(&[(":path", "/v1/chat?x=1"), ("user-agent", "curl")]), Found::Nothing);
}

#[test]
fn every_default_header_names_a_session_alone() {
    for name in [
        "x-session-id",
        "x-session-affinity",
        "x-dynamo-session-id",
        "x-smg-routing-key",
        "x-claude-code-session-id",
        "thread-id",
        "session-id",
        "session_id",
        "conversation_id",
        "x-litellm-session-id",
        "x-aibrix-session-key",
    ] {
        assert_eq!(by_default(&[(name, "k-1")]), key("k-1"), "{name}");
    }
}

#[test]
fn default_sources_are_tried_in_order() {
    let all: Vec<(&str, &str)> = header::SESSION_DEFAULT.iter().map(|name| (*name, *name)).collect();
    for (at, name) in header::SESSION_DEFAULT.iter().enumerate() {
        let mut later = all[at..].to_vec();
        later.reverse();
        assert_eq!(by_default(&later), key(name), "order of the request must not matter");
    }
}

#[test]
fn a_request_id_is_never_a_key() {
    let ids = [("x-request-id", "r-1"), ("traceparent", "00-1"), ("x-correlation-id", "c-1")];
    assert_eq!(by_default(&ids), Found::Nothing);
    let with_session = [("x-request-id", "r-2"), ("x-session-id", "s-1")];
    assert_eq!(by_default(&with_session), key("s-1"));
    for name in ["x-request-id", "X-Request-ID", "x_request_id", "traceparent", "X_Correlation-Id"] {
        assert!(Source::parse(&format!("header:{name}")).is_err(), "{name}");
    }
}

#[test]
fn the_configured_order_decides() {
    let both = [("x-a", "from-a"), ("cookie", "sid=from-cookie"), (":path", "/?q=from-query")];
    assert_eq!(found(&["header:x-a", "cookie:sid", "query:q"], &both), key("from-a"));
    assert_eq!(found(&["cookie:sid", "query:q", "header:x-a"], &both), key("from-cookie"));
    assert_eq!(found(&["query:q", "header:x-a", "cookie:sid"], &both), key("from-query"));
}

#[test]
fn dash_and_underscore_are_the_same_letter_and_case_does_not_matter() {
    for configured in ["header:x-my-id", "header:x_my_id", "header:X-My_ID"] {
        assert_eq!(found(&[configured], &[("x-my-id", "a")]), key("a"), "{configured}");
        assert_eq!(found(&[configured], &[("x_my_id", "a")]), key("a"), "{configured}");
    }
    assert_eq!(by_default(&[("x_session_id", "a")]), key("a"));
    assert_eq!(by_default(&[("conversation-id", "a")]), key("a"));
    assert_eq!(by_default(&[("x_claude_code_session_id", "a")]), key("a"));
}

#[test]
fn the_first_of_repeated_headers_wins() {
    assert_eq!(by_default(&[("x-session-id", "one"), ("x-session-id", "two")]), key("one"));
}

#[test]
fn keys_are_trimmed_and_empty_ones_are_absent() {
    for value in ["k", " k", "k ", "\t k \t", "  k\r\n"] {
        assert_eq!(by_default(&[("x-session-id", value)]), key("k"), "{value:?}");
    }
    for value in ["", " ", "\t", "   \t "] {
        assert_eq!(by_default(&[("x-session-id", value)]), Found::Nothing, "{value:?}");
        let next = [("x-session-id", value), ("x-session-affinity", "b")];
        assert_eq!(by_default(&next), key("b"), "an empty one lets the next source speak");
    }
}

#[test]
fn bytes_outside_visible_ascii_make_a_key_absent() {
    for value in
        [&b"a b"[..], b"a\tb", b"a\0", b"\x1f", b"a\x7fb", "schlüssel".as_bytes(), b"\xff\xfe", b"a\nb"]
    {
        let request = Headers::default().with("x-session-id", value);
        assert_eq!(find(&default_sources(), &request), Found::Nothing, "{value:?}");
        let next = request.with("thread-id", b"t");
        assert_eq!(find(&default_sources(), &next), key("t"), "{value:?}");
    }
    let every_visible: String = (0x21..=0x7eu8).map(char::from).collect();
    assert_eq!(by_default(&[("x-session-id", &every_visible)]), key(&every_visible));
}

#[test]
fn two_hundred_and_fifty_six_bytes_are_a_key_and_one_more_is_not() {
    assert_eq!(KEY_BYTES_MAX, 256);
    let (fits, too_long) = ("k".repeat(256), "k".repeat(257));
    assert_eq!(by_default(&[("x-session-id", &fits)]), key(&fits));
    assert_eq!(by_default(&[("x-session-id", &format!("  {fits} "))]), key(&fits), "counted after trimming");
    assert_eq!(by_default(&[("x-session-id", &too_long)]), Found::TooLong);
    let hidden = [("x-session-id", too_long.as_str()), ("thread-id", "t")];
    assert_eq!(by_default(&hidden), Found::TooLong, "no other source hides it");
    assert_eq!(query_of(&format!("/?sid={too_long}")), Found::TooLong);
    assert_eq!(cookie_of(&format!("sid={too_long}")), Found::TooLong);
    assert!(Key::new(too_long.as_bytes()).is_none() && Key::new(fits.as_bytes()).is_some());
    // 86 escapes are 258 bytes on the wire and 86 bytes of key.
    assert_eq!(query_of(&format!("/?sid={}", "%61".repeat(86))), key(&"a".repeat(86)));
}

#[test]
fn cookies_are_read_as_browsers_send_them() {
    assert_eq!(cookie_of("sid=abc"), key("abc"));
    assert_eq!(cookie_of("a=1; sid=abc; b=2"), key("abc"));
    assert_eq!(cookie_of("a=1;sid=abc"), key("abc"));
    assert_eq!(cookie_of("sid=\"abc\""), key("abc"));
    assert_eq!(cookie_of("sid=a=b"), key("a=b"));
    assert_eq!(cookie_of("sid=one; sid=two"), key("one"));
    for absent in ["", "sid", "sid=", "sid=\"\"", "sid2=x", "xsid=x", "SID=x", "a=sid=x", ";;;", "sid=a b"] {
        assert_eq!(cookie_of(absent), Found::Nothing, "{absent:?}");
    }
    assert_eq!(cookie_of("sid=\"abc"), key("\"abc"), "one quote is part of the value");
}

#[test]
fn query_values_are_percent_decoded() {
    assert_eq!(query_of("/v1/chat?sid=abc"), key("abc"));
    assert_eq!(query_of("/v1/chat?a=1&sid=a%2Fb%3d&c"), key("a/b="));
    assert_eq!(query_of("/?s%69d=x"), key("x"), "the name too");
    assert_eq!(query_of("/?sid=abc#sid=frag"), key("abc"));
    assert_eq!(query_of("/?sid=a?b"), key("a?b"));
    assert_eq!(query_of("/?sid=%20abc+"), key("abc"), "escaped blanks are trimmed like plain ones");
    assert_eq!(query_of("/?sid=one&sid=two"), key("one"));
    for literal in ["%", "%4", "%zz", "a%", "%+1"] {
        let decoded = literal.replace('+', " ");
        let expected = if decoded.contains(' ') { Found::Nothing } else { key(&decoded) };
        assert_eq!(query_of(&format!("/?sid={literal}")), expected, "{literal}");
    }
    for absent in
        ["/", "/?", "/?sid", "/?sid=", "/?SID=x", "/#?sid=x", "/?x=sid=1", "/sid=x", "", "/?sid=a+b"]
    {
        assert_eq!(query_of(absent), Found::Nothing, "{absent:?}");
    }
}

#[test]
fn escaped_control_and_foreign_bytes_make_a_query_key_absent() {
    for byte in (0u8..=0x20).chain(0x7f..=0xff) {
        let path = format!("/?sid=a%{byte:02x}b");
        assert_eq!(query_of(&path), Found::Nothing, "{byte:#x}");
    }
}

#[test]
fn a_claude_sub_agent_has_a_session_of_its_own() {
    let root = by_default(&[("x-claude-code-session-id", "c")]);
    let of =
        |agent: &str| by_default(&[("x-claude-code-session-id", "c"), ("x-claude-code-agent-id", agent)]);
    assert_eq!(root, key("c"));
    assert!(matches!(of("a1"), Found::Key(_)));
    assert_ne!(of("a1"), root);
    assert_ne!(of("a1"), of("a2"));
    assert_eq!(of("a1"), of(" a1 "));
    for ignored in ["", " ", "a b", "ü", "\u{1f}"] {
        assert_eq!(of(ignored), root, "{ignored:?}");
    }
    let alone = by_default(&[("x-claude-code-agent-id", "a1")]);
    assert_eq!(alone, Found::Nothing, "an agent without its session is nobody");
    let underscored = [("x_claude_code_session_id", "c"), ("x_claude_code_agent_id", "a1")];
    assert_eq!(by_default(&underscored), of("a1"));
}

#[test]
fn an_agent_key_is_bounded_as_a_whole() {
    let of = |session: usize, agent: usize| {
        by_default(&[
            ("x-claude-code-session-id", &"s".repeat(session)),
            ("x-claude-code-agent-id", &"a".repeat(agent)),
        ])
    };
    assert!(matches!(of(200, 55), Found::Key(_)));
    assert_eq!(of(200, 56), Found::TooLong);
    assert_eq!(of(257, 1), Found::TooLong);
    assert_eq!(of(1, 10_000), Found::TooLong);
}

#[test]
fn no_client_value_forges_an_agent_key() {
    let all = ["header:x-claude-code-session-id", "query:sid", "cookie:sid", "header:x-own"];
    let genuine = found(&all, &[("x-claude-code-session-id", "c"), ("x-claude-code-agent-id", "a1")]);
    assert!(matches!(genuine, Found::Key(_)));
    for forged in [
        found(&all, &[(":path", "/?sid=c%1fa1")]),
        found(&all, &[(":path", "/?sid=c%1Fa1")]),
        found(&all, &[("cookie", "sid=c\u{1f}a1")]),
        found(&all, &[("x-own", "c\u{1f}a1")]),
        found(&all, &[("x-claude-code-session-id", "c\u{1f}a1")]),
        found(&all, &[("x-own", "ca1")]),
    ] {
        assert_ne!(forged, genuine);
    }
    assert!(Key::new(b"c\x1fa1").is_none(), "nor an operator's text");
}

#[test]
fn sources_that_are_none_are_refused_with_a_reason() {
    for text in [
        "",
        "x-session-id",
        "header:",
        "header: ",
        "Header:x",
        "header:a b",
        "header::path",
        "cookie:a;b",
        "query:ä",
        "body:session_id",
        "body:",
        "body:/a~2",
        "jwt:",
        "jwt:a b",
        "jwt:sub@",
        "jwt:/a~@x",
        "prompt",
        "ip:",
    ] {
        assert!(Source::parse(text).is_err(), "{text:?}");
    }
    assert_eq!(Source::parse("header:X-Claude-Code-Session-Id"), Ok(Source::ClaudeCode));
    assert_eq!(Source::parse("cookie: sid"), Ok(Source::Cookie { name: "sid".to_owned() }));
}

#[test]
fn scope_parts_cannot_be_shifted_into_one_another() {
    let list = sources(&["header:x-tenant", "header:x-user"]);
    let of = |tenant: &str, user: &str| scope(&list, &Headers::of(&[("x-tenant", tenant), ("x-user", user)]));
    let all = [of("ab", "c"), of("a", "bc"), of("abc", ""), of("", "abc"), of("", "")];
    for (at, one) in all.iter().enumerate() {
        assert!(all.iter().skip(at + 1).all(|other| other != one));
    }
    let absent = scope(&list, &Headers::of(&[("x-user", "abc")]));
    assert_eq!(absent, of("", "abc"), "absent counts as empty");
    assert_eq!(scope(&[], &Headers::of(&[("x-tenant", "t")])), Vec::<u8>::new());
}

#[test]
fn tenants_pools_phases_and_installations_never_meet() {
    let list = sources(&["header:authorization"]);
    let of = |tenant: &str| scope(&list, &Headers::of(&[("authorization", tenant)]));
    let key = Key::new(b"same").unwrap();
    let base = key.session(b"", &of("Bearer a"), "chat");
    for other in [
        key.session(b"", &of("Bearer b"), "chat"),
        key.session(b"", &of("Bearer a"), "embed"),
        key.session(b"pepper", &of("Bearer a"), "chat"),
        key.session(b"", b"", "chat"),
    ] {
        assert_ne!(other.id, base.id);
        assert_eq!(other.rank_hash, base.rank_hash, "the rank depends on the key alone");
    }
    let of_phase = |phase| session_id(b"", b"", "chat", phase, b"same");
    assert_eq!(of_phase(Phase::Aggregated), key.session(b"", b"", "chat").id);
    assert_ne!(of_phase(Phase::Prefill), of_phase(Phase::Decode));
}

#[test]
fn a_key_is_not_printable() {
    assert_eq!(format!("{:?}", by_default(&[("x-session-id", "hunter2")])), "Key(Key(7 bytes))");
    let session = Key::new(b"hunter2").unwrap().session(b"", b"", "chat");
    assert!(!format!("{session:?}").contains("hunter2"));
    assert_eq!(session.id.prefix().len(), 8);
}

#[test]
fn an_unusable_value_never_hides_a_usable_one() {
    for unusable in ["", "  ", "a b", "\u{fc}"] {
        assert_eq!(
            by_default(&[("x-session-id", unusable), ("x_session_id", "k")]),
            key("k"),
            "{unusable:?}"
        );
        let claude = [("x-claude-code-session-id", unusable), ("x_claude_code_session_id", "k")];
        assert_eq!(by_default(&claude), key("k"), "{unusable:?}");
        let agents = [("x-claude-code-agent-id", unusable), ("x_claude_code_agent_id", "sub")];
        let narrowed = by_default(&[&[("x-claude-code-session-id", "k")], &agents[..]].concat());
        assert!(
            !matches!(narrowed, Found::Nothing) && narrowed != key("k"),
            "the sub-agent is a session of its own"
        );
    }
    assert_eq!(cookie_of("sid=; sid=k"), key("k"));
    assert_eq!(query_of("/v1/chat?sid=&sid=k"), key("k"));
}
