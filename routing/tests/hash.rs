//! Numbers that every filter, replica and language must compute alike.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::id;
use routing::contract::Device;
use routing::hash::{
    Phase, hashed_rank, rank_hash, rendezvous_beats, rendezvous_cost, rendezvous_draw, session_id,
    worker_hash,
};
use routing::id::{Rank, RankHash, SessionId};
use routing::policy::{Candidate, mix, rendezvous};
use std::collections::BTreeSet;

fn session(n: u64) -> SessionId {
    session_id(b"", b"", "chat", Phase::Aggregated, &n.to_le_bytes())
}

fn candidates(weights: &[u32]) -> Vec<Candidate> {
    let named = |(n, weight): (usize, &u32)| Candidate {
        worker_hash: worker_hash(&id(&format!("w{n}"))),
        weight: *weight,
        load: 0,
        device: Device::Accelerator,
    };
    weights.iter().enumerate().map(named).collect()
}

#[test]
fn rank_hashes_are_those_of_the_design() {
    for (key, hash, of_eight, of_four_to_seven) in [
        ("session-1", 13_870_706_736_031_703_813, 5, 5),
        ("conv-42", 6_060_441_798_092_623_130, 2, 6),
        ("s", 15_472_631_990_262_873_619, 3, 7),
    ] {
        assert_eq!(rank_hash(key.as_bytes()), RankHash(hash), "{key}");
        assert_eq!(hashed_rank(RankHash(hash), 0, 8), Some(Rank(of_eight)), "{key}");
        assert_eq!(hashed_rank(RankHash(hash), 4, 4), Some(Rank(of_four_to_seven)), "{key}");
    }
}

#[test]
fn a_single_rank_or_an_impossible_range_has_no_hashed_rank() {
    for (start, size) in [(0, 1), (5, 1), (0, 0), (u32::MAX, 1)] {
        assert_eq!(hashed_rank(RankHash(7), start, size), None, "{start} {size}");
    }
    assert_eq!(hashed_rank(RankHash(7), u32::MAX - 1, 8), None, "no wrap-around");
    assert_eq!(hashed_rank(RankHash(1), u32::MAX - 1, 2), Some(Rank(u32::MAX)));
}

#[test]
fn hashed_ranks_stay_in_their_range_and_use_all_of_it() {
    let mut seen = BTreeSet::new();
    for n in 0..1000 {
        let Rank(rank) = hashed_rank(rank_hash(format!("k{n}").as_bytes()), 8, 8).unwrap();
        assert!((8..16).contains(&rank), "{rank}");
        seen.insert(rank);
    }
    assert_eq!(seen.len(), 8);
}

#[test]
fn session_ids_are_pinned() {
    let of = |secret: &str, scope: &str, pool, phase, key: &str| {
        session_id(secret.as_bytes(), scope.as_bytes(), pool, phase, key.as_bytes()).to_string()
    };
    assert_eq!(of("", "", "default", Phase::Aggregated, "session-1"), "1a3898d711cd05fab73befd842c0d3d1");
    assert_eq!(of("", "", "chat", Phase::Aggregated, "conv-42"), "821537a2d7e1084e2ca3532ef844d1f1");
    assert_eq!(of("pepper", "tenant-a", "chat", Phase::Prefill, "s"), "dd72f07f44c333e84fd609757d99c20d");
    assert_eq!(of("pepper", "tenant-a", "chat", Phase::Decode, "s"), "2bd6fff9a5db2936afd38572497d956a");
}

#[test]
fn no_two_splits_of_the_same_bytes_meet() {
    let text = "abcdef";
    let mut ids = BTreeSet::new();
    let mut splits = 0;
    for a in 0..=text.len() {
        for b in a..=text.len() {
            for c in b..=text.len() {
                for phase in [Phase::Aggregated, Phase::Prefill, Phase::Decode] {
                    let (secret, scope) = (&text.as_bytes()[..a], &text.as_bytes()[a..b]);
                    let (pool, key) = (&text[b..c], &text.as_bytes()[c..]);
                    ids.insert(session_id(secret, scope, pool, phase, key));
                    splits += 1;
                }
            }
        }
    }
    assert_eq!(splits, 252);
    assert_eq!(ids.len(), splits);
}

#[test]
fn weights_share_sessions_in_proportion() {
    let candidates = candidates(&[1, 2, 5]);
    let mut counts = [0u32; 3];
    for n in 0..30_000 {
        counts[rendezvous(&candidates, session(n)).unwrap()] += 1;
    }
    for (count, expected) in counts.iter().zip([3750u32, 7500, 18_750]) {
        assert!(count.abs_diff(expected) * 100 < expected * 4, "{counts:?}");
    }
}

