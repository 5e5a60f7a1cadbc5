//! Counts HTTP requests and renders Prometheus text. Knows names and formats, not what the numbers mean to anyone.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds in seconds: a route takes well below a millisecond, a long poll up to 25 s.
const BOUNDS_S: [f64; 10] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0];

/// One kind of request; every part comes from a fixed table, so their number is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// `data` or `control`.
    pub listener: &'static str,
    /// The route's template, or `unmatched`.
    pub path: &'static str,
    /// A known method, or `other`.
    pub method: &'static str,
}

#[derive(Default)]
struct Timing {
    by_status: BTreeMap<u16, u64>,
    buckets: [u64; BOUNDS_S.len()],
    sum_s: f64,
    count: u64,
}

/// Counts and times of all HTTP requests answered.
#[derive(Default)]
pub struct HttpMetrics {
    kinds: Mutex<BTreeMap<Kind, Timing>>,
}

impl HttpMetrics {
    /// Counts one answered request.
    pub fn observe(&self, kind: Kind, status: u16, took: Duration) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let timing = kinds.entry(kind).or_default();
        *timing.by_status.entry(status).or_default() += 1;
        timing.count += 1;
        timing.sum_s += took.as_secs_f64();
        for (bucket, bound) in timing.buckets.iter_mut().zip(BOUNDS_S) {
            *bucket += u64::from(took.as_secs_f64() <= bound);
        }
    }

    /// Appends the HTTP families.
    pub fn render(&self, out: &mut Text) {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        out.family("rankpin_http_requests_total", "counter", "HTTP requests answered.");
        for (kind, timing) in kinds.iter() {
            for (status, count) in &timing.by_status {
                out.sample(
                    "rankpin_http_requests_total",
                    &labels(kind, &format!(",status=\"{status}\"")),
                    count,
                );
            }
        }
        out.family(
            "rankpin_http_request_seconds",
            "histogram",
            "Time from a request's head to its answer's head.",
        );
        for (kind, timing) in kinds.iter() {
            render_timing(out, kind, timing);
        }
    }
}

fn labels(kind: &Kind, more: &str) -> String {
    format!("listener=\"{}\",path=\"{}\",method=\"{}\"{more}", kind.listener, kind.path, kind.method)
}

fn render_timing(out: &mut Text, kind: &Kind, timing: &Timing) {
    for (bound, count) in BOUNDS_S.iter().zip(timing.buckets) {
        out.sample("rankpin_http_request_seconds_bucket", &labels(kind, &format!(",le=\"{bound}\"")), count);
    }
    out.sample("rankpin_http_request_seconds_bucket", &labels(kind, ",le=\"+Inf\""), timing.count);
    out.sample("rankpin_http_request_seconds_sum", &labels(kind, ""), timing.sum_s);
    out.sample("rankpin_http_request_seconds_count", &labels(kind, ""), timing.count);
}

/// Prometheus text being written (exposition format 0.0.4).
#[derive(Default)]
pub struct Text(String);

impl Text {
    /// Begins a family; its samples follow at once.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample; `labels` is empty or `a="b",c="d"`, made of checked names only.
    pub fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    /// A family of one sample.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// The finished text.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_end_in_the_count() {
        let metrics = HttpMetrics::default();
        let kind = Kind { listener: "data", path: "/v1/route", method: "POST" };
        metrics.observe(kind, 200, Duration::from_micros(100));
        metrics.observe(kind, 200, Duration::from_millis(2));
        metrics.observe(kind, 413, Duration::from_secs(60));
        let mut text = Text::default();
        metrics.render(&mut text);
        let text = text.finish();
        let labels = "listener=\"data\",path=\"/v1/route\",method=\"POST\"";
        for line in [
            format!("rankpin_http_requests_total{{{labels},status=\"200\"}} 2"),
            format!("rankpin_http_requests_total{{{labels},status=\"413\"}} 1"),
            format!("rankpin_http_request_seconds_bucket{{{labels},le=\"0.00025\"}} 1"),
            format!("rankpin_http_request_seconds_bucket{{{labels},le=\"0.0025\"}} 2"),
            format!("rankpin_http_request_seconds_bucket{{{labels},le=\"30\"}} 2"),
            format!("rankpin_http_request_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("rankpin_http_request_seconds_count{{{labels}}} 3"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
