//! The service's config file: pools, and workers that are declared there once and for all.
//!
//! Owns its fields, defaults and ranges: JSON in, [`ServiceConfig`] out, every fault at once with its path. Reads no file
//! and knows neither command lines nor listeners.

use crate::declare::{self, Faults, Fields, POOL_DEFAULT, TEXT_BYTES_MAX, TEXTS_MAX, WorkerSpec};
use crate::tokenize::Tokens;
use fields::{AFFINITIES, ON_ALL_OVERLOADEDS, ON_OVERLOADS, POLICIES, RANK_PICKS, RANKS};
use routing::contract::{Policy, PoolInfo};
use routing::id::PoolName;
use routing::time::Millis;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

mod fields;
mod kv;
#[cfg(test)]
mod tests;

pub use fields::fields;
pub use kv::KvSettings;

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
    /// Pools under `kv_aware` that say nothing of tokens, not even that they are off.
    pub tokens_unsaid: BTreeSet<PoolName>,
    /// How pools under `kv_aware` choose; those that say nothing about it are left out.
    pub kv: BTreeMap<PoolName, KvSettings>,
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
        Self {
            pools,
            other_pools: OtherPools::SpringUp,
            workers: Vec::new(),
            tokens: BTreeMap::new(),
            tokens_unsaid: BTreeSet::new(),
            kv: BTreeMap::new(),
        }
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

/// What is said of a pool, and what filters need not know of it.
struct Pool {
    info: PoolInfo,
    tokens: Tokens,
    tokens_unsaid: bool,
    kv: Option<KvSettings>,
}

fn document(value: &Value, faults: &mut Faults) -> Option<ServiceConfig> {
    let mut fields = Fields::open("", value, faults)?;
    let all = pools(fields.list(faults, fields::POOLS.name(), 1, POOLS_MAX), faults);
    let of = |pool: &Pool| pool.info.name.clone();
    let tokens =
        all.iter().filter(|pool| !pool.tokens.is_off()).map(|pool| (of(pool), pool.tokens.clone())).collect();
    let tokens_unsaid = all.iter().filter(|pool| pool.tokens_unsaid).map(of).collect();
    let kv = all.iter().filter_map(|pool| Some((of(pool), pool.kv?))).collect();
    let pools: Vec<PoolInfo> = all.into_iter().map(|pool| pool.info).collect();
    let workers = workers(fields.list(faults, fields::WORKERS.name(), 0, WORKERS_MAX), &pools, faults);
    fields.close(faults);
    Some(ServiceConfig { pools, other_pools: OtherPools::Refused, workers, tokens, tokens_unsaid, kv })
}

fn pools(values: &[Value], faults: &mut Faults) -> Vec<Pool> {
    let mut seen = BTreeSet::new();
    let mut pools: Vec<Pool> = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let path = format!("pools[{i}]");
        let Some(pool) = pool(value, &path, faults) else { continue };
        let name = &pool.info.name;
        if seen.insert(name.clone()) {
            pools.push(pool);
        } else {
            faults.add(&format!("{path}.name"), format!("{name} is listed twice"), "each name once");
        }
    }
    pools.sort_by(|a, b| a.info.name.cmp(&b.info.name));
    pools
}

fn pool(value: &Value, path: &str, faults: &mut Faults) -> Option<Pool> {
    let mut fields = Fields::open(path, value, faults)?;
    let name = fields.required(faults, fields::NAME.name(), "a pool name", PoolName::parse);
    let mut pool = PoolInfo::with_defaults(name.clone().or_else(|| PoolName::parse(POOL_DEFAULT).ok())?);
    let before = faults.list.len();
    pool.policy = fields.word(faults, &fields::POLICY, POLICIES);
    let is_policy = faults.list.len() == before;
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
    let tokens_unsaid = pool.policy == Policy::KvAware && !fields.has(fields::TOKENS.name());
    let tokens = Tokens::parse(fields.take(fields::TOKENS.name()), &fields.at(fields::TOKENS.name()), faults);
    let kv = fields.take(fields::KV.name());
    let kv = kv.and_then(|value| KvSettings::parse(value, &fields.at(fields::KV.name()), faults));
    pool.reads_prompt = pool.policy == Policy::KvAware && !tokens.is_off();
    // Of a policy that is mistyped nobody knows what it uses.
    if is_policy && pool.policy != Policy::KvAware {
        let unused = [(fields::KV, kv.is_some()), (fields::TOKENS, !tokens.is_off())];
        for (field, _) in unused.iter().filter(|(_, given)| *given) {
            let problem = "says how slots are compared, which this pool's policy does not".to_owned();
            faults.add(&fields.at(field.name()), problem, "policy \"kv_aware\", or leave it out");
        }
    }
    fields.close(faults);
    name.map(|_| Pool { info: pool, tokens, tokens_unsaid, kv })
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
