//! What a block of an engine's event costs on one thread, from bytes to the index: recorded batches of vLLM, and a prefill's.
//! `cargo run --release -p state-service --example kv_events_bench`; one JSON object a line.

use rmpv::Value;
use serde_json::json;
use state_service::kv_events::decode::decode;
use state_service::kv_events::skips::Skips;
use state_service::state::blocks::{BlockIndex, IndexLimits, KvCounters};
use state_service::state::kv_event::{KvBatch, KvEvent};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Each measurement runs at least so long.
const MEASURE: Duration = Duration::from_millis(1500);

fn main() {
    let recordings = [
        "real_vllm0.32.0_dp2_int_hashes_topic_kv-events.jsonl",
        "real_vllm0.32.0_dp2_bytes_hashes_evictions.jsonl",
        "real_vllm0.32.0_replay.jsonl",
    ];
    for file in recordings {
        measure(file, 32, &recorded(file));
    }
    measure("prefill of 5024 tokens, 16 a block", 16, &prefills(16));
}

fn recorded(file: &str) -> Vec<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/kv_events").join(file);
    let text = std::fs::read_to_string(path).expect("a recording");
    let payload = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).expect("a row");
        let frames = row["frames"].as_array().expect("frames").clone();
        hex(frames.last().and_then(|frame| frame.as_str()).expect("hex"))
    };
    text.lines().map(payload).filter(|payload| !payload.is_empty()).collect()
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// As vLLM's map events: one store of all blocks of a prompt, 100 prompts.
fn prefills(block_size: u32) -> Vec<Vec<u8>> {
    let batch = |prompt: u64| {
        let blocks = 5024 / u64::from(block_size);
        let hashes = (0..blocks).map(|n| Value::from((prompt << 40 | n).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let tokens = (0..5024_u64).map(|n| Value::from((n * 7919 + prompt * 31) % 151_000));
        let event = Value::Map(vec![
            ("type".into(), "BlockStored".into()),
            ("block_hashes".into(), Value::Array(hashes.collect())),
            ("parent_block_hash".into(), Value::Nil),
            ("token_ids".into(), Value::Array(tokens.collect())),
            ("block_size".into(), block_size.into()),
            ("lora_id".into(), Value::Nil),
            ("medium".into(), "GPU".into()),
            ("lora_name".into(), Value::Nil),
            ("extra_keys".into(), Value::Array((0..blocks).map(|_| Value::Nil).collect())),
            ("group_idx".into(), 0.into()),
            ("kv_cache_spec_kind".into(), "full_attention".into()),
        ]);
        let mut payload = Vec::new();
        let batch = Value::Array(vec![Value::F64(1.0), Value::Array(vec![event]), 0.into()]);
        rmpv::encode::write_value(&mut payload, &batch).expect("to a vector");
        payload
    };
    (0..100).map(batch).collect()
}

fn measure(name: &str, block_size: u32, payloads: &[Vec<u8>]) {
    let mut skips = Skips::default();
    let batches: Vec<KvBatch> = payloads.iter().map(|payload| decode(payload, &mut skips).batch).collect();
    let blocks: usize = batches.iter().flat_map(|batch| &batch.events).map(blocks).sum();
    let decode_ns = timed(blocks, || {
        payloads.iter().for_each(|payload| drop(black_box(decode(black_box(payload), &mut skips))));
    });
    let mut counters = KvCounters::default();
    let size = NonZeroU32::new(block_size).expect("a size");
    let mut index = BlockIndex::new(size, IndexLimits::default());
    let slot = index.new_slot().expect("a slot");
    let both_ns = timed(blocks, || {
        for payload in payloads {
            for event in decode(black_box(payload), &mut skips).batch.events {
                index.apply(slot, &event, &mut counters);
            }
        }
        index.clear(slot);
    });
    let bytes: usize = payloads.iter().map(Vec::len).sum();
    let line = json!({
        "batches": name, "blocks": blocks, "bytes_per_block": bytes / blocks.max(1),
        "decode_ns_per_block": decode_ns.round(), "decode_and_apply_ns_per_block": both_ns.round(),
        "blocks_per_s": (1e9 / both_ns).round(),
    });
    println!("{line}");
}

fn blocks(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, .. } | KvEvent::Removed { hashes, .. } => hashes.len(),
        KvEvent::Cleared => 0,
    }
}

/// Nanoseconds a block: the best of several runs, as others share the machine.
fn timed(blocks: usize, mut run: impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut best = f64::MAX;
    while begun.elapsed() < MEASURE {
        let one = Instant::now();
        for _ in 0..10 {
            run();
        }
        best = best.min(one.elapsed().as_nanos() as f64 / (10 * blocks.max(1)) as f64);
    }
    best
}
