//! Which series of which engine say how busy a rank is, and which of a worker's slots each of them means.
//!
//! Owns the names (engines, section 4) and how ranks are numbered in labels: vLLM's `engine` is the global rank, whatever its
//! header takes; `SGLang`'s `dp_rank` counts as its header does. Series of several ranks are neither lost nor summed, unless
//! the endpoint is declared as one rank: then the engine balances behind it, and the slot is all of them.

use super::text::{Lines, Sample};
use crate::declare::EndpointSpec;
use crate::state::SlotGauges;
use routing::contract::RankNumbering;
use routing::id::Rank;
use std::collections::BTreeMap;

/// Most bytes read of one answer: an engine of a thousand ranks says less.
pub(super) const BODY_BYTES_MAX: usize = 4 << 20;
/// Most ranks kept of one answer; a worker cannot declare more.
const READINGS_MAX: usize = 1024;

/// Which engine a series is of; decides what its rank label counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Vllm,
    Sglang,
    Trtllm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gauge {
    Running,
    Waiting,
    /// Share of the KV cache in use, 0 to 1.
    Usage,
}

const SERIES: &[(&str, Family, Gauge)] = &[
    ("vllm:num_requests_running", Family::Vllm, Gauge::Running),
    ("vllm:num_requests_waiting", Family::Vllm, Gauge::Waiting),
    ("vllm:kv_cache_usage_perc", Family::Vllm, Gauge::Usage),
    // Until vLLM 0.11.
    ("vllm:gpu_cache_usage_perc", Family::Vllm, Gauge::Usage),
    ("sglang:num_running_reqs", Family::Sglang, Gauge::Running),
    ("sglang:num_queue_reqs", Family::Sglang, Gauge::Waiting),
    ("sglang:token_usage", Family::Sglang, Gauge::Usage),
    ("trtllm_num_requests_running", Family::Trtllm, Gauge::Running),
    ("trtllm_num_requests_waiting", Family::Trtllm, Gauge::Waiting),
    ("trtllm_kv_cache_utilization", Family::Trtllm, Gauge::Usage),
];

impl Family {
    const fn rank_label(self) -> &'static str {
        match self {
            Self::Vllm => "engine",
            // TensorRT-LLM has none: its one rank is the endpoint.
            Self::Sglang | Self::Trtllm => "dp_rank",
        }
    }
}

/// What was said of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    running: u32,
    waiting: u32,
    kv_permille: Option<u32>,
}

/// The ranks behind an endpoint, as far as labels depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranks {
    start: u32,
    count: u32,
    numbering: RankNumbering,
}

impl From<&EndpointSpec> for Ranks {
    fn from(spec: &EndpointSpec) -> Self {
        Self { start: spec.dp_start, count: spec.dp_size, numbering: spec.rank_numbering }
    }
}

/// What an answer said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// One for each slot, by rank; empty: the answer has none of our series.
    pub slots: Vec<SlotGauges>,
    /// Ranks told of that the endpoint does not declare.
    pub strays: usize,
}

/// An answer being read, chunk by chunk.
#[derive(Debug, Default)]
pub struct Reader {
    lines: Lines,
    found: Found,
    bytes: usize,
}

impl Reader {
    /// Takes more of the answer; false: it is too long, nothing more is read.
    pub fn feed(&mut self, chunk: &[u8]) -> bool {
        self.bytes = self.bytes.saturating_add(chunk.len());
        if self.bytes > BODY_BYTES_MAX {
            return false;
        }
        let found = &mut self.found;
        self.lines.feed(chunk, |line| found.take(line));
        true
    }

    /// What it said of the slots behind an endpoint.
    #[must_use]
    pub fn finish(mut self, ranks: Ranks) -> Gauges {
        let found = &mut self.found;
        self.lines.finish(|line| found.take(line));
        self.found.place(ranks)
    }
}

/// Readings by engine and rank label.
#[derive(Debug, Default)]
struct Found(BTreeMap<(Family, Option<u32>), Reading>);

impl Found {
    fn take(&mut self, line: &[u8]) {
        // Most lines are of other families: looked at no further.
        if ![b"vllm:".as_slice(), b"sglang:", b"trtllm_"].iter().any(|prefix| line.starts_with(prefix)) {
            return;
        }
        let sample = std::str::from_utf8(line).ok().and_then(Sample::parse);
        let Some(sample) = sample.filter(|sample| sample.value >= 0.0) else { return };
        let Some((_, family, gauge)) = SERIES.iter().find(|(name, ..)| *name == sample.name) else { return };
        let rank = match sample.label(family.rank_label()) {
            None => None,
            Some(text) => match rank(text) {
                Some(rank) => Some(rank),
                None => return,
            },
        };
        let key = (*family, rank);
        if self.0.len() < READINGS_MAX || self.0.contains_key(&key) {
            self.0.entry(key).or_default().note(*gauge, sample.value);
        }
    }

    fn place(self, ranks: Ranks) -> Gauges {
        if ranks.count <= 1 {
            let slots = self.0.into_values().reduce(Reading::beside);
            return Gauges { slots: slots.map(|reading| reading.of(None)).into_iter().collect(), strays: 0 };
        }
        let mut slots: BTreeMap<Option<Rank>, Reading> = BTreeMap::new();
        let mut strays = 0;
        for ((family, label), reading) in self.0 {
            match label.map(|label| ranks.global(family, label)) {
                Some(None) => strays += 1,
                rank => slots.entry(rank.flatten()).or_default().join(reading),
            }
        }
        Gauges { slots: slots.into_iter().map(|(rank, reading)| reading.of(rank)).collect(), strays }
    }
}

/// A rank as engines write it.
fn rank(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl Ranks {
    /// The global rank that a label means, if it is one of this endpoint's.
    fn global(self, family: Family, label: u32) -> Option<Rank> {
        let counts_from_zero = family != Family::Vllm && self.numbering == RankNumbering::Local;
        let rank = if counts_from_zero { self.start.checked_add(label)? } else { label };
        (self.start..self.start.saturating_add(self.count)).contains(&rank).then_some(Rank(rank))
    }
}

impl Reading {
    /// `SGLang` repeats a rank's gauges once per tensor-parallel rank: the greatest of them counts, once.
    fn note(&mut self, gauge: Gauge, value: f64) {
        match gauge {
            Gauge::Running => self.running = self.running.max(whole(value)),
            Gauge::Waiting => self.waiting = self.waiting.max(whole(value)),
            Gauge::Usage => self.kv_permille = self.kv_permille.max(Some(whole(value.min(1.0) * 1000.0))),
        }
    }

    /// Another reading of the same rank.
    fn join(&mut self, other: Self) {
        self.running = self.running.max(other.running);
        self.waiting = self.waiting.max(other.waiting);
        self.kv_permille = self.kv_permille.max(other.kv_permille);
    }

    /// Two ranks that are one slot: the engine sends a request to the one that has room.
    fn beside(self, other: Self) -> Self {
        let kv_permille = match (self.kv_permille, other.kv_permille) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
        Self {
            running: self.running.saturating_add(other.running),
            waiting: self.waiting.saturating_add(other.waiting),
            kv_permille,
        }
    }

    const fn of(self, rank: Option<Rank>) -> SlotGauges {
        SlotGauges { rank, running: self.running, waiting: self.waiting, kv_permille: self.kv_permille }
    }
}

/// To the nearest whole number; `as` saturates, which is what a huge value deserves.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates; negatives were refused"
)]
const fn whole(value: f64) -> u32 {
    value.round() as u32
}
