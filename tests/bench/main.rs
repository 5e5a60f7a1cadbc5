//! `bench NAME`: what rankpin costs, measured on a real Envoy beside a bare one. Owns the command line and the exit code; each bench
//! lives in a module of its own. Started by `cargo xtask bench`, which builds for release and tells where things are.

mod body;
mod events;
mod failover;
mod figures;
mod first_turn;
mod fleet;
mod index;
mod json;
mod load;
mod open_loop;
mod pinned;
mod process;
mod report;
mod route;
mod stage;
mod store;
mod tokens;
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

#[derive(Clone, Debug, Subcommand)]
enum Bench {
    /// CPU time of Envoy per request: bare, pinned turns by both steering modes and policies, first turns.
    Pinned(pinned::Plan),
    /// How much longer a first turn takes than on a bare Envoy, at a fixed rate.
    FirstTurn(first_turn::Plan),
    /// Time from the death of a worker to the first good answer of a session bound to it.
    Failover(failover::Plan),
    /// Speed of the filter's JSON reader, natively and as wasm under node.
    Json(json::Plan),
    /// Speed and size of the block index, beside another router's.
    Index(index::Plan),
    /// Hundreds of publishers of cache events at once, cut off and back: descriptors, memory, events a second.
    Events(events::Plan),
    /// What a choice by a prompt costs: in process, and over HTTP by block hashes and by a chat body.
    Route(route::Plan),
    /// Replicas on one store: what is lost, how late they know, what a first turn takes, commands and CPU.
    Store(store::Plan),
    /// A recorded day of coding agents through Envoys and replicas: whether several find as much cached as one, and what they cost.
    Fleet(fleet::Plan),
    /// Speed of tokenising, and what a conversation's next turn costs beside its whole.
    Tokens(tokens::Plan),
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

fn run(bench: Bench) -> Result<()> {
    // Before there is another thread, so that everything we start inherits the core. A failover is no matter of cores.
    let cores = match &bench {
        Bench::Json(plan) => return json::run(plan),
        Bench::Index(plan) => return index::run(plan),
        Bench::Tokens(plan) => return tokens::run(plan),
        Bench::Failover(_) | Bench::Events(_) | Bench::Route(_) | Bench::Store(_) | Bench::Fleet(_) => {
            process::Cores::Shared
        }
        Bench::Pinned(_) | Bench::FirstTurn(_) => process::Cores::claim(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match bench {
            Bench::Pinned(plan) => pinned::run(&plan, cores).await,
            Bench::FirstTurn(plan) => first_turn::run(&plan, cores).await,
            Bench::Failover(plan) => failover::run(&plan).await,
            Bench::Json(plan) => json::run(&plan),
            Bench::Index(plan) => index::run(&plan),
            Bench::Tokens(plan) => tokens::run(&plan),
            Bench::Events(plan) => events::run(&plan).await,
            Bench::Route(plan) => route::run(&plan).await,
            Bench::Store(plan) => store::run(&plan).await,
            Bench::Fleet(plan) => fleet::run(&plan).await,
        }
    })
}
