//! A filter of one version with the service of another, for as long as both run: workers come and go, conversations stay. Also the
//! rows that every part has at its end.

use std::collections::BTreeMap;

use anyhow::Result;
use e2e::{Steering, wait_for};

use crate::service_side;
use crate::stage::{LATE, Stage, WORKERS, placed_on};
use crate::traffic::{LONG, Traffic};
use crate::version::Version;
use e2e::page::Page;

/// Turns of each conversation between two steps.
pub(crate) const ROUNDS: u64 = 15;

/// The part.
pub(crate) async fn play(
    page: &mut Page,
    steering: Steering,
    filter: &Version,
    service: &Version,
) -> Result<()> {
    let config = if filter.own_config() { "" } else { " under the other version's Envoy config" };
    page.section(&format!("{}: {} filter{config}, {} service", steering.file(), filter.word, service.word));
    let mut stage = Stage::start(steering, service).await?;
    let bad = page.bad();
    let played = standing(page, &mut stage, filter).await;
    keep_of_failed(page, &mut stage, bad, played)
}

/// Leaves logs for people to read where something did not hold.
pub(crate) fn keep_of_failed(page: &Page, stage: &mut Stage, bad: u32, played: Result<()>) -> Result<()> {
    if played.is_err() || page.bad() > bad {
        stage.scratch.keep();
    }
    played
}

async fn standing(page: &mut Page, stage: &mut Stage, filter: &Version) -> Result<()> {
    stage.open(filter).await?;
    let traffic = Traffic::start(stage.clients()?);
    traffic.rounds(ROUNDS).await?;
    news(page, stage, "first").await?;
    traffic.rounds(ROUNDS).await?;
    finish(page, stage, traffic).await
}

/// A worker comes, and its news reaches the filters: it is placed on; another one drains, and keeps its conversations.
pub(crate) async fn news(page: &mut Page, stage: &Stage, run: &str) -> Result<()> {
    for engine in stage.engines.iter().filter(|engine| engine.name() == LATE) {
        stage.service.register(engine).await?;
    }
    for (nth, front) in stage.fronts.iter().enumerate() {
        let placed = placed_on(&front.envoy, &format!("{run}-{nth}"), &[LATE.to_owned()]).await;
        let workers = front.envoy.stat("wasmcustom.rankpin.workers").await?;
        page.check(
            "a new worker is placed on",
            placed.is_ok() && workers == 4,
            &format!("{workers} workers known"),
        );
    }
    let said = stage.service.call("POST", "/v1/workers/w2/drain", None).await?;
    let drains = wait_for("w2 to drain", async || {
        (stage.service.worker_state("w2").await.ok()? == "draining").then_some(())
    });
    page.check("another one drains", drains.await.is_ok(), &format!("asked: {}", said.status));
    Ok(())
}

/// Ends the traffic and says what came of it.
pub(crate) async fn finish(page: &mut Page, stage: &Stage, traffic: Traffic) -> Result<()> {
    let agreeing = service_side::known(&stage.service, || traffic.seen()).await?;
    let seen = traffic.stop().await;
    let all = |what: &BTreeMap<u16, u64>| {
        what.iter()
            .map(|(status, count)| format!("{count} of status {status}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    page.check("turns answered 200, whole", seen.refused() == 0 && seen.turns() > 0, &all(&seen.statuses));
    let later = format!("{} of {} in {} conversations", seen.wrong, seen.later, seen.slots.len());
    page.check("turns that left their slot", seen.wrong == 0 && seen.later > 0, &later);
    page.check(
        "conversations the service has where they go",
        agreeing == LONG,
        &format!("{agreeing} of {LONG}"),
    );
    for fault in &seen.told {
        page.figure("", fault);
    }
    let [shown, never] = stage.counted().await?;
    page.check("unplaced, unreadable or lost, by the filters", never.is_empty(), &counts(&never));
    let refused = service_side::refused(&stage.service).await?;
    page.check("messages refused by the service", refused.is_empty(), &counts(&refused));
    let rejected = stage.rejected().await?;
    page.check("clusters refused by Envoy", rejected == 0, &rejected.to_string());
    let left = service_side::left_in_flight(&stage.service, &WORKERS).await?;
    page.check("in flight once nobody sends", left == [0; WORKERS.len()], &format!("{left:?}"));
    page.figure("turns by what the filters did", &counts(&shown));
    Ok(())
}

/// `none`, or each with its count.
pub(crate) fn counts(of: &BTreeMap<String, u64>) -> String {
    let all: Vec<String> = of.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}
