//! The filter's config: parsed, not checked. JSON text becomes a [`FilterConfig`] or the list of *all* its faults.
//!
//! Holds only what a filter must know by itself; pools, policies and workers come from the service (see [`crate::contract`]).

mod errors;
mod raw;

pub use errors::{ConfigError, ConfigErrors};

use crate::id::PoolName;
use crate::session::Source;
use crate::time::Millis;

/// How a request reaches its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// One Envoy cluster a worker; the rank is set by the downstream role.
    Cluster,
    /// One Envoy cluster a pool; the upstream role sets each attempt's rank.
    Endpoints,
}

/// What happens to requests while no topology is known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTopology {
    /// The request goes to the default route, unsteered.
    PassThrough,
    /// The client gets 503 with `Retry-After`.
    Unavailable,
}

/// Who runs the long poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    /// The VM that holds a lease in shared data; needs no bootstrap edit.
    Elected,
    /// A singleton wasm service in the bootstrap.
    Singleton,
}

/// Whose word on targets counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nobody's: clients choose no worker.
    Nobody,
    /// Callers of this listener may name worker and rank.
    Callers,
}

/// Checked config of the filter. Every field is set; defaults are in [`raw`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterConfig {
    /// Envoy cluster of the service's data plane.
    pub service_cluster: String,
    /// Bearer token towards the service, if it wants one.
    pub service_token: Option<String>,
    /// The filter decides alone after this long.
    pub route_deadline: Millis,
    /// Report and lease interval.
    pub tick: Millis,
    /// Where a session key may stand, first hit wins.
    pub sources: Vec<Source>,
    /// Part of the key: tenants whose scopes differ never meet.
    pub scope: Vec<Source>,
    /// Shared by all filters of an installation, so that ids cannot be guessed from keys.
    pub hash_secret: Vec<u8>,
    /// The pool; `None` means the only one there is.
    pub pool: Option<PoolName>,
    /// How a request reaches its slot.
    pub steering: Steering,
    /// Whether callers may name their target.
    pub trust: Trust,
    /// Whether answers tell in [`crate::header::SERVED`] who served.
    pub served_header: bool,
    /// Behaviour before the first topology.
    pub on_no_topology: NoTopology,
    /// Pages of cached bindings in shared data.
    pub page_count: u32,
    /// Bytes of one page.
    pub page_bytes: usize,
    /// Who watches.
    pub watcher: Watcher,
}

impl FilterConfig {
    /// Reads the plugin configuration.
    ///
    /// # Errors
    /// All faults at once, each with its JSON path.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigErrors> {
        raw::parse(text)
    }
}
