//! The filter's config: parsed, not checked. JSON text becomes a [`FilterConfig`] or the list of *all* its faults.
//!
//! Holds only what a filter must know by itself; pools, policies and workers come from the service (see [`crate::contract`]).

mod document;
mod errors;
mod fields;
mod raw;

pub use errors::{ConfigError, ConfigErrors};
pub use fields::{Field, Kind, fields};

use crate::id::PoolName;
use crate::session::{Source, Sources};
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

/// Which pool serves a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolBy {
    /// The only one there is; of several the one named `default`.
    Only,
    /// This one.
    Fixed(PoolName),
    /// The one that this header (lower-case) names, or the one with the model that it names.
    Header(String),
    /// The one with the body's [`MODEL`].
    Body,
}

impl PoolBy {
    /// The pool, where no request has a say.
    #[must_use]
    pub const fn fixed(&self) -> Option<&PoolName> {
        match self {
            Self::Fixed(pool) => Some(pool),
            Self::Only | Self::Header(_) | Self::Body => None,
        }
    }
}

/// Pointer of a body's model; read where [`PoolBy::Body`] asks for it.
pub const MODEL: &str = "/model";
/// Pointer of the response that a body goes on from; read where `response_ids` asks for it.
pub const PREVIOUS_RESPONSE: &str = "/previous_response_id";

/// How a decode engine is told where the prompt was computed. Names are lower-case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefillHeaders {
    /// Header with the prefill endpoint's `host:port`.
    pub host_port: String,
    /// Header with the rank there.
    pub rank: String,
}

/// What a build of the filter can see; each can do what the one before it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Module {
    /// Headers only: `rankpin.wasm`.
    Headers,
    /// And request bodies: `rankpin-body.wasm`.
    Body,
    /// And response bodies: `rankpin-full.wasm`.
    Full,
}

/// Checked config of the filter. Every field is set; defaults and limits are in [`fields()`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterConfig {
    /// Envoy cluster of the service's data plane.
    pub service_cluster: String,
    /// Bearer token towards the service, if it wants one.
    pub service_token: Option<String>,
    /// The filter decides alone after this long.
    pub route_deadline: Millis,
    /// The same where a pool reads prompts.
    pub route_prompt_deadline: Millis,
    /// Report and lease interval.
    pub tick: Millis,
    /// Where a session key may stand, first hit wins; and what else is read from a body.
    pub sources: Sources,
    /// Part of the key: tenants whose scopes differ never meet.
    pub scope: Vec<Source>,
    /// The default list has its body sources.
    pub body: bool,
    /// Most of a body that is read, in bytes.
    pub prompt_bytes_max: usize,
    /// Longest wait for a body.
    pub body_wait: Millis,
    /// Headers (lower-case) that end a session with their turn.
    pub final_headers: Vec<String>,
    /// Shared by all filters of an installation, so that ids cannot be guessed from keys.
    pub hash_secret: Vec<u8>,
    /// Which pool serves.
    pub pool_by: PoolBy,
    /// Whether chains of response ids are followed.
    pub response_ids: bool,
    /// How a request reaches its slot.
    pub steering: Steering,
    /// Whether callers may name their target.
    pub trust: Trust,
    /// Whether answers tell in [`crate::header::SERVED`] who served.
    pub served_header: bool,
    /// How a prefill slot is told.
    pub prefill_headers: PrefillHeaders,
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

    /// Whether some requests' bodies are read.
    #[must_use]
    pub fn reads_body(&self) -> bool {
        self.sources.wants_body() || self.pool_by == PoolBy::Body || self.response_ids
    }

    /// Whether a build of the filter can do what this config asks for.
    ///
    /// # Errors
    /// Each field that it cannot keep.
    pub fn check(&self, module: Module) -> Result<(), ConfigErrors> {
        const BODY: &str = "without it, or in rankpin-body.wasm or rankpin-full.wasm";
        let mut errors = ConfigErrors::default();
        if module < Module::Body {
            let in_body = self.sources.iter().enumerate().filter(|(_, source)| source.is_in_body());
            for (index, source) in in_body.filter(|_| !self.body) {
                match source {
                    Source::Prompt => errors.add("session.fallback", "reads bodies", BODY),
                    _ => errors.add(format!("session.sources[{index}]"), "reads bodies", BODY),
                }
            }
            if self.body {
                errors.add("session.body", "reads bodies", BODY);
            }
            if self.pool_by == PoolBy::Body {
                errors.add("pool_by", "reads bodies", BODY);
            }
        }
        if module < Module::Full && self.response_ids {
            errors.add("response_ids", "reads answers", "without it, or in rankpin-full.wasm");
        }
        if errors.0.is_empty() { Ok(()) } else { Err(errors) }
    }
}
