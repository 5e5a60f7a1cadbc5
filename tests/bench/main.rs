//! `bench NAME`: what rankpin costs, measured on a real Envoy beside a bare one. Owns the command line and the exit code; each bench
//! lives in a module of its own. Started by `cargo xtask bench`, which builds for release and tells where things are.

mod body;
mod figures;
mod load;
mod pinned;
mod process;
mod report;
mod stage;
mod variant;
mod wasm;
mod witness;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measures rankpin on this machine.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// CPU time of Envoy per request: bare, pinned turns by both steering modes and policies, first turns.
    Pinned(pinned::Plan),
}

fn main() -> ExitCode {
    match run(Arguments::parse().bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(Bench::Pinned(plan): Bench) -> Result<()> {
    // Before there is another thread, so that everything we start inherits the core.
    let cores = process::Cores::claim();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(pinned::run(&plan, cores))
}
