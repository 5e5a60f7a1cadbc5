//! Which engine in which version reads a rank on which path, and how: every line of the published tables.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::contract::{Engine, RankIn, RankNumbering};
use routing::engine::{Dialect, OnWire, Release, Surface, honours_rank, number};

const HEADER: &str = "x-data-parallel-rank";

fn on_wire(engine: Engine, version: &str, rank_in: RankIn, path: &str) -> OnWire {
    let version = (version != "?").then_some(version);
    let wire = Dialect::new(engine, version, rank_in).on_wire(Surface::of(b"POST", path.as_bytes()), 10);
    let honoured = honours_rank(engine, version, rank_in, "POST", path);
    assert_eq!(
        honoured,
        wire != OnWire::Nothing,
        "{engine:?} {version:?} {path}: sent exactly where it is read"
    );
    wire
}

fn header(engine: Engine, version: &str, path: &str) -> bool {
    match on_wire(engine, version, RankIn::Header, path) {
        OnWire::Header { name, value } => {
            assert_eq!((name, value.as_str()), (HEADER, "10"), "plain digits");
            true
        }
        OnWire::Nothing => false,
        OnWire::Body { .. } => panic!("{engine:?} {version} {path}: in the body though nobody asked for it"),
    }
}

fn in_body(version: &str, path: &str) -> Option<&'static str> {
    match on_wire(Engine::Sglang, version, RankIn::Body, path) {
        OnWire::Body { name, value } => {
            assert_eq!(value, 10);
            Some(name)
        }
        OnWire::Header { name, .. } => Some(name),
        OnWire::Nothing => None,
    }
}

/// Path, the last version that does not read the header, the first that does.
const VLLM: [(&str, &str, &str); 6] = [
    ("/v1/chat/completions", "0.11.0", "0.11.1"),
    ("/v1/completions", "0.11.0", "0.11.1"),
    ("/v1/messages", "0.11.0", "0.11.1"),
    ("/v1/chat/completions/batch", "0.19.1", "0.20.0"),
    ("/inference/v1/generate", "0.21.0", "0.22.0"),
    ("/v1/responses", "0.32.0", "0.33.0"),
];

#[test]
fn vllm_path_by_path() {
    for (path, not_yet, since) in VLLM {
        assert!(!header(Engine::Vllm, not_yet, path), "{path} {not_yet}");
        for version in [since, "0.33.0", "0.40.2", "1.0.0", "?"] {
            assert!(header(Engine::Vllm, version, path), "{path} {version}");
        }
        for ancient in ["0.9.0", "0.10.2"] {
            assert!(!header(Engine::Vllm, ancient, path), "{path} {ancient}");
        }
    }
    assert!(!header(Engine::Vllm, "0.31.0", "/v1/responses"), "ignored there, still 200");
}

#[test]
fn no_engine_reads_a_rank_where_nothing_is_generated() {
    let paths = [
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/render",
        "/tokenize",
        "/v1/responses/resp_1/cancel",
        "/v1/models",
        "/",
        "",
    ];
    for path in paths {
        for engine in [Engine::Vllm, Engine::Sglang, Engine::Trtllm] {
            for version in ["?", "0.33.0", "0.5.23"] {
                assert!(!header(engine, version, path), "{engine:?} {path}");
            }
        }
        assert_eq!(in_body("0.5.9", path), None, "{path}");
    }
}

#[test]
fn sglang_by_header() {
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages"] {
        assert!(!header(Engine::Sglang, "0.5.9", path), "{path}");
        for version in ["0.5.10", "0.5.10.post1", "0.5.23", "0.6.0", "?"] {
            assert!(header(Engine::Sglang, version, path), "{path} {version}");
        }
    }
    assert!(!header(Engine::Sglang, "0.5.19", "/v1/responses"));
    assert!(header(Engine::Sglang, "0.5.20", "/v1/responses"));
    for version in ["0.5.9", "0.5.23", "?"] {
        assert!(!header(Engine::Sglang, version, "/generate"), "its own endpoint reads the body alone");
    }
}

