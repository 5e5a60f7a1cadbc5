//! A version: where its filter, its service and its Envoy configs are. Starts nothing.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use e2e::world::ROUTE_DEADLINE_MS;
use e2e::{Bootstrap, Steering, artifacts};
use serde_json::json;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// As people read it.
    pub(crate) word: &'static str,
    /// The service's program; `None` is the one built beside this.
    pub(crate) service: Option<PathBuf>,
    /// The filter's module, whatever the config names it.
    wasm: PathBuf,
    /// The checkout that the Envoy configs are of.
    configs: PathBuf,
}

/// The earlier version's commit.
pub(crate) fn commit() -> String {
    std::env::var("RANKPIN_OLD_COMMIT").unwrap_or_else(|_| "not told".to_owned())
}

fn told(name: &str) -> Result<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).context("run `cargo xtask upgrade`, which builds both versions")
}

impl Version {
    /// What xtask built of the earlier commit.
    pub(crate) fn old() -> Result<Self> {
        Ok(Self {
            word: "old",
            service: Some(told("RANKPIN_OLD_SERVICE")?),
            wasm: told("RANKPIN_OLD_WASM")?,
            configs: told("RANKPIN_OLD_ROOT")?,
        })
    }

    /// What this checkout builds.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { word: "new", service: None, wasm: artifacts::wasm()?, configs: artifacts::root() })
    }

    /// This filter under another version's Envoy configs.
    pub(crate) fn under(&self, other: &Self) -> Self {
        Self { configs: other.configs.clone(), ..self.clone() }
    }

    /// Whether its filter stands in a config of its own version.
    pub(crate) fn own_config(&self) -> bool {
        (self.service.is_none()) == (self.configs == artifacts::root())
    }

    /// Its shipped config, at free ports. Only fields that the oldest version has are changed in the plugin's text: it refuses others.
    pub(crate) fn bootstrap(
        &self,
        steering: Steering,
        node: &str,
        service: SocketAddr,
        workers: &[(String, SocketAddr)],
    ) -> Result<Bootstrap> {
        let mut config = Bootstrap::read(&self.configs.join("envoy").join(steering.file()))?;
        config.wasm(&self.wasm)?;
        config.free_ports()?;
        config.service(service)?;
        config.workers(workers)?;
        config.plugin(|plugin| plugin["service"]["route_deadline_ms"] = json!(ROUTE_DEADLINE_MS))?;
        config.node(node);
        Ok(config)
    }
}
