//! The checks, in the order they are made; each prints what was seen.

use std::time::Duration;

use anyhow::Result;
use e2e::wait::{wait_for, wait_within};
use serde_json::Value;

use crate::engine::{BLOCK_SIZE, RANKS, Vllm};
use crate::fleet::Fleet;
use crate::front::Front;
use crate::play::{Player, Talk, To, Turn};
use e2e::page::Page;

/// Until a worker that is gone counts as down, and one that is back as ready.
const HEALTH_MAX: Duration = Duration::from_secs(60);

/// The worker is declared by its URL; everything else is read from its engine.
pub(crate) async fn registration(page: &mut Page, engine: &Vllm, fleet: &Fleet) -> Result<()> {
    page.section("Registration by its URL alone");
    let (sources, version) = (engine.get("/kv_event_sources").await?, engine.get("/version").await?);
    let url = format!("http://{}", engine.address());
    page.line(&format!("PUT /v1/workers/w0 {{\"url\": \"{url}\"}}"));
    fleet.declare(&url).await?;
    let told = wait_for("the engine to tell its ranks", async || {
        let worker = fleet.worker().await.ok()?;
        (worker["declared"]["endpoints"][0]["dp_size"] == RANKS).then_some(worker)
    });
    let declared = told.await?["declared"].clone();
    let endpoint = &declared["endpoints"][0];
    page.check(
        "ranks",
        endpoint["dp_start"] == 0,
        &format!("{} from {}", endpoint["dp_size"], endpoint["dp_start"]),
    );
    page.check("block size", declared["block_size"] == BLOCK_SIZE, &declared["block_size"].to_string());
    page.check(
        "engine version",
        declared["engine_version"] == version["version"],
        &declared["engine_version"].to_string(),
    );
    let linked = wait_for("both event sockets", async || {
        let worker = fleet.worker().await.ok()?;
        let slots = worker["slots"].as_array()?;
        let up = slots.iter().filter(|slot| slot["kv_events"]["link"] == "up").count();
        (up == RANKS as usize).then(|| slots.clone())
    });
    for slot in linked.await?.iter().filter(|slot| !slot["rank"].is_null()) {
        sockets(page, engine, &sources, slot);
    }
    Ok(())
}

fn sockets(page: &mut Page, engine: &Vllm, sources: &Value, slot: &Value) {
    let (rank, events) = (slot["rank"].as_u64().unwrap_or(0), &slot["kv_events"]);
    let told = &sources[rank.to_string()];
    let port = |base: u16| format!("tcp://127.0.0.1:{}", u64::from(base) + rank);
    let right = events["endpoint"] == port(engine.events) && events["replay_endpoint"] == port(engine.replay);
    page.check(
        &format!("rank {rank} is listened to"),
        right,
        &format!(
            "{} and {}; the engine says {} and {}",
            events["endpoint"], events["replay_endpoint"], told["endpoint"], told["replay_endpoint"]
        ),
    );
}

/// Turns sent past the service: it learns of them by events alone.
pub(crate) async fn events(page: &mut Page, player: &mut Player) -> Result<()> {
    page.section("Events are decoded");
    for rank in 0..RANKS {
        for text in ["What is it?", "Say it in other words."] {
            let mut talk = Talk::new(&format!("harbour {rank}"));
            talk.ask(text);
            player.turn(&mut talk, To::Rank(rank)).await?;
        }
    }
    let expected = player.held();
    for (rank, shown) in player.settled().await?.iter().enumerate() {
        let held = expected.get(rank).copied().unwrap_or(0);
        page.check(
            &format!("rank {rank}"),
            shown.blocks == held && shown.events > 0 && !shown.cold,
            &format!(
                "{} events, last number {:?}, {} blocks; it must hold {held}",
                shown.events, shown.last_seq, shown.blocks
            ),
        );
    }
    let skipped = player.fleet.metric("rankpin_kv_events_skipped_total", "").await?
        + player.fleet.metric("rankpin_kv_bad_messages_total", "").await?
        + player.fleet.metric("rankpin_kv_blocks_ignored_total", "").await?;
    page.check("nothing left out", skipped == 0.0, &format!("{skipped} events, messages or blocks"));
    Ok(())
}

