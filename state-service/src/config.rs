//! The service's config file: pools, and workers that are declared there once and for all.
//!
//! Owns its fields, defaults and ranges: JSON in, [`ServiceConfig`] out, every fault at once with its path. Reads no file
//! and knows neither command lines nor listeners.

use crate::declare::{self, Faults, Fields, POOL_DEFAULT, TEXT_BYTES_MAX, TEXTS_MAX, WorkerSpec};
use crate::tokenize::Tokens;
use fields::{AFFINITIES, ON_ALL_OVERLOADEDS, ON_OVERLOADS, POLICIES, RANK_PICKS, RANKS};
use routing::contract::PoolInfo;
use routing::id::PoolName;
use routing::time::Millis;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

mod fields;
#[cfg(test)]
mod tests;

pub use fields::fields;

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
    /// How pools get their prompts' tokens; those that do not are left out.
    pub tokens: BTreeMap<PoolName, Tokens>,
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
        Self { pools, other_pools: OtherPools::SpringUp, workers: Vec::new(), tokens: BTreeMap::new() }
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
    let mut tokens = BTreeMap::new();
    let pools = pools(fields.list(faults, fields::POOLS.name(), 1, POOLS_MAX), &mut tokens, faults);
    let workers = workers(fields.list(faults, fields::WORKERS.name(), 0, WORKERS_MAX), &pools, faults);
    fields.close(faults);
    Some(ServiceConfig { pools, other_pools: OtherPools::Refused, workers, tokens })
}

fn pools(values: &[Value], tokens: &mut BTreeMap<PoolName, Tokens>, faults: &mut Faults) -> Vec<PoolInfo> {
    let mut seen = BTreeSet::new();
    let mut pools: Vec<PoolInfo> = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let path = format!("pools[{i}]");
        let Some((pool, own_tokens)) = pool(value, &path, faults) else { continue };
        if seen.insert(pool.name.clone()) {
            if !own_tokens.is_off() {
                tokens.insert(pool.name.clone(), own_tokens);
            }
            pools.push(pool);
        } else {
            faults.add(&format!("{path}.name"), format!("{} is listed twice", pool.name), "each name once");
        }
    }
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    pools
}

fn pool(value: &Value, path: &str, faults: &mut Faults) -> Option<(PoolInfo, Tokens)> {
    let mut fields = Fields::open(path, value, faults)?;
    let name = fields.required(faults, fields::NAME.name(), "a pool name", PoolName::parse);
    let mut pool = PoolInfo::with_defaults(name.clone().or_else(|| PoolName::parse(POOL_DEFAULT).ok())?);
    pool.policy = fields.word(faults, &fields::POLICY, POLICIES);
    pool.affinity = fields.word(faults, &fields::AFFINITY, AFFINITIES);
    pool.ttl_ms = Millis::from_secs(fields.integer(faults, &fields::TTL).into());
    pool.device_ratio = fields.integer(faults, &fields::DEVICE_RATIO);
    pool.rank = fields.word(faults, &fields::RANK, RANKS);
    pool.rank_pick = fields.word(faults, &fields::RANK_PICK, RANK_PICKS);
    pool.soft_margin_percent = fields.integer(faults, &fields::SOFT_MARGIN);
    pool.on_overload = fields.word(faults, &fields::ON_OVERLOAD, ON_OVERLOADS);
    pool.wait_ms = Millis(fields.integer(faults, &fields::WAIT).into());
    pool.on_all_overloaded = fields.word(faults, &fields::ON_ALL_OVERLOADED, ON_ALL_OVERLOADEDS);
    pool.in_flight_limit = Some(fields.integer(faults, &fields::IN_FLIGHT_LIMIT)).filter(|limit| *limit > 0);
    pool.models = models(fields.texts(faults, fields::MODELS.name(), TEXTS_MAX, TEXT_BYTES_MAX));
    let tokens = Tokens::parse(fields.take(fields::TOKENS.name()), &fields.at(fields::TOKENS.name()), faults);
    fields.close(faults);
    name.map(|_| (pool, tokens))
}

/// Sorted, each once.
fn models(mut models: Vec<String>) -> Vec<String> {
    models.sort_unstable();
    models.dedup();
    models
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
