//! What a real vLLM published, decoded and applied again and again: bytes of a socket to blocks of the index, on one thread.

use std::num::NonZeroU32;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use state_service::kv_events::decode::decode;
use state_service::kv_events::skips::Skips;
use state_service::state::blocks::{BlockIndex, IndexLimits, KvCounters};
use state_service::state::kv_event::KvEvent;

use super::cpu_ns;
use crate::report::Report;

/// Recorded batches of two ranks, in their order.
const RECORDED: &str =
    include_str!("../../golden/kv_events/real_vllm0.32.0_dp2_int_hashes_topic_kv-events.jsonl");
/// As that engine was started.
const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(32).unwrap();

/// Applies at least so many stored blocks; says how fast.
pub(crate) fn run(blocks: usize, report: &mut Report) -> Result<String> {
    let batches = RECORDED.lines().map(batch).collect::<Result<Vec<_>>>()?;
    let (mut stored, mut skips, mut counters) = (0, Skips::default(), KvCounters::default());
    let mut took = 0.0;
    while stored < blocks {
        // Each time into an index that knows nothing, as those blocks were new when they were told.
        let mut index = BlockIndex::new(BLOCK_TOKENS, IndexLimits::default());
        let slots: Vec<_> = (0..2).filter_map(|_| index.new_slot()).collect();
        let began = cpu_ns();
        for (rank, payload) in &batches {
            for event in decode(payload, &mut skips).batch.events {
                stored += blocks_of(&event);
                index.apply(slots[*rank], &event, &mut counters);
            }
        }
        took += cpu_ns() - began;
    }
    ensure!(skips == Skips::default(), "recorded batches were not read whole");
    let ns = took / stored as f64;
    report.value("recorded_ns_per_block", ns);
    report.value("recorded_blocks_per_s", 1e9 / ns);
    Ok(format!(
        "{} recorded vLLM batches decoded and applied over and over: {ns:.0} ns a block",
        batches.len()
    ))
}

const fn blocks_of(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, .. } => hashes.len(),
        KvEvent::Removed { .. } | KvEvent::Cleared => 0,
    }
}

/// Rank and payload of a recorded message.
fn batch(line: &str) -> Result<(usize, Vec<u8>)> {
    let line: Value = serde_json::from_str(line)?;
    let port = line["port"].as_u64().context("no port")?;
    let payload = line["frames"][2].as_str().context("no payload")?;
    let bytes = (0..payload.len() / 2).map(|at| u8::from_str_radix(&payload[2 * at..2 * at + 2], 16));
    Ok((usize::try_from(port % 2)?, bytes.collect::<Result<_, _>>()?))
}
