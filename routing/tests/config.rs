//! The filter's config: every fault at once, each with its path; every accepted form; no secret in an error.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::pool_name;
use expect_test::{Expect, expect};
use routing::config::{
    Field, FilterConfig, Kind, Module, NoTopology, PoolBy, PrefillHeaders, Steering, Trust, Watcher, fields,
};
use routing::policy::mix;
use routing::session::{Source, Sources, Subagents, default_body_sources, default_sources};
use routing::time::Millis;

fn accepted(text: &str) -> FilterConfig {
    FilterConfig::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

/// A document with one field.
fn document(field: &Field, value: &str) -> String {
    match field.path.split_once('.') {
        Some((parent, name)) => format!(r#"{{"{parent}":{{"{name}":{value}}}}}"#),
        None => format!(r#"{{"{}":{value}}}"#, field.path),
    }
}

fn faults(text: &str) -> String {
    FilterConfig::parse(text.as_bytes()).map(|_| "accepted".to_owned()).unwrap_or_else(|e| e.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&faults(text));
}

#[test]
fn no_config_is_the_default() {
    let expected = FilterConfig {
        service_cluster: "rankpin-service".to_owned(),
        service_token: None,
        route_deadline: Millis(30),
        route_prompt_deadline: Millis(250),
        tick: Millis(100),
        sources: Sources::new(default_sources(), Subagents::Own, &[]),
        scope: Vec::new(),
        body: false,
        prompt_bytes_max: 1 << 20,
        body_wait: Millis(1000),
        final_headers: vec!["x-session-final".to_owned(), "x-dynamo-session-final".to_owned()],
        hash_secret: Vec::new(),
        pool_by: PoolBy::Only,
        response_ids: false,
        steering: Steering::Cluster,
        trust: Trust::Nobody,
        served_header: false,
        prefill_headers: PrefillHeaders {
            host_port: "x-prefiller-host-port".to_owned(),
            rank: "x-prefill-dp-rank".to_owned(),
        },
        on_no_topology: NoTopology::PassThrough,
        page_count: 4096,
        page_bytes: 2048,
        watcher: Watcher::Elected,
    };
    for text in ["", " \n\t", "{}", r#"{"service":{},"session":{},"pages":{}}"#] {
        assert_eq!(accepted(text), expected, "{text:?}");
    }
}

#[test]
fn every_field_is_read() {
    let config = accepted(
        r#"{"service": {"cluster": "state", "token": "t0ken", "route_deadline_ms": 250, "route_prompt_deadline_ms": 400},
            "session": {"sources": ["header:X-A", "cookie:sid", "query:s", "body:/a/0", "jwt:sub"],
                        "scope": ["header:authorization", "jwt:/org/id@x-token"], "body": true, "prompt_bytes_max": 4096,
                        "body_wait_ms": 50, "subagents": "parent", "final_headers": ["X-Bye"], "fallback": true},
            "response_ids": true, "prefill_headers": {"host_port": "X-P", "rank": "x-r"},
            "hash_secret": "pepper", "pool_by": "fixed chat", "steering": "endpoints",
            "on_no_topology": "503", "pages": {"count": 16, "bytes": 65536}, "watch": "singleton",
            "tick_ms": 10000, "trust": "callers", "served_header": true}"#,
    );
    assert_eq!((config.trust, config.served_header), (Trust::Callers, true));
    assert_eq!(config.service_cluster, "state");
    assert_eq!(config.service_token.as_deref(), Some("t0ken"));
    assert_eq!((config.route_deadline, config.tick), (Millis(250), Millis(10_000)));
    assert_eq!(config.route_prompt_deadline, Millis(400));
    assert_eq!(config.hash_secret, b"pepper");
    assert_eq!(config.pool_by.fixed(), Some(&pool_name("chat")));
    assert_eq!((config.steering, config.on_no_topology), (Steering::Endpoints, NoTopology::Unavailable));
    assert_eq!((config.page_count, config.page_bytes, config.watcher), (16, 65_536, Watcher::Singleton));
    let parsed = |texts: &[&str]| texts.iter().map(|text| Source::parse(text).unwrap()).collect::<Vec<_>>();
    let mut list = parsed(&["header:x-a", "cookie:sid", "query:s", "body:/a/0", "jwt:sub"]);
    list.push(Source::Prompt);
    assert_eq!(config.sources, Sources::new(list, Subagents::Parent, &["/previous_response_id"]));
    assert_eq!(config.scope, parsed(&["header:authorization", "jwt:/org/id@x-token"]));
    assert_eq!((config.body, config.prompt_bytes_max, config.body_wait), (true, 4096, Millis(50)));
    assert_eq!((config.final_headers, config.response_ids), (vec!["x-bye".to_owned()], true));
    assert_eq!(
        config.prefill_headers,
        PrefillHeaders { host_port: "x-p".to_owned(), rank: "x-r".to_owned() }
    );
    assert_eq!(config.pool_by, PoolBy::Fixed(pool_name("chat")));
}

#[test]
fn defaults_may_be_written_out() {
    let text = r#"{"steering":"cluster","on_no_topology":"pass_through","watch":"elected","pool_by":"",
        "hash_secret":"","service":{"token":"","route_deadline_ms":30,"route_prompt_deadline_ms":250},"session":{"scope":[]},"tick_ms":100}"#;
    assert_eq!(accepted(text), accepted("{}"));
}

#[test]
fn limits_are_inclusive() {
    let mut numbers = 0;
    for field in fields() {
        let Kind::Integer { default, min, max, .. } = field.kind else { continue };
        numbers += 1;
        let with = |n: &str| faults(&document(field, n));
        assert_eq!(accepted(&document(field, &default.to_string())), accepted("{}"), "{}", field.path);
        assert_eq!(with(&min.to_string()), "accepted", "{}", field.path);
        assert_eq!(with(&max.to_string()), "accepted", "{}", field.path);
        for outside in [min - 1, max + 1, u64::MAX] {
            let allowed = format!("{}: is {outside}; allowed: a whole number in {min}..={max}", field.path);
            assert_eq!(with(&outside.to_string()), allowed);
        }
        for wrong in ["-1", "1.5", "\"30\"", "null", "[]", "1e400"] {
            assert_ne!(with(wrong), "accepted", "{} {wrong}", field.path);
        }
    }
    assert_eq!(numbers, 7);
    let sources =
        |n: usize| format!(r#"{{"session":{{"sources":[{}]}}}}"#, vec!["\"header:x\""; n].join(","));
    assert_eq!((faults(&sources(64)), faults(&sources(1))), ("accepted".to_owned(), "accepted".to_owned()));
    assert!(faults(&sources(65)).contains("at most 64 sources"));
    assert!(faults(&sources(0)).contains("session.sources: is empty"));
}

#[test]
fn all_faults_are_told_at_once() {
    check(
        r#"{"extra": 1, "hash_secret": 5, "on_no_topology": "504", "pages": {"bytes": 1, "colour": 2, "count": 0},
            "pool_by": "model x", "service": {"cluster": "", "host": "h", "route_deadline_ms": 0, "token": "a b"},
            "session": {"key": 1, "subagents": "none", "final_headers": ["a b", 3], "fallback": "yes", "body_wait_ms": 9, "scope": ["body:/user", "jwt:"], "sources": ["header:x-request-id", "x-id", 7, "ip:addr"]},
            "response_ids": 1, "prefill_headers": {"rank": ":path", "port": "x"}, "steering": "magic", "tick_ms": "fast", "watch": true}"#,
        expect![[r#"
            extra: is not a known field; allowed: service, session, hash_secret, pool_by, response_ids, steering, trust, served_header, prefill_headers, on_no_topology, pages, watch, tick_ms
            service.host: is not a known field; allowed: cluster, token, route_deadline_ms, route_prompt_deadline_ms
            session.key: is not a known field; allowed: sources, scope, body, prompt_bytes_max, body_wait_ms, subagents, final_headers, fallback
            prefill_headers.port: is not a known field; allowed: host_port, rank
            pages.colour: is not a known field; allowed: count, bytes
            service.cluster: is empty; allowed: the name of an Envoy cluster
            service.token: has a byte outside visible ASCII; allowed: visible ASCII
            session.sources[0]: is "header:x-request-id": it is new on each request, so it would scatter every conversation; allowed: "header:NAME", "cookie:NAME", "query:NAME", "body:/JSON/POINTER" or "jwt:CLAIM" ("jwt:CLAIM@HEADER")
            session.sources[1]: is "x-id": has no kind; allowed: "header:NAME", "cookie:NAME", "query:NAME", "body:/JSON/POINTER" or "jwt:CLAIM" ("jwt:CLAIM@HEADER")
            session.sources[2]: is 7: has no kind; allowed: "header:NAME", "cookie:NAME", "query:NAME", "body:/JSON/POINTER" or "jwt:CLAIM" ("jwt:CLAIM@HEADER")
            session.sources[3]: is "ip:addr": unknown kind; allowed: "header:NAME", "cookie:NAME", "query:NAME", "body:/JSON/POINTER" or "jwt:CLAIM" ("jwt:CLAIM@HEADER")
            session.sources: is empty; allowed: at least one source, or leave the field out for the default list
            session.fallback: is "yes"; allowed: true or false
            session.subagents: is "none"; allowed: "own" or "parent"
            pool_by: is "model x"; allowed: "fixed NAME", "header NAME", "body", or leave the field out where there is one pool
            response_ids: is 1; allowed: true or false
            service.route_deadline_ms: is 0; allowed: a whole number in 1..=10000
            tick_ms: is "fast"; allowed: a whole number in 10..=10000
            session.scope[0]: is "body:/user": a scope is not read from the body; allowed: "header:NAME", "cookie:NAME", "query:NAME" or "jwt:CLAIM" ("jwt:CLAIM@HEADER")
            session.scope[1]: is "jwt:": its claim is not visible ASCII; allowed: "header:NAME", "cookie:NAME", "query:NAME" or "jwt:CLAIM" ("jwt:CLAIM@HEADER")
            session.body_wait_ms: is 9; allowed: a whole number in 10..=60000
            session.final_headers[0]: is "a b": is no header name; allowed: a header name of letters, digits, '-', '_' or '.'
            session.final_headers[1]: is 3: is no header name; allowed: a header name of letters, digits, '-', '_' or '.'
            hash_secret: is not a text, or too long; allowed: a text of at most 1024 bytes
            steering: is "magic"; allowed: "cluster" or "endpoints"
            prefill_headers.rank: is ":path"; allowed: a header name of letters, digits, '-', '_' or '.'
            on_no_topology: is "504"; allowed: "pass_through" or "503"
            pages.count: is 0; allowed: a whole number in 16..=65536
            pages.bytes: is 1; allowed: a whole number in 256..=65536
            watch: is true; allowed: "elected" or "singleton""#]],
    );
}

#[test]
fn a_wrong_shape_hides_no_other_fault() {
    check(
        r#"{"pages": 7, "service": [], "session": "x", "tick_ms": 1}"#,
        expect![[r#"
            service: is not an object; allowed: a JSON object
            session: is not an object; allowed: a JSON object
            pages: is not an object; allowed: a JSON object
            tick_ms: is 1; allowed: a whole number in 10..=10000"#]],
    );
}

#[test]
fn pools_are_named_by_the_rules_of_names() {
    check(
        r#"{"pool_by": "fixed a b"}"#,
        expect![[
            r#"pool_by: names a pool that may hold only ASCII letters, digits, '-', '_' and '.', found ' '; allowed: "fixed NAME", "header NAME", "body", or leave the field out where there is one pool"#
        ]],
    );
    check(
        r#"{"pool_by": "fixed "}"#,
        expect![[
            r#"pool_by: names a pool that must not be empty; allowed: "fixed NAME", "header NAME", "body", or leave the field out where there is one pool"#
        ]],
    );
    check(
        r#"{"pool_by": "model"}"#,
        expect![[
            r#"pool_by: is "model"; allowed: "fixed NAME", "header NAME", "body", or leave the field out where there is one pool"#
        ]],
    );
    assert_eq!(accepted(r#"{"pool_by": "fixed  chat "}"#).pool_by.fixed(), Some(&pool_name("chat")));
}

#[test]
fn what_is_no_json_object_is_refused() {
    check("[]", expect!["$: is not a JSON object; allowed: a JSON object"]);
    check(
        "{\"tick_ms\": 100",
        expect!["$: is not JSON: EOF while parsing an object at line 1 column 15; allowed: a JSON object"],
    );
    for text in ["null", "7", "\"{}\"", "{} {}", "{\"tick_ms\":}", "\u{feff}{}", "tick_ms: 100", "\0"] {
        assert!(faults(text).starts_with("$: "), "{text:?}: {}", faults(text));
    }
    assert!(faults(&"[".repeat(100_000)).starts_with("$: is not JSON"), "depth is bounded");
}

#[test]
fn a_huge_document_is_refused_unread() {
    let huge = format!("{{\"tick_ms\": 100{}}}", " ".repeat(1 << 20));
    assert_eq!(faults(&huge), format!("$: is {} bytes long; allowed: at most 1048576 bytes", huge.len()));
}

#[test]
fn garbage_is_refused_and_never_panics() {
    for seed in 0..500u64 {
        let len = mix(seed, 0) % 200;
        let bytes: Vec<u8> = (1..len).map(|n| mix(seed, n).to_le_bytes()[0]).collect();
        if let Ok(config) = FilterConfig::parse(&bytes) {
            assert!(bytes.iter().all(u8::is_ascii_whitespace), "{config:?}");
        }
    }
}

#[test]
fn secrets_are_never_echoed() {
    let secret = "hunter2-hunter2";
    for text in [
        format!(r#"{{"hash_secret": ["{secret}"]}}"#),
        format!(r#"{{"hash_secret": "{}"}}"#, secret.repeat(100)),
        format!(r#"{{"hash_secret": {{"value": "{secret}"}}, "tick_ms": 1}}"#),
        format!(r#"{{"service": {{"token": "{secret} x"}}}}"#),
        format!(r#"{{"service": {{"token": ["{secret}"]}}}}"#),
        format!(r#"{{"service": {{"token": "{}"}}}}"#, secret.repeat(1000)),
        format!(
            r#"{{"service": {{"token": "{secret}", "route_deadline_ms": 0}}, "hash_secret": "{secret}"}}"#
        ),
        format!(r#"{{"service": {{"token": "{secret}" "#),
        format!(r#"{{"service": "{secret}"}}"#),
    ] {
        let told = faults(&text);
        assert_ne!(told, "accepted", "{text}");
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[test]
fn a_fault_is_short_however_long_the_value() {
    let long = "x".repeat(100_000);
    for text in [
        format!(r#"{{"steering": "{long}"}}"#),
        format!(r#"{{"tick_ms": "{long}"}}"#),
        format!(r#"{{"session": {{"sources": ["{long}"]}}}}"#),
        format!(r#"{{"{long}": 1}}"#),
        format!(r#"{{"pool_by": "{long}"}}"#),
    ] {
        let told = faults(&text);
        assert!(told.len() < 1000, "{} bytes: {}", told.len(), &told[..200]);
    }
}

#[test]
fn the_default_written_out_is_the_default() {
    for field in fields() {
        let default = field.default_text();
        match field.kind {
            Kind::Form { .. } | Kind::Sources { .. } => assert_eq!(default, "", "{}", field.path),
            _ => assert_eq!(accepted(&document(field, &default)), accepted("{}"), "{}", field.path),
        }
    }
}

#[test]
fn every_field_is_declared_once_and_told() {
    let mut paths: Vec<&str> = fields().iter().map(|field| field.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), fields().len());
    for field in fields() {
        // In a module nobody reads what is written for people.
        assert!(cfg!(target_arch = "wasm32") || !field.meaning.is_empty(), "{}", field.path);
        assert!(!field.allowed().is_empty(), "{}", field.path);
        let wrong = faults(&document(field, "{}"));
        assert!(wrong.starts_with(&format!("{}: ", field.path)), "{}: {wrong}", field.path);
        let second =
            faults(&document(field, "{}").replace('}', ", \"typo\": 1}").replacen(", \"typo\": 1}", "}", 1));
        assert!(second.contains("typo"), "{}: {second}", field.path);
    }
}

#[test]
fn body_sources_come_behind_the_headers_where_bodies_are_read() {
    let config = accepted(r#"{"session":{"body":true}}"#);
    let expected: Vec<Source> = default_sources().into_iter().chain(default_body_sources()).collect();
    assert_eq!(config.sources, Sources::new(expected, Subagents::Own, &[]));
    let words: Vec<String> = default_body_sources().iter().map(Source::word).collect();
    assert_eq!(
        words,
        [
            "body:/session_id",
            "body:/prompt_cache_key",
            "body:/conversation",
            "body:/conversation_params/conversation_id",
            "body:/metadata/session_id",
            "body:/metadata/user_id",
        ]
    );
    assert!(config.reads_body() && !accepted("{}").reads_body());
    let own = accepted(r#"{"session":{"body":true,"sources":["header:x"]}}"#);
    assert!(!own.reads_body(), "a list of one's own is the whole list");
    for text in [
        r#"{"session":{"sources":["body:/x"]}}"#,
        r#"{"session":{"fallback":true}}"#,
        r#"{"pool_by":"body"}"#,
        r#"{"response_ids":true}"#,
    ] {
        assert!(accepted(text).reads_body(), "{text}");
    }
}

#[test]
fn a_module_refuses_what_it_cannot_see() {
    let told = |text: &str, module| {
        accepted(text).check(module).map(|()| "accepted".to_owned()).unwrap_or_else(|e| e.to_string())
    };
    let all = r#"{"pool_by":"body","response_ids":true,
        "session":{"sources":["header:x","body:/a","body:/metadata/user_id"],"fallback":true}}"#;
    expect![[r#"
        session.sources[1]: reads bodies; allowed: without it, or in rankpin-body.wasm or rankpin-full.wasm
        session.sources[2]: reads bodies; allowed: without it, or in rankpin-body.wasm or rankpin-full.wasm
        session.fallback: reads bodies; allowed: without it, or in rankpin-body.wasm or rankpin-full.wasm
        pool_by: reads bodies; allowed: without it, or in rankpin-body.wasm or rankpin-full.wasm
        response_ids: reads answers; allowed: without it, or in rankpin-full.wasm"#]]
    .assert_eq(&told(all, Module::Headers));
    assert_eq!(
        told(all, Module::Body),
        "response_ids: reads answers; allowed: without it, or in rankpin-full.wasm"
    );
    assert_eq!(told(all, Module::Full), "accepted");
    assert!(told(r#"{"session":{"body":true}}"#, Module::Headers).starts_with("session.body: reads bodies"));
    assert_eq!(told(r#"{"session":{"body":true}}"#, Module::Body), "accepted");
    assert_eq!(told("{}", Module::Headers), "accepted");
}

#[test]
fn a_pool_may_be_named_by_a_header_or_a_model() {
    assert_eq!(accepted(r#"{"pool_by":"header X-Pool"}"#).pool_by, PoolBy::Header("x-pool".to_owned()));
    assert_eq!(accepted(r#"{"pool_by":"body"}"#).pool_by, PoolBy::Body);
    let fixed = accepted(r#"{"pool_by":"fixed chat"}"#);
    assert_eq!(fixed.pool_by.fixed(), Some(&pool_name("chat")));
    for wrong in ["header", "header ", "header a b", "header :path", "fixed", "body x", "Body", " body"] {
        assert!(faults(&format!(r#"{{"pool_by":"{wrong}"}}"#)).starts_with("pool_by: "), "{wrong:?}");
    }
}
