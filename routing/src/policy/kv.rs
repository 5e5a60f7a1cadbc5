//! What a prompt costs on a slot (affinity section 11), who is left of those that carry too much, and the choice by cost.
//!
//! Pure and in integers, but for the softmax. Knows neither workers nor sessions nor where the numbers come from.

use super::uniform;

/// A hundred percent of a weight.
const FULL: u64 = 100;
/// Requests above its share that never leave a slot out.
pub const LOAD_SLACK: u128 = 4;
/// [`Cost`]s of one block.
pub const COST_OF_BLOCK: u64 = FULL * FULL;

/// What a slot would pay for a prompt, in [`COST_OF_BLOCK`]ths of a block: lower wins.
pub type Cost = u64;

/// How much each part of a cost counts, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Of prefill against decode.
    pub prefill_scale: u32,
    /// Of a cached block on the device, as credit against prefill.
    pub gpu: u32,
    /// Of one on the host that extends those.
    pub host: u32,
    /// Of one on disk that extends all of these.
    pub disk: u32,
    /// Of one that nobody has reported yet, but an earlier prompt is about to bring.
    pub predicted: u32,
    /// 0: the cheapest is taken; more: the likelier, the cheaper.
    pub temperature: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { prefill_scale: 100, gpu: 100, host: 75, disk: 25, predicted: 80, temperature: 0 }
    }
}

/// Length of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Tokens.
    pub tokens: u64,
    /// Tokens of a block, >= 1.
    pub block_size: u32,
}

impl Size {
    /// Blocks it takes, the last one begun included.
    #[must_use]
    pub fn blocks(self) -> u64 {
        self.tokens.div_ceil(self.block_size.max(1).into())
    }
}

/// One slot, as a prompt finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Tokens of other prompts that wait there to be prefilled, or are; but for those that this prompt has too: it would not be
    /// served sooner elsewhere.
    pub active_prefill_tokens: u64,
    /// Blocks of what is being answered there.
    pub active_decode_blocks: u64,
    /// Blocks this prompt adds that nothing active there holds.
    pub added_blocks: u64,
    /// Leading blocks it holds on the device, without a gap.
    pub gpu: u32,
    /// Blocks on the host, right after these.
    pub host: u32,
    /// Blocks on disk, right after those.
    pub disk: u32,
    /// Blocks right after all of them that an earlier prompt, just sent there, has too.
    pub predicted: u32,
}

/// `prefill_scale x prefill + decode`.
#[must_use]
pub fn cost(weights: &Weights, prompt: Size, terms: &Terms) -> Cost {
    let part = |weight: u32, blocks: u32| u128::from(weight) * u128::from(blocks);
    let known =
        part(weights.gpu, terms.gpu) + part(weights.host, terms.host) + part(weights.disk, terms.disk);
    let credit = known + part(weights.predicted, terms.predicted);
    let size = u64::from(prompt.block_size.max(1));
    let tokens = u128::from(terms.active_prefill_tokens) + u128::from(prompt.tokens);
    let prefill = (tokens * u128::from(FULL) / u128::from(size)).saturating_sub(credit);
    let decode = u128::from(terms.active_decode_blocks) + u128::from(terms.added_blocks);
    let cost = prefill * u128::from(weights.prefill_scale) + decode * u128::from(COST_OF_BLOCK);
    u64::try_from(cost).unwrap_or(u64::MAX)
}

/// Requests from above which a slot is left out while others are not: `ceil(load_cap x (total + 1) x share / shares)`, and always
/// [`LOAD_SLACK`] more than its share: of few requests one more or less says nothing.
#[must_use]
pub fn load_cap(percent: u32, total: u64, (share, shares): (u32, u32)) -> u64 {
    let shares = u128::from(shares.max(1));
    let part = (u128::from(total) + 1) * u128::from(share);
    let cap =
        (part * u128::from(percent)).div_ceil(shares * u128::from(FULL)).max(part / shares + LOAD_SLACK);
    u64::try_from(cap).unwrap_or(u64::MAX)
}

/// Index of the chosen one; `None` of none. Equals are equally likely.
#[must_use]
pub fn choose(costs: &[Cost], temperature: u32, draw: u64) -> Option<usize> {
    let least = costs.iter().min().copied()?;
    let most = costs.iter().max().copied()?;
    if temperature > 0 && most > least {
        return softmax(costs, (least, most), temperature, draw);
    }
    let mut tied = costs.iter().enumerate().filter(|(_, cost)| **cost == least);
    let nth = uniform(tied.clone().count(), draw)?;
    tied.nth(nth).map(|(at, _)| at)
}

/// Each with weight `exp(-(cost - least) / ((most - least) x temperature))`: between 0 and 1, and 1 at least once.
fn softmax(costs: &[Cost], (least, most): (Cost, Cost), temperature: u32, draw: u64) -> Option<usize> {
    let range = (most - least) as f64 * f64::from(temperature) / FULL as f64;
    let weight = |cost: &Cost| (-((cost - least) as f64) / range).exp();
    let sum: f64 = costs.iter().map(weight).sum();
    // Of 53 bits, so that it stays below one.
    let mut left = (draw >> 11) as f64 / (1u64 << 53) as f64 * sum;
    let mut last = None;
    for (at, weight) in costs.iter().map(weight).enumerate().filter(|(_, weight)| *weight > 0.0) {
        last = Some(at);
        if left < weight {
            break;
        }
        left -= weight;
    }
    last
}
