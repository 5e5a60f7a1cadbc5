//! `cargo xtask vllm`: rankpin's KV events checked against a real vLLM with two ranks. Installs nothing (xtask does), asserts by
//! printing: each check with what was seen. Exit 0 only if all of them hold.

mod checks;
mod engine;
mod fleet;
mod front;
mod guard;
mod model;
mod play;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use e2e::page::Page;
use e2e::scratch::Scratch;
use engine::Vllm;
use fleet::Fleet;
use front::Front;
use play::Player;

/// A real vLLM on this machine's CPU, registered by its URL alone, and what rankpin makes of its events.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask vllm")]
struct Arguments {
    /// Install only (xtask does that).
    #[arg(long)]
    install: bool,
    /// Leave both running after the checks and say where; Ctrl-C ends them.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(page) => page.verdict(),
        Err(error) => {
            eprintln!("the checks could not run to their end: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<Page> {
    let home = std::env::var_os("RANKPIN_VLLM").map(PathBuf::from).context("run `cargo xtask vllm`")?;
    let mut scratch = Scratch::new()?;
    let checked = check(arguments, home, &scratch).await;
    if !checked.as_ref().is_ok_and(Page::is_good) {
        scratch.keep();
    }
    checked
}

async fn check(arguments: &Arguments, home: PathBuf, scratch: &Scratch) -> Result<Page> {
    let mut page = Page::new();
    let model = engine::make_model(scratch.path())?;
    let mut engine = Vllm::new(home, model.clone(), scratch.path()).await?;
    page.say("starting vLLM with two ranks (one to three minutes) …");
    engine.start(&page).await?;
    let fleet = Fleet::start(scratch.path(), &model).await?;
    let mut player = Player::new(&engine, fleet);
    checks::registration(&mut page, &engine, &player.fleet).await?;
    checks::events(&mut page, &mut player).await?;
    checks::placement(&mut page, &mut player).await?;
    let front = Front::start(scratch.path(), &engine, &player.fleet).await?;
    checks::envoy(&mut page, &mut player, &front).await?;
    checks::table(&mut page, &mut player, "engine", 24).await?;
    checks::other_pool(&mut page, &mut player, "local").await?;
    checks::table(&mut page, &mut player, "local", 24).await?;
    checks::reset(&mut page, &mut player).await?;
    checks::restart(&mut page, &mut engine, &mut player).await?;
    if arguments.keep {
        page.say(&format!(
            "engine http://{}, service control http://{}; Ctrl-C ends them",
            engine.address(),
            player.fleet.control()
        ));
        tokio::signal::ctrl_c().await?;
    }
    Ok(page)
}
