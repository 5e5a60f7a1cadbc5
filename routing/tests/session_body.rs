//! Keys in bodies, the order of head and body, and whose binding a sub-agent has (affinity section 2; cases A5, A8, A13, A14).

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::Headers;
use routing::json::BodyFields;
use routing::session::{
    Found, Key, Origin, Search, Source, Sources, Subagents, default_body_sources, default_sources,
};

fn sources(texts: &[&str]) -> Vec<Source> {
    texts.iter().map(|text| Source::parse(text).unwrap()).collect()
}

/// A list and what it finds in a request with a body.
struct Finder(Sources);

impl Finder {
    fn of(texts: &[&str]) -> Self {
        Self(Sources::new(sources(texts), Subagents::Own, &[]))
    }

    /// The default list where bodies are read.
    fn default(subagents: Subagents) -> Self {
        let list = default_sources().into_iter().chain(default_body_sources()).collect();
        Self(Sources::new(list, subagents, &[]))
    }

    fn fields(&self, body: &str) -> BodyFields {
        let mut reader = self.0.reader();
        reader.feed(body.as_bytes());
        reader.finish().unwrap()
    }

    /// As a filter does it: the body is read only if the head does not decide.
    fn find(&self, headers: &[(&str, &str)], body: &str) -> Found {
        let request = Headers::of(headers);
        match self.0.in_head(&request) {
            Search::Done(found) => found,
            Search::NeedsBody => self.0.with_body(&request, &self.fields(body)),
        }
    }

    fn word(&self, headers: &[(&str, &str)], body: &str) -> String {
        match self.find(headers, body) {
            Found::Key(key) => self.0.source_word(&key),
            other => format!("{other:?}"),
        }
    }
}

fn in_body(body: &str) -> Found {
    Finder::default(Subagents::Own).find(&[], body)
}

fn key(text: &str) -> Found {
    Found::Key(Key::new(text.as_bytes()).unwrap())
}

