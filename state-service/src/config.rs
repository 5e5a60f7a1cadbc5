//! The service's config file: pools, and workers that are declared there once and for all.
//!
//! Owns its fields, defaults and ranges: JSON in, [`ServiceConfig`] out, every fault at once with its path. Reads no file
//! and knows neither command lines nor listeners.

use crate::declare::{self, Faults, Fields, POOL_DEFAULT, WorkerSpec};
use routing::contract::{
    Affinity, DEVICE_RATIO_DEFAULT, Policy, PoolInfo, RankChoice, RankPick, SOFT_MARGIN_PERCENT_DEFAULT,
};
use routing::id::PoolName;
use routing::time::Millis;
use serde_json::Value;
use std::collections::BTreeSet;

#[cfg(test)]
mod tests;

/// Most pools.
pub const POOLS_MAX: usize = 256;
/// Most workers, whether from the file or the API.
pub const WORKERS_MAX: usize = 4096;
/// Longest idle ttl of a binding, in seconds (affinity section 3: a year).
pub const TTL_S_MAX: u32 = 31_536_000;

/// What the service is told before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Pools, by name.
    pub pools: Vec<PoolInfo>,
    /// What becomes of a worker that names a pool not listed.
    pub other_pools: OtherPools,
    /// Workers that need no API call; each names a listed pool.
    pub workers: Vec<WorkerSpec>,
}

/// What becomes of a worker that names a pool not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPools {
    /// It is refused: the file is the whole truth.
    Refused,
    /// The pool springs up with defaults: there is no file.
    SpringUp,
}

impl ServiceConfig {
    /// The config of a service that was given none: one pool `default`, others spring up.
    #[must_use]
    pub fn without_file() -> Self {
        let pools = PoolName::parse(POOL_DEFAULT).map(PoolInfo::with_defaults).into_iter().collect();
        Self { pools, other_pools: OtherPools::SpringUp, workers: Vec::new() }
    }
}

/// Reads the config file.
///
/// # Errors
/// [`Faults`]: everything wrong with it; the service does not start.
pub fn parse(body: &[u8]) -> Result<ServiceConfig, Faults> {
    let mut faults = Faults::default();
    let value = declare::document(body, &mut faults);
    let config = value.and_then(|value| document(&value, &mut faults));
    faults.or(config)
}

fn document(value: &Value, faults: &mut Faults) -> Option<ServiceConfig> {
    let mut fields = Fields::open("", value, faults)?;
    let pools = pools(fields.list(faults, "pools", 1, POOLS_MAX), faults);
    let workers = workers(fields.list(faults, "workers", 0, WORKERS_MAX), &pools, faults);
    fields.close(faults);
    Some(ServiceConfig { pools, other_pools: OtherPools::Refused, workers })
}

const POLICIES: &[(&str, Policy)] = &[
    ("least_loaded", Policy::LeastLoaded),
    ("session_hash", Policy::SessionHash),
    ("round_robin", Policy::RoundRobin),
    ("random", Policy::Random),
    ("power_of_two", Policy::PowerOfTwo),
    ("device_aware", Policy::DeviceAware),
    ("direct", Policy::Direct),
];
/// Largest device ratio: an accelerator that carries a thousand CPU workers' load.
const DEVICE_RATIO_MAX: u32 = 1000;
const AFFINITIES: &[(&str, Affinity)] =
    &[("hard", Affinity::Hard), ("soft", Affinity::Soft), ("off", Affinity::Off)];
const RANKS: &[(&str, RankChoice)] =
    &[("auto", RankChoice::Auto), ("pinned", RankChoice::Pinned), ("engine", RankChoice::Engine)];
const RANK_PICKS: &[(&str, RankPick)] = &[("hash", RankPick::Hash), ("least_loaded", RankPick::LeastLoaded)];
/// Least soft margin: a worker is left for one that carries less, never for one that carries more.
const SOFT_MARGIN_PERCENT_MIN: u32 = 100;
/// Largest soft margin: a hundred times the least load is as good as `hard`.
const SOFT_MARGIN_PERCENT_MAX: u32 = 10_000;

fn pools(values: &[Value], faults: &mut Faults) -> Vec<PoolInfo> {
    let mut seen = BTreeSet::new();
    let mut pools: Vec<PoolInfo> = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let path = format!("pools[{i}]");
        let Some(pool) = pool(value, &path, faults) else { continue };
        if seen.insert(pool.name.clone()) {
            pools.push(pool);
        } else {
            faults.add(&format!("{path}.name"), format!("{} is listed twice", pool.name), "each name once");
        }
    }
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    pools
}

fn pool(value: &Value, path: &str, faults: &mut Faults) -> Option<PoolInfo> {
    let mut fields = Fields::open(path, value, faults)?;
    let name = fields.required(faults, "name", "a pool name", PoolName::parse);
    let policy = fields.choice(faults, "policy", POLICIES);
    let affinity = fields.choice(faults, "affinity", AFFINITIES);
    let ttl_s = fields.number(faults, "ttl_s", 1..=TTL_S_MAX, 1800);
    let device_ratio = fields.number(faults, "device_ratio", 1..=DEVICE_RATIO_MAX, DEVICE_RATIO_DEFAULT);
    let rank = fields.choice(faults, "rank", RANKS);
    let rank_pick = fields.choice(faults, "rank_pick", RANK_PICKS);
    let margins = SOFT_MARGIN_PERCENT_MIN..=SOFT_MARGIN_PERCENT_MAX;
    let margin = fields.number(faults, "soft_margin_percent", margins, SOFT_MARGIN_PERCENT_DEFAULT);
    fields.close(faults);
    Some(PoolInfo {
        policy,
        affinity,
        ttl_ms: Millis::from_secs(ttl_s.into()),
        device_ratio,
        rank,
        rank_pick,
        soft_margin_percent: margin,
        ..PoolInfo::with_defaults(name?)
    })
}

fn workers(values: &[Value], pools: &[PoolInfo], faults: &mut Faults) -> Vec<WorkerSpec> {
    let mut ids = BTreeSet::new();
    let mut workers = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let path = format!("workers[{i}]");
        let Some(spec) = declare::worker(value, &path, None, faults) else { continue };
        if !ids.insert(spec.id.clone()) {
            faults.add(&format!("{path}.id"), format!("{} is listed twice", spec.id), "each id once");
        }
        if !pools.iter().any(|pool| pool.name == spec.pool) {
            let listed = pools.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
            faults.add(&format!("{path}.pool"), format!("pool {} is not listed", spec.pool), &listed);
        }
        workers.push(spec);
    }
    workers
}
