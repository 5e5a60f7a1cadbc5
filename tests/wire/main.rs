//! What is written down once and read elsewhere: the contract's golden messages, paths, names in the shipped Envoy configs,
//! metric names. No process is started here; what Envoy makes of it all is shown in `live`.

mod a1;
mod config_docs;
mod contract;
mod metrics;
mod names;

use std::path::{Path, PathBuf};

/// A file or folder of this repository.
fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
