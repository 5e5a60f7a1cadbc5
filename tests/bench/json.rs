//! `bench json`: how fast the filter's reader finds a key at the end of a chat body, natively and as wasm under node, beside a parse
//! of the whole document. Needs no Envoy.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::report::{Report, median, table};

#[path = "../../routing/examples/read_body/work.rs"]
mod work;

/// Where `cargo xtask bench` says the example of `routing` is, compiled as the filter is.
const MODULE_VARIABLE: &str = "RANKPIN_READ_BODY_WASM";
/// Calls of the module before the first that counts: node compiles it again as it runs.
const WARM_UP_CALLS: usize = 6;
/// Milliseconds of each call of `main`, streamed and whole in turn.
const SCRIPT: &str = "
const bytes = require('fs').readFileSync(process.argv[1]);
const main = new WebAssembly.Instance(new WebAssembly.Module(bytes), {}).exports.main;
const times = [];
for (let call = 0; call < Number(process.argv[2]); call++) {
  const began = performance.now();
  if (main(0, 0) !== 0) throw new Error('the key was not found');
  times.push(performance.now() - began);
}
console.log(JSON.stringify(times));
";

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds; each reads the body fifty times in each way.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Gigabytes a second of one round.
#[derive(Clone, Copy, Debug)]
struct Sample {
    streamed: f64,
    whole: f64,
}

/// Measures and prints.
///
/// # Errors
/// The key was not found, or the module cannot be run.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    let body = work::body();
    let ways = [("native", native(plan, &body)?), ("wasm", under_node(plan, body.len())?)];
    let mut report = Report::new("json", plan.rounds as usize);
    report.value("body_bytes", body.len() as f64);
    let mut rows =
        vec![["", "streamed GB/s", "best", "whole parse GB/s", "ratio"].map(str::to_owned).to_vec()];
    for (name, samples) in ways {
        rows.push(figures(name, &samples, &mut report));
    }
    println!("a chat body of {} bytes whose key is its last member\n\n{}", body.len(), table(&rows));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

fn figures(name: &str, samples: &[Sample], report: &mut Report) -> Vec<String> {
    let mid = |pick: fn(&Sample) -> f64| median(samples.iter().map(pick));
    let best = samples.iter().map(|sample| sample.streamed).fold(0.0, f64::max);
    // Each round's own: what slows one way down within a round slows the other.
    let ratio = mid(|sample| sample.streamed / sample.whole);
    report.value(&format!("gb_per_s_{name}"), mid(|sample| sample.streamed));
    report.value(&format!("gb_per_s_max_{name}"), best);
    report.value(&format!("gb_per_s_whole_{name}"), mid(|sample| sample.whole));
    report.ratio(&format!("streamed_over_whole_{name}"), ratio);
    let numbers = [mid(|sample| sample.streamed), best, mid(|sample| sample.whole), ratio];
    [name.to_owned()].into_iter().chain(numbers.map(|number| format!("{number:.2}"))).collect()
}

fn native(plan: &Plan, body: &[u8]) -> Result<Vec<Sample>> {
    let paths = work::paths();
    let timed = |read: &dyn Fn(&[u8]) -> bool| {
        let began = Instant::now();
        let found = (0..work::READS_A_CALL).all(|_| read(black_box(body)));
        found.then(|| gigabytes(body.len(), began.elapsed().as_secs_f64())).context("the key was not found")
    };
    let round = |_| {
        Ok(Sample { streamed: timed(&|body| work::streamed(&paths, body))?, whole: timed(&work::whole)? })
    };
    (0..plan.rounds).map(round).collect()
}

fn under_node(plan: &Plan, body_bytes: usize) -> Result<Vec<Sample>> {
    let module = std::env::var_os(MODULE_VARIABLE).map(PathBuf::from);
    let module =
        module.with_context(|| format!("{MODULE_VARIABLE} is not set: run `cargo xtask bench json`"))?;
    let calls = WARM_UP_CALLS + 2 * plan.rounds as usize;
    let mut node = Command::new("node");
    node.args(["-e", SCRIPT]).arg(module).arg(calls.to_string());
    let output = node.output().context("cannot run node")?;
    ensure!(output.status.success(), "node: {}", String::from_utf8_lossy(&output.stderr));
    let times: Vec<f64> = serde_json::from_slice(&output.stdout).context("what node printed")?;
    ensure!(times.len() == calls, "node made {} calls, not {calls}", times.len());
    let (pairs, _) = times[WARM_UP_CALLS..].as_chunks::<2>();
    let rate = |ms: f64| gigabytes(body_bytes, ms / 1000.0);
    Ok(pairs
        .iter()
        .map(|[streamed, whole]| Sample { streamed: rate(*streamed), whole: rate(*whole) })
        .collect())
}

/// Gigabytes a second of one call.
fn gigabytes(body_bytes: usize, seconds: f64) -> f64 {
    (body_bytes * work::READS_A_CALL) as f64 / seconds / 1e9
}
