//! What a replay found out, as numbers and as words.

use serde::Serialize;
use std::fmt;

/// The figures of one replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Blocks found cached, of all blocks that the prompts list.
    pub hit_ratio: f64,
    /// Requests of the slot with the most, over the mean of all slots.
    pub max_over_mean: f64,
    /// Requests replayed.
    pub requests: u64,
    /// Tokens found cached, of all tokens of prompts.
    pub token_hit_ratio: f64,
    /// Tokens that had to be computed: those of the slot with the most, over the mean of all slots.
    pub computed_max_over_mean: f64,
    /// Distinct full blocks of the trace.
    pub working_set_blocks: u64,
    /// Blocks that one slot can cache; absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_capacity_blocks: Option<u64>,
    /// Blocks evicted, over all slots.
    pub evicted_blocks: u64,
    /// Simulated seconds from the first request to the last byte.
    pub simulated_s: f64,
    /// Simulated seconds from request to first byte, at the median.
    pub first_byte_p50_s: f64,
    /// The same that 99 of 100 requests stay below.
    pub first_byte_p99_s: f64,
    /// How often the service's promise of cached blocks was what the engine found, of the requests for which it made one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promises_kept: Option<f64>,
}

impl Figures {
    /// As one line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// One slot's share.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    requests: u64,
    computed: u64,
}

/// What is counted while a trace is replayed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    shares: Vec<Share>,
    blocks: u64,
    blocks_cached: u64,
    tokens: u64,
    tokens_cached: u64,
    evicted: u64,
    promises: u64,
    kept: u64,
    /// Milliseconds to the first byte of each request; bounded as a trace's requests are.
    first_bytes: Vec<u32>,
}

/// One request whose prompt is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Computed {
    pub(super) slot: usize,
    pub(super) listed: u32,
    pub(super) cached: u64,
    pub(super) tokens: u32,
    pub(super) block_size: u32,
    /// Blocks that the service said were cached.
    pub(super) promised: Option<u32>,
    /// Milliseconds since it was asked for.
    pub(super) took: u64,
}

impl Tally {
    pub(super) fn new(slots: usize) -> Self {
        Self { shares: vec![Share::default(); slots], ..Self::default() }
    }

    pub(super) fn computed(&mut self, one: &Computed) {
        let cached = (one.cached * u64::from(one.block_size)).min(one.tokens.into());
        if let Some(share) = self.shares.get_mut(one.slot) {
            share.requests += 1;
            share.computed += u64::from(one.tokens) - cached;
        }
        self.blocks += u64::from(one.listed);
        self.blocks_cached += one.cached;
        self.tokens += u64::from(one.tokens);
        self.tokens_cached += cached;
        self.promises += u64::from(one.promised.is_some());
        self.kept += u64::from(one.promised.is_some_and(|promised| u64::from(promised) == one.cached));
        self.first_bytes.push(u32::try_from(one.took).unwrap_or(u32::MAX));
    }

    pub(super) const fn evicted(&mut self, blocks: usize) {
        self.evicted += blocks as u64;
    }

    pub(super) fn figures(mut self) -> Figures {
        self.first_bytes.sort_unstable();
        let within = |share: usize| {
            let at = (self.first_bytes.len() * share / 100).min(self.first_bytes.len().saturating_sub(1));
            f64::from(self.first_bytes.get(at).copied().unwrap_or(0)) / 1000.0
        };
        Figures {
            hit_ratio: ratio(self.blocks_cached, self.blocks),
            max_over_mean: max_over_mean(self.shares.iter().map(|share| share.requests)),
            requests: self.shares.iter().map(|share| share.requests).sum(),
            token_hit_ratio: ratio(self.tokens_cached, self.tokens),
            computed_max_over_mean: max_over_mean(self.shares.iter().map(|share| share.computed)),
            evicted_blocks: self.evicted,
            first_byte_p50_s: within(50),
            first_byte_p99_s: within(99),
            promises_kept: (self.promises > 0).then(|| ratio(self.kept, self.promises)),
            ..Figures::default()
        }
    }
}

/// Four decimals: more would only look exact.
fn ratio(part: u64, whole: u64) -> f64 {
    rounded(part as f64 / whole.max(1) as f64)
}

fn max_over_mean(shares: impl Iterator<Item = u64> + Clone) -> f64 {
    let (max, sum) = (shares.clone().max().unwrap_or(0), shares.clone().sum::<u64>());
    rounded(max as f64 * shares.count() as f64 / sum.max(1) as f64)
}

fn rounded(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.slot_capacity_blocks.map_or_else(|| "any number".to_owned(), |n| n.to_string());
        writeln!(f, "requests                 {}", self.requests)?;
        writeln!(f, "hit ratio, blocks        {:.2} %", self.hit_ratio * 100.0)?;
        writeln!(f, "hit ratio, tokens        {:.2} %", self.token_hit_ratio * 100.0)?;
        writeln!(f, "requests, max/mean       {:.3}", self.max_over_mean)?;
        writeln!(f, "computed, max/mean       {:.3}", self.computed_max_over_mean)?;
        writeln!(f, "distinct blocks          {}", self.working_set_blocks)?;
        writeln!(f, "blocks a slot can cache  {capacity}")?;
        writeln!(f, "blocks evicted           {}", self.evicted_blocks)?;
        writeln!(
            f,
            "first byte, p50 / p99    {:.2} s / {:.2} s",
            self.first_byte_p50_s, self.first_byte_p99_s
        )?;
        if let Some(kept) = self.promises_kept {
            writeln!(f, "overlaps as told         {:.2} %", kept * 100.0)?;
        }
        write!(f, "simulated                {:.0} s", self.simulated_s)
    }
}
