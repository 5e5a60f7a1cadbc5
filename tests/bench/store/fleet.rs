//! A store and replicas of the service on it, each a process of its own: how they are started, asked and counted. Measures nothing by
//! itself.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::kept::Kept;
use e2e::scratch::Scratch;
use e2e::{Redis, Service, ServicePlan, wait_for};
use routing::contract::{SessionRef, Target};
use routing::id::{SessionId, Version};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::process::{cpu_us, resident_bytes};

/// Workers, and ranks of each.
const WORKERS: u32 = 16;
const RANKS: u32 = 4;
/// Connections to each replica when all sessions are looked at.
const LOOKERS: usize = 4;
/// Only bindings that were lost are waited for so long.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A bound session: where its own replica said that it is, and under which version.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) session: SessionRef,
    pub(crate) target: Target,
    pub(crate) version: Version,
}

/// Replicas on one store, or one without any.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) replicas: Vec<Service>,
    pub(crate) redis: Option<Redis>,
    _scratch: Scratch,
}

impl Fleet {
    /// So many replicas on a store of their own.
    ///
    /// # Errors
    /// Something does not start.
    pub(crate) async fn start(replicas: usize) -> Result<Self> {
        let redis = Redis::start().await?;
        Self::on(replicas, Some(redis)).await
    }

    /// As many that share nothing: what is spent without a store.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) async fn apart(services: usize) -> Result<Self> {
        Self::on(services, None).await
    }

    async fn on(replicas: usize, redis: Option<Redis>) -> Result<Self> {
        let mut fleet = Self { replicas: Vec::new(), redis, _scratch: Scratch::new()? };
        for replica in 0..replicas {
            let folder = fleet._scratch.path().join(format!("replica-{replica}"));
            std::fs::create_dir_all(&folder)?;
            let store = fleet.redis.as_ref().map(Redis::url);
            let plan = ServicePlan {
                policy: Some("least_loaded"),
                probe_interval_ms: 0,
                store,
                ..ServicePlan::default()
            };
            fleet.replicas.push(Service::start(&folder, &plan).await?);
        }
        fleet.declare().await?;
        Ok(fleet)
    }

    /// Declares the workers, once where they are shared; returns once all know them and are ready.
    async fn declare(&self) -> Result<()> {
        let told = if self.redis.is_some() { 1 } else { self.replicas.len() };
        for (replica, worker) in
            self.replicas.iter().take(told).flat_map(|to| (0..WORKERS).map(move |n| (to, n)))
        {
            let address = format!("127.0.1.{}:9", worker + 1);
            let body = json!({"endpoints": [{"address": address, "dp_size": RANKS}], "kv_events": "off"});
            let path = format!("/v1/workers/w{worker:02}");
            let said = replica.call("PUT", &path, Some(&body.to_string())).await?;
            ensure!(said.status < 300, "a worker is refused: {said:?}");
        }
        for replica in &self.replicas {
            wait_for("a replica to be ready and to know all workers", async || {
                let ready = replica.call("GET", "/readyz", None).await.ok()?.status == 200;
                (ready && replica.topology("").await.ok()?.len() == WORKERS as usize).then_some(())
            })
            .await?;
        }
        Ok(())
    }

    /// CPU of all replicas so far, µs.
    ///
    /// # Errors
    /// One is gone.
    pub(crate) fn cpu_us(&self) -> Result<f64> {
        self.replicas.iter().map(|replica| cpu_us(replica.pid())).sum()
    }

    /// CPU of the store so far, µs; 0 without one.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn store_cpu_us(&self) -> Result<f64> {
        self.redis.as_ref().map_or(Ok(0.0), |redis| cpu_us(redis.pid()))
    }

    /// Memory of the largest replica, MiB.
    ///
    /// # Errors
    /// One is gone.
    pub(crate) fn resident_mib(&self) -> Result<f64> {
        let bytes = self.replicas.iter().map(|replica| resident_bytes(replica.pid()));
        let bytes: Vec<u64> = bytes.collect::<Result<_>>()?;
        Ok(bytes.into_iter().max().unwrap_or(0) as f64 / f64::from(1 << 20))
    }

    /// A metric, summed over all replicas.
    ///
    /// # Errors
    /// One does not answer.
    pub(crate) async fn sum(&self, name: &str) -> Result<f64> {
        let mut sum = 0.0;
        for replica in &self.replicas {
            sum += replica.metric(name, &[]).await?;
        }
        Ok(sum)
    }

    /// Commands of the server that all replicas sent so far.
    ///
    /// # Errors
    /// One does not answer.
    pub(crate) async fn commands(&self) -> Result<f64> {
        self.sum("rankpin_store_commands_total").await
    }

    /// Until every replica knows so many sessions (apart, all together) and holds none; how long that took. Some that are lost only cost patience here.
    ///
    /// # Errors
    /// One does not answer.
    pub(crate) async fn settles(&self, sessions: usize) -> Result<Duration> {
        let copies = if self.redis.is_some() { self.replicas.len() } else { 1 };
        let (began, all) = (Instant::now(), (sessions * copies) as f64);
        while began.elapsed() < PATIENCE {
            if self.sum("rankpin_sessions").await? >= all && self.sum("rankpin_holds").await? == 0.0 {
                break;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(began.elapsed())
    }

    /// How many of these are not known by every replica as bound where they are.
    ///
    /// # Errors
    /// One does not answer.
    pub(crate) async fn lost(&self, homes: &[Home]) -> Result<usize> {
        let mut looking = JoinSet::new();
        for replica in &self.replicas {
            for part in homes.chunks(homes.len().div_ceil(LOOKERS).max(1)) {
                looking.spawn(astray(replica.control(), part.to_vec()));
            }
        }
        let found: Vec<Vec<SessionId>> = looking.join_all().await.into_iter().collect::<Result<_>>()?;
        // One that two replicas do not know is one.
        let mut lost: Vec<SessionId> = found.concat();
        lost.sort_unstable();
        lost.dedup();
        Ok(lost.len())
    }
}

/// The sessions that one replica does not know where they are.
async fn astray(at: std::net::SocketAddr, homes: Vec<Home>) -> Result<Vec<SessionId>> {
    let (mut kept, mut astray) = (Kept::connect(at).await?, Vec::new());
    for Home { session, target, .. } in homes {
        if !is_bound(&mut kept, session, Some(&target)).await? {
            astray.push(session.id);
        }
    }
    Ok(astray)
}

/// Whether a replica knows a session as bound; there, if a place is given.
///
/// # Errors
/// It does not answer.
pub(crate) async fn is_bound(kept: &mut Kept, session: SessionRef, home: Option<&Target>) -> Result<bool> {
    let status = kept.call("GET", &format!("/v1/sessions/{}", session.id), b"").await?;
    if status != 200 {
        return Ok(false);
    }
    let said: Value = serde_json::from_slice(kept.body())?;
    let there = home.is_none_or(|home| {
        serde_json::from_value::<Target>(said["target"].clone()).is_ok_and(|at| at == *home)
    });
    Ok(said["state"] == "bound" && there)
}