/// A conversation's first turn goes where another one with its beginning was computed.
pub(crate) async fn placement(page: &mut Page, player: &mut Player) -> Result<()> {
    page.section("The first turn of a second conversation");
    for (topic, rank) in [("river", 1), ("mountain", 0), ("forest", 1), ("desert", 0)] {
        let mut first = Talk::new(topic);
        first.ask("Where does it begin?");
        player.turn(&mut first, To::Rank(rank)).await?;
        let mut second = Talk::new(topic);
        second.ask("How old is it, and who has seen it?");
        let turn = player.turn(&mut second, To::Routed).await?;
        let shared = turn.overlap.is_some_and(|(blocks, _)| blocks > 0);
        page.check(
            &format!("of {topic}, begun on rank {rank}"),
            turn.rank == rank && shared && agrees(&turn),
            &told(&turn),
        );
    }
    Ok(())
}

/// The same through an Envoy with `envoy/kv.yaml`; later turns are pinned and ask nobody.
pub(crate) async fn envoy(page: &mut Page, player: &mut Player, front: &Front) -> Result<()> {
    page.section("Through a real Envoy with envoy/kv.yaml");
    for (topic, rank) in [("bridge", 1), ("tower", 0), ("tunnel", 1), ("castle", 0)] {
        let mut first = Talk::new(topic);
        first.ask("Who built it?");
        player.turn(&mut first, To::Rank(rank)).await?;
        let mut second = Talk::new(topic);
        second.ask("What is it made of, and how high is it?");
        let turn = player.turn(&mut second, To::Envoy(front.address(), topic)).await?;
        let right = turn.rank == rank && turn.reason == "overlap" && agrees(&turn);
        page.check(&format!("of {topic}, begun on rank {rank}"), right, &told(&turn));
        second.ask("And how old?");
        let next = player.turn(&mut second, To::Envoy(front.address(), topic)).await?;
        let right = next.rank == rank && next.reason == "pinned" && next.cached_tokens > turn.cached_tokens;
        page.check("its next turn", right, &told(&next));
    }
    Ok(())
}

/// Six conversations turn by turn, wherever the service sends each.
pub(crate) async fn table(page: &mut Page, player: &mut Player, mode: &str, count: usize) -> Result<()> {
    page.section(&format!("Overlap and cached tokens, tokens by `{mode}`"));
    page.line(" #  conversation  rank  prompt  overlap  expected  cached");
    let mut talks: Vec<Talk> = (0..6).map(|nth| Talk::new(&format!("{mode} lake {}", nth % 3))).collect();
    let mut turns = Vec::new();
    for nth in 0..count {
        let talk = nth % talks.len();
        let Some(open) = talks.get_mut(talk) else { break };
        open.ask(&format!("Question {nth}: what follows from rule {}?", nth % 5 + 1));
        let turn = player.turn(open, To::Routed).await?;
        let overlap = turn.overlap.map_or_else(|| "-".to_owned(), |(blocks, of)| format!("{blocks}/{of}"));
        page.line(&format!(
            "{:>2}  {talk:>12}  {:>4}  {:>6}  {overlap:>7}  {:>8}  {:>6}{}",
            nth + 1,
            turn.rank,
            turn.prompt_tokens,
            turn.expected * u64::from(BLOCK_SIZE),
            turn.cached_tokens,
            match turn.overlap {
                _ if !agrees(&turn) => "  differs",
                Some((_, of)) if is_estimate(&turn, of) => "  of the known beginning",
                _ => "",
            },
        ));
        turns.push(turn);
    }
    let exact = turns
        .iter()
        .filter(|turn| agrees(turn) && !turn.overlap.is_some_and(|(_, of)| is_estimate(turn, of)));
    let exact = exact.count();
    let (agreed, warm) = (
        turns.iter().filter(|turn| agrees(turn)).count(),
        turns.iter().filter(|turn| turn.cached_tokens > 0).count(),
    );
    page.check(
        "overlap × block size is what the engine found",
        agreed == turns.len(),
        &format!("{agreed} of {} turns, {exact} of them block by block", turns.len()),
    );
    // The first of each topic finds nothing anywhere.
    page.check(
        "turns that found their prefix",
        warm + 3 >= turns.len(),
        &format!("{warm} of {}", turns.len()),
    );
    let ranks: Vec<usize> =
        (0..RANKS).map(|rank| turns.iter().filter(|turn| turn.rank == rank).count()).collect();
    page.line(&format!("turns by rank: {ranks:?}"));
    Ok(())
}

/// The pool it moves to has an index of its own, which knows nothing yet.
pub(crate) async fn other_pool(page: &mut Page, player: &mut Player, pool: &str) -> Result<()> {
    page.section(&format!("The worker moves to pool `{pool}`"));
    player.fleet.move_to(pool).await?;
    let shown = player.settled().await?;
    let (held, blocks) = (player.held(), shown.iter().map(|shown| shown.blocks).collect::<Vec<_>>());
    page.check("all blocks are known there, by replay", held == blocks, &format!("{blocks:?}"));
    Ok(())
}

