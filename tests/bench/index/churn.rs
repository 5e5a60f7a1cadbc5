//! Hours of an engine's cache in seconds: chains come, the oldest go. Memory afterwards must be what it was.

use std::collections::VecDeque;
use std::time::Instant;

use state_service::state::kv_event::{EngineHash, KvEvent, Tier};

use super::Contender;
use super::ours::Ours;
use super::shape::{BLOCK_TOKENS, Draws, Step};
use crate::report::Report;

/// Blocks held at any time.
const LIVE: usize = 100_000;
const CHAIN: usize = 50;

/// Stores and removes `blocks`; says how memory fared.
pub(crate) fn run(blocks: usize, report: &mut Report) -> String {
    let (mut index, mut live, mut draws) = (Ours::new(4), VecDeque::new(), Draws::new(7));
    let (mut base, mut most, began) = (0, 0, Instant::now());
    for chain in 0..blocks / CHAIN {
        let stored = chain_of(&mut draws);
        index.apply(&Ours::event(&stored));
        live.push_back((stored.worker, stored.hashes));
        if live.len() > LIVE / CHAIN {
            let (worker, hashes) = live.pop_front().unwrap_or_default();
            let hashes = hashes.into_iter().rev().map(EngineHash).collect();
            index.apply(&(worker, KvEvent::Removed { hashes, tier: Tier::Gpu, group: 0 }));
        }
        // The cache is full of chains, and tables have had their first growth.
        if chain == 2 * LIVE / CHAIN {
            base = index.bytes();
        }
        most = most.max(index.bytes());
    }
    let ns = began.elapsed().as_nanos() as f64 / blocks as f64;
    let (end, base) = (index.bytes(), if base == 0 { index.bytes() } else { base });
    report.value("churn_ns_per_block", ns);
    report.value("churn_bytes_per_block", end as f64 / LIVE as f64);
    report.ratio("churn_bytes_over_base", end as f64 / base as f64);
    report.ratio("churn_bytes_max_over_base", most as f64 / base as f64);
    format!(
        "churn of {blocks} blocks over {LIVE} live: {ns:.0} ns a block stored and removed, bytes {base} at first, {most} at most, {end} at last"
    )
}

fn chain_of(draws: &mut Draws) -> Step {
    let mut many = |count: usize, end: u64| (0..count).map(|_| draws.below(end)).collect::<Vec<u64>>();
    Step {
        worker: many(1, 4).first().map_or(0, |worker| *worker as u32),
        parent: None,
        hashes: many(CHAIN, u64::MAX),
        tokens: many(CHAIN * BLOCK_TOKENS as usize, 150_000).into_iter().map(|token| token as u32).collect(),
    }
}
