//! Many at once: one slot a session, even load, even spread.

use super::world::{World, route_request, session, worker_id};
use crate::config::{OtherPools, ServiceConfig};
use crate::state::{Limits, StateConfig};
use routing::contract::Device;
use routing::contract::{Affinity, Outcome, Policy, PoolInfo};
use routing::hash::{hashed_rank, worker_hash};
use routing::policy::{Candidate, mix, rendezvous};
use std::collections::{BTreeMap, BTreeSet};

fn four_workers() -> World {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; worker w2; worker w3; worker w4");
    world
}

#[test]
fn a_hundred_concurrent_first_turns_get_one_slot_and_one_version() {
    let mut world = four_workers();
    let mut seen = BTreeSet::new();
    let mut holds = BTreeSet::new();
    for i in 0..100 {
        let vm = format!("vm{}", i % 8);
        let reply = world.route(route_request("crowd", i, &vm), mix(1, i));
        assert_eq!(reply.outcome, Outcome::Held);
        seen.insert((reply.target, reply.version));
        holds.insert(reply.hold);
    }
    assert_eq!((seen.len(), holds.len()), (1, 1));
    assert_eq!(world.state.counters().route_joined, 99);
    assert_eq!(world.state.sizes().sessions, 1);
}

#[test]
fn first_turns_spread_evenly_over_equal_workers() {
    let mut world = four_workers();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for i in 0..480 {
        let reply = world.route(route_request(&format!("s{i}"), i, &format!("vm{}", i % 3)), mix(2, i));
        *counts.entry(reply.target.unwrap().worker.to_string()).or_default() += 1;
    }
    assert!(counts.values().all(|count| (119..=121).contains(count)), "{counts:?}");
}

#[test]
fn ties_are_broken_by_the_draw() {
    let chosen: BTreeSet<_> = (0..64)
        .map(|i| four_workers().route(route_request("s", 1, "A"), mix(3, i)).target.unwrap().worker)
        .collect();
    assert_eq!(chosen.len(), 4);
}

#[test]
fn alternates_are_three_others_and_the_same_for_every_envoy() {
    let mut world = four_workers();
    let first = world.route(route_request("a", 1, "A"), 0);
    let second = world.route(route_request("a", 2, "B"), u64::MAX);
    let chosen = first.target.unwrap().worker;
    assert_eq!(first.alternates, second.alternates);
    let all: BTreeSet<_> = first.alternates.iter().cloned().chain([chosen]).collect();
    assert_eq!((first.alternates.len(), all.len()), (3, 4));
}

fn one_pool(policy: Policy, affinity: Affinity) -> World {
    let mut service = ServiceConfig::without_file();
    let default = &service.pools[0];
    service.pools = vec![PoolInfo { policy, affinity, ..default.clone() }];
    service.other_pools = OtherPools::Refused;
    let mut world = World::with(StateConfig { service, limits: Limits::SERVICE });
    world.play("worker w1 ranks=0..8; worker w2 ranks=0..8; worker w3 ranks=0..8");
    world
}

#[test]
fn a_session_hash_pool_answers_what_every_filter_computes() {
    let mut world = one_pool(Policy::SessionHash, Affinity::Hard);
    for i in 0..50 {
        let name = format!("s{i}");
        let reply = world.route(route_request(&name, i, "A"), i);
        let ids = ["w1", "w2", "w3"].map(worker_id);
        let candidates = ids.clone().map(|id| Candidate {
            worker_hash: worker_hash(&id),
            weight: 1,
            load: 0,
            device: Device::Accelerator,
        });
        let chosen = rendezvous(&candidates, session(&name).id).unwrap();
        let target = reply.target.unwrap();
        assert_eq!(reply.outcome, Outcome::Unpinned);
        assert_eq!(
            (target.worker, target.rank),
            (ids[chosen].clone(), hashed_rank(session(&name).rank_hash, 0, 8))
        );
    }
    assert_eq!(world.state.sizes().sessions, 0);
}

#[test]
fn affinity_off_leaves_no_trace_of_a_session() {
    let mut world = one_pool(Policy::LeastLoaded, Affinity::Off);
    let reply = world.route(route_request("a", 1, "A"), 0);
    assert_eq!((reply.outcome, reply.target.unwrap().rank, reply.hold), (Outcome::Unpinned, None, None));
    let said = world.play("commit a r1 alone=1/5 on=w1; worker w9 pool=other");
    assert!(said.contains("commit_unstored"), "{said}");
    assert!(said.contains("pool other is not in the config; declared pools: default"), "{said}");
    assert_eq!(world.state.sizes().sessions, 0);
}

/// A ninth worker beside eight: who is bound stays, whatever the policy.
#[test]
fn a_new_worker_moves_no_bound_session() {
    for policy in [Policy::LeastLoaded, Policy::RoundRobin, Policy::Random, Policy::PowerOfTwo] {
        let mut world = eight(policy);
        let bound: Vec<_> = (0..400)
            .map(|i| {
                let name = format!("s{i}");
                let target = world.route(route_request(&name, i, "A"), mix(5, i)).target;
                world.play(&format!(
                    "commit {name} r{i} alone={}/5 on={}",
                    i + 1,
                    target.as_ref().unwrap().worker
                ));
                target
            })
            .collect();
        world.play("worker w9");
        let told = world.state.counters().moves_published;
        for (i, before) in (0..400).zip(bound) {
            let reply = world.route(route_request(&format!("s{i}"), 1000 + i, "B"), mix(6, i));
            assert_eq!((reply.outcome, reply.target), (Outcome::Bound, before), "{policy:?} s{i}");
        }
        assert_eq!(world.state.counters().moves_published, told);
    }
}

#[test]
fn a_new_worker_takes_a_ninth_of_fresh_rendezvous_choices_and_nobody_else_gets_any() {
    const SESSIONS: u64 = 9000;
    let mut world = eight(Policy::SessionHash);
    let choose = |world: &mut World, i: u64| {
        world.route(route_request(&format!("s{i}"), i, "A"), 0).target.unwrap().worker
    };
    let before: Vec<_> = (0..SESSIONS).map(|i| choose(&mut world, i)).collect();
    world.play("worker w9");
    let after = (0..SESSIONS).map(|i| choose(&mut world, i));
    let moved: Vec<_> = before.into_iter().zip(after).filter(|(before, after)| before != after).collect();
    assert!(moved.iter().all(|(_, after)| *after == worker_id("w9")), "only to the new one");
    // A ninth of 9000 is 1000, give or take 4 standard deviations of 30.
    assert!((880..=1120).contains(&moved.len()), "{}", moved.len());
}

fn eight(policy: Policy) -> World {
    let mut world = World::of(|pool| pool.policy = policy);
    (1..=8).for_each(|n| drop(world.play(&format!("worker w{n}"))));
    world
}
