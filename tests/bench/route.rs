//! `bench route`: what one choice by a prompt costs, with its booking and the booking's end: in process, by token ids; over loopback
//! HTTP, by block hashes; and over loopback HTTP by a chat body whose earlier messages are known. Needs no Envoy.

mod http;
mod inside;

use anyhow::{Result, ensure};
use clap::Args;

use crate::index::shape::{Shape, Traffic};
use crate::report::{Report, median, table};

/// Blocks of a prompt: 5,024 tokens.
const BLOCKS: usize = 314;
/// Fleets of the choice in process.
const FLEETS: [u32; 3] = [4, 16, 64];
/// The one of the figures over HTTP.
const FLEET: u32 = 64;

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds; each measures everything once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Requests of one measurement.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    requests: u32,
    /// Blocks cached in process, each counted for every slot that has it.
    #[arg(long, default_value_t = 1_000_000)]
    resident: usize,
    /// Bytes of the chat body.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    body_bytes: u32,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Figures by name, a number for each round.
type Found = Vec<(String, f64)>;

/// Measures and prints.
///
/// # Errors
/// The service does not start, or chose otherwise than it must.
pub(crate) async fn run(plan: &Plan) -> Result<()> {
    let mut rounds: Vec<Found> = Vec::new();
    for round in 0..plan.rounds {
        eprintln!("round {} of {}", round + 1, plan.rounds);
        let mut found = Found::new();
        for workers in FLEETS {
            let traffic = Traffic::of(Shape { workers, blocks: BLOCKS, resident: plan.resident });
            inside::measure(workers, &traffic, plan.requests, &mut found)?;
        }
        http::measure(FLEET, plan.requests, plan.body_bytes as usize, &mut found).await?;
        rounds.push(found);
    }
    let report = figures(plan, &rounds)?;
    let rows: Vec<Vec<String>> =
        report.values.iter().map(|(name, value)| vec![name.clone(), format!("{value:.1}")]).collect();
    println!("prompts of {} tokens, medians of {} rounds\n\n{}", BLOCKS * 16, plan.rounds, table(&rows));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

fn figures(plan: &Plan, rounds: &[Found]) -> Result<Report> {
    let mut report = Report::new("route", plan.rounds as usize);
    for (at, (name, _)) in rounds.iter().flat_map(|found| found.iter().enumerate()).take(rounds[0].len()) {
        ensure!(rounds.iter().all(|found| found[at].0 == *name), "rounds measured different things");
        report.value(name, median(rounds.iter().map(|found| found[at].1)));
    }
    Ok(report)
}
