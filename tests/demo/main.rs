//! `cargo xtask demo`: a whole installation on free ports, twenty conversations played three ways, and the difference in
//! cache hits for people to read. Exit 0 only if every turn with a key went to its slot.

mod play;
mod show;
mod signals;
mod text;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan};
use play::{Played, Route};
use show::{Page, Way};
use signals::Signals;

/// Twenty conversations of six turns through Envoy with rankpin, without a session header, and round robin.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask demo")]
struct Arguments {
    /// Leave everything running and say where, and how to try it by hand; Ctrl-C ends it.
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
    match demo(&Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("the demo could not run: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Plays until it is through or a signal comes. A signal drops the world half-way: its processes end, its folder goes.
async fn demo(arguments: &Arguments) -> Result<ExitCode> {
    let page = Page::new();
    let mut signals = Signals::listen()?;
    let ran = tokio::select! {
        biased;
        code = signals.next() => return Ok(code),
        ran = run(&page, arguments) => ran,
    };
    if let Err(error) | Ok(Ran { played: Err(error), .. }) = &ran
        && let Some(code) = signals.soon().await
    {
        eprintln!("interrupted: {error:#}");
        return Ok(code);
    }
    end(ran?, &page, arguments, &mut signals).await
}

/// What is left of a run; the folder stays when something went wrong.
struct Ran {
    world: World,
    played: Result<bool>,
    took: Duration,
}

async fn run(page: &Page, arguments: &Arguments) -> Result<Ran> {
    let began = Instant::now();
    page.say("starting three fake workers, the state service and Envoy with envoy/dynamic.yaml …");
    let mut world = start().await?;
    let played = play_all(&mut world, page, arguments).await;
    Ok(Ran { world, played, took: began.elapsed() })
}

async fn end(ran: Ran, page: &Page, arguments: &Arguments, signals: &mut Signals) -> Result<ExitCode> {
    let Ran { mut world, played, took } = ran;
    if !matches!(played, Ok(true)) {
        world.scratch.keep();
    }
    let kept = played?;
    page.verdict(kept, took);
    if arguments.keep {
        page.look(&world);
        page.by_hand(&world);
        signals.next().await;
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
