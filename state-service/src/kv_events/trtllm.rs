//! TensorRT-LLM's answer to `POST /kv_cache_events`: a JSON list that this question drains, so one consumer only. Pure: bytes in,
//! frames by rank out.
//!
//! Numbers count events, so each event is a frame of its own. What it cannot say is left out and counted: partial last blocks, tokens
//! with something beside them, blocks of a smaller window than the largest. A block that moves between levels is named without its
//! tokens: leaving the device is a removal, coming back is not seen until it is stored again.

use super::push::low_bits;
use super::skips::Skips;
use crate::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use crate::state::kv_stream::Frame;
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// Largest answer read; a longer one is lost, and shows as a gap.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Most blocks of one event.
const BLOCKS_MAX: usize = 65_536;

/// What is remembered between two answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Poll {
    /// The largest window told of: attention over everything.
    window: u64,
    /// The longest block told of. The engine does not say `tokens_per_block`, but it is a power of two, and only last blocks are shorter.
    block_size: u32,
}

#[derive(Deserialize)]
struct Event {
    event_id: u64,
    data: Data,
    #[serde(default)]
    window_size: u64,
    #[serde(default)]
    attention_dp_rank: Option<u32>,
    #[serde(default)]
    layer_group_id: Option<u32>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Data {
    Created {},
    Stored {
        parent_hash: Option<Value>,
        blocks: Vec<Block>,
    },
    Removed {
        block_hashes: Vec<Value>,
    },
    Updated {
        block_hash: Value,
        cache_level: Option<Diff>,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Block {
    block_hash: Value,
    tokens: Vec<Token>,
    #[serde(default)]
    cache_level: u32,
    #[serde(default)]
    mm_keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Token {
    token_id: u32,
    #[serde(default)]
    token_extra_id: u64,
}

#[derive(Deserialize)]
struct Diff {
    new_value: u32,
    old_value: u32,
}

impl Poll {
    /// Reads one answer: frames with their rank, in order. `None`: it is no list.
    pub fn read(&mut self, body: &[u8], skips: &mut Skips) -> Option<Vec<(u32, Frame)>> {
        let list: Vec<Value> = serde_json::from_slice(body).ok()?;
        let mut frames = Vec::with_capacity(list.len());
        for value in list {
            let number = value.get("event_id").and_then(Value::as_u64);
            let rank = value.get("attention_dp_rank").and_then(Value::as_u64);
            let stamp = xxh3_64(value.to_string().as_bytes());
            match serde_json::from_value::<Event>(value) {
                Ok(event) => {
                    let rank = event.attention_dp_rank.unwrap_or(0);
                    let (seq, events) = (event.event_id, self.events(event, skips));
                    frames.push((rank, Frame { seq, stamp, batch: KvBatch { events } }));
                }
                // Its number is used up all the same; what it took away cannot be known.
                Err(_) => {
                    skips.unreadable_removal += 1;
                    let rank = rank.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(0);
                    let batch = KvBatch { events: vec![KvEvent::Cleared] };
                    frames.extend(number.map(|seq| (rank, Frame { seq, stamp, batch })));
                }
            }
        }
        Some(frames)
    }

    fn events(&mut self, event: Event, skips: &mut Skips) -> Vec<KvEvent> {
        self.window = self.window.max(event.window_size);
        if event.window_size < self.window {
            skips.not_indexable += 1;
            return Vec::new();
        }
        let group = event.layer_group_id.unwrap_or(0);
        match event.data {
            Data::Created {} => Vec::new(),
            Data::Stored { parent_hash, blocks } => {
                let lengths = blocks.iter().filter_map(|block| u32::try_from(block.tokens.len()).ok());
                let longest = lengths.filter(|len| len.is_power_of_two()).max().unwrap_or(0);
                self.block_size = self.block_size.max(longest);
                stored(parent_hash.as_ref(), blocks, self.block_size, group, skips)
            }
            // It does not say from which level; a block is on one at a time.
            Data::Removed { block_hashes } => {
                let hashes: Option<Vec<EngineHash>> = block_hashes.iter().map(hash).collect();
                let Some(hashes) = hashes else {
                    skips.unreadable_removal += 1;
                    return vec![KvEvent::Cleared];
                };
                let of = |tier| KvEvent::Removed { hashes: hashes.clone(), tier, group };
                [Tier::Gpu, Tier::Host, Tier::Disk].map(of).into()
            }
            Data::Updated { block_hash, cache_level: Some(Diff { new_value, old_value }) }
                if new_value != old_value =>
            {
                let Some(hash) = hash(&block_hash) else {
                    skips.unreadable_removal += 1;
                    return vec![KvEvent::Cleared];
                };
                skips.not_indexable += 1;
                vec![KvEvent::Removed { hashes: vec![hash], tier: tier(old_value), group }]
            }
            Data::Updated { .. } => Vec::new(),
            Data::Unknown => {
                skips.unknown_type += 1;
                Vec::new()
            }
        }
    }
}

/// One event for each block: they may differ in level and images. What follows a block that was left out is left out, too.
fn stored(
    parent: Option<&Value>,
    blocks: Vec<Block>,
    block_size: u32,
    group: u32,
    skips: &mut Skips,
) -> Vec<KvEvent> {
    let mut events = Vec::new();
    let Ok(mut parent) = parent.map(|value| hash(value).ok_or(())).transpose() else {
        skips.malformed += 1;
        return events;
    };
    for block in blocks.into_iter().take(BLOCKS_MAX) {
        let whole = u32::try_from(block.tokens.len()).is_ok_and(|len| len == block_size);
        let plain = block.tokens.iter().all(|token| token.token_extra_id == 0);
        let Some(hash) = hash(&block.block_hash).filter(|_| whole && plain) else {
            skips.not_indexable += 1;
            break;
        };
        events.push(KvEvent::Stored {
            hashes: vec![hash],
            parent,
            tokens: block.tokens.iter().map(|token| token.token_id).collect(),
            block_size,
            tier: tier(block.cache_level),
            lora: None,
            salt: None,
            extra: extra(&block.mm_keys),
            group,
            kind_ok: true,
        });
        parent = Some(hash);
    }
    events
}

fn extra(keys: &[Value]) -> u64 {
    if keys.is_empty() { 0 } else { xxh3_64(Value::from(keys.to_vec()).to_string().as_bytes()).max(1) }
}

/// A number, or hex digits (`v2_sha256`).
fn hash(value: &Value) -> Option<EngineHash> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned)),
        Value::String(text) => low_bits(text),
        _ => None,
    }
    .map(EngineHash)
}

