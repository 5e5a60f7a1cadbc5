//! One payload of an engine's event stream → [`KvBatch`]. vLLM, SGLang and TensorRT-LLM publish the same msgpack: an array of time,
//! events and rank, each event an array or a map. Pure and bounded; never fails: what cannot be read is left out and counted.
//!
//! Two rules keep a slot honest. A bad event costs itself only. But a *removal* that cannot be read (or a batch that is torn, or a
//! payload that is none) becomes [`KvEvent::Cleared`]: the index may know too little, never something that is gone.
//! Knows no sequence numbers, sockets or pools; what a block size means is the index's business.

mod event;
mod extras;

use super::msgpack::Reader;
use super::skips::Skips;
use crate::state::kv_event::{KvBatch, KvEvent};

/// Largest payload taken; a longer one counts as no batch. A million tokens at one token a block are about 14 MB.
pub const PAYLOAD_BYTES_MAX: usize = 32 << 20;

/// A payload, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// What it says.
    pub batch: KvBatch,
    /// The rank it names. The socket it came by decides; this is for showing that both disagree.
    pub rank: Option<u32>,
}

/// Reads one payload; what is left out is counted in `skips`.
#[must_use]
pub fn decode(payload: &[u8], skips: &mut Skips) -> Decoded {
    let mut reader = Reader::new(payload);
    let opened = if payload.len() > PAYLOAD_BYTES_MAX { None } else { open(&mut reader) };
    let Some(Envelope { events: count, more }) = opened else {
        skips.not_a_batch += 1;
        return Decoded { batch: KvBatch { events: vec![KvEvent::Cleared] }, rank: None };
    };
    let mut events = Vec::new();
    for _ in 0..count {
        let whole = event::read(&mut reader, &mut events, skips);
        if !whole {
            skips.torn += 1;
            events.push(KvEvent::Cleared);
        }
        // A cache that was just cleared cannot be cleared again: a million of these are one.
        if let [.., KvEvent::Cleared, KvEvent::Cleared] = &events[..] {
            events.pop();
        }
        if !whole {
            return Decoded { batch: KvBatch { events }, rank: None };
        }
    }
    let rank = if more { reader.u32().ok() } else { None };
    Decoded { batch: KvBatch { events }, rank }
}

struct Envelope {
    events: usize,
    /// Whether something follows the events: the rank, from vLLM 0.9.2 on.
    more: bool,
}

fn open(reader: &mut Reader<'_>) -> Option<Envelope> {
    let fields = reader.array().ok().filter(|fields| *fields >= 2)?;
    // SGLang's load messages are arrays too, but begin with their name.
    let is_time = matches!(reader.peek().ok()?, 0x00..=0x7f | 0xc0 | 0xca..=0xd3);
    reader.skip().ok().filter(|()| is_time)?;
    let events = if reader.nil() { 0 } else { reader.array().ok()? };
    Some(Envelope { events, more: fields > 2 })
}
