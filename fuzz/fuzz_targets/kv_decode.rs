//! Every decoder of cache events on any bytes: no panic, and nothing larger than what was sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use state_service::kv_events::decode::decode;
use state_service::kv_events::skips::Skips;
use state_service::kv_events::{discover, push, trtllm};
use state_service::state::kv_event::KvEvent;

fuzz_target!(|bytes: &[u8]| {
    let mut skips = Skips::default();
    let decoded = decode(bytes, &mut skips);
    let values: usize = decoded.batch.events.iter().map(values).sum();
    // Each hash and each token has a byte of its own; a clear stands for an event or for the whole.
    assert!(values <= bytes.len() + 2, "{values} values of {} bytes", bytes.len());
    let _ = push::parse(bytes);
    let _ = trtllm::Poll::default().read(bytes, &mut skips);
    let _ = (discover::vllm(bytes), discover::sglang(bytes));
});

fn values(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, tokens, .. } => hashes.len() + tokens.len(),
        KvEvent::Removed { hashes, .. } => hashes.len(),
        KvEvent::Cleared => 1,
    }
}
