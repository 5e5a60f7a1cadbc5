//! What fleets did with the traffic, as figures: one by one, beside each other, and as a report. Starts and plays nothing.

use super::play::Played;
use super::world::Spent;
use crate::load::within_us;
use crate::report::{Report, median, table};

/// What is counted of the services.
pub(super) const METRICS: [&str; 5] =
    ["route_held", "route_bound", "route_moved", "route_rebound", "merge_replaced_newer"];

/// Replicas and Envoys.
pub(super) type Size = (usize, usize);

/// What one fleet did with the traffic.
pub(super) struct Run {
    pub(super) size: Size,
    pub(super) played: Played,
    pub(super) spent: Spent,
    pub(super) routes: f64,
    /// [`METRICS`].
    pub(super) counted: Vec<f64>,
    pub(super) store_failures: f64,
    /// The filters' words.
    pub(super) words: Vec<(String, u64)>,
    pub(super) resident_mib: f64,
}

impl Run {
    fn figures(&self, workers: usize) -> Vec<(String, f64)> {
        let (played, requests) = (&self.played, self.played.requests as f64);
        let mut all: Vec<(String, f64)> = Vec::new();
        let mut put = |name: &str, value: f64| all.push((name.to_owned(), value));
        put("requests_per_s", requests / played.wall.as_secs_f64());
        put("hit_ratio", played.hit_ratio());
        put("status_5xx", played.status_5xx as f64);
        put("failed", played.failed as f64);
        put("changes", played.changes as f64);
        for (name, value) in METRICS.into_iter().zip(&self.counted) {
            put(name, *value);
        }
        // A turn elsewhere than the one before is a move, or else it went astray.
        put("wrong_turns", (played.changes as f64 - self.moves()).max(0.0));
        put("returns", played.returns as f64);
        put("routes", self.routes);
        for (name, us) in [
            ("services", self.spent.services),
            ("store", self.spent.store),
            ("envoys", self.spent.envoys),
            ("engines", self.spent.engines),
            ("load", self.spent.load),
        ] {
            put(&format!("cpu_us_per_request_{name}"), us / requests);
        }
        put("cpu_us_per_route_services", self.spent.services / self.routes.max(1.0));
        put("max_over_mean", played.max_over_mean(workers));
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            put(&format!("answer_ms_{name}"), within_us(&played.took_us, share) / 1e3);
            put(&format!("late_ms_{name}"), within_us(&played.late_us, share) / 1e3);
        }
        put("resident_mib", self.resident_mib);
        put("store_failures", self.store_failures);
        all
    }

    /// Bindings that the services moved.
    fn moves(&self) -> f64 {
        METRICS
            .iter()
            .zip(&self.counted)
            .filter(|(name, _)| matches!(**name, "route_moved" | "route_rebound"))
            .map(|(_, count)| count)
            .sum()
    }
}

/// A figure of a fleet, over the rounds.
fn of<'a>(runs: &'a [Run], size: Size, workers: usize, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    let own = runs.iter().filter(move |run| run.size == size);
    own.filter_map(move |run| run.figures(workers).into_iter().find(|(own, _)| own == name))
        .map(|(_, value)| value)
}

fn word((replicas, envoys): Size) -> String {
    if replicas == 1 && envoys > 1 { format!("1_envoys_{envoys}") } else { replicas.to_string() }
}

pub(super) fn report(rounds: usize, workers: usize, sizes: &[Size], runs: &[Run]) -> Report {
    let mut report = Report::new("fleet", rounds);
    for size in sizes {
        let Some(run) = runs.iter().find(|run| run.size == *size) else { continue };
        for (name, _) in run.figures(workers) {
            let value = median(of(runs, *size, workers, &name));
            report.value(&format!("{name}_{}", word(*size)), value);
        }
        // In ten-thousandths of a point.
        let ratio = median(of(runs, *size, workers, "hit_ratio"));
        report.ratio(&format!("hit_ratio_{}", word(*size)), ratio);
    }
    if let [first, .., last] = sizes {
        let hit = |size: Size| of(runs, size, workers, "hit_ratio").collect::<Vec<_>>();
        let pairs = hit(*first).into_iter().zip(hit(*last));
        let points: Vec<f64> = pairs.map(|(one, many)| (one - many) * 100.0).collect();
        let (mean, error) = mean(&points);
        report.value("difference_points", mean);
        report.value("difference_points_standard_error", error);
    }
    report
}

/// The mean, and its standard error; 0 of fewer than two.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, if values.len() < 2 { 0.0 } else { (squares / (count - 1.0) / count).sqrt() })
}

pub(super) fn text(
    workers: usize,
    loads: &[String; 2],
    sizes: &[Size],
    runs: &[Run],
    report: &Report,
) -> String {
    let mut head = vec![String::new()];
    head.extend(sizes.iter().map(|(replicas, envoys)| format!("{replicas} replicas, {envoys} Envoys")));
    let mut rows = vec![head];
    for (name, _) in runs.first().map(|run| run.figures(workers)).unwrap_or_default() {
        let mut row = vec![name.clone()];
        for size in sizes {
            let values: Vec<f64> = of(runs, *size, workers, &name).collect();
            let digits = if name == "hit_ratio" { 4 } else { 1 };
            row.push(format!("{:.digits$}", median(values)));
        }
        rows.push(row);
    }
    let words = runs.iter().map(|run| {
        let words: Vec<String> = run.words.iter().map(|(word, count)| format!("{word} {count}")).collect();
        format!("{}x{} hit {:.4}: {}\n", run.size.0, run.size.1, run.played.hit_ratio(), words.join(", "))
    });
    let words: String = words.collect();
    let value = |name: &str| report.values.get(name).copied().unwrap_or(0.0);
    let (points, error) = (value("difference_points"), value("difference_points_standard_error"));
    format!(
        "{}\nwhat filters counted, run by run:\n{words}medians of {} rounds; load average {} before, {} after\n\
         the hit ratio of several replicas is {points:.2} points below one's (mean of the rounds, standard error {error:.2})",
        table(&rows),
        report.rounds,
        loads[0],
        loads[1]
    )
}
