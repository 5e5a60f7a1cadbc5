//! The cost of a prompt on a slot: the worked example of affinity section 11, what makes it rise and fall, and the choice by it.

#![cfg(not(target_arch = "wasm32"))]

use proptest::prelude::*;
use routing::policy::kv::{COST_OF_BLOCK, Size, Terms, Weights, choose, cost, load_cap};

const PROMPT: Size = Size { tokens: 160, block_size: 16 };
const A: Terms = Terms {
    active_prefill_tokens: 0,
    active_decode_blocks: 20,
    added_blocks: 2,
    gpu: 8,
    host: 0,
    disk: 0,
    predicted: 0,
};
const IDLE: Terms = Terms { active_decode_blocks: 0, added_blocks: 10, gpu: 0, ..A };

fn blocks(weights: Weights, terms: Terms) -> u64 {
    let cost = cost(&weights, PROMPT, &terms);
    assert_eq!(cost % COST_OF_BLOCK, 0);
    cost / COST_OF_BLOCK
}

#[test]
fn the_worked_example() {
    let plain = Weights::default();
    assert_eq!((blocks(plain, A), blocks(plain, IDLE)), (24, 20));
    let doubled = Weights { prefill_scale: 200, ..plain };
    assert_eq!((blocks(doubled, A), blocks(doubled, IDLE)), (26, 30));
}

#[test]
fn each_tier_counts_by_its_weight_and_no_credit_makes_prefill_less_than_nothing() {
    let of = |gpu, host, disk| {
        cost(&Weights::default(), PROMPT, &Terms { gpu, host, disk, added_blocks: 0, ..IDLE })
    };
    assert_eq!(of(0, 0, 0), 10 * COST_OF_BLOCK);
    assert_eq!(of(4, 0, 0), 6 * COST_OF_BLOCK);
    assert_eq!(of(0, 4, 0), 7 * COST_OF_BLOCK);
    assert_eq!(of(0, 0, 4), 9 * COST_OF_BLOCK);
    assert_eq!(of(10, 10, 10), 0);
}

/// A twin of a prompt that is being prefilled goes along with it, rather than have another slot compute the same.
#[test]
fn what_is_predicted_counts_by_a_weight_of_its_own() {
    let stranger =
        Terms { active_prefill_tokens: 160, active_decode_blocks: 10, added_blocks: 10, gpu: 0, ..A };
    let twin = Terms { active_prefill_tokens: 0, added_blocks: 0, predicted: 10, ..stranger };
    assert_eq!(blocks(Weights::default(), stranger), 40);
    assert_eq!(blocks(Weights::default(), twin), 12);
    assert!(blocks(Weights::default(), twin) < blocks(Weights::default(), IDLE));
}

#[test]
fn the_cap_is_a_share_of_all_and_always_above_the_mean() {
    assert_eq!(load_cap(125, 499, (1, 8)), 79);
    assert_eq!(load_cap(125, 0, (1, 8)), 4);
    assert_eq!(load_cap(100, 7, (1, 8)), 5);
    assert_eq!(load_cap(125, 499, (4, 8)), 313);
    assert_eq!(load_cap(u32::MAX, u64::MAX, (1, 1)), u64::MAX);
}

fn terms() -> impl Strategy<Value = Terms> {
    let blocks = 0..200_000u32;
    (any::<u32>(), any::<u32>(), any::<u32>(), (blocks.clone(), blocks.clone(), blocks.clone(), blocks))
        .prop_map(|(prefill, decode, added, (gpu, host, disk, predicted))| Terms {
            active_prefill_tokens: prefill.into(),
            active_decode_blocks: decode.into(),
            added_blocks: added.into(),
            gpu,
            host,
            disk,
            predicted,
        })
}

fn weights() -> impl Strategy<Value = Weights> {
    let percent = 0..1000u32;
    let part = 0..=100u32;
    (percent, part.clone(), part.clone(), part.clone(), part).prop_map(
        |(prefill_scale, gpu, host, disk, predicted)| Weights {
            prefill_scale,
            gpu,
            host,
            disk,
            predicted,
            temperature: 0,
        },
    )
}

proptest! {
    #[test]
    fn what_is_cached_never_makes_it_dearer_and_what_is_active_never_cheaper(
        (weights, terms) in (weights(), terms()), tokens in any::<u32>(), block_size in 0..4096u32, more in 1..1000u32,
    ) {
        let size = Size { tokens: tokens.into(), block_size };
        let was = cost(&weights, size, &terms);
        for cached in [
            Terms { gpu: terms.gpu + more, ..terms },
            Terms { host: terms.host + more, ..terms },
            Terms { disk: terms.disk + more, ..terms },
            Terms { predicted: terms.predicted + more, ..terms },
        ] {
            prop_assert!(cost(&weights, size, &cached) <= was);
        }
        for loaded in [
            Terms { active_prefill_tokens: terms.active_prefill_tokens + u64::from(more), ..terms },
            Terms { active_decode_blocks: terms.active_decode_blocks + u64::from(more), ..terms },
            Terms { added_blocks: terms.added_blocks + u64::from(more), ..terms },
        ] {
            prop_assert!(cost(&weights, size, &loaded) >= was);
        }
    }

    #[test]
    fn the_cheapest_is_taken_and_a_temperature_takes_any(
        costs in prop::collection::vec(any::<u64>(), 1..40), temperature in 0..10_000u32, draw in any::<u64>(),
    ) {
        let coldest = choose(&costs, 0, draw).unwrap();
        prop_assert_eq!(costs[coldest], *costs.iter().min().unwrap());
        prop_assert!(choose(&costs, temperature, draw).unwrap() < costs.len());
    }

    /// Wherever loads come from, somebody is below the cap.
    #[test]
    fn not_all_are_above_the_cap(loads in prop::collection::vec(0..1000u64, 1..40), percent in 100..1000u32) {
        let cap = load_cap(percent, loads.iter().sum(), (1, loads.len() as u32));
        prop_assert!(loads.iter().any(|load| *load <= cap));
    }
}

fn shares(costs: &[u64], temperature: u32) -> Vec<f64> {
    let mut counts = vec![0.0; costs.len()];
    let draws = 20_000u64;
    for n in 0..draws {
        counts[choose(costs, temperature, n.wrapping_mul(u64::MAX / draws)).unwrap()] += 1.0;
    }
    counts.iter().map(|count| count / draws as f64).collect()
}

#[test]
fn equals_are_equally_likely_and_a_temperature_spreads_by_cost() {
    assert_eq!(choose(&[], 100, 1), None);
    for share in shares(&[5, 5, 9, 5], 0).iter().zip([1.0, 1.0, 0.0, 1.0]) {
        assert!((share.0 - share.1 / 3.0).abs() < 0.001, "{share:?}");
    }
    for share in shares(&[7, 7], 100) {
        assert!((share - 0.5).abs() < 0.001);
    }
    let sum = 1.0 + (-0.5f64).exp() + (-1.0f64).exp();
    for (at, share) in shares(&[0, 50, 100], 100).iter().enumerate() {
        let expected = (-0.5 * at as f64).exp() / sum;
        assert!((share - expected).abs() < 0.001, "{at}: {share} {expected}");
    }
    assert!(shares(&[0, u64::MAX], 1)[0] > 0.999);
}
