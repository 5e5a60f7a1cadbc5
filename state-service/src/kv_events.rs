//! What engines publish of their caches, from the wire to the state: decoding, subscriptions, replays, discovery.
//!
//! Owns every byte format and every socket of that; order, gaps and epochs are `state/kv_stream.rs`'s, blocks `state/blocks`'.

pub mod decode;
mod msgpack;
pub mod skips;