#[test]
fn a_ninth_worker_takes_its_share_and_moves_nothing_else() {
    let (before, after) = (candidates(&[1; 8]), candidates(&[1; 9]));
    let mut moved = 0;
    for n in 0..9000 {
        let (old, new) = (rendezvous(&before, session(n)).unwrap(), rendezvous(&after, session(n)).unwrap());
        if old != new {
            assert_eq!(new, 8, "moved between old workers");
            moved += 1;
        }
    }
    // A ninth is 1000; three standard deviations are 90.
    assert!((910..=1090).contains(&moved), "{moved} of 9000 moved");
}

#[test]
fn a_removed_worker_moves_only_its_own_sessions() {
    let all = candidates(&[1, 3, 2, 1]);
    let rest: Vec<Candidate> = [0, 1, 3].iter().map(|n| all[*n]).collect();
    for n in 0..5000 {
        let old = all[rendezvous(&all, session(n)).unwrap()].worker_hash;
        let new = rest[rendezvous(&rest, session(n)).unwrap()].worker_hash;
        assert!(old == new || old == all[2].worker_hash);
    }
}

#[test]
fn the_order_of_candidates_decides_nothing() {
    let sorted = candidates(&[1, 2, 5, 1, 7, 1000]);
    for n in 0..500 {
        let mut shuffled = sorted.clone();
        for at in (1..shuffled.len()).rev() {
            let draw = mix(n, at as u64) % (at as u64 + 1);
            shuffled.swap(at, usize::try_from(draw).unwrap());
        }
        let chosen = |list: &[Candidate]| list[rendezvous(list, session(n)).unwrap()].worker_hash;
        assert_eq!(chosen(&sorted), chosen(&shuffled));
    }
}

#[test]
fn a_draw_depends_on_session_and_worker() {
    let (w0, w1) = (worker_hash(&id("w0")), worker_hash(&id("w1")));
    assert_ne!(rendezvous_draw(session(1), w0), rendezvous_draw(session(1), w1));
    assert_ne!(rendezvous_draw(session(1), w0), rendezvous_draw(session(2), w0));
    assert_eq!(
        rendezvous_draw(SessionId(1), 2),
        4_823_541_516_783_330_721,
        "pinned: other replicas compute it too"
    );
}

fn draws() -> Vec<u64> {
    let mut draws = vec![0, 1, 2, 3, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, (1 << 63) + 1];
    draws.extend((0..64).map(|bit| 1u64 << bit));
    draws.extend((0..2000).map(|n| mix(42, n)));
    draws.extend((0..2000).map(|n| mix(43, n) >> (n % 64)));
    draws.sort_unstable();
    draws
}

#[test]
fn the_cost_falls_as_the_draw_grows() {
    for pair in draws().windows(2) {
        assert!(rendezvous_cost(pair[0]) >= rendezvous_cost(pair[1]), "{pair:?}");
    }
    assert!(rendezvous_cost(u64::MAX) >= 1, "a cost of zero would beat every weight");
    assert_eq!(rendezvous_cost(1 << 63), 1 << 32, "-log2(1/2) = 1");
    assert_eq!(rendezvous_cost(1 << 62), 2 << 32);
    assert_eq!(rendezvous_cost(0), 64 << 32, "the least draw counts as 1");
}

#[cfg(not(target_arch = "wasm32"))]
#[test]
#[expect(clippy::cast_precision_loss, reason = "that is the point: integers against floats")]
fn the_cost_is_the_real_logarithm() {
    for draw in draws() {
        let real = 64.0 - (draw.max(1) as f64).log2();
        let fixed = rendezvous_cost(draw) as f64 / 4_294_967_296.0;
        assert!((real - fixed).abs() <= 1.0 / 1_073_741_824.0, "{draw}: {real} {fixed}");
    }
}

#[test]
fn weights_divide_the_cost() {
    assert!(rendezvous_beats((10, 2), (6, 1)));
    assert!(!rendezvous_beats((12, 2), (6, 1)), "a tie beats nobody");
    assert!(!rendezvous_beats((6, 1), (12, 2)));
    assert!(rendezvous_beats((64 << 32, 1000), (64 << 32, 1)));
    assert!(!rendezvous_beats((u64::MAX, 1), (u64::MAX, u32::MAX)));
}
