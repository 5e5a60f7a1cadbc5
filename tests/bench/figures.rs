//! The figures of `bench pinned`: medians and ratios of its samples, and the text people read. Measures nothing.

use std::collections::BTreeMap;

use crate::load::BODY_BYTES;
use crate::pinned::Plan;
use crate::process::Cores;
use crate::report::{Report, median, table};
use crate::variant::{Front, Variant};

/// One variant in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) cpu_us: f64,
    pub(crate) busy: f64,
    pub(crate) rate: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) alone_p50_us: f64,
    pub(crate) alone_p99_us: f64,
}

/// All rounds, by the variant's name.
pub(crate) type Samples = BTreeMap<&'static str, Vec<Sample>>;

/// Medians over the rounds. A ratio is the median of each round's own: what drifts within minutes drifts for both.
pub(crate) fn medians(samples: &Samples, report: &mut Report) {
    for variant in Variant::ALL {
        let bare = of(samples, variant.base());
        let (own, name) = (of(samples, variant), variant.name());
        let mid = |pick: fn(&Sample) -> f64| median(own.iter().map(pick));
        let bare_mid = |pick: fn(&Sample) -> f64| median(bare.iter().map(pick));
        report.value(&format!("cpu_us_{name}"), mid(|s| s.cpu_us));
        report
            .value(&format!("cpu_us_min_{name}"), own.iter().map(|s| s.cpu_us).fold(f64::INFINITY, f64::min));
        report.value(&format!("requests_per_s_{name}"), mid(|s| s.rate));
        report.value(&format!("envoy_busy_{name}"), mid(|s| s.busy));
        report.value(&format!("p50_us_{name}"), mid(|s| s.p50_us));
        report.value(&format!("p99_us_{name}"), mid(|s| s.p99_us));
        report.value(&format!("alone_p50_us_{name}"), mid(|s| s.alone_p50_us));
        if let Some(ratio) = variant.ratio() {
            let pairs = own.iter().zip(bare);
            report.ratio(ratio, median(pairs.map(|(own, bare)| own.cpu_us / bare.cpu_us.max(1e-9))));
            report.value(
                &format!("added_p50_us_{name}"),
                mid(|s| s.alone_p50_us) - bare_mid(|s| s.alone_p50_us),
            );
            report.value(
                &format!("added_p99_us_{name}"),
                mid(|s| s.alone_p99_us) - bare_mid(|s| s.alone_p99_us),
            );
        }
    }
}

fn of(samples: &Samples, variant: Variant) -> &[Sample] {
    samples.get(variant.name()).map_or(&[], Vec::as_slice)
}

pub(crate) fn text(plan: &Plan, cores: Cores, samples: &Samples, report: &Report) -> String {
    let value = |name: &str| report.values.get(name).copied().unwrap_or(0.0);
    let headers = [
        "",
        "CPU µs",
        "min",
        "max",
        "× bare",
        "requests/s",
        "Envoy busy",
        "p50 µs",
        "p99 µs",
        "alone p50",
        "added p50",
    ];
    let mut rows = vec![headers.map(str::to_owned).to_vec()];
    for variant in Variant::ALL {
        let name = variant.name();
        let cpu = || of(samples, variant).iter().map(|sample| sample.cpu_us);
        let ratio = variant.ratio().and_then(|ratio| report.ratios.get(ratio)).copied().unwrap_or(1.0);
        rows.push(vec![
            variant.title().to_owned(),
            format!("{:.1}", value(&format!("cpu_us_{name}"))),
            format!("{:.1}", cpu().fold(f64::INFINITY, f64::min)),
            format!("{:.1}", cpu().fold(0.0, f64::max)),
            format!("{ratio:.3}"),
            format!("{:.0}", value(&format!("requests_per_s_{name}"))),
            format!("{:.0} %", value(&format!("envoy_busy_{name}")) * 100.0),
            format!("{:.0}", value(&format!("p50_us_{name}"))),
            format!("{:.0}", value(&format!("p99_us_{name}"))),
            format!("{:.0}", value(&format!("alone_p50_us_{name}"))),
            format!("{:+.0}", value(&format!("added_p50_us_{name}"))),
        ]);
    }
    format!(
        "CPU of the Envoy process (user + system) per request, --concurrency 1; medians of {} interleaved rounds of {} requests\n\
         ({} for first turns), {} connections, chat bodies of {BODY_BYTES} bytes unless said, {} sessions. {}.\n\
         Access log {} in all variants. `alone`: one connection, so no queue; `× bare` and `added` are beside the bare Envoy's with the same bodies.\n\n{}\n\
         calls of `route` per pinned turn: {}   (all requests to the service, watch, reports and EDS included: {:.2} in 1,000 turns)\n\
         body bytes seen or held per pinned turn: {}   (no body callback exported; half a body reached the worker before the rest was sent)\n\
         filter: {:.0} KB   memory at 2 threads after {} sessions: {:.1} MB, bare {:.1} MB, added {:.1} MB\n\
         hash of where 64 sessions go under session_hash: {}\n",
        plan.rounds,
        plan.requests,
        plan.requests_of(Variant::First(Front::Endpoints)),
        plan.connections,
        plan.sessions(),
        cores.text(),
        if plan.access_log {
            "as shipped"
        } else {
            "off (its cost, the same for all, would hide the filter's)"
        },
        table(&rows),
        value("calls_per_pinned_turn"),
        value("service_requests_per_1000_pinned_turns"),
        value("body_bytes_per_pinned_turn"),
        value("wasm_bytes") / 1000.0,
        plan.sessions(),
        value("rss_mb_endpoints"),
        value("rss_mb_bare"),
        value("added_rss_mb"),
        report.hash,
    )
}