/// The engine tells of a reset with each rank's next step.
pub(crate) async fn reset(page: &mut Page, player: &mut Player) -> Result<()> {
    page.section("The prefix caches are reset");
    let mut talk = Talk::new("river");
    talk.ask("Where does it end?");
    let before = player.turn(&mut talk.clone(), To::Routed).await?;
    page.check("warm before", agrees(&before) && before.cached_tokens > 0, &told(&before));
    let said = player.reset().await?;
    page.line(&format!("POST /reset_prefix_cache: {said}"));
    cold_then_warm(page, player, &talk).await
}

/// A restarted engine numbers its batches from 0 and holds nothing.
pub(crate) async fn restart(page: &mut Page, engine: &mut Vllm, player: &mut Player) -> Result<()> {
    page.section("The engine is killed and started again");
    let mut talk = Talk::new("river");
    talk.ask("Where does it end?");
    let before = player.turn(&mut talk.clone(), To::Routed).await?;
    page.check("warm before", agrees(&before) && before.cached_tokens > 0, &told(&before));
    let numbers = numbers(player).await?;
    engine.kill();
    player.forget();
    let state = wait_within(HEALTH_MAX, "the worker to be down", async || {
        let worker = player.fleet.worker().await.ok()?;
        (worker["state"] == "down").then(|| worker["state"].clone())
    });
    page.line(&format!("killed; the worker is {}", state.await?));
    engine.start(page).await?;
    wait_within(HEALTH_MAX, "the worker to be ready", async || {
        (player.fleet.worker().await.ok()?["state"] == "ready").then_some(())
    })
    .await?;
    let shown = player.settled().await?;
    let empty = shown.iter().all(|shown| shown.blocks == 0 && shown.link == "up");
    page.check("nothing is believed of the new engine", empty, &format!("{shown:?}"));
    cold_then_warm(page, player, &talk).await?;
    let after = self::numbers(player).await?;
    let lower = after.iter().zip(&numbers).all(|(after, before)| after < before);
    page.check("its numbers began anew", lower, &format!("{numbers:?} before, {after:?} after"));
    Ok(())
}

async fn numbers(player: &Player) -> Result<Vec<Option<u64>>> {
    Ok(player.settled().await?.iter().map(|shown| shown.last_seq).collect())
}

/// After each rank has made a step: nothing of a conversation is found, and all of it the next time.
async fn cold_then_warm(page: &mut Page, player: &mut Player, talk: &Talk) -> Result<()> {
    for rank in 0..RANKS {
        let mut step = Talk::new(&format!("step {rank}"));
        step.ask("Go.");
        player.turn(&mut step, To::Rank(rank)).await?;
    }
    let cold = player.turn(&mut talk.clone(), To::Routed).await?;
    page.check("cold", agrees(&cold) && cold.cached_tokens == 0, &told(&cold));
    let warm = player.turn(&mut talk.clone(), To::Routed).await?;
    page.check("warm again", agrees(&warm) && warm.cached_tokens > 0 && warm.rank == cold.rank, &told(&warm));
    Ok(())
}

/// Whether service, engine and naive model say the same. An engine computes at least the last token anew.
fn agrees(turn: &Turn) -> bool {
    let size = u64::from(BLOCK_SIZE);
    let (usable, found) = (turn.prompt_tokens.saturating_sub(1) / size, turn.cached_tokens / size);
    let told = |(blocks, of): (u32, u32)| {
        let blocks = u64::from(blocks).min(usable);
        // Where only the known beginning of a conversation was looked for, no more than that can be said of it.
        blocks == found || (is_estimate(turn, of) && blocks <= found)
    };
    turn.overlap.is_some_and(told) && turn.expected == found
}

/// Whether the service knew fewer blocks of the prompt than it has: `engine` asks again only for what is mostly new.
fn is_estimate(turn: &Turn, of: u32) -> bool {
    u64::from(of) < turn.prompt_tokens / u64::from(BLOCK_SIZE)
}

fn told(turn: &Turn) -> String {
    let Turn { rank, overlap, reason, prompt_tokens, cached_tokens, expected } = turn;
    let overlap =
        overlap.map_or_else(|| "no overlap told".to_owned(), |(blocks, of)| format!("overlap {blocks}/{of}"));
    format!(
        "rank {rank} ({reason}), {overlap}; {cached_tokens} of {prompt_tokens} tokens cached, {} expected",
        expected * u64::from(BLOCK_SIZE)
    )
}
