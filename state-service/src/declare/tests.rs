//! Declarations as operators write them, and everything they get wrong at once.

use super::{Address, ENDPOINTS_MAX, WorkerSpec, parse};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value, json};

fn read(value: &Value) -> Result<WorkerSpec, String> {
    parse(value.to_string().as_bytes(), Some("w1")).map_err(|faults| faults.to_string())
}

fn refused(value: &Value, expected: &Expect) {
    expected.assert_eq(&read(value).expect_err("accepted"));
}

#[test]
fn an_address_is_enough() {
    let spec = read(&json!({ "endpoints": [{ "address": "10.0.0.1:8000" }] })).unwrap();
    let written = serde_json::to_string_pretty(&spec.to_json()).unwrap();
    expect![[r#"
        {
          "device": "accelerator",
          "endpoints": [
            {
              "address": "10.0.0.1:8000",
              "dp_size": 1,
              "dp_start": 0,
              "rank_numbering": "global"
            }
          ],
          "engine": "vllm",
          "engine_version": null,
          "id": "w1",
          "in_flight_limit": null,
          "kv_events": "auto",
          "labels": {},
          "models": [],
          "phase": "aggregated",
          "pool": "default",
          "rank_in": "header",
          "weight": 1
        }"#]]
    .assert_eq(&written);
}

#[test]
fn what_is_written_out_reads_back_unchanged() {
    let spec = read(&json!({
        "id": "w1", "pool": "p", "models": ["m"], "engine": "sglang", "weight": 1000, "device": "cpu", "phase": "decode",
        "labels": { "zone": "a" },
        "endpoints": [
            { "address": "[FD00::1]:8000", "rank_numbering": "local", "dp_start": 4, "dp_size": 4 },
            { "address": "VLLM-0.svc:443", "dp_start": 0, "dp_size": 4, "tls": { "sni": "vllm", "ca": null } },
        ],
    }))
    .unwrap();
    assert_eq!(read(&spec.to_json()), Ok(spec.clone()));
    assert_eq!(read(&spec.to_saved()), Ok(spec.clone()));
    assert_eq!((spec.rank_start(), spec.rank_count()), (0, 8));
    assert_eq!(spec.endpoints[0].address.to_string(), "[fd00::1]:8000");
    assert_eq!(spec.endpoints[1].address.to_string(), "vllm-0.svc:443");
}

#[test]
fn only_later_fields_that_say_nothing_are_not_saved() {
    let plain = json!({ "endpoints": [{ "address": "10.0.0.1:8000" }] });
    let mut said = plain.clone();
    for (name, value) in [
        ("engine_version", json!("0.5.9")),
        ("rank_in", json!("body")),
        ("in_flight_limit", json!(64)),
        ("kv_events", json!("off")),
    ] {
        said[name] = value.clone();
        said["engine"] = json!("sglang");
        let (plain, said) = (read(&plain).unwrap().to_saved(), read(&said).unwrap());
        assert_eq!((plain.get(name), &said.to_saved()[name]), (None, &value));
        assert_eq!(read(&said.to_saved()), Ok(said.clone()));
    }
}

#[test]
fn every_fault_is_told_at_once_with_its_path() {
    refused(
        &json!({
            "id": "w2", "pool": "a b", "models": ["", 3], "engine": "ollama", "weight": 0, "device": 1, "labels": { "a": 1 },
            "endpoints": [
                { "address": "10.0.0.1", "dp_size": 0, "rank": 1 },
                { "dp_start": -1, "rank_numbering": "both", "tls": [] },
                7,
            ],
            "colour": "blue",
        }),
        &expect![[r#"
            id: "w2" is not the id in the path (allowed: w1)
            pool: "a b" may hold only ASCII letters, digits, '-', '_' and '.', found ' ' (allowed: 1..=63 bytes of letters, digits, '-', '_', '.')
            models[0]: is 0 bytes long (allowed: 1..=256 bytes)
            models[1]: is a number (allowed: a string)
            engine: "ollama" is not known (allowed: vllm, sglang, trtllm, custom)
            endpoints[0].address: "10.0.0.1" has no port (allowed: host:port, or [IPv6]:port)
            endpoints[0].dp_size: 0 is out of range (allowed: a whole number in 1..=1024)
            endpoints[0].rank: unknown field (allowed: address, rank_numbering, dp_start, dp_size, tls)
            endpoints[1].address: is missing (allowed: host:port, or [IPv6]:port)
            endpoints[1].rank_numbering: "both" is not known (allowed: global, local, none)
            endpoints[1].dp_start: -1 is out of range (allowed: a whole number in 0..=1048576)
            endpoints[1].tls: is a list (allowed: a JSON object)
            endpoints[2]: is a number (allowed: a JSON object)
            weight: 0 is out of range (allowed: a whole number in 1..=1000)
            device: is a number (allowed: accelerator, cpu)
            labels.a: is a number (allowed: a string)
            colour: unknown field (allowed: id, pool, models, engine, url, block_size, endpoints, weight, device, phase, labels, engine_version, rank_in, in_flight_limit, kv_events)"#]],
    );
}

#[test]
fn endpoints_must_join_without_gap_or_overlap() {
    let two = |start: u32, address: &str| json!({ "endpoints": [{ "address": "a:1", "dp_size": 4 }, { "address": address, "dp_start": start, "dp_size": 4 }] });
    refused(
        &two(3, "b:1"),
        &expect![
            "endpoints[1].dp_start: ranks 3..7 overlap ranks 0..4 (allowed: ranges that join without gap or overlap)"
        ],
    );
    refused(
        &two(5, "b:1"),
        &expect![
            "endpoints[1].dp_start: ranks 5..9 leave a gap after ranks 0..4 (allowed: ranges that join without gap or overlap)"
        ],
    );
    refused(
        &two(4, "A:1"),
        &expect![
            "endpoints[1].address: a:1 is the address of an earlier endpoint (allowed: each address once)"
        ],
    );
    assert!(read(&two(4, "b:1")).is_ok());
}

#[test]
fn ranks_need_a_header_that_names_them() {
    let one = |engine: &str, numbering: Option<&str>, dp_size: u32| json!({ "engine": engine, "endpoints": [{ "address": "a:1", "rank_numbering": numbering, "dp_size": dp_size }] });
    refused(
        &one("trtllm", None, 8),
        &expect![
            "endpoints[0].dp_size: 8 ranks behind one endpoint cannot be told apart without a rank header (allowed: 1 when rank_numbering is none (the default of trtllm and custom))"
        ],
    );
    refused(
        &one("trtllm", Some("global"), 8),
        &expect!["endpoints[0].rank_numbering: trtllm takes no rank over HTTP (allowed: none)"],
    );
    refused(
        &one("custom", None, 2),
        &expect![
            "endpoints[0].dp_size: 2 ranks behind one endpoint cannot be told apart without a rank header (allowed: 1 when rank_numbering is none (the default of trtllm and custom))"
        ],
    );
    refused(
        &one("vllm", Some("none"), 2),
        &expect![
            "endpoints[0].dp_size: 2 ranks behind one endpoint cannot be told apart without a rank header (allowed: 1 when rank_numbering is none (the default of trtllm and custom))"
        ],
    );
    assert!(read(&one("custom", Some("local"), 2)).is_ok());
    assert!(read(&one("trtllm", None, 1)).is_ok());
}

#[test]
fn sizes_are_bounded() {
    let endpoint = |i: usize| json!({ "address": format!("a{i}:1"), "dp_start": i });
    let many: Vec<Value> = (0..=ENDPOINTS_MAX).map(endpoint).collect();
    refused(&json!({ "endpoints": many }), &expect!["endpoints: has 65 entries (allowed: 1..=64 entries)"]);
    refused(&json!({}), &expect!["endpoints: has 0 entries (allowed: 1..=64 entries)"]);
    let wide = |i: u32| json!({ "address": format!("a{i}:1"), "dp_start": i * 600, "dp_size": 600 });
    refused(
        &json!({ "endpoints": [wide(0), wide(1)] }),
        &expect!["endpoints: 1200 ranks in all are too many (allowed: 1..=1024 ranks a worker)"],
    );
    let noisy: serde_json::Map<String, Value> =
        (0..200).map(|i| (format!("x{i}"), Value::Bool(true))).collect();
    let faults = parse(Value::Object(noisy).to_string().as_bytes(), Some("w1")).unwrap_err();
    assert_eq!(faults.list.len(), 64);
}

#[test]
fn ids_come_from_the_path_or_the_body() {
    let body = br#"{"id":"w1","endpoints":[{"address":"a:1"}]}"#;
    assert_eq!(parse(body, None).unwrap().id.as_str(), "w1");
    let faults = |body: &[u8], id: Option<&str>| parse(body, id).unwrap_err().to_string();
    expect!["id: is missing (allowed: 1..=63 bytes of letters, digits, '-', '_', '.')"]
        .assert_eq(&faults(br#"{"endpoints":[{"address":"a:1"}]}"#, None));
    expect![[r#"
        id: "w1" is not the id in the path (allowed: w 1)
        id: may hold only ASCII letters, digits, '-', '_' and '.', found ' ' (allowed: 1..=63 bytes of letters, digits, '-', '_', '.')"#]].assert_eq(&faults(body, Some("w 1")));
    expect![
        "(document): is not JSON: EOF while parsing an object at line 1 column 1 (allowed: a JSON object)"
    ]
    .assert_eq(&faults(b"{", None));
    expect!["(document): is a list (allowed: a JSON object)"].assert_eq(&faults(b"[]", None));
}

#[test]
fn addresses_name_a_host_and_a_port() {
    let good = ["10.0.0.1:1", "[::1]:65535", "localhost:80", "vllm_0.svc.cluster.local:8000", "a-b:1"];
    for text in good {
        assert_eq!(Address::parse(text).map(|a| a.to_string()), Ok(text.to_owned()));
    }
    let bad = [
        "",
        ":",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:+1",
        "a: 1",
        "::1:80",
        "[::1]",
        "[::1:80",
        "[a]:1",
        "10.0.0:1",
        "999.0.0.1:1",
        "a..b:1",
        "a b:1",
        "http://a:1",
        "a/b:1",
        ".a:1",
        "[10.0.0.1]:1",
        "a:1:2",
    ];
    for text in bad {
        assert!(Address::parse(text).is_err(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_and_no_json_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "\\PC{0,40}") {
        let _ = parse(&bytes, None);
        let _ = Address::parse(&text);
        let _ = parse(json!({ "endpoints": [{ "address": text }] }).to_string().as_bytes(), Some(&text));
    }

    #[test]
    fn an_address_that_is_read_is_written_as_it_reads(text in "[a-z0-9.:\\[\\]-]{1,24}") {
        if let Ok(address) = Address::parse(&text) {
            prop_assert_eq!(Address::parse(&address.to_string()), Ok(address));
        }
    }
}

#[test]
fn only_sglang_reads_a_rank_in_the_body() {
    let of = |engine: &str, rank_in: &str| {
        let json = json!({"engine": engine, "rank_in": rank_in, "engine_version": "0.5.9", "in_flight_limit": 64,
            "endpoints": [{"address": "a:1"}]});
        parse(json.to_string().as_bytes(), Some("w1"))
    };
    let old = of("sglang", "body").unwrap();
    assert_eq!((old.rank_in, old.in_flight_limit), (routing::contract::RankIn::Body, Some(64)));
    assert_eq!(parse(old.to_json().to_string().as_bytes(), None).unwrap(), old, "read back unchanged");
    assert_eq!(of("vllm", "header").unwrap().engine_version.as_deref(), Some("0.5.9"));
    let fault = of("vllm", "body").unwrap_err().to_string();
    assert_eq!(fault, "rank_in: only sglang reads a rank in the body (allowed: header)");
}
