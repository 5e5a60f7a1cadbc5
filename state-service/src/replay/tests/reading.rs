//! Readers: what lines become, and what is said of bad ones.

use super::super::args::Format;
use super::super::run;
use super::super::trace::{Content, Forest, Node, Trace};
use super::{args, args_of, made, read};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;

fn problem(format: Format, text: &str) -> String {
    read(format, text).map(|trace| format!("{} requests", trace.requests.len())).unwrap_err().to_string()
}

fn path(trace: &Trace, request: usize) -> Vec<Node> {
    let mut path = Vec::new();
    trace.forest.path(trace.requests[request].leaf, &mut path);
    path
}

fn session(id: &str, tools: u32, system: u32, requests: &str) -> String {
    format!(
        r#"{{"id":"{id}","block_size":64,"tool_tokens":{tools},"system_tokens":{system},"requests":[{requests}]}}"#
    ) + "\n"
}

#[test]
fn bad_mooncake_lines_are_named_with_what_is_wrong() {
    let good = r#"{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[0,1]}"#;
    let cases = [
        ("", "t: no requests"),
        ("\n  \n", "t: no requests"),
        ("{", "t: line 1: EOF while parsing an object (column 1)"),
        (r#"{"timestamp":0}"#, "t: line 1: missing field `input_length` (column 15)"),
        (
            r#"{"timestamp":0,"input_length":-1,"output_length":1,"hash_ids":[]}"#,
            "t: line 1: invalid value: integer `-1`, expected u32 (column 32)",
        ),
        (
            r#"{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]}"#,
            "t: line 1: timestamp -1 is no time of a trace",
        ),
        (
            r#"{"timestamp":1,"input_length":0,"output_length":1,"hash_ids":[]}"#,
            "t: line 1: a prompt of 0 tokens",
        ),
        (
            r#"{"timestamp":1,"input_length":1024,"output_length":1,"hash_ids":[1,2,3]}"#,
            "t: line 1: hash_ids names 3 blocks, a prompt of 1024 tokens has 2 of 512",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(Format::Mooncake, text), expected);
    }
    assert_eq!(
        problem(Format::Mooncake, &format!("{good}\n\n{good}\nx\n")),
        "t: line 4: expected value (column 1)"
    );
}

#[test]
fn bad_weka_lines_are_named_with_what_is_wrong() {
    let one = |request: &str| session("s", 0, 0, request);
    let cases = [
        (one(r#"{"t":0,"in":64}"#), "t: line 1: s: request 0: neither hash_rle nor requests"),
        (one(r#"{"t":0,"hash_rle":[[1,1]]}"#), "t: line 1: s: request 0: no in"),
        (
            one(r#"{"t":0,"in":64,"hash_rle":[[1,2]]}"#),
            "t: line 1: s: request 0: hash_rle names 2 blocks, a prompt of 64 tokens has 1 of 64",
        ),
        (
            one(r#"{"t":0,"in":64,"hash_rle":[[18446744073709551615,1]]}"#),
            "t: line 1: s: request 0: hash_rle [18446744073709551615, 1] has no end",
        ),
        (
            one(r#"{"t":0,"in":64,"hash_rle":[[1,4000000000000]]}"#),
            "t: line 1: s: request 0: more than 1048576 blocks",
        ),
        (
            one(r#"{"t":1e300,"in":64,"hash_rle":[[1,1]]}"#),
            &format!("t: line 1: s: request 0: t {} is no time of a trace", 1e300),
        ),
        (
            one(r#"{"t":0,"requests":[{"t":0,"requests":[]}]}"#),
            "t: line 1: requests[0]: a sub-agent with sub-agents",
        ),
        (
            one(r#"{"t":0,"in":64,"hash_rle":[[1,1]]}"#) + &one("").replace("64", "32"),
            "t: line 2: block_size 32 after sessions of 64",
        ),
        (one("").replace("64", "1"), "t: line 1: block_size 1: 2..=4096 tokens"),
        (one(""), "t: no requests"),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(Format::Weka, &text), expected);
    }
}

#[test]
fn sessions_share_tools_and_system_and_nothing_else() {
    let request = r#"{"t":1.5,"in":400,"out":7,"hash_rle":[[1,6]]}"#;
    let other = r#"{"t":2,"in":128,"out":7,"hash_rle":[[9,1],[2,1]]}"#;
    let text = session("a", 128, 64, &format!("{request},{other}"))
        + &session("b", 128, 64, request)
        + &session("c", 128, 65, request)
        + &session("d", 192, 0, request);
    let trace = read(Format::Weka, &text).unwrap();
    let [a, later, b, c, d] = [0, 1, 2, 3, 4].map(|request| path(&trace, request));
    let same = |other: &[Node]| a.iter().zip(other).take_while(|(left, right)| left == right).count();
    assert_eq!((a.len(), same(&b), same(&c), same(&d)), (6, 3, 2, 0));
    assert_eq!(same(&later), 0, "what stands elsewhere than in the first request is not shared");
    let times: Vec<u64> = trace.requests.iter().map(|request| request.at).collect();
    assert_eq!(times, [1500, 2000, 1750, 2000, 2250], "lines begin evenly over the second of `read`");
}

#[test]
fn a_sub_agent_is_a_session_of_its_own_with_its_lines_ids() {
    let text = session(
        "a",
        0,
        0,
        r#"{"t":0,"in":128,"out":1,"hash_rle":[[1,2]]},
           {"t":10,"agent_id":"x","requests":[{"t":1,"in":192,"out":1,"hash_rle":[[1,3]]}]},
           {"t":30,"in":256,"out":1,"hash_rle":[[1,4]]}"#,
    )
    .replace('\n', "");
    let trace = read(Format::Weka, &text).unwrap();
    let keys: Vec<_> =
        trace.sessions.iter().map(|s| (s.key.as_deref().unwrap(), s.requests.clone())).collect();
    assert_eq!(keys, [("a", 0..2), ("a:x", 2..3)]);
    assert_eq!(trace.requests.iter().map(|request| request.at).collect::<Vec<_>>(), [0, 30_000, 11_000]);
    assert_eq!(path(&trace, 1)[..3], path(&trace, 2), "its ids are those of its line");
    assert_eq!(trace.forest.len(), 4);
}

#[test]
fn a_last_block_that_is_not_full_is_listed_and_never_cached() {
    let text = r#"{"timestamp":7.0,"input_length":1025,"output_length":1,"hash_ids":[5,6,7]}"#;
    let trace = read(Format::Mooncake, text).unwrap();
    assert_eq!((trace.requests[0].listed, path(&trace, 0).len(), trace.requests[0].at), (3, 2, 7));
}

#[test]
fn blocks_are_named_as_the_service_names_their_tokens() {
    use routing::block::{Chain, Namespace};
    let mut forest = Forest::new(8);
    let (mut leaf, mut tokens, mut hashes) = (None, Vec::new(), Vec::new());
    for content in [7, 1 << 40, 7] {
        let node = forest.after(leaf, Content(content)).unwrap();
        forest.tokens(node, &mut tokens);
        hashes.push(forest.hash(node));
        leaf = Some(node);
    }
    assert_eq!(Chain::of(Namespace::default(), 8, &tokens).hashes, hashes);
    assert_eq!(forest.len(), 3, "the same content after another block is another block");
}

#[test]
fn files_are_plain_or_gzipped_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, zipped) = (folder.path().join("t.jsonl"), folder.path().join("t.jsonl.gz"));
    std::fs::write(&plain, made::MOONCAKE).unwrap();
    let mut encoder = GzEncoder::new(std::fs::File::create(&zipped).unwrap(), Compression::fast());
    encoder.write_all(made::MOONCAKE.as_bytes()).unwrap();
    encoder.finish().unwrap();
    let of = |path: &std::path::Path| {
        run(&super::ReplayArgs { trace: path.to_path_buf(), ..args("--slots 2 --policy random") })
    };
    assert_eq!(of(&plain).unwrap(), of(&zipped).unwrap());
    std::fs::write(&zipped, made::MOONCAKE).unwrap();
    let broken = of(&zipped).unwrap_err();
    assert!(broken.is_usage() && broken.to_string().contains("t.jsonl.gz: "), "{broken}");
    let gone = of(&folder.path().join("no")).unwrap_err().to_string();
    assert!(gone.ends_with("no: No such file or directory (os error 2)"), "{gone}");
}

#[test]
fn arguments_that_make_no_fleet_are_refused() {
    let refused = |text: &str| run(&args(text)).unwrap_err().to_string();
    assert_eq!(
        refused("--slots 8 --ranks 3 --policy random"),
        "--slots 8 cannot be had of workers with --ranks 3"
    );
    for fraction in ["0", "-1", "nan", "inf"] {
        let said = refused(&format!("--slots 8 --policy random --cache-fraction={fraction}"));
        assert!(said.ends_with("a number above 0, of which 1 caches every block once"), "{said}");
    }
    assert_eq!(refused("--slots 8 --policy random --speed 0"), "--speed 0: a number above 0");
    assert_eq!(args_of("weka", "--slots 1 --policy kv_aware --spread-s 2").spread(), 2000);
}
