//! `kv` of a pool: what its choices by cached prefixes weigh, and for how long they believe what nobody has reported yet.

use super::fields as field;
use crate::declare::{Faults, Fields};
use routing::policy::kv::Weights;
use routing::time::Millis;
use serde_json::Value;
use std::num::NonZeroU32;

/// In percent. While a block of a prompt is computed nothing else is; one that is decoded is only read at each step, wherever its
/// request went. What loads a slot beyond that is the load cap's.
pub(super) const PREFILL_SCALE_DEFAULT: u32 = 3000;

/// How a pool under `kv_aware` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSettings {
    /// Of the parts of a cost.
    pub weights: Weights,
    /// See [`routing::policy::kv::load_cap`], in percent.
    pub load_cap: u32,
    /// How long a prompt that was just sent somewhere counts as cached there without an event.
    pub prediction_ttl: Millis,
    /// The same where nothing else is known, under `approximate` tokens.
    pub placement_ttl: Millis,
    /// Tokens of a block; without it, that of the engines' first event.
    pub block_size: Option<NonZeroU32>,
}

impl Default for KvSettings {
    fn default() -> Self {
        Self {
            weights: Weights { prefill_scale: PREFILL_SCALE_DEFAULT, ..Weights::default() },
            load_cap: 125,
            prediction_ttl: Millis(2000),
            placement_ttl: Millis::from_secs(600),
            block_size: None,
        }
    }
}

impl KvSettings {
    pub(super) fn parse(value: &Value, path: &str, faults: &mut Faults) -> Option<Self> {
        let mut fields = Fields::open(path, value, faults)?;
        let mut number = |field| fields.integer(faults, field);
        let weights = Weights {
            prefill_scale: number(&field::KV_PREFILL),
            gpu: number(&field::KV_GPU),
            host: number(&field::KV_HOST),
            disk: number(&field::KV_DISK),
            predicted: number(&field::KV_PREDICTION),
            temperature: number(&field::KV_TEMPERATURE),
        };
        let settings = Self {
            weights,
            load_cap: number(&field::KV_LOAD_CAP),
            prediction_ttl: Millis(number(&field::KV_PREDICTION_TTL).into()),
            placement_ttl: Millis::from_secs(number(&field::KV_PLACEMENT_TTL).into()),
            block_size: NonZeroU32::new(number(&field::KV_BLOCK_SIZE)),
        };
        fields.close(faults);
        Some(settings)
    }
}
