//! Replicas of the service beside the first one, and the real store they share: each reaches it by a way of its own, which can be cut.

use std::path::Path;

use anyhow::Result;

use crate::proxy::Proxy;
use crate::redis::Redis;
use crate::service::{Service, ServicePlan};
use crate::wait::wait_for;

/// What replicas share, and all of them but the first.
#[derive(Debug)]
pub struct Shared {
    /// From the second replica on.
    pub peers: Vec<Service>,
    /// Each replica's way to the store, the first one's included.
    pub ways: Vec<Proxy>,
    /// The store.
    pub redis: Redis,
}

impl Shared {
    /// A store with a way to it for each replica.
    ///
    /// # Errors
    /// There is no store to start.
    pub async fn start(replicas: usize) -> Result<Self> {
        let redis = Redis::start().await?;
        let mut ways = Vec::new();
        for _ in 0..replicas {
            ways.push(Proxy::start(redis.address()).await?);
        }
        Ok(Self { peers: Vec::new(), ways, redis })
    }

    /// The store, as the replica of that number reaches it.
    #[must_use]
    pub fn url(&self, replica: usize) -> String {
        format!("redis://{}", self.ways[replica].address())
    }

    /// Starts the others.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub async fn start_peers(&mut self, folder: &Path, plan: &ServicePlan) -> Result<()> {
        for replica in 1..self.ways.len() {
            let folder = folder.join(format!("replica-{replica}"));
            std::fs::create_dir_all(&folder)?;
            let plan = ServicePlan { store: Some(self.url(replica)), ..plan.clone() };
            self.peers.push(Service::start(&folder, &plan).await?);
        }
        Ok(())
    }

    /// Until the others know these workers.
    ///
    /// # Errors
    /// They do not come to.
    pub async fn knows(&self, workers: &[String]) -> Result<()> {
        for peer in &self.peers {
            wait_for("a replica to know all workers", async || {
                let known = peer.topology("").await.ok()?;
                workers.iter().all(|id| known.contains(id)).then_some(())
            })
            .await?;
        }
        Ok(())
    }
}
