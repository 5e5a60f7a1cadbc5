//! `/control/kv-events`: what tests see of the publishers and order of them.

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::Source;
use super::feed::Feed;
use super::ring::{Troubles, stall_until};
use crate::answer::{Answer, Refusal, json as json_answer, ok};
use crate::json::Raw;
use crate::shared::Shared;

/// The body of `POST /control/kv-events`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    fault: String,
    /// Global number of the rank; without one all ranks.
    #[serde(default)]
    rank: Option<u32>,
    /// Of `publish`, in base64: the next batch's payload, whatever it is.
    #[serde(default)]
    payload: Option<String>,
}

/// Answers `GET`, `POST` and `DELETE`: always with how the ranks stand afterwards.
pub(crate) async fn answer(shared: &Shared, method: &Method, body: &[u8]) -> Answer {
    let done = match method.as_str() {
        "GET" => Ok(()),
        "POST" => order(shared, body).await,
        "DELETE" => heal(shared).await,
        _ => return Refusal::plain(StatusCode::METHOD_NOT_ALLOWED).answer(),
    };
    match done {
        Ok(()) => ok(standing(shared)),
        Err(error) => {
            json_answer(StatusCode::BAD_REQUEST, Raw(json!({ "error": format!("{error:#}") }).to_string()))
        }
    }
}

async fn order(shared: &Shared, body: &[u8]) -> anyhow::Result<()> {
    let order: Order = serde_json::from_slice(body)?;
    let first = shared.config.dp_start;
    if let Some(prompts) = order.fault.strip_prefix("fill=") {
        return fill(shared, order.rank, prompts.parse().context("no number")?).await;
    }
    let mut ordered = 0;
    for (index, source) in shared.sources().iter().enumerate() {
        let rank = first + u32::try_from(index)?;
        if order.rank.is_none_or(|wanted| wanted == rank) {
            carry_out(shared, source, index, &order).await?;
            ordered += 1;
        }
    }
    if ordered == 0 { bail!("no such rank, or it publishes no events") } else { Ok(()) }
}

/// A prompt on each rank, then another: what load would make it publish, without the requests.
async fn fill(shared: &Shared, rank: Option<u32>, prompts: u64) -> anyhow::Result<()> {
    let first = shared.config.dp_start;
    for _ in 0..prompts {
        for (index, number) in (0..shared.sources().len()).zip(first..) {
            if rank.is_none_or(|wanted| wanted == number) {
                shared.ranks.fill(index).await;
            }
        }
        // Publishers send meanwhile.
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn carry_out(shared: &Shared, source: &Source, index: usize, order: &Order) -> anyhow::Result<()> {
    let fault = order.fault.as_str();
    let (name, number) = match fault.split_once('=') {
        Some((name, number)) => (name, Some(number.parse::<u64>().context("no number")?)),
        None => (fault, None),
    };
    let set = |change: fn(&mut Troubles, u64)| {
        let count = number.unwrap_or(1);
        source.feed.trouble(|troubles| change(troubles, count));
    };
    match (name, number) {
        ("drop", _) => set(|troubles, count| troubles.drop = count),
        ("lose", _) => set(|troubles, count| troubles.lose = count),
        ("duplicate", _) => set(|troubles, count| troubles.duplicate = count),
        ("stall", Some(_)) => set(|troubles, count| troubles.stall = Some(Some(stall_until(count)))),
        ("stall", None) => set(|troubles, _| troubles.stall = Some(None)),
        ("silent", None) => set(|troubles, _| troubles.silent = true),
        ("tick", None) => source.feed.tick(),
        ("publish", None) => {
            let payload = order.payload.as_deref().context("no payload")?;
            source.feed.publish(BASE64_STANDARD.decode(payload)?);
        }
        ("close", None) => drop(source.set(false).await?),
        ("open", None) => drop(source.set(true).await?),
        ("restart", None) => restart(shared, source, index).await?,
        _ => bail!("unknown fault {fault:?}"),
    }
    Ok(())
}

/// As if the rank's process had died and come back: an empty cache, the same ports, everything counted from 0.
async fn restart(shared: &Shared, source: &Source, index: usize) -> anyhow::Result<()> {
    let was_open = source.set(false).await?;
    shared.ranks.restart(index);
    if was_open { source.set(true).await.map(drop) } else { Ok(()) }
}

async fn heal(shared: &Shared) -> anyhow::Result<()> {
    for source in shared.sources() {
        source.feed.trouble(|troubles| *troubles = Troubles::default());
        source.set(true).await?;
    }
    Ok(())
}

impl Source {
    /// Opens or closes its sockets; says whether they were open.
    async fn set(&self, open: bool) -> anyhow::Result<bool> {
        let (done, told) = oneshot::channel();
        self.orders.send((open, done)).await.ok().context("the publisher has ended")?;
        told.await.context("the publisher has ended")?
    }
}

fn standing(shared: &Shared) -> Raw {
    let first = shared.config.dp_start as usize;
    let rank = |(index, source): (usize, &Source)| {
        let mut shown = figures(&source.feed);
        shown["rank"] = json!(first + index);
        shown["port"] = json!(source.live);
        shown["replay_port"] = json!(source.replay);
        shown
    };
    let ranks: Vec<Value> = shared.sources().iter().enumerate().map(rank).collect();
    Raw(json!({ "ranks": ranks }).to_string())
}

fn figures(feed: &Feed) -> Value {
    let figures = feed.figures();
    let Troubles { drop, lose, duplicate, stall, silent } = figures.troubles;
    json!({
        "batch_rank": figures.rank, "next_seq": figures.next_seq, "pending": figures.pending, "kept": figures.ring,
        "kept_from": figures.ring_first, "drop": drop, "lose": lose, "duplicate": duplicate,
        "stalled": stall.is_some(), "silent": silent,
    })
}
