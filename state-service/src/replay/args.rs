//! The arguments of `rankpin replay`, and which go together.

use super::error::ReplayError;
use clap::{Args, ValueEnum};
use routing::contract::{Affinity, Policy};
use std::path::PathBuf;

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
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_rate: u32,
    /// Tokens a second of one answer, however many are written at once.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
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
    pub(super) const fn policy(self) -> Policy {
        match self {
            Self::SessionHash => Policy::SessionHash,
            Self::LeastLoaded => Policy::LeastLoaded,
            Self::RoundRobin => Policy::RoundRobin,
            Self::Random => Policy::Random,
            Self::PowerOfTwo => Policy::PowerOfTwo,
            Self::KvAware => Policy::KvAware,
        }
    }
}

impl AffinityArg {
    pub(super) const fn affinity(self) -> Affinity {
        match self {
            Self::Off => Affinity::Off,
            Self::Soft => Affinity::Soft,
            Self::Hard => Affinity::Hard,
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