#[test]
fn every_default_body_source_names_a_session_alone() {
    for (body, source) in [
        (r#"{"session_id":"k-1"}"#, "body:/session_id"),
        (r#"{"prompt_cache_key":"k-1"}"#, "body:/prompt_cache_key"),
        (r#"{"conversation":"k-1"}"#, "body:/conversation"),
        (r#"{"conversation":{"id":"k-1"}}"#, "body:/conversation"),
        (r#"{"conversation_params":{"conversation_id":"k-1"}}"#, "body:/conversation_params/conversation_id"),
        (r#"{"metadata":{"session_id":"k-1"}}"#, "body:/metadata/session_id"),
        (r#"{"metadata":{"user_id":"user_ab_account_cd_session_k-1"}}"#, "body:/metadata/user_id"),
        (r#"{"metadata":{"user_id":"user_ab_account__session_k-1"}}"#, "body:/metadata/user_id"),
        (
            r#"{"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"k-1\"}"}}"#,
            "body:/metadata/user_id",
        ),
    ] {
        assert_eq!(in_body(body), key("k-1"), "{body}");
        assert_eq!(Finder::default(Subagents::Own).word(&[], body), source, "{body}");
        assert_eq!(Finder::default(Subagents::Parent).find(&[], body), key("k-1"), "{body}");
    }
}

#[test]
fn body_sources_are_tried_in_order_whatever_the_order_of_the_document() {
    let members = [
        (r#""session_id":"a""#, "a"),
        (r#""prompt_cache_key":"b""#, "b"),
        (r#""conversation":{"id":"c"}"#, "c"),
        (r#""conversation_params":{"conversation_id":"d"}"#, "d"),
        (r#""metadata":{"user_id":"user_u_account_x_session_f","session_id":"e"}"#, "e"),
    ];
    for from in 0..members.len() {
        let mut later: Vec<&str> = members[from..].iter().map(|(text, _)| *text).collect();
        assert_eq!(in_body(&format!("{{{}}}", later.join(","))), key(members[from].1));
        later.reverse();
        assert_eq!(in_body(&format!("{{{}}}", later.join(","))), key(members[from].1));
    }
}

#[test]
fn a_plain_user_is_no_session() {
    for user in [
        "alice",
        "user_ab",
        "user_ab_session_k",
        "ab_account_cd_session_k",
        "user_ab_account_cd",
        "user_ab_account_cd_session_",
        r#"{\"session_id\":7}"#,
        r#"{\"device_id\":\"d\"}"#,
        r#"{\"session_id\":\"k\""#,
        "[]",
    ] {
        assert_eq!(in_body(&format!(r#"{{"metadata":{{"user_id":"{user}"}}}}"#)), Found::Nothing, "{user}");
    }
    let long = format!(r#"{{"metadata":{{"user_id":"{}"}}}}"#, "x".repeat(10_000));
    assert_eq!(in_body(&long), Found::Nothing);
}

#[test]
fn words_inside_the_prompt_are_never_a_key() {
    for body in [
        r#"{"messages":[{"role":"user","content":"{\"session_id\":\"x\"}"}]}"#,
        r#"{"messages":[{"role":"user","content":"\"user\": \"x\"","session_id":"x","prompt_cache_key":"x"}]}"#,
        r#"{"user":"x","safety_identifier":"x","rid":"x","model":"x"}"#,
        r#"{"input":{"session_id":"x"},"tools":[{"conversation":"x"}]}"#,
        r#"{"conversation":{"ID":"x"},"metadata":["session_id","x"]}"#,
    ] {
        assert_eq!(in_body(body), Found::Nothing, "{body}");
    }
}

#[test]
fn keys_of_a_body_obey_the_rules_of_all_keys() {
    for (value, expected) in [
        (r#"" k ""#, key("k")),
        (r#""\u006b""#, key("k")),
        (r#""""#, Found::Nothing),
        (r#""a b""#, Found::Nothing),
        (r#""\u00fc""#, Found::Nothing),
        (r#""k\u0000""#, Found::Nothing),
        (r#""c\u001fa1""#, Found::Nothing),
        ("17", Found::Nothing),
        ("null", Found::Nothing),
        ("true", Found::Nothing),
    ] {
        assert_eq!(in_body(&format!(r#"{{"session_id":{value}}}"#)), expected, "{value}");
        let next = in_body(&format!(r#"{{"session_id":{value},"prompt_cache_key":"n"}}"#));
        assert_eq!(next, if expected == Found::Nothing { key("n") } else { expected }, "{value}");
    }
    let of = |length: usize| {
        in_body(&format!(r#"{{"session_id":"{}","prompt_cache_key":"n"}}"#, "k".repeat(length)))
    };
    assert_eq!(of(256), key(&"k".repeat(256)));
    assert_eq!((of(257), of(100_000)), (Found::TooLong, Found::TooLong));
}

#[test]
fn the_order_of_the_list_decides_between_head_and_body() {
    let headers = [("x-session-id", "from-head")];
    let body = r#"{"prompt_cache_key":"from-body"}"#;
    let head_first = Finder::of(&["header:x-session-id", "body:/prompt_cache_key"]);
    assert_eq!(head_first.find(&headers, body), key("from-head"));
    assert_eq!(
        head_first.0.in_head(&Headers::of(&headers)),
        Search::Done(key("from-head")),
        "no body is read"
    );
    let body_first = Finder::of(&["body:/prompt_cache_key", "header:x-session-id"]);
    assert_eq!(body_first.0.in_head(&Headers::of(&headers)), Search::NeedsBody);
    assert_eq!(body_first.find(&headers, body), key("from-body"));
    assert_eq!(body_first.find(&headers, "{}"), key("from-head"));
    assert_eq!(body_first.word(&headers, "{}"), "header:x-session-id");
    let unread = body_first.0.with_body(&Headers::of(&headers), &BodyFields::none());
    assert_eq!(unread, key("from-head"), "a body that never comes hides no header");
    assert!(body_first.0.wants_body() && !Finder::of(&["header:x", "jwt:sub"]).0.wants_body());
    let too_long = [("x-session-id", &*"k".repeat(257))];
    assert_eq!(head_first.find(&too_long, body), Found::TooLong, "nor does the body hide a key too long");
}

#[test]
fn a_key_is_the_same_wherever_it_stands() {
    let lists = ["header:x-s", "cookie:s", "query:s", "body:/s"];
    let request = [("x-s", "k"), ("cookie", "s=k"), (":path", "/?s=k")];
    for source in lists {
        let finder = Finder::of(&[source]);
        assert_eq!(finder.find(&request, r#"{"s":"k"}"#), key("k"), "{source}");
        assert_eq!(finder.word(&request, r#"{"s":"k"}"#), source);
        let Found::Key(found) = finder.find(&request, r#"{"s":"k"}"#) else { panic!("{source}") };
        assert_eq!(found.origin(), Origin::Source(0));
    }
}

#[test]
fn siblings_share_one_binding_where_the_parent_is_theirs() {
    let (own, shared) = (Finder::default(Subagents::Own), Finder::default(Subagents::Parent));
    let root = [("x-claude-code-session-id", "c")];
    let agent = |name| [("x-claude-code-session-id", "c"), ("x-claude-code-agent-id", name)];
    assert_ne!(own.find(&agent("a1"), ""), own.find(&agent("a2"), ""));
    assert_eq!(own.find(&root, ""), key("c"));
    let siblings = shared.find(&agent("a1"), "");
    assert_eq!(shared.find(&agent("a2"), ""), siblings);
    assert_eq!(shared.find(&root, ""), key("c"), "the root keeps its own");
    assert_ne!(siblings, key("c"));
    assert_ne!(siblings, own.find(&agent("a1"), ""));
    let of_another = [("x-claude-code-session-id", "d"), ("x-claude-code-agent-id", "a1")];
    assert_ne!(shared.find(&of_another, ""), siblings);
}

#[test]
fn a_parent_named_by_a_header_gathers_its_agents() {
    let (own, shared) = (Finder::default(Subagents::Own), Finder::default(Subagents::Parent));
    for name in [
        "x-parent-session-id",
        "x-dynamo-parent-session-id",
        "x-codex-parent-thread-id",
        "x_parent_session_id",
    ] {
        let child = |id| [("x-session-id", id), (name, " p ")];
        assert_eq!(own.find(&child("one"), ""), key("one"), "{name}");
        let siblings = shared.find(&child("one"), "");
        assert_eq!(shared.find(&child("two"), ""), siblings, "{name}");
        assert_eq!(shared.find(&[(name, "p")], ""), siblings, "{name}: without an id of its own");
        assert_eq!(
            own.find(&[(name, "p")], "{}"),
            Found::Nothing,
            "{name}: a parent alone is nobody's session"
        );
        for other in [key("p"), key("one"), shared.find(&[(name, "q")], "")] {
            assert_ne!(siblings, other, "{name}");
        }
        assert_eq!(shared.word(&child("one"), ""), format!("header:{}", name.replace('_', "-")));
        for ignored in ["", "a b", "\u{fc}", "p\u{1f}"] {
            assert_eq!(
                shared.find(&[("x-session-id", "one"), (name, ignored)], ""),
                key("one"),
                "{ignored:?}"
            );
        }
        let long = "p".repeat(256);
        assert!(matches!(shared.find(&[(name, &long)], ""), Found::Key(_)));
        assert_eq!(shared.find(&[(name, &"p".repeat(257))], ""), Found::TooLong);
    }
    let claude = [("x-claude-code-session-id", "p"), ("x-claude-code-agent-id", "a")];
    assert_eq!(
        shared.find(&claude, ""),
        shared.find(&[("x-parent-session-id", "p")], ""),
        "one parent, one binding"
    );
    let forged = Finder::of(&["query:s"]).find(&[(":path", "/?s=p%1f")], "");
    assert_eq!(forged, Found::Nothing);
}

#[test]
fn a_claude_session_is_the_same_by_header_and_by_body() {
    let body = r#"{"metadata":{"user_id":"user_ab_account_cd_session_c"}}"#;
    for finder in [Finder::default(Subagents::Own), Finder::default(Subagents::Parent)] {
        assert_eq!(finder.find(&[("x-claude-code-session-id", "c")], body), finder.find(&[], body));
        let agent = ("x-claude-code-agent-id", "a1");
        assert_eq!(
            finder.find(&[("x-claude-code-session-id", "c"), agent], "{}"),
            finder.find(&[agent], body)
        );
    }
}

#[test]
fn conversations_that_begin_alike_are_one_only_where_that_is_asked_for() {
    let body = |more: &str| format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}{more}]}}"#);
    assert_eq!(in_body(&body("")), Found::Nothing, "never by default");
    let mut list = sources(&["header:x-session-id", "body:/session_id"]);
    list.push(Source::Prompt);
    let finder = Finder(Sources::new(list, Subagents::Own, &[]));
    let first = finder.find(&[], &body(""));
    assert!(matches!(first, Found::Key(_)));
    assert_eq!(finder.word(&[], &body("")), "prompt");
    assert_eq!(finder.find(&[], &body(r#",{"role":"assistant","content":"yes"}"#)), first);
    assert_ne!(finder.find(&[], &body("").replace("hi", "ho")), first);
    // Two with the same beginning and keys of their own stay two.
    let keyed = |id: &str| finder.find(&[("x-session-id", id)], &body(""));
    assert_eq!((keyed("one"), keyed("two")), (key("one"), key("two")));
    assert_eq!(finder.find(&[], r#"{"session_id":"k","prompt":"x"}"#), key("k"));
    assert_eq!(finder.find(&[], r#"{"model":"m"}"#), Found::Nothing, "no constant key");
}

#[test]
fn what_else_is_asked_for_is_read_with_the_keys() {
    let list = Sources::new(
        sources(&["body:/session_id"]),
        Subagents::Own,
        &["/model", "/previous_response_id", "no pointer"],
    );
    let mut reader = list.reader();
    reader.feed(br#"{"model":"m","session_id":"k","previous_response_id":"resp_1"}"#);
    let fields = reader.finish().unwrap();
    assert_eq!(fields.text("/model"), Some(&b"m"[..]));
    assert_eq!(fields.text("/previous_response_id"), Some(&b"resp_1"[..]));
    assert_eq!(list.with_body(&Headers::default(), &fields), key("k"));
}
