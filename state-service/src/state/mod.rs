//! The whole fleet as one value: `apply(now, command) → reply + effects`.
//!
//! Owns workers and their states, sessions and their bindings, load, and what each Envoy may see of them. Deliberately knows
//! no clock, randomness, runtime, log, HTTP or file: time and chance are arguments, effects are values. Decisions iterate
//! sorted collections only and break ties by id or by the draw they were given.

mod binding;
mod command;
mod counters;
mod health;
mod limits;
mod workers;

pub use command::{Command, Declared, Effect, Readiness, Reply, StateError, XdsResource};
pub use counters::Counters;
pub use limits::{Limits, StateConfig};
pub use workers::{Endpoint, Worker, cluster_name};

use routing::contract::{Fleet, PoolInfo, Target, Topology};
use routing::id::{Epoch, PoolName, RankHash, SessionId, Version, WorkerId};
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;
use workers::Workers;

/// Everything the service knows.
#[derive(Debug)]
pub struct State {
    epoch: Epoch,
    config: StateConfig,
    workers: Workers,
    pools: BTreeMap<PoolName, PoolInfo>,
    fleet: Fleet,
    counters: Counters,
}

/// One session as an operator may see it: never its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: SessionId,
    /// What picks its rank.
    pub rank_hash: RankHash,
    /// Held, bound or released.
    pub state: SessionState,
    /// Where; absent when released, or when its worker is gone.
    pub target: Option<Target>,
    /// Version of the binding, or the one a commit of the hold will give it.
    pub version: Version,
    /// Until it is forgotten if nothing happens; zero for holds, which do not end by time.
    pub expires_in: Millis,
}

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Chosen for so many requests, none of which was answered yet.
    Held {
        /// Requests that own the hold.
        owners: usize,
    },
    /// Pinned.
    Bound,
    /// Ended; remembered so that late news cannot raise it.
    Released,
}

/// How much there is of everything that grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Sessions held or bound.
    pub sessions: usize,
    /// Of these, held.
    pub holds: usize,
    /// Releases remembered.
    pub tombstones: usize,
    /// Workers.
    pub workers: usize,
    /// VMs alive.
    pub vms: usize,
    /// Nodes seen on xDS.
    pub nodes: usize,
    /// Moves remembered.
    pub moves: usize,
}

impl State {
    /// An empty state in a new life. `epoch` is also the writer of the versions it gives.
    #[must_use]
    pub fn new(epoch: Epoch, config: StateConfig) -> Self {
        let pools = config.pools().iter().map(|p| (p.name.clone(), p.clone())).collect();
        Self {
            epoch,
            config,
            workers: Workers::default(),
            pools,
            fleet: Fleet::default(),
            counters: Counters::default(),
        }
    }

    /// Does one thing. `now` must not go backwards; effects are appended to `out`.
    pub fn apply(&mut self, now: Timestamp, command: Command, out: &mut Vec<Effect>) -> Reply {
        let _ = (now, command, out);
        Reply::Done
    }

    /// This life.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// All workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter()
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, id: &WorkerId) -> Option<&Worker> {
        self.workers.by_id(id)
    }

    /// All pools, by name.
    pub fn pools(&self) -> impl Iterator<Item = &PoolInfo> {
        self.pools.values()
    }

    /// What one Envoy may use now; an empty or unknown node sees everything.
    #[must_use]
    pub fn topology_for(&self, _node: &str) -> Topology {
        Topology::default()
    }

    /// States and load.
    #[must_use]
    pub const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Counts since this life began.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How much there is of everything that grows.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes::default()
    }

    /// Grows with every change of what xDS serves.
    #[must_use]
    pub const fn xds_version(&self) -> u64 {
        0
    }

    /// One session.
    #[must_use]
    pub fn session(&self, _now: Timestamp, _id: SessionId) -> Option<SessionView> {
        None
    }

    /// Whether requests can be placed.
    #[must_use]
    pub fn ready(&self) -> Readiness {
        Readiness::NoWorker
    }
}