const fn tier(level: u32) -> Tier {
    match level {
        0 => Tier::Gpu,
        1 => Tier::Host,
        _ => Tier::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SAMPLE: &str = include_str!("../../../tests/golden/kv_events/trtllm_http_kv_cache_events.json");
    const HASH: EngineHash = EngineHash(4_203_099_703_668_305_365);

    fn read(body: &str) -> (Vec<(u32, u64, Vec<KvEvent>)>, Skips) {
        let mut skips = Skips::default();
        let frames = Poll::default().read(body.as_bytes(), &mut skips).unwrap();
        let flat = frames.into_iter().map(|(rank, frame)| (rank, frame.seq, frame.batch.events)).collect();
        (flat, skips)
    }

    fn one(hash: EngineHash, tier: Tier) -> KvEvent {
        KvEvent::Removed { hashes: vec![hash], tier, group: 0 }
    }

    #[test]
    fn the_recorded_answer_is_read() {
        let (frames, skips) = read(SAMPLE);
        let stored = KvEvent::Stored {
            hashes: vec![HASH],
            parent: None,
            tokens: vec![1, 2],
            block_size: 2,
            tier: Tier::Gpu,
            lora: None,
            salt: None,
            extra: 0,
            group: 0,
            kind_ok: true,
        };
        assert_eq!(
            frames,
            [
                (0, 0, vec![]),
                (0, 1, vec![stored]),
                (0, 2, vec![one(HASH, Tier::Gpu)]),
                (0, 3, [Tier::Gpu, Tier::Host, Tier::Disk].map(|tier| one(HASH, tier)).to_vec()),
            ]
        );
        assert_eq!(skips, Skips { not_indexable: 1, ..Skips::default() }, "the move to the host");
    }

    #[test]
    fn partial_blocks_smaller_windows_and_unknown_types_are_left_out() {
        let block = |hash: u32, len: u32| {
            let tokens: Vec<Value> =
                (0..len).map(|id| json!({"type": "unique_token", "token_id": id})).collect();
            json!({"type": "stored_block", "block_hash": hash, "tokens": tokens, "cache_level": 0})
        };
        let body = json!([{"event_id": 0, "window_size": 1, "data": {
            "type": "stored", "parent_hash": null, "blocks": [block(1, 4), block(2, 4), block(3, 3)]}}]);
        let (frames, skips) = read(&body.to_string());
        assert_eq!((frames[0].2.len(), skips.not_indexable), (2, 1));
        let body = json!([
            {"event_id": 1, "data": {"type": "removed", "block_hashes": [1]}, "window_size": 4096},
            {"event_id": 2, "data": {"type": "removed", "block_hashes": ["ff01"]}, "window_size": 512, "attention_dp_rank": 3},
            {"event_id": 3, "data": {"type": "shrunk"}, "window_size": 4096},
        ]);
        let (frames, skips) = read(&body.to_string());
        assert_eq!(
            frames.iter().map(|(rank, seq, events)| (*rank, *seq, events.len())).collect::<Vec<_>>(),
            [(0, 1, 3), (3, 2, 0), (0, 3, 0)]
        );
        assert_eq!(skips, Skips { not_indexable: 1, unknown_type: 1, ..Skips::default() });
    }

    #[test]
    fn what_cannot_be_read_clears_under_its_own_number() {
        let body = json!([{"event_id": 7, "attention_dp_rank": 2, "data": {"type": "removed", "block_hashes": "all"}}, 5]);
        let (frames, skips) = read(&body.to_string());
        assert_eq!(frames, [(2, 7, vec![KvEvent::Cleared])]);
        assert_eq!(skips.unreadable_removal, 2);
        assert!(Poll::default().read(b"{}", &mut Skips::default()).is_none());
    }
}
