//! The choice among candidates.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::contract::Policy;
use routing::id::SessionId;
use routing::policy::{Candidate, choose, least_loaded, mix, rendezvous, rendezvous_order, uniform};

fn with_loads(loads: &[u64]) -> Vec<Candidate> {
    let named =
        |(n, load): (usize, &u64)| Candidate { worker_hash: mix(7, n as u64), weight: 1, load: *load };
    loads.iter().enumerate().map(named).collect()
}

/// Pearson's statistic against a uniform distribution.
fn chi_square(counts: &[u32]) -> f64 {
    let expected = f64::from(counts.iter().sum::<u32>()) / f64::from(u32::try_from(counts.len()).unwrap());
    counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
}

#[test]
fn without_candidates_nothing_is_chosen() {
    for policy in [Policy::LeastLoaded, Policy::SessionHash] {
        assert_eq!(choose(policy, &[], None, 1), None);
        assert_eq!(choose(policy, &[], Some(SessionId(1)), 1), None);
    }
    assert_eq!(uniform(0, 5), None);
    assert_eq!(rendezvous_order(&[], SessionId(1)), Vec::<usize>::new());
}

#[test]
fn the_least_loaded_wins_whatever_the_draw_and_the_session() {
    let candidates = with_loads(&[4, 9, 3, 7]);
    for n in 0..200 {
        assert_eq!(least_loaded(&candidates, mix(1, n)), Some(2));
        let session = SessionId(u128::from(n));
        assert_eq!(choose(Policy::LeastLoaded, &candidates, Some(session), mix(1, n)), Some(2));
    }
}

#[test]
fn ties_are_uniform() {
    let candidates = with_loads(&[2, 1, 1, 5, 1, 1]);
    let mut counts = [0u32; 6];
    for n in 0..10_000 {
        counts[least_loaded(&candidates, mix(99, n)).unwrap()] += 1;
    }
    assert_eq!((counts[0], counts[3]), (0, 0), "only the tied are chosen");
    let tied = [counts[1], counts[2], counts[4], counts[5]];
    // Three degrees of freedom: 16.3 is passed by chance once in a thousand seeds, and this seed is fixed.
    assert!(chi_square(&tied) < 16.3, "{counts:?}");
}

#[test]
fn without_a_session_session_hash_spreads() {
    let candidates = with_loads(&[0, 100, 0, 100]);
    let mut counts = [0u32; 4];
    for n in 0..10_000 {
        counts[choose(Policy::SessionHash, &candidates, None, mix(5, n)).unwrap()] += 1;
    }
    assert!(chi_square(&counts) < 16.3, "{counts:?}");
}

#[test]
fn session_hash_looks_at_the_session_alone() {
    let (idle, busy) = (with_loads(&[0, 0, 0]), with_loads(&[900, 0, 40]));
    for n in 0..500u64 {
        let session = Some(SessionId(u128::from(mix(3, n))));
        let chosen = choose(Policy::SessionHash, &idle, session, 0);
        assert_eq!(chosen, choose(Policy::SessionHash, &busy, session, u64::MAX));
    }
}

#[test]
fn the_order_is_a_permutation_that_begins_with_the_choice() {
    for n in 0..300u64 {
        let mut candidates = with_loads(&[0; 7]);
        for (at, candidate) in candidates.iter_mut().enumerate() {
            candidate.weight = 1 + u32::try_from(mix(n, at as u64) % 9).unwrap();
        }
        let session = SessionId(u128::from(mix(11, n)));
        let order = rendezvous_order(&candidates, session);
        assert_eq!(order.first().copied(), rendezvous(&candidates, session));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6]);
        // The rest is what would be chosen if the ones before were away.
        let rest: Vec<Candidate> = order[1..].iter().map(|at| candidates[*at]).collect();
        assert_eq!(rendezvous(&rest, session), Some(0));
    }
}

#[test]
fn draws_cover_the_whole_range() {
    assert_eq!(uniform(3, 0), Some(0));
    assert_eq!(uniform(3, u64::MAX), Some(2));
    assert_eq!(uniform(1, u64::MAX), Some(0));
    let (third, last) = (u64::MAX / 3, u64::MAX - u64::MAX / 3);
    assert_eq!((uniform(3, third), uniform(3, third + 1)), (Some(0), Some(1)));
    assert_eq!(uniform(3, last + 1), Some(2));
}

#[test]
fn a_weight_of_zero_counts_as_one_and_loads_do_not_overflow() {
    let mut candidates = with_loads(&[u64::MAX, u64::MAX]);
    candidates[0].weight = 0;
    let chosen: Vec<_> =
        (0..64u64).map(|n| rendezvous(&candidates, SessionId(u128::from(n) << 70)).unwrap()).collect();
    assert!(chosen.contains(&0) && chosen.contains(&1));
    assert!(least_loaded(&candidates, 3).is_some());
}
