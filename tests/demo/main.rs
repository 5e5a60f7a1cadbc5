//! `cargo xtask demo`: a whole installation on free ports, twenty conversations played three ways, and the difference in
//! cache hits for people to read. Exit 0 only if every turn with a key went to its slot.

mod play;
mod show;
mod text;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan};
use play::{Played, Route};
use show::{Page, Way};

/// Twenty conversations of six turns through Envoy with rankpin, without a session header, and round robin.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask demo")]
struct Arguments {
    /// Leave everything running and say how to try it by hand; Ctrl-C ends it.
    #[arg(long)]
    keep: bool,
    /// Show every conversation of every way.
    #[arg(long)]
    all: bool,
}

/// A worker's time per uncached prompt token and per generated token: slow enough to feel, fast enough for a demo.
const PACE: [&str; 4] = ["--prefill-us-per-token", "150", "--decode-us-per-token", "1000"];

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the demo could not run: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<bool> {
    let page = Page::new();
    let began = Instant::now();
    page.say("starting three fake workers, the state service and Envoy with envoy/dynamic.yaml …");
    let mut world = start().await?;
    let played = play_all(&mut world, &page, arguments).await;
    let kept = match played {
        Ok(kept) => kept,
        Err(error) => {
            world.scratch.keep();
            return Err(error);
        }
    };
    page.look(&world);
    page.verdict(kept, began.elapsed());
    if !kept {
        world.scratch.keep();
    }
    if arguments.keep {
        page.by_hand(&world);
        tokio::signal::ctrl_c().await?;
    }
    Ok(kept)
}

/// Two workers, declared; the third engine runs and nobody knows it yet.
async fn start() -> Result<World> {
    let engines = [EngineSpec::new("w0", 4).with(&PACE), EngineSpec::new("w1", 4).from(4).with(&PACE)];
    let mut world = WorldPlan::new(Steering::Endpoints, &engines).shipped_deadline().start().await?;
    world.add_engine(EngineSpec::new("w2", 1).with(&PACE)).await?;
    Ok(world)
}

/// Plays the three ways and prints each; whether every turn with a key went to its slot.
async fn play_all(world: &mut World, page: &Page, arguments: &Arguments) -> Result<bool> {
    page.workers(world);
    let envoy = || Client::new(world.envoy().address());
    let (pinned, joined) = play::rankpin(world, Route::through(envoy()?).with_session()).await?;
    page.way(Way::Rankpin, &pinned, true);
    page.joined(&joined);
    let loose = play::all('B', &Route::through(envoy()?)).await?;
    page.way(Way::NoSession, &loose, arguments.all);
    let straight = world.engines.iter().map(|engine| Client::new(engine.address())).collect::<Result<_>>()?;
    let round = play::all('C', &Route::in_turn(straight)).await?;
    page.way(Way::RoundRobin, &round, arguments.all);
    page.ratios(&[(Way::Rankpin, &pinned), (Way::NoSession, &loose), (Way::RoundRobin, &round)]);
    Ok(pinned.iter().all(Played::kept_its_slot))
}
