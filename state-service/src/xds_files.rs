//! Discovery as files, for an Envoy on the same machine: `cds.json` and `eds-POOL.json`, replaced whole at each change.

use crate::persist::replace;
use crate::service::{DiscoveryView, Service};
use crate::xds::{self, Resource};
use routing::id::PoolName;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::time::sleep;

const CLUSTERS_FILE: &str = "cds.json";
/// A write that failed (disk full, folder gone) is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

/// Writes until the service stops.
pub async fn run(service: Arc<Service>, dir: PathBuf) {
    let mut changes = service.changes();
    let mut written = String::new();
    let mut files = BTreeSet::new();
    loop {
        changes.borrow_and_update();
        let view = service.discovery_view();
        // Files of another life serve their Envoys until all workers are told.
        let keep = view.gathering && written.is_empty() && dir.join(CLUSTERS_FILE).exists();
        if view.version != written && !keep {
            match write(dir.clone(), view, std::mem::take(&mut files)).await {
                Ok((version, pools)) => (written, files) = (version, pools),
                Err(error) => {
                    tracing::error!(dir = %dir.display(), %error, "xds files could not be written");
                    sleep(RETRY).await;
                    continue;
                }
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn write(
    dir: PathBuf,
    view: DiscoveryView,
    earlier: BTreeSet<PoolName>,
) -> io::Result<(String, BTreeSet<PoolName>)> {
    tokio::task::spawn_blocking(move || write_all(&dir, &view, earlier)).await.map_err(io::Error::other)?
}

/// Load assignments first: a cluster's worker may be steered to only once all that names it is there. A pool that is gone
/// keeps its file, with nothing in it.
fn write_all(
    dir: &Path,
    view: &DiscoveryView,
    earlier: BTreeSet<PoolName>,
) -> io::Result<(String, BTreeSet<PoolName>)> {
    fs::create_dir_all(dir)?;
    let pools: BTreeSet<PoolName> = earlier.into_iter().chain(view.pools.iter().cloned()).collect();
    for pool in &pools {
        let assignment = xds::assignments(std::slice::from_ref(pool), &view.members, &[]);
        write_one(&dir.join(format!("eds-{pool}.json")), Resource::Endpoint, &view.version, assignment)?;
    }
    write_one(&dir.join(CLUSTERS_FILE), Resource::Cluster, &view.version, xds::clusters(&view.members))?;
    Ok((view.version.clone(), pools))
}

fn write_one(path: &Path, resource: Resource, version: &str, resources: Vec<Value>) -> io::Result<()> {
    replace(path, xds::response(resource, version, resources).to_string().as_bytes())
}
