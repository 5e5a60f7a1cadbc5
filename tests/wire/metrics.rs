//! Metric names, listed in one golden file: dashboards and alerts are built on them. `UPDATE_EXPECT=1` rewrites the file.

use super::{at, read};
use routing::flow::Counter;
use routing::header::gauge;
use state_service::state::Counters;
use std::collections::BTreeSet;

const FILE: &str = "tests/golden/metrics.txt";

fn listing() -> String {
    let filter =
        Counter::ALL.iter().map(|counter| format!("envoy wasmcustom.rankpin.requests.{}", counter.word()));
    let gauges = [format!("envoy wasmcustom.{}", gauge::SNAPSHOT)];
    let counters = Counters::default();
    let service = counters.iter().map(|(name, _)| format!("service rankpin_{name}_total"));
    let mut lines: Vec<String> = filter.chain(gauges).chain(service).collect();
    lines.sort();
    lines.join("\n") + "\n"
}

#[test]
fn metrics_are_those_of_the_golden_listing() {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(at(FILE), listing()).unwrap();
    }
    assert_eq!(
        listing(),
        read(FILE),
        "a metric came, went or changed its name: UPDATE_EXPECT=1 rewrites {FILE}"
    );
}

#[test]
fn each_metric_has_its_own_name_that_prometheus_takes() {
    let listing = listing();
    let names: Vec<&str> = listing.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    let distinct: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    let taken = |name: &&str| {
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.".contains(&b))
    };
    assert!(names.iter().all(taken), "{names:?}");
}
