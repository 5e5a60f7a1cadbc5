//! rankpin's state service as a library: a pure heart (`state`, `declare`, `config`) and the shell around it.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod config;
pub mod declare;
pub mod state;
