//! Why there are no figures.

use std::io;
use std::path::PathBuf;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace cannot be opened or read.
    #[error("{path}: {source}")]
    File {
        /// As given.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A line of the trace is not of its format.
    #[error("{path}: line {line}: {problem}")]
    Line {
        /// As given.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing to replay.
    #[error("{path}: no requests")]
    Empty {
        /// As given.
        path: PathBuf,
    },
    /// Arguments that go together do not.
    #[error("{0}")]
    Arguments(String),
    /// The service would not place a request: a fault of the replay or of the service.
    #[error("request {number} at {at_ms} ms was placed nowhere: {reason}")]
    NotPlaced {
        /// From 0, in the order of the trace.
        number: usize,
        /// Simulated time.
        at_ms: u64,
        /// As the service said.
        reason: String,
    },
}

impl ReplayError {
    /// Whether another command line or another file would help.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        !matches!(self, Self::NotPlaced { .. })
    }
}
