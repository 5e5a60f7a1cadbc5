//! Many fake engines in one child: each with ports, ranks and a cache of its own. For fleets too large for a process a worker; cannot
//! kill one of them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::artifacts;
use crate::child::Child;
use crate::wait::wait_for;

/// The running engines, each of one rank, publishing cache events.
#[derive(Debug)]
pub struct EngineGroup {
    child: Child,
    workers: Vec<(String, SocketAddr)>,
}

impl EngineGroup {
    /// Starts `count` of them in `folder`, with more arguments of the program; returns once all listen.
    ///
    /// # Errors
    /// The program is not built or ended at once: with what it printed.
    pub async fn start(folder: &Path, count: u32, more: &[String]) -> Result<Self> {
        let at = folder.join("engines.addr");
        let mut command = Command::new(artifacts::program("fake-engine")?);
        command.args(["--name", "w", "--workers", &count.to_string(), "--addr-file"]).arg(&at);
        command.args(["--kv-events", "tcp://127.0.0.1:0", "--kv-replay", "tcp://127.0.0.1:0"]).args(more);
        let mut child = Child::spawn("engines", command, &folder.join("engines.log"))?;
        let looked = wait_for("the engines' addresses", async || {
            child.check_running().map(|()| std::fs::read_to_string(&at).ok()).transpose()
        });
        let text = looked.await??;
        let addresses = text.lines().map(str::parse).collect::<Result<Vec<SocketAddr>, _>>()?;
        ensure!(addresses.len() == count as usize, "{count} engines wrote {} addresses", addresses.len());
        let named = |(n, address)| (if count == 1 { "w".to_owned() } else { format!("w-{n}") }, address);
        Ok(Self { child, workers: addresses.into_iter().enumerate().map(named).collect() })
    }

    /// Name, which is `x-engine-name` and worker id, and address of each.
    #[must_use]
    pub fn workers(&self) -> &[(String, SocketAddr)] {
        &self.workers
    }

    /// The body of the `PUT /v1/workers/NAME` that declares the one at this address.
    #[must_use]
    pub fn declaration(address: SocketAddr) -> String {
        let endpoint = json!({"address": address.to_string(), "rank_numbering": "none"});
        let models = [crate::client::MODEL];
        json!({"engine": "vllm", "kv_events": "discover", "models": models, "endpoints": [endpoint]})
            .to_string()
    }

    /// The process id of all.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}
