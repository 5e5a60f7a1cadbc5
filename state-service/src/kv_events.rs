//! What engines publish of their caches, from the wire to the state: decoding, subscriptions, replays, discovery.
//!
//! Owns every byte format and every socket of that; order, gaps and epochs are `state/kv_stream.rs`'s, blocks `state/blocks`'.

pub mod decode;
pub mod discover;
pub mod frames;
pub mod hub;
mod msgpack;
pub mod pipeline;
mod poll;
pub mod push;
mod replay;
pub mod run;
pub mod skips;
pub(crate) mod slices;
pub mod subscriber;
pub mod trtllm;
pub mod zmtp;
