//! The benches start, measure and print what programs read; their figures are no matter of tests.

use std::process::Command;

use e2e::scratch::Scratch;
use serde_json::{Value, json};

/// Figures whose value does not depend on the machine.
const EXACT: [&str; 2] = ["calls_per_pinned_turn", "body_bytes_per_pinned_turn"];

/// Runs one bench with the least it takes; its last line.
fn report_of(name: &str, more: &[&str]) -> Value {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    let output = bench.args([name, "--rounds", "1", "--json"]).args(more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&report["name"], &report["rounds"]), (&name.into(), &1.into()));
    report
}

fn value(report: &Value, name: &str) -> f64 {
    report["values"][name].as_f64().unwrap_or_else(|| panic!("{name} in {report}"))
}

#[test]
fn first_turn_prints_one_object_as_its_last_line() {
    let report = report_of("first-turn", &["--requests", "100", "--rate", "100"]);
    assert_eq!(value(&report, "requests_per_s"), 100.0);
    for (front, calls) in [("bare", 0.0), ("cluster", 1.0), ("endpoints", 1.0)] {
        assert!(value(&report, &format!("p50_us_{front}")) > 0.0, "{front} in {report}");
        let ascending =
            value(&report, &format!("p50_us_{front}")) <= value(&report, &format!("p99_us_{front}"));
        assert!(ascending, "{front} in {report}");
        assert_eq!(value(&report, &format!("calls_per_first_turn_{front}")), calls, "{front}");
    }
    for added in ["added_p50_us_cluster", "added_p50_us_endpoints", "added_p99_us_endpoints"] {
        // Whatever it is: how long things take is no matter of tests.
        value(&report, added);
    }
}

#[test]
fn failover_prints_one_object_as_its_last_line() {
    let report = report_of("failover", &[]);
    for mode in ["cluster", "endpoints"] {
        let [min, mid, max] =
            ["ms_min", "ms", "ms_max"].map(|name| value(&report, &format!("{name}_{mode}")));
        assert!(0.0 < min && min <= mid && mid <= max, "{mode} in {report}");
        let failures = value(&report, &format!("status_5xx_{mode}"));
        assert!(failures >= 0.0 && failures.fract() == 0.0, "{mode} in {report}");
        assert!(value(&report, &format!("status_5xx_max_{mode}")) <= failures, "{mode} in {report}");
    }
}

#[test]
fn index_prints_one_object_as_its_last_line() {
    let report = report_of("index", &["--resident", "20000", "--churn", "1000000"]);
    for name in ["apply_ns_per_block", "find_p50_us_16", "find_p50_us_64", "find_p50_us_16x8000"] {
        assert!(value(&report, name) > 0.0, "{name} in {report}");
    }
    assert!(value(&report, "churn_bytes_per_block") <= 48.0, "{report}");
    assert!(report["ratios"]["churn_bytes_over_base"].as_f64().unwrap() <= 1.1, "{report}");
}

#[test]
fn events_prints_one_object_as_its_last_line() {
    let report = report_of("events", &["--workers", "4", "--batches", "5"]);
    assert_eq!(value(&report, "ranks"), 16.0);
    for name in
        ["batches_per_s", "blocks_per_s_cpu", "descriptors_published", "mib_reconnected", "s_reconnected"]
    {
        assert!(value(&report, name) > 0.0, "{name} in {report}");
    }
}

#[test]
fn pinned_prints_one_object_as_its_last_line() {
    let report = report_of("pinned", &["--requests", "200"]);
    for ratio in ["cluster_over_bare", "pinned_over_bare", "first_over_bare"] {
        assert!(report["ratios"][ratio].as_f64().unwrap() > 0.0, "{ratio} in {report}");
    }
    for value in EXACT {
        assert_eq!(report["values"][value], 0.0, "{value}");
    }
    assert!(report["values"]["wasm_bytes"].as_f64().unwrap() > 0.0);
    // 64 sessions over w0..w2 with four ranks each: a change of it is a change of where everybody's sessions go.
    assert_eq!(report["hash"], "760c6b071632efbb");
}

#[test]
fn route_chooses_books_and_ends_in_process_and_over_http() {
    let report = report_of("route", &["--requests", "20", "--resident", "2000"]);
    for name in ["select_cpu_us_64", "select_hashes_cpu_us_64", "select_http_p50_us", "route_chat_p50_us"] {
        assert!(value(&report, name) > 0.0, "{name} in {report}");
    }
}

#[test]
fn store_prints_one_object_as_its_last_line_and_nothing_is_lost() {
    let small =
        ["--sessions", "400", "--first-turns", "50", "--rate", "100", "--seconds", "1", "--still", "1"];
    let report = report_of("store", &small);
    assert_eq!((value(&report, "lost"), value(&report, "holds_left")), (0.0, 0.0), "{report}");
    for name in [
        "apply_lag_p99_ms",
        "first_turn_p50_us",
        "commands_per_new_session",
        "commands_per_1000_pinned_turns",
        "bindings_per_s_per_replica",
        "resident_mib_still",
    ] {
        assert!(value(&report, name) > 0.0, "{name} in {report}");
    }
    for ratio in ["cpu_2_over_1", "cpu_4_over_1"] {
        assert!(report["ratios"][ratio].as_f64().unwrap() > 0.0, "{ratio} in {report}");
    }
}

/// Conversations of six turns each in the trace's format, three blocks of the bench longer each time.
fn made_trace(sessions: u64) -> String {
    let session = |_| {
        let turn = |turn: u64| json!({"t": turn * 10, "hash_rle": [[1, 160 + 48 * turn]]});
        let turns: Vec<Value> = (0..6).map(turn).collect();
        let line = json!({"block_size": 64, "tool_tokens": 2048, "system_tokens": 1024, "requests": turns});
        format!("{line}\n")
    };
    (0..sessions).map(session).collect()
}

#[test]
fn fleet_sends_a_trace_through_one_replica_and_two_and_sessions_stay() {
    let scratch = Scratch::new().unwrap();
    let trace = scratch.join("made.jsonl");
    std::fs::write(&trace, made_trace(24)).unwrap();
    let small = ["--workers", "8", "--replicas", "2", "--sessions", "24", "--seconds", "4", "--speed", "20"];
    // A slow machine may well have load to move soft ones, and caches that hold everything need no luck.
    let still = ["--affinity", "hard", "--cache-fraction", "8", "--trace", trace.to_str().unwrap()];
    let report = report_of("fleet", &[&small[..], &still].concat());
    for fleet in ["1", "1_envoys_2", "2"] {
        let of = |name: &str| value(&report, &format!("{name}_{fleet}"));
        assert_eq!((of("status_5xx"), of("failed")), (0.0, 0.0), "{fleet} in {report}");
        // While a store does not answer in time, a session may begin at two places.
        assert!(of("changes") == 0.0 || of("store_failures") > 0.0, "{fleet} in {report}");
        assert!(of("hit_ratio") > 0.0 && of("hit_ratio") < 1.0, "{fleet} in {report}");
    }
    value(&report, "difference_points");
}
