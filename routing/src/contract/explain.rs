//! A decision laid open: who might have served, who was left out and why, who was chosen.
//!
//! The answer of `POST /v1/explain` and of a dry run. Holds no key and no prompt: a session is shown by its hash.

use super::{Outcome, Overlap, Refusal, Target, WorkerState};
use crate::hash::Phase;
use crate::id::{PoolName, Rank, SessionId, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Where the session key stood; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyShown>,
    /// The pool.
    pub pool: PoolName,
    /// Which half of the request this is about.
    #[serde(default)]
    pub phase: Phase,
    /// What was decided.
    pub outcome: Outcome,
    /// Why, for `refused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// One word: `bound`, `least_loaded`, `spilled`, …
    pub reason: String,
    /// The slot chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Target>,
    /// Every worker of the pool and phase, by id; under `kv_aware` every slot of these.
    pub candidates: Vec<CandidateShown>,
    /// The prefill half, in a pool that is split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Box<Explanation>>,
}

/// An [`Explanation`] as it travels. The filter hands it on and never looks inside: the code to read one would be a tenth of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Explained(Box<RawValue>);

impl PartialEq for Explained {
    fn eq(&self, other: &Self) -> bool {
        let read = |one: &Self| serde_json::from_str::<Explanation>(one.0.get()).ok();
        self.0.get() == other.0.get() || read(self).is_some_and(|own| Some(own) == read(other))
    }
}

impl Eq for Explained {}

impl Explained {
    /// Writes it down; `None` for what JSON cannot say, which nothing in it is.
    #[must_use]
    pub fn of(explanation: &Explanation) -> Option<Self> {
        serde_json::value::to_raw_value(explanation).ok().map(Self)
    }

    /// The JSON text, with the key of the session put in.
    #[must_use]
    pub fn text(&self, key: Option<&KeyShown>) -> String {
        let text = self.0.get();
        let key = key.and_then(|key| serde_json::to_string(key).ok());
        match (key, text.strip_prefix('{')) {
            (Some(key), Some(rest)) => format!("{{\"key\":{key},{rest}"),
            _ => text.to_owned(),
        }
    }
}

/// A session key as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyShown {
    /// The source as the config writes it: `header:x-session-id`.
    pub source: String,
    /// What names the session everywhere.
    pub session: SessionId,
}

/// One worker as a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateShown {
    /// The worker.
    pub worker: WorkerId,
    /// The rank this session would get there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Whether it may be used.
    pub state: WorkerState,
    /// In flight, waiting and what recent failures count as, in requests.
    pub load: u64,
    /// What the policy compared, lower is better (under `kv_aware` ten-thousandths of a block); absent where it compares nothing or the candidate was left out, but for its load under `kv_aware`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<u64>,
    /// How much of the prompt it caches, where that was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// Every filter that left it out; empty for those the policy chose from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_by: Vec<Removal>,
}

/// Why a worker was no candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removal {
    /// It drains, is down, or is suspect while others are not.
    State,
    /// It does not serve the model asked for.
    Model,
    /// It lacks a required label, or repels requests that do not ask for it.
    Labels,
    /// The caller's list of endpoints does not have it.
    AllowList,
    /// Others that might serve have more of the preferred labels.
    Preference,
    /// It carries more than its share of all requests, whatever it caches.
    Load,
    /// The slot is overloaded while others are not. Also how a word this build does not know is read.
    #[serde(other)]
    Overload,
}
