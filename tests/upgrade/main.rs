//! `cargo xtask upgrade`: an earlier version's filter and service with today's, both ways round and one after the other, under traffic
//! on a real Envoy. Builds nothing (xtask does), asserts by printing: each check with what was seen. Exit 0 only if all of them hold.

mod quiet;
mod rolling;
mod service_side;
mod stage;
mod standing;
mod traffic;
mod version;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use e2e::Steering;
use e2e::page::Page;
use rolling::Order;
use version::Version;

/// An earlier version of rankpin and this one, side by side.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask upgrade")]
struct Arguments {
    /// The earlier version (xtask builds it).
    #[arg(long, value_name = "COMMIT")]
    from: Option<String>,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Only this way to steer.
    #[arg(long, value_enum)]
    steering: Option<Way>,
}

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The old filter with the new service.
    OldFilter,
    /// The new filter with the old service.
    NewFilter,
    /// The new filter with the old service, under the old version's Envoy config.
    OldConfig,
    /// An upgrade, the service first, and the way back.
    ServiceFirst,
    /// An upgrade, the filter first, and the way back.
    FilterFirst,
}

/// A shipped config that both versions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    Static,
    Dynamic,
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
    let (old, new) = (Version::old()?, Version::new()?);
    let mut page = Page::new();
    page.say(&format!("old: {}; new: what this checkout builds", version::commit()));
    for (way, steering) in [(Way::Static, Steering::Cluster), (Way::Dynamic, Steering::Endpoints)] {
        if arguments.steering.is_none_or(|only| only == way) {
            for part in Part::value_variants() {
                if arguments.only.is_empty() || arguments.only.contains(part) {
                    play(&mut page, *part, steering, &old, &new).await?;
                }
            }
        }
    }
    page.section("Not checked: replicas of two versions on one store. The earlier version has no store.");
    Ok(page)
}

async fn play(page: &mut Page, part: Part, steering: Steering, old: &Version, new: &Version) -> Result<()> {
    match part {
        Part::OldFilter => standing::play(page, steering, old, new).await,
        Part::NewFilter => standing::play(page, steering, new, old).await,
        Part::OldConfig => standing::play(page, steering, &new.under(old), old).await,
        Part::ServiceFirst => rolling::play(page, steering, old, new, Order::ServiceFirst).await,
        Part::FilterFirst => rolling::play(page, steering, old, new, Order::FilterFirst).await,
    }
}
