//! The choice among candidates: pure functions of (candidates, load, session, draw), the same in filter and service.
//!
//! Callers sort candidates by worker id and have filtered them already (state, model, overload). Ranks are not chosen here.

pub mod kv;

use crate::contract::{Device, Policy};
use crate::hash::{rendezvous_beats, rendezvous_cost, rendezvous_draw};
use crate::id::SessionId;

/// One worker that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// [`crate::hash::worker_hash`] of its id.
    pub worker_hash: u64,
    /// Share in weighted choices, >= 1.
    pub weight: u32,
    /// Requests in flight there; lower is better.
    pub load: u64,
    /// What it computes on.
    pub device: Device,
}

/// A pool's policy with what it is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How a worker is chosen.
    pub policy: Policy,
    /// See [`crate::contract::PoolInfo::device_ratio`].
    pub device_ratio: u32,
}

/// What a choice takes from outside: randomness, and a position that all choosers of the pool share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chance {
    /// Uniform; breaks ties and serves requests without a session.
    pub draw: u64,
    /// Grows by one with each choice; only `round_robin` looks at it.
    pub cursor: u64,
}

/// Index of the chosen candidate; `None` without candidates, and under `direct`.
#[must_use]
pub fn choose(
    rules: Rules,
    candidates: &[Candidate],
    session: Option<SessionId>,
    chance: Chance,
) -> Option<usize> {
    match (rules.policy, session) {
        (Policy::LeastLoaded | Policy::KvAware, _) => least_loaded(candidates, chance.draw),
        (Policy::SessionHash, Some(session)) => rendezvous(candidates, session),
        (Policy::SessionHash, None) | (Policy::Random, _) => uniform(candidates.len(), chance.draw),
        (Policy::RoundRobin, _) => round_robin(candidates.len(), chance.cursor),
        (Policy::PowerOfTwo, _) => power_of_two(candidates, chance.draw),
        (Policy::DeviceAware, _) => device_aware(candidates, rules.device_ratio, chance.draw),
        // Nobody chooses there but the caller.
        (Policy::Direct, _) => None,
    }
}

/// Candidate `cursor` of `n`, around and around.
#[must_use]
pub fn round_robin(n: usize, cursor: u64) -> Option<usize> {
    let n = u64::try_from(n).ok().filter(|n| *n > 0)?;
    usize::try_from(cursor % n).ok()
}

/// Of two distinct uniform draws the one with fewer in flight; the first drawn on a tie.
#[must_use]
pub fn power_of_two(candidates: &[Candidate], draw: u64) -> Option<usize> {
    let (first, second) = drawn_pair(candidates.len(), draw)?;
    let Some(second) = second else { return Some(first) };
    let load = |at: usize| candidates.get(at).map_or(u64::MAX, |candidate| candidate.load);
    Some(if load(second) < load(first) { second } else { first })
}

/// Two distinct uniform draws of `n`; one where there is only one.
#[must_use]
pub fn drawn_pair(n: usize, draw: u64) -> Option<(usize, Option<usize>)> {
    let first = uniform(n, mix(draw, 0))?;
    // Drawn among the others, so that the two are distinct and each pair is equally likely.
    let second = uniform(n - 1, mix(draw, 1)).map(|other| if other < first { other } else { other + 1 });
    Some((first, second))
}

/// Least loaded among the CPU workers while they carry less than their share of the accelerators' load, else among accelerators.
///
/// The share is `accelerator load x CPU workers / (ratio x accelerators)`, in integers. With one class present that class serves.
#[must_use]
pub fn device_aware(candidates: &[Candidate], ratio: u32, draw: u64) -> Option<usize> {
    let class = |device: Device| candidates.iter().filter(move |candidate| candidate.device == device);
    let sum = |device| class(device).fold(0u128, |sum, candidate| sum + u128::from(candidate.load));
    let count = |device| class(device).count() as u128;
    let (cpus, accelerators) = (count(Device::Cpu), count(Device::Accelerator));
    if cpus == 0 || accelerators == 0 {
        return least_loaded(candidates, draw);
    }
    let allowed = sum(Device::Accelerator).saturating_mul(cpus) / (u128::from(ratio.max(1)) * accelerators);
    let device = if sum(Device::Cpu) < allowed { Device::Cpu } else { Device::Accelerator };
    least_loaded_of(candidates, draw, |candidate| candidate.device == device)
}

/// Fewest in flight; ties uniform by `draw`.
#[must_use]
pub fn least_loaded(candidates: &[Candidate], draw: u64) -> Option<usize> {
    least_loaded_of(candidates, draw, |_| true)
}

fn least_loaded_of(candidates: &[Candidate], draw: u64, keep: impl Fn(&Candidate) -> bool) -> Option<usize> {
    let least = candidates.iter().filter(|c| keep(c)).map(|c| c.load).min()?;
    let mut tied = candidates.iter().enumerate().filter(|(_, c)| keep(c) && c.load == least);
    let nth = uniform(tied.clone().count(), draw)?;
    tied.nth(nth).map(|(index, _)| index)
}

/// Weighted rendezvous: the candidate with the least `cost / weight`; the earlier one (lower id) on a tie.
///
/// Cost falls as the draw grows, so with equal weights (the usual case) the largest draw wins and no logarithm is taken.
#[must_use]
pub fn rendezvous(candidates: &[Candidate], session: SessionId) -> Option<usize> {
    let first = candidates.first()?;
    if candidates.iter().all(|candidate| candidate.weight == first.weight) {
        let draw = |(_, candidate): &(usize, &Candidate)| rendezvous_draw(session, candidate.worker_hash);
        return candidates.iter().enumerate().rev().max_by_key(draw).map(|(index, _)| index);
    }
    let mut best: Option<(usize, (u64, u32))> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        let score =
            (rendezvous_cost(rendezvous_draw(session, candidate.worker_hash)), candidate.weight.max(1));
        if best.is_none_or(|(_, so_far)| rendezvous_beats(score, so_far)) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}

/// `draw` scaled to `0..n` without modulo bias worth speaking of (n is small, the draw has 64 bits).
#[must_use]
pub fn uniform(n: usize, draw: u64) -> Option<usize> {
    let n = u64::try_from(n).ok().filter(|n| *n > 0)?;
    usize::try_from((u128::from(draw) * u128::from(n)) >> 64).ok()
}

/// Spreads a seed and a counter into independent-looking draws (splitmix64): enough for ties, not for secrets.
#[must_use]
pub fn mix(seed: u64, counter: u64) -> u64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
