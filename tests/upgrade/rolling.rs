//! An upgrade under traffic and the way back: service and filter one after the other, the service with the files of the one before it,
//! the filter in a second Envoy beside the first.

use anyhow::{Context, Result};
use e2e::{Client, Steering};

use crate::quiet::Quiet;
use crate::service_side;
use crate::stage::{Stage, WORKERS};
use crate::standing::{ROUNDS, counts, finish, keep_of_failed, news};
use crate::traffic::{LONG, Traffic};
use crate::version::Version;
use e2e::page::Page;

/// Which is replaced first; on the way back it is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    ServiceFirst,
    FilterFirst,
}

impl Order {
    const fn word(self) -> &'static str {
        match self {
            Self::ServiceFirst => "service first",
            Self::FilterFirst => "filter first",
        }
    }
}

/// The part.
pub(crate) async fn play(
    page: &mut Page,
    steering: Steering,
    old: &Version,
    new: &Version,
    order: Order,
) -> Result<()> {
    page.section(&format!("{}: everything old, then new, {}; then back", steering.file(), order.word()));
    let mut stage = Stage::start(steering, old).await?;
    let bad = page.bad();
    let played = there_and_back(page, &mut stage, old, new, order).await;
    keep_of_failed(page, &mut stage, bad, played)
}

async fn there_and_back(
    page: &mut Page,
    stage: &mut Stage,
    old: &Version,
    new: &Version,
    order: Order,
) -> Result<()> {
    stage.open(old).await?;
    let traffic = Traffic::start(stage.clients()?);
    traffic.rounds(ROUNDS).await?;
    replace(page, stage, &traffic, new, order).await?;
    news(page, stage, "between").await?;
    traffic.rounds(ROUNDS).await?;
    let back = match order {
        Order::ServiceFirst => Order::FilterFirst,
        Order::FilterFirst => Order::ServiceFirst,
    };
    replace(page, stage, &traffic, old, back).await?;
    finish(page, stage, traffic).await
}

/// Both are of `version` then.
async fn replace(
    page: &mut Page,
    stage: &mut Stage,
    traffic: &Traffic,
    version: &Version,
    order: Order,
) -> Result<()> {
    page.figure(&format!("to the {} version", version.word), order.word());
    let quiet = Quiet::begin(version.word, &front(stage)?).await?;
    match order {
        Order::ServiceFirst => {
            service(page, stage, traffic, version).await?;
            filter(page, stage, traffic, version).await?;
        }
        Order::FilterFirst => {
            filter(page, stage, traffic, version).await?;
            service(page, stage, traffic, version).await?;
        }
    }
    let (kept, of) = quiet.come_back(&front(stage)?).await?;
    page.figure("  without a turn since before both, still there", &format!("{kept} of {of}"));
    Ok(())
}

fn front(stage: &Stage) -> Result<Client> {
    stage.clients()?.into_iter().next_back().context("an Envoy in front")
}

/// The service, with its files; until it knows of every conversation that goes on.
async fn service(page: &mut Page, stage: &mut Stage, traffic: &Traffic, version: &Version) -> Result<()> {
    let refused = service_side::refused(&stage.service).await?;
    page.check("  messages refused by the service before", refused.is_empty(), &counts(&refused));
    let wrong = traffic.seen().wrong;
    stage.serve(version).await?;
    let mut known = Vec::new();
    for worker in WORKERS {
        known.push(format!("{worker} {}", stage.service.worker_state(worker).await?));
    }
    let all = known.iter().all(|one| !one.ends_with("gone"));
    page.check(&format!("  {} service knows the workers", version.word), all, &known.join(", "));
    let refused = refused_workers(stage)?;
    page.check("  workers of its file it refused", refused.is_empty(), &format!("{refused:?}"));
    traffic.rounds(ROUNDS).await?;
    let agreeing = service_side::known(&stage.service, || traffic.seen()).await?;
    let told = format!("{agreeing} of {LONG}; {} turns left their slot", traffic.seen().wrong - wrong);
    page.check("  and, soon, the conversations", agreeing == LONG, &told);
    Ok(())
}

/// Copies of the state file that a service left because it did not take all of it.
fn refused_workers(stage: &Stage) -> Result<Vec<String>> {
    let names = stage
        .service
        .state_folder()
        .read_dir()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name != "workers.json").collect())
}

/// The filter: a second Envoy beside the first; conversations go through both in turn, then through the new one alone.
async fn filter(page: &mut Page, stage: &mut Stage, traffic: &Traffic, version: &Version) -> Result<()> {
    let wrong = traffic.seen().wrong;
    stage.open(version).await?;
    traffic.through(stage.clients()?).await?;
    traffic.rounds(ROUNDS).await?;
    let between = traffic.seen().wrong;
    traffic.through(vec![front(stage)?]).await?;
    stage.close_oldest().await?;
    traffic.rounds(ROUNDS).await?;
    let told = format!("{} turns left their slot, {} after", between - wrong, traffic.seen().wrong - between);
    page.check(
        &format!("  two Envoys, then the {} filter alone", version.word),
        traffic.seen().wrong == wrong,
        &told,
    );
    Ok(())
}
