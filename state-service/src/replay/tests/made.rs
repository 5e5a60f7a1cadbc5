//! Traces made by a function, and committed as it makes them: what the figures of `playing.rs` are about.

use std::fmt::Write;

/// As [`mooncake`] makes it.
pub(super) const MOONCAKE: &str = include_str!("made.mooncake.jsonl");
/// As [`weka`] makes it.
pub(super) const WEKA: &str = include_str!("made.weka.jsonl");

/// Thirty conversations of seven turns, all at once: each of one of three first blocks, then blocks of its own, three or four more
/// each turn. Which conversation speaks next is not in the order of their numbers.
fn mooncake() -> String {
    let (mut lines, mut next_id, mut ids) = (String::new(), 3, vec![Vec::new(); 30]);
    for turn in 0..7 {
        for step in 0..30 {
            let which = (step * 7 + turn * 11) % 30;
            let known: &mut Vec<u64> = &mut ids[which];
            if turn == 0 {
                known.push(which as u64 % 3);
            }
            known.extend(next_id..next_id + 3 + which as u64 % 2);
            next_id += 4;
            let (at, tokens) = ((turn * 30 + step) * 700, known.len() * 512);
            let output = 20 + step * 3;
            let said = serde_json::json!({ "timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": known });
            writeln!(lines, "{said}").unwrap();
        }
    }
    lines
}

/// Twelve sessions of six requests; every third one has a sub-agent of three.
fn weka() -> String {
    let mut lines = String::new();
    for session in 0..12 {
        let (tools, system) = (256, 64 * (1 + session % 2));
        let request = |first: u64, t: u64, blocks: u64| {
            let tokens = blocks * 64 + 17;
            serde_json::json!({ "t": t, "type": "n", "in": tokens, "out": 40, "hash_rle": [[first, blocks]] })
        };
        let mut requests: Vec<_> =
            (0..6).map(|turn| request(1, turn * 20, 40 + turn * (5 + session))).collect();
        if session % 3 == 0 {
            let nested: Vec<_> = (0..3).map(|turn| request(1000, turn * 4, 20 + turn * 4)).collect();
            requests.insert(
                3,
                serde_json::json!({ "t": 45, "type": "subagent", "agent_id": "a1", "tool_tokens": 128, "system_tokens": 64, "requests": nested }),
            );
        }
        let said = serde_json::json!({
            "id": format!("s{session:02}"), "block_size": 64, "hash_id_scope": "local", "tool_tokens": tools, "system_tokens": system,
            "requests": requests,
        });
        writeln!(lines, "{said}").unwrap();
    }
    lines
}

/// Set to write the files anew.
const REMAKE: &str = "RANKPIN_REMAKE_TRACES";

#[test]
fn the_committed_traces_are_as_they_are_made() {
    for (name, committed, made) in
        [("made.mooncake.jsonl", MOONCAKE, mooncake()), ("made.weka.jsonl", WEKA, weka())]
    {
        if std::env::var_os(REMAKE).is_some() {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/replay/tests").join(name);
            std::fs::write(path, &made).unwrap();
        } else {
            assert!(made == committed, "{name} is not what the function makes; {REMAKE}=1 writes it anew");
        }
    }
}
