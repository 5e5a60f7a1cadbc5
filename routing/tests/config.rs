//! The filter's config: every fault at once, each with its path; every accepted form; no secret in an error.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::pool_name;
use expect_test::{Expect, expect};
use routing::config::{FilterConfig, NoTopology, Steering, Trust, Watcher};
use routing::policy::mix;
use routing::session::{Source, default_sources};
use routing::time::Millis;

fn accepted(text: &str) -> FilterConfig {
    FilterConfig::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
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
        tick: Millis(100),
        sources: default_sources(),
        scope: Vec::new(),
        hash_secret: Vec::new(),
        pool: None,
        steering: Steering::Cluster,
        trust: Trust::Nobody,
        served_header: false,
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
        r#"{"service": {"cluster": "state", "token": "t0ken", "route_deadline_ms": 250},
            "session": {"sources": ["header:X-A", "cookie:sid", "query:s"], "scope": ["header:authorization"]},
            "hash_secret": "pepper", "pool_by": "fixed chat", "steering": "endpoints",
            "on_no_topology": "503", "pages": {"count": 16, "bytes": 65536}, "watch": "singleton",
            "tick_ms": 10000, "trust": "callers", "served_header": true}"#,
    );
    assert_eq!((config.trust, config.served_header), (Trust::Callers, true));
    assert_eq!(config.service_cluster, "state");
    assert_eq!(config.service_token.as_deref(), Some("t0ken"));
    assert_eq!((config.route_deadline, config.tick), (Millis(250), Millis(10_000)));
    assert_eq!(config.hash_secret, b"pepper");
    assert_eq!(config.pool, Some(pool_name("chat")));
    assert_eq!((config.steering, config.on_no_topology), (Steering::Endpoints, NoTopology::Unavailable));
    assert_eq!((config.page_count, config.page_bytes, config.watcher), (16, 65_536, Watcher::Singleton));
    let parsed = |text| Source::parse(text).unwrap();
    assert_eq!(config.sources, [parsed("header:x-a"), parsed("cookie:sid"), parsed("query:s")]);
    assert_eq!(config.scope, [parsed("header:authorization")]);
}

#[test]
fn defaults_may_be_written_out() {
    let text = r#"{"steering":"cluster","on_no_topology":"pass_through","watch":"elected","pool_by":"",
        "hash_secret":"","service":{"token":"","route_deadline_ms":30},"session":{"scope":[]},"tick_ms":100}"#;
    assert_eq!(accepted(text), accepted("{}"));
}

#[test]
fn limits_are_inclusive() {
    for (field, min, max) in [
        (r#"{"tick_ms":N}"#, 10, 10_000u64),
        (r#"{"service":{"route_deadline_ms":N}}"#, 1, 10_000),
        (r#"{"pages":{"count":N}}"#, 16, 65_536),
        (r#"{"pages":{"bytes":N}}"#, 256, 65_536),
    ] {
        let with = |n: u64| faults(&field.replace('N', &n.to_string()));
        assert_eq!(with(min), "accepted", "{field}");
        assert_eq!(with(max), "accepted", "{field}");
        for outside in [min - 1, max + 1, u64::MAX] {
            let allowed = format!("allowed: a whole number in {min}..={max}");
            assert!(with(outside).contains(&allowed), "{field} {outside}: {}", with(outside));
        }
        for wrong in ["-1", "1.5", "\"30\"", "null", "[]", "1e400"] {
            assert_ne!(faults(&field.replace('N', wrong)), "accepted", "{field} {wrong}");
        }
    }
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
            "pool_by": "header x", "service": {"cluster": "", "host": "h", "route_deadline_ms": 0, "token": "a b"},
            "session": {"key": 1, "scope": ["jwt:sub"], "sources": ["header:x-request-id", "x-id", 7, "ip:addr"]},
            "steering": "magic", "tick_ms": "fast", "watch": true}"#,
        expect![[r#"
            extra: is not a known field; allowed: service, session, hash_secret, pool_by, steering, trust, served_header, on_no_topology, pages, watch, tick_ms
            tick_ms: is "fast"; allowed: a whole number in 10..=10000
            hash_secret: is not a text, or too long; allowed: a text of at most 1024 bytes
            steering: is "magic"; allowed: "cluster" or "endpoints"
            on_no_topology: is "504"; allowed: "pass_through" or "503"
            watch: is true; allowed: "elected" or "singleton"
            pool_by: is "header x"; allowed: "fixed NAME", or leave the field out where there is one pool
            service.host: is not a known field; allowed: cluster, token, route_deadline_ms
            service.cluster: is empty; allowed: the name of an Envoy cluster
            service.token: has a byte outside visible ASCII; allowed: visible ASCII
            service.route_deadline_ms: is 0; allowed: a whole number in 1..=10000
            session.key: is not a known field; allowed: sources, scope
            session.sources[0]: is "header:x-request-id": it is new on each request, so it would scatter every conversation; allowed: "header:NAME", "cookie:NAME" or "query:NAME"
            session.sources[1]: is "x-id": has no kind; allowed: "header:NAME", "cookie:NAME" or "query:NAME"
            session.sources[2]: is 7: has no kind; allowed: "header:NAME", "cookie:NAME" or "query:NAME"
            session.sources[3]: is "ip:addr": unknown kind; allowed: "header:NAME", "cookie:NAME" or "query:NAME"
            session.sources: is empty; allowed: at least one source, or leave the field out for the default list
            session.scope[0]: is "jwt:sub": body and jwt sources are not available in this version; allowed: "header:NAME", "cookie:NAME" or "query:NAME"
            pages.colour: is not a known field; allowed: count, bytes
            pages.count: is 0; allowed: a whole number in 16..=65536
            pages.bytes: is 1; allowed: a whole number in 256..=65536"#]],
    );
}

#[test]
fn a_wrong_shape_hides_no_other_fault() {
    check(
        r#"{"pages": 7, "service": [], "session": "x", "tick_ms": 1}"#,
        expect![[r#"
        tick_ms: is 1; allowed: a whole number in 10..=10000
        service: is not an object; allowed: a JSON object
        session: is not an object; allowed: a JSON object
        pages: is not an object; allowed: a JSON object"#]],
    );
}

#[test]
fn pools_are_named_by_the_rules_of_names() {
    check(
        r#"{"pool_by": "fixed a b"}"#,
        expect![[
            r#"pool_by: names a pool that may hold only ASCII letters, digits, '-', '_' and '.', found ' '; allowed: "fixed NAME", or leave the field out where there is one pool"#
        ]],
    );
    check(
        r#"{"pool_by": "fixed "}"#,
        expect![[
            r#"pool_by: names a pool that must not be empty; allowed: "fixed NAME", or leave the field out where there is one pool"#
        ]],
    );
    check(
        r#"{"pool_by": "model"}"#,
        expect![[
            r#"pool_by: is "model"; allowed: "fixed NAME", or leave the field out where there is one pool"#
        ]],
    );
    assert_eq!(accepted(r#"{"pool_by": "fixed  chat "}"#).pool, Some(pool_name("chat")));
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
