//! The core of rankpin: what the filter and the state service must decide alike, as pure functions.
//!
//! Owns names, wire types, the filter's config, session keys, hashing, cached bindings, policies and the two machines of a
//! request ([`flow::RequestFlow`] and [`attempt`]). Deliberately does not know clocks, randomness, IO, threads, logs,
//! Envoy or HTTP servers: time and chance are arguments, effects are values.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![warn(missing_docs)]

pub mod attempt;
pub mod block;
pub mod config;
pub mod contract;
pub mod demand;
pub mod directory;
pub mod engine;
pub mod flow;
pub mod hash;
pub mod header;
pub mod id;
pub mod json;
mod order;
pub mod page;
pub mod pairs;
pub mod penalty;
pub mod policy;
pub mod rewrite;
pub mod seat;
pub mod session;
pub mod time;
pub mod upload;
pub mod vm;
pub mod waits;
pub mod watch;
