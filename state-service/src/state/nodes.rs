//! What each Envoy has acknowledged on xDS, and so which workers it may be told of.
//!
//! The topology travels in milliseconds, xDS in half a second: a worker told too early would be dialled before Envoy knows
//! it. So a node that polls xDS sees a worker only once every resource type it polls is at the worker's version. A node
//! that never polls has its clusters from elsewhere and sees everything.

use super::command::XdsResource;
use super::limits::Limits;
use super::workers::Worker;
use routing::contract::WorkerInfo;
use routing::id::PoolName;
use routing::time::Timestamp;
use std::collections::BTreeMap;

/// Longest node id remembered; a longer one counts as none.
const NODE_BYTES_MAX: usize = 256;

/// One Envoy that polls xDS.
#[derive(Debug)]
pub(super) struct Node {
    seen: Timestamp,
    acks: BTreeMap<XdsResource, u64>,
    /// Version of the topology when this node's own view last changed.
    pub(super) view: u64,
}

/// All Envoys that poll xDS.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: BTreeMap<String, Node>,
}

/// Which look of a worker a node may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Current,
    Before,
    Hidden,
}

impl Nodes {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub(super) fn by_name_mut(&mut self, name: &str) -> Option<&mut Node> {
        self.nodes.get_mut(name)
    }

    /// Takes an acknowledgement; true when it says something new. `evicted` counts nodes that gave way.
    pub(super) fn ack(
        &mut self,
        now: Timestamp,
        name: &str,
        resource: XdsResource,
        version: u64,
        limits: &Limits,
        evicted: &mut u64,
    ) -> bool {
        if name.is_empty() || name.len() > NODE_BYTES_MAX {
            return false;
        }
        if !self.nodes.contains_key(name) && self.nodes.len() >= limits.nodes_max {
            *evicted += self.evict_quietest();
        }
        let fresh = Node { seen: now, acks: BTreeMap::new(), view: 0 };
        let node = self.nodes.entry(name.to_owned()).or_insert(fresh);
        node.seen = now;
        let room = node.acks.len() <= limits.pools_max || node.acks.contains_key(&resource);
        room && node.acks.insert(resource, version) != Some(version)
    }

    fn evict_quietest(&mut self) -> u64 {
        let quietest = self.nodes.iter().min_by_key(|(_, node)| node.seen).map(|(name, _)| name.clone());
        u64::from(quietest.is_some_and(|name| self.nodes.remove(&name).is_some()))
    }

    /// Forgets nodes silent for too long; how many.
    pub(super) fn expire(&mut self, now: Timestamp, limits: &Limits) -> u64 {
        let before = self.nodes.len();
        self.nodes.retain(|_, node| now.since(node.seen) <= limits.node_idle);
        u64::try_from(before - self.nodes.len()).unwrap_or(0)
    }
}

impl Node {
    /// Looks of all workers as this node may see them, by id.
    pub(super) fn looks<'a>(&self, workers: impl Iterator<Item = &'a Worker>) -> Vec<Look> {
        workers.map(|worker| self.look(worker)).collect()
    }

    /// Version this node has acknowledged of one resource.
    pub(super) fn acked_of(&self, resource: &XdsResource) -> Option<u64> {
        self.acks.get(resource).copied()
    }

    fn look(&self, worker: &Worker) -> Look {
        let acked = self.acked(&worker.spec.pool);
        match &worker.before {
            _ if acked.is_none_or(|acked| acked >= worker.since) => Look::Current,
            Some(before) if acked.is_some_and(|acked| acked >= before.since) => Look::Before,
            _ => Look::Hidden,
        }
    }

    /// Lowest version acknowledged of what this node polls for workers of that pool.
    fn acked(&self, pool: &PoolName) -> Option<u64> {
        let of_pool = |resource: &XdsResource| match resource {
            XdsResource::Cluster => true,
            XdsResource::Endpoint(name) => name == pool,
        };
        self.acks.iter().filter(|(resource, _)| of_pool(resource)).map(|(_, version)| *version).min()
    }
}

/// The worker as a node may see it.
pub(super) fn seen_by(node: Option<&Node>, worker: &Worker) -> Option<WorkerInfo> {
    match node.map_or(Look::Current, |node| node.look(worker)) {
        Look::Current => Some(worker.info()),
        Look::Before => worker.before.as_ref().map(|before| before.info.clone()),
        Look::Hidden => None,
    }
}
