//! Which rank a new binding gets: hashed, idle, or left to the engine.

use super::world::{World, route_request, session};
use routing::contract::{Affinity, Outcome, PoolInfo, RankChoice, RankPick, Target};
use routing::hash::hashed_rank;
use routing::id::Rank;
use routing::policy::mix;
use std::collections::BTreeMap;

fn world(set: impl FnOnce(&mut PoolInfo)) -> World {
    let mut world = World::of(set);
    world.play("worker w1 ranks=4..8");
    world
}

fn idlest() -> World {
    world(|pool| pool.rank_pick = RankPick::LeastLoaded)
}

fn first_turn(world: &mut World, name: &str, draw: u64) -> Target {
    let reply = world.route(route_request(name, 1, "A"), draw);
    assert_eq!(reply.outcome, Outcome::Held);
    reply.target.unwrap()
}

/// `session-1` has rank 5 of 4..8, `conv-42` 6, `s` 7: affinity section 5.
#[test]
fn who_chooses_the_rank_of_a_new_binding() {
    let all = [
        (Affinity::Hard, RankChoice::Auto, Some(Rank(5))),
        (Affinity::Hard, RankChoice::Pinned, Some(Rank(5))),
        (Affinity::Hard, RankChoice::Engine, None),
        (Affinity::Soft, RankChoice::Auto, None),
        (Affinity::Soft, RankChoice::Pinned, Some(Rank(5))),
        (Affinity::Soft, RankChoice::Engine, None),
    ];
    for (affinity, rank, expected) in all {
        let mut world = world(|pool| (pool.affinity, pool.rank) = (affinity, rank));
        let target = first_turn(&mut world, "session-1", 0);
        assert_eq!(target.rank, expected, "{affinity:?} {rank:?}");
        world.play("commit session-1 r1 alone=1/5 on=w1");
        let said = world.play("fail conv-42 r2 hold=none; route conv-42 r2");
        let shown = if expected.is_some() { "w1:6" } else { "w1" };
        assert!(said.contains(&format!("unpinned {shown} v0 over")), "{affinity:?} {rank:?}: {said}");
    }
}

#[test]
fn turns_without_affinity_or_session_have_no_rank() {
    for (affinity, named) in [(Affinity::Off, "a"), (Affinity::Hard, "-"), (Affinity::Soft, "-")] {
        let mut world = world(|pool| (pool.affinity, pool.rank) = (affinity, RankChoice::Pinned));
        let said = world.play(&format!("route {named} r1"));
        assert!(said.ends_with("unpinned w1 v0 least_loaded\n"), "{said}");
    }
}

#[test]
fn a_binding_keeps_the_rank_it_has() {
    let mut world = idlest();
    let said = world.play(
        "route session-1 r1; commit session-1 r1 on=w1:4; report A w1:4=50; route session-1 r2;
         route b r3@B cached=w1:7,9/5; route c r4 cached=w1:9,9/5",
    );
    assert!(said.contains("route session-1 r2 -> bound w1:4 v1 bound"), "{said}");
    assert!(said.contains("bound w1:7 v9/5 adopted"), "{said}");
    assert!(said.contains("route c r4 cached=w1:9,9/5 -> held w1:"), "no such rank: {said}");
}

#[test]
fn the_hashed_rank_is_left_exactly_past_the_margin_of_two() {
    for (hashed, least, expected) in [(0u64, 0, 5), (2, 0, 5), (3, 0, 6), (12, 10, 5), (13, 10, 6), (7, 9, 5)]
    {
        let mut world = idlest();
        let others = least + 1;
        world.play(&format!("report A w1:4={others} w1:5={hashed} w1:6={least} w1:7={others}"));
        let target = first_turn(&mut world, "session-1", mix(1, hashed));
        assert_eq!(target.rank, Some(Rank(expected)), "{hashed} on the hashed rank, {least} on the idlest");
    }
    let mut hash = world(|_| ());
    hash.play("report A w1:5=50");
    assert_eq!(first_turn(&mut hash, "session-1", 0).rank, Some(Rank(5)), "by hash alone");
}

#[test]
fn choices_count_on_the_slot_they_were_made_for() {
    let mut world = idlest();
    // Requests without a rank, and those of another rank, say nothing of rank 5.
    world.play("report B w1=40 w1:4=5 w1:6=1 w1:7=5; worker w2; drain w2");
    for nth in 0..4 {
        assert_eq!(first_turn(&mut world, "session-1", 0).rank, Some(Rank(5)), "joined {nth}");
        world.play("fail session-1 r1");
    }
    assert_eq!(world.state.worker(&super::world::worker_id("w1")).unwrap().reserved(), 0, "given back");
    // Sessions of one hashed rank: 0, 1, 2, 3 requests there are within 2 of the 1 on rank 6; the fifth is not.
    let same: Vec<String> =
        (0..).map(|i| format!("k{i}")).filter(|name| hashed(name) == Some(Rank(5))).take(6).collect();
    let mut ranks = Vec::new();
    for (request, name) in (10..).zip(&same) {
        let reply = world.route(route_request(name, request, "A"), 0);
        ranks.push(reply.target.unwrap().rank.unwrap().0);
    }
    assert_eq!(ranks, [5, 5, 5, 5, 6, 5]);
}

fn hashed(name: &str) -> Option<Rank> {
    hashed_rank(session(name).rank_hash, 4, 4)
}

#[test]
fn idle_ranks_are_drawn_uniformly() {
    let mut counts = BTreeMap::<u32, f64>::new();
    let mut world = world(|pool| pool.rank_pick = RankPick::LeastLoaded);
    world.play("report B w1:5=3");
    for i in 0..10_000 {
        let rank = first_turn(&mut world, "session-1", mix(11, i)).rank.unwrap();
        *counts.entry(rank.0).or_default() += 1.0;
        world.play("fail session-1 r1");
    }
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [4, 6, 7]);
    let expected = 10_000.0 / 3.0;
    let chi2: f64 = counts.values().map(|n| (n - expected).powi(2) / expected).sum();
    assert!(chi2 < 13.8, "chi2 {chi2} of {counts:?}: above the 0.1 % point of two degrees of freedom");
}

#[test]
fn the_rank_does_not_follow_the_draw_of_its_worker() {
    let mut world = World::of(|pool| pool.rank_pick = RankPick::LeastLoaded);
    world.play("worker w1 ranks=0..4; worker w2 ranks=0..4; report B w1:1=3 w2:1=3");
    let mut seen = BTreeMap::<(String, u32), u32>::new();
    for i in 0..600 {
        let target = first_turn(&mut world, "session-1", mix(13, i));
        *seen.entry((target.worker.to_string(), target.rank.unwrap().0)).or_default() += 1;
        world.play("fail session-1 r1");
    }
    assert_eq!(seen.len(), 6, "each idle rank of each worker: {seen:?}");
    assert!(seen.values().all(|n| (60..=140).contains(n)), "{seen:?}");
}
