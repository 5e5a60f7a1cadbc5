//! What people see of a pool's tokens: how they are got, whether that works, which models its workers list. Changes nothing.

use super::Tokenizers;
use crate::config::{KvSettings, ServiceConfig};
use crate::service::Warning;
use crate::tokenize::State;
use routing::contract::Policy;
use routing::id::{PoolName, WorkerId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A pool by caches, as its config has it.
pub(super) struct Settings {
    kv: KvSettings,
    /// Its config says nothing of tokens: an oversight, most likely.
    unsaid: bool,
}

pub(super) fn settings(config: &ServiceConfig) -> BTreeMap<PoolName, Settings> {
    let aware = config.pools.iter().filter(|pool| pool.policy == Policy::KvAware);
    let of = |name: &PoolName| Settings {
        kv: config.kv.get(name).copied().unwrap_or_default(),
        unsaid: config.tokens_unsaid.contains(name),
    };
    aware.map(|pool| (pool.name.clone(), of(&pool.name))).collect()
}

impl Tokenizers {
    /// Adds what there is to say to a pool that is shown, with these workers.
    pub(crate) fn show(&self, pool: &PoolName, workers: &[&WorkerId], shown: &mut Value) {
        if let (Some(settings), Some(fields)) = (self.settings.get(pool), shown.as_object_mut()) {
            fields.insert("tokens".to_owned(), self.tokens(pool, workers));
            fields.insert("kv".to_owned(), kv(&settings.kv));
        }
    }

    fn tokens(&self, pool: &PoolName, workers: &[&WorkerId]) -> Value {
        let Some(tokenizer) = self.pools.get(pool) else { return json!({"mode": "off"}) };
        let (state, detail) = match tokenizer.state() {
            State::Ready => ("ready", None),
            State::Loading => ("loading", None),
            State::Failed(error) => ("failed", Some(error)),
        };
        let all = self.models.listed();
        let listed = || workers.iter().filter_map(|id| all.get(*id));
        let bases: BTreeSet<&String> = listed().flat_map(|listed| &listed.bases).collect();
        let adapters: BTreeSet<&String> = listed().flat_map(|listed| &listed.adapters).collect();
        json!({"mode": tokenizer.mode(), "state": state, "detail": detail.as_deref(),
            "listed": {"models": bases, "adapters": adapters}})
    }

    /// Says it once, at the start.
    pub(super) fn say_unsaid(&self) {
        for (pool, _) in self.settings.iter().filter(|(_, settings)| settings.unsaid) {
            tracing::warn!(%pool, "a kv_aware pool without `tokens`: requests are placed by load alone");
        }
    }

    /// What is wrong although requests are placed.
    pub(crate) fn warnings(&self) -> Vec<Warning> {
        let unsaid = self.settings.iter().filter(|(_, settings)| settings.unsaid).map(|(pool, _)| Warning {
            code: "tokens_unsaid",
            detail: format!(
                "pool {pool} is kv_aware without `tokens`: no prompt is read, and requests are placed by load alone; say \
                 {{\"mode\": \"local\", \"path\": …}}, or \"off\" if that is meant"
            ),
        });
        let failed = self.pools.iter().filter_map(|(pool, tokenizer)| match tokenizer.state() {
            State::Failed(error) => Some(Warning {
                code: "tokenizer_not_loaded",
                detail: format!(
                    "pool {pool}: {error}; its prompts are tokenised by its workers' /tokenize, or placed by load"
                ),
            }),
            State::Ready | State::Loading => None,
        });
        unsaid.chain(failed).collect()
    }
}

fn kv(kv: &KvSettings) -> Value {
    let weights = &kv.weights;
    json!({
        "prefill_scale_percent": weights.prefill_scale,
        "gpu_percent": weights.gpu,
        "host_percent": weights.host,
        "disk_percent": weights.disk,
        "temperature_percent": weights.temperature,
        "prediction_percent": weights.predicted,
        "load_cap_percent": kv.load_cap,
        "prediction_ttl_ms": kv.prediction_ttl,
        "placement_ttl_s": kv.placement_ttl.0 / 1000,
        "block_size": kv.block_size,
    })
}
