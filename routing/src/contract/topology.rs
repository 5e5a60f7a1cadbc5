//! Workers and their endpoints as one Envoy may use them.

use super::{PoolInfo, is_default};
use crate::hash::Phase;
use crate::id::{PoolName, WorkerId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Pools and workers as one Envoy may use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Version of this view, inside the service's epoch.
    pub version: u64,
    /// All pools, by name.
    pub pools: Vec<PoolInfo>,
    /// All workers, by id.
    pub workers: Vec<WorkerInfo>,
}

/// Which engine a worker runs: decides how a rank travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM: `x-data-parallel-rank`.
    #[default]
    Vllm,
    /// SGLang (>= 0.5.10): the same header.
    Sglang,
    /// TensorRT-LLM: no rank over HTTP.
    Trtllm,
    /// Anything else: no rank unless an endpoint states its numbering.
    #[serde(other)]
    Custom,
}

/// What a worker computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// Plain processors.
    Cpu,
    /// GPU or the like. Also how a device this build does not know is read.
    #[default]
    #[serde(other)]
    Accelerator,
}

/// How an endpoint counts ranks in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankNumbering {
    /// As declared: `dp_start .. dp_start + dp_size`.
    #[default]
    Global,
    /// From zero inside the endpoint: global minus `dp_start`.
    Local,
    /// No header: the endpoint is one rank. Also how a numbering this build does not know is read.
    #[serde(other)]
    None,
}

/// A worker as one Envoy may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its id.
    pub id: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// Its engine.
    #[serde(default)]
    pub engine: Engine,
    /// Share in weighted choices, 1..=1000.
    #[serde(default = "one")]
    pub weight: u32,
    /// What it computes on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub device: Device,
    /// Number of its first slot among the fleet's gauges (`rankpin.slot.N.in_flight`): its ranks in order, then one for requests
    /// without a rank where it has several. Numbers of removed workers are given again. Absent: it has no gauges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_slot: Option<u32>,
    /// Where Envoy dials it; each serves a range of ranks.
    pub endpoints: Vec<EndpointInfo>,
    /// Which half of a split pool it is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phase: Phase,
    /// Model names it serves; empty: whatever its pool serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Words of the operator that requests may ask for; one that begins with `!` repels those that do not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Version of its engine as it writes it, for example `0.32.0`; absent: as new as we know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    /// Where its engine reads a rank.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rank_in: RankIn,
    /// Requests in flight on one of its slots from which on that counts as overloaded; absent: as its pool has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u32>,
}

/// Where an engine reads a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankIn {
    /// In the request's JSON body: SGLang before 0.5.10.
    Body,
    /// In a header. Also how a word this build does not know is read.
    #[default]
    #[serde(other)]
    Header,
}

impl WorkerInfo {
    /// A worker of which nothing more was said.
    #[must_use]
    pub const fn with_defaults(id: WorkerId, pool: PoolName, endpoints: Vec<EndpointInfo>) -> Self {
        Self {
            id,
            pool,
            engine: Engine::Vllm,
            weight: 1,
            device: Device::Accelerator,
            first_slot: None,
            endpoints,
            phase: Phase::Aggregated,
            models: Vec::new(),
            labels: BTreeMap::new(),
            engine_version: None,
            rank_in: RankIn::Header,
            in_flight_limit: None,
        }
    }
}

const fn one() -> u32 {
    1
}

/// One address of a worker and the ranks behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointInfo {
    /// `ip:port` as Envoy dials it (host names already resolved); IPv6 in brackets.
    pub address: String,
    /// How this endpoint counts ranks.
    #[serde(default)]
    pub rank_numbering: RankNumbering,
    /// First global rank here.
    #[serde(default)]
    pub dp_start: u32,
    /// How many ranks, >= 1.
    #[serde(default = "one")]
    pub dp_size: u32,
}
