//! rankpin's state service as a library: a pure heart (`state`, `declare`, `config`) and the shell around it.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod ask;
pub mod auth;
pub mod chance;
pub mod cli;
pub mod config;
pub mod declare;
pub mod explain;
pub mod http;
mod keepers;
pub mod kv_events;
mod lock;
pub mod metrics;
pub mod persist;
pub mod probe;
pub mod replay;
pub mod replicas;
pub mod resolve;
pub mod scrape;
pub mod serve;
pub mod service;
pub mod state;
pub mod store;
pub mod tokenize;
pub mod told;
pub mod xds;
pub mod xds_files;