#[test]
fn sglang_by_body_where_a_worker_wants_it() {
    let (old, new) = (Some("data_parallel_rank"), Some("routed_dp_rank"));
    for (version, path, name) in [
        ("0.4.8", "/generate", None),
        ("0.4.9", "/generate", old),
        ("0.5.9", "/generate", old),
        ("0.5.10", "/generate", new),
        ("0.5.23", "/generate", new),
        // The old name is understood by all of them.
        ("?", "/generate", old),
        ("0.5.6", "/v1/chat/completions", None),
        ("0.5.6", "/v1/completions", None),
        ("0.5.7", "/v1/chat/completions", old),
        ("0.5.7", "/v1/completions", old),
        ("0.5.10", "/v1/chat/completions", new),
        ("?", "/v1/chat/completions", old),
        // Its Anthropic endpoint reads the header alone, its responses later.
        ("0.5.9", "/v1/messages", None),
        ("0.5.10", "/v1/messages", Some(HEADER)),
        ("?", "/v1/messages", None),
        ("0.5.19", "/v1/responses", None),
        ("0.5.20", "/v1/responses", Some(HEADER)),
    ] {
        assert_eq!(in_body(version, path), name, "{version} {path}");
    }
}

#[test]
fn only_sglang_can_want_it_in_the_body() {
    for engine in [Engine::Vllm, Engine::Custom] {
        let wire = on_wire(engine, "0.33.0", RankIn::Body, "/v1/chat/completions");
        assert_eq!(wire, OnWire::Header { name: HEADER, value: "10".to_owned() }, "{engine:?}");
    }
    let wire = on_wire(Engine::Trtllm, "1.2.0", RankIn::Body, "/v1/chat/completions");
    assert_eq!(wire, OnWire::Nothing);
}

#[test]
fn tensorrt_llm_takes_a_conversation_and_no_rank() {
    for (path, _, _) in VLLM {
        assert!(!header(Engine::Trtllm, "?", path), "{path}");
    }
    let wants = |engine| Dialect::new(engine, None, RankIn::Header).wants_conversation();
    assert_eq!(
        [Engine::Vllm, Engine::Sglang, Engine::Trtllm, Engine::Custom].map(wants),
        [false, false, true, false]
    );
}

#[test]
fn of_an_unknown_engine_its_endpoints_say_whether_it_wants_a_rank() {
    for path in ["/v1/chat/completions", "/v1/embeddings", "/its/own"] {
        assert!(header(Engine::Custom, "0.0.1", path), "{path}");
    }
}

#[test]
fn a_request_is_known_by_method_and_end_of_path() {
    let of = |method: &str, path: &str| Surface::of(method.as_bytes(), path.as_bytes());
    assert_eq!(of("POST", "/v1/responses?stream=true"), Surface::Responses);
    assert_eq!(
        of("POST", "/team-a/v1/chat/completions"),
        Surface::Chat,
        "a prefix that the route takes away"
    );
    assert_eq!(of("POST", "/inference/v1/generate"), Surface::TokensIn);
    assert_eq!(of("POST", "/generate"), Surface::Generate);
    for (method, path) in [
        ("GET", "/v1/chat/completions"),
        ("OPTIONS", "/v1/responses"),
        ("", "/generate"),
        ("POST", "/v1/chat/completions/"),
        ("POST", "/v1/responses/resp_1"),
        ("POST", "/x?/v1/responses"),
        ("POST", "/health_generate"),
    ] {
        assert_eq!(of(method, path), Surface::Other, "{method} {path}");
    }
}

#[test]
fn versions_as_engines_write_them() {
    for (text, release) in [
        ("0.32.0", Some(Release(0, 32, 0))),
        ("v0.11.1", Some(Release(0, 11, 1))),
        (" 0.33.0rc1 ", Some(Release(0, 33, 0))),
        ("0.5.10.post1", Some(Release(0, 5, 10))),
        ("0.33", Some(Release(0, 33, 0))),
        ("0.33rc2.7", Some(Release(0, 33, 0))),
        ("1.2.0rc3+cu130", Some(Release(1, 2, 0))),
        ("", None),
        ("main", None),
        ("1", None),
        ("0.x", None),
        ("-1.2.3", None),
        ("99999999999.1.1", None),
    ] {
        assert_eq!(Release::parse(text), release, "{text:?}");
    }
    assert!(Release(0, 5, 10) > Release(0, 5, 9), "numbers, not text");
    assert!(header(Engine::Vllm, "nightly", "/v1/responses"), "no version is as none declared: current");
}

#[test]
fn endpoints_count_as_they_declare() {
    assert_eq!(number(RankNumbering::Global, 4, 6), Some(6));
    assert_eq!(number(RankNumbering::Local, 4, 6), Some(2));
    assert_eq!(number(RankNumbering::Local, 4, 3), None);
    assert_eq!(number(RankNumbering::None, 4, 6), None);
}
