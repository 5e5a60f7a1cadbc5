//! The arguments of `rankpin replay`, and which go together.

use super::error::ReplayError;
use crate::config::{self, ServiceConfig};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The one pool.
pub(super) const POOL: &str = "default";
/// Most slots of a replay.
const SLOTS_MAX: i64 = 4096;
/// Most ranks of a worker.
const RANKS_MAX: i64 = 64;

/// What is replayed, through which placement, on what engines.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// The trace: JSON lines, plain or gzipped (`.gz`).
    #[arg(long, value_name = "PATH")]
    pub trace: PathBuf,
    /// How the trace is written.
    #[arg(long, value_enum)]
    pub format: Format,
    /// Slots (a rank of a worker each) over which requests are placed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SLOTS_MAX))]
    pub slots: u32,
    /// Ranks of each worker; must divide the slots.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    pub ranks: u32,
    /// The pool's policy.
    #[arg(long, value_enum)]
    pub policy: PolicyArg,
    /// The pool's affinity. Without effect on traces that name no sessions (mooncake).
    #[arg(long, value_enum, default_value_t = AffinityArg::Hard)]
    pub affinity: AffinityArg,
    /// The pool's `ttl_s`: idle time after which a session's binding ends.
    #[arg(long, value_name = "S", default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..=31_536_000))]
    pub ttl_s: u32,
    /// kv_aware: the pool's `kv`, as its config has it.
    #[arg(long, value_name = "JSON")]
    pub kv: Option<String>,
    /// What all slots together can cache, as a share of the trace's distinct full blocks; each slot gets an equal part. Without it
    /// nothing is ever evicted.
    #[arg(long, value_name = "F")]
    pub cache_fraction: Option<f64>,
    /// Seed of every draw.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How many times faster than it was recorded the trace is played; engines do not become faster.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub speed: f64,
    /// weka: the sessions, whose own times all begin at 0, begin evenly over so many seconds (before --speed).
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u32))]
    pub spread_s: u32,
    /// Prompt tokens that a slot computes in a second, one prompt after the other; cached ones take no time.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_rate: u32,
    /// Tokens a second of one answer, however many are written at once.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub decode_rate: u32,
    /// Prints one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
}

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Sessions of a coding agent, one a line, with requests of their own (`hash_rle`).
    Weka,
    /// One request a line, with `hash_ids` of 512 tokens and no session.
    Mooncake,
}

/// Policies that a replay can compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum PolicyArg {
    /// By the hash of the session; at random without one.
    SessionHash,
    /// Fewest in flight.
    LeastLoaded,
    /// One after the other.
    RoundRobin,
    /// Uniform.
    Random,
    /// Fewer in flight of two drawn.
    PowerOfTwo,
    /// Where the prompt costs least, by what the engines tell of their caches.
    KvAware,
}

/// How strongly sessions are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AffinityArg {
    /// Every turn is placed anew.
    Off,
    /// Until the slot carries too much.
    Soft,
    /// Every turn goes where the first one went.
    Hard,
}

impl PolicyArg {
    /// As a config has it.
    const fn word(self) -> &'static str {
        match self {
            Self::SessionHash => "session_hash",
            Self::LeastLoaded => "least_loaded",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power_of_two",
            Self::KvAware => "kv_aware",
        }
    }
}

impl AffinityArg {
    /// As a config has it.
    const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }
}

impl ReplayArgs {
    /// Over how long sessions begin, in milliseconds. A mooncake trace has times of its own.
    pub(super) fn spread(&self) -> u64 {
        match self.format {
            Format::Weka => u64::from(self.spread_s) * 1000,
            Format::Mooncake => 0,
        }
    }

    /// The config of a service with one pool, as its file would have it.
    ///
    /// # Errors
    /// `--kv` is not what a config may say.
    pub(super) fn config(&self) -> Result<ServiceConfig, ReplayError> {
        let mut pool = json!({ "name": POOL, "policy": self.policy.word(), "affinity": self.affinity.word(), "ttl_s": self.ttl_s });
        if let (Some(text), Some(pool)) = (&self.kv, pool.as_object_mut()) {
            let kv: Value = serde_json::from_str(text)
                .map_err(|error| ReplayError::Arguments(format!("--kv is not JSON: {error}")))?;
            pool.insert("kv".to_owned(), kv);
        }
        let document = json!({ "pools": [pool] }).to_string();
        config::parse(document.as_bytes()).map_err(|faults| ReplayError::Arguments(faults.to_string()))
    }

    pub(super) fn check(&self) -> Result<(), ReplayError> {
        let refuse = |problem: String| Err(ReplayError::Arguments(problem));
        if !self.slots.is_multiple_of(self.ranks) {
            return refuse(format!(
                "--slots {} cannot be had of workers with --ranks {}",
                self.slots, self.ranks
            ));
        }
        if let Some(given) = self.cache_fraction.filter(|given| !(given.is_finite() && *given > 0.0)) {
            return refuse(format!(
                "--cache-fraction {given}: a number above 0, of which 1 caches every block once"
            ));
        }
        if !(self.speed.is_finite() && self.speed > 0.0) {
            return refuse(format!("--speed {}: a number above 0", self.speed));
        }
        Ok(())
    }
}
