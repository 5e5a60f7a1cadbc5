//! The benches start, measure and print what programs read; their figures are no matter of tests.

use std::process::Command;

use serde_json::Value;

/// Figures whose value does not depend on the machine.
const EXACT: [&str; 2] = ["calls_per_pinned_turn", "body_bytes_per_pinned_turn"];

#[test]
fn pinned_prints_one_object_as_its_last_line() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    let output = bench.args(["pinned", "--requests", "200", "--rounds", "1", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&report["name"], &report["rounds"]), (&"pinned".into(), &1.into()));
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
