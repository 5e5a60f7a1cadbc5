//! Any commands in any order: what must hold after each of them.

use super::world::{World, pool, session, worker_id};
use crate::config::ServiceConfig;
use crate::state::{Limits, StateConfig};
use proptest::prelude::*;
use routing::contract::{Affinity, Policy, PoolInfo, RankChoice, RankPick};
use routing::hash::Phase;
use routing::id::Version;
use std::collections::BTreeMap;

fn step() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "e", "f"]);
    let worker = prop::sample::select(vec!["w1", "w2", "w3"]);
    let vm = prop::sample::select(vec!["A", "B", "C"]);
    let ask = (name, 0..12u64, vm, worker, 0..9u64);
    (0..27u8, ask).prop_map(|(kind, (name, request, vm, worker, n))| match kind {
        0 => format!("worker {worker} ranks=0..{}", n + 1),
        1 => format!("worker {worker} weight={}", n + 1),
        2 => format!("remove {worker}"),
        3 => format!("drain {worker} {n}s"),
        4 => format!("resume {worker}"),
        5 => format!("probe {worker} ---"),
        6 => format!("probe {worker} ++"),
        7 => format!("slot {worker} refused count={n}"),
        8 => format!("slot {worker} answered"),
        9 | 10 => format!("route {name} r{request}@{vm}"),
        11 => format!("route {name} r{request}@{vm} cached={worker}:{n},{n}/3"),
        12 => format!("commit {name} r{request}@{vm} on={worker}:{n}"),
        13 => format!("commit {name} r{request}@{vm} alone={n}/3 on={worker}"),
        14 => format!("fail {name} r{request}@{vm}"),
        15 => format!("release {name} v={n}"),
        16 => format!("report {vm} w1={n} w2={request}"),
        17 => format!("route {name} r{request}@{vm} named={worker}"),
        18 => format!("route {name} r{request}@{vm} named={worker}:{n}"),
        19 => format!("slot {worker} 5xx count={n}"),
        20 => format!(
            "worker {worker} ranks=0..{} phase={}",
            n + 1,
            ["decode", "prefill"][usize::from(n % 2 == 0)]
        ),
        21 => format!("worker {worker} limit={} labels=z:{}", n + 1, n % 3),
        22 => format!("route {name} r{request}@{vm} require=z:{} prefer=z", n % 3),
        23 => format!("alias x{} {name}", n % 3),
        24 => format!("route - r{request}@{vm} alias=x{}", n % 3),
        25 => format!("route {name} r{request}@{vm} prefill=p{name},r{}@{vm}", request + 20),
        _ => format!("wait {}s", n * 4),
    })
}

/// The ways a pool may be set that change what a route does.
fn kind() -> impl Strategy<Value = PoolInfo> {
    let affinity = prop::sample::select(vec![Affinity::Hard, Affinity::Soft, Affinity::Off]);
    let policy = prop::sample::select(vec![Policy::LeastLoaded, Policy::RoundRobin, Policy::Direct]);
    let rank_pick = prop::sample::select(vec![RankPick::Hash, RankPick::LeastLoaded]);
    let rank = prop::sample::select(vec![RankChoice::Auto, RankChoice::Pinned, RankChoice::Engine]);
    (affinity, policy, rank, rank_pick).prop_map(|(affinity, policy, rank, rank_pick)| PoolInfo {
        affinity,
        policy,
        rank,
        rank_pick,
        ..PoolInfo::with_defaults(pool())
    })
}

fn world_of(kind: PoolInfo) -> World {
    let limits =
        Limits { sessions_max: 4, tombstones_max: 2, aliases_max: 2, moves_max: 8, ..Limits::SERVICE };
    let service = ServiceConfig { pools: vec![kind], ..ServiceConfig::without_file() };
    World::with(StateConfig { service, limits })
}

/// Commits need a reply to refer to; the script skips those that have none.
fn can_play(world: &World, step: &str) -> bool {
    let mut words = step.split_whitespace();
    let commits = words.next() == Some("commit") && !step.contains("alone=");
    !commits || words.nth(1).is_some_and(|request| world.has_reply(request))
}

fn check_invariants(world: &World, seen: &mut BTreeMap<&'static str, Version>) {
    let state = &world.state;
    state.sessions.check();
    state.aliases.check();
    for worker in state.workers() {
        assert_eq!(worker.load, state.vms.load_of(worker.hash), "load of {}", worker.id());
    }
    assert_eq!(state.fleet().workers.len(), state.workers().count());
    for (status, worker) in state.fleet().workers.iter().zip(state.workers()) {
        assert_eq!((&status.id, status.state), (worker.id(), worker.state()));
    }
    for name in ["a", "b", "c", "d", "e", "f"] {
        let Some(record) = state.sessions.by_id(session(name).id).and_then(|s| s.record) else {
            seen.remove(name);
            continue;
        };
        let before = seen.insert(name, record.version).unwrap_or_default();
        assert!(record.version >= before, "{name} went back from {before:?} to {:?}", record.version);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn nothing_breaks_the_books(kind in kind(), steps in prop::collection::vec(step(), 1..80)) {
        let mut world = world_of(kind);
        let mut seen = BTreeMap::new();
        for step in &steps {
            if can_play(&world, step) {
                let said = world.play(step);
                check_route(&world, &said);
                check_invariants(&world, &mut seen);
            }
        }
    }

    #[test]
    fn the_same_commands_give_the_same_answers(steps in prop::collection::vec(step(), 1..40)) {
        let play = || {
            let mut world = World::new(Limits::SERVICE);
            let mut said = String::new();
            for step in &steps {
                if can_play(&world, step) {
                    said += &world.play(step);
                }
            }
            said
        };
        prop_assert_eq!(play(), play());
    }
}

/// Nobody is sent to a worker that is gone or down, or to a rank it does not have, or elsewhere than its caller says.
fn check_route(world: &World, said: &str) {
    let Some((step, answer)) = said.trim().split_once(" -> ") else { return };
    let mut words = answer.split_whitespace();
    let placed = matches!(words.next(), Some("held" | "bound" | "unpinned"));
    if !step.starts_with("route") || !placed {
        return;
    }
    let target = words.next().unwrap();
    let (id, rank) =
        target.split_once(':').map_or((target, None), |(id, rank)| (id, rank.parse::<u32>().ok()));
    let worker = world.state.worker(&worker_id(id)).unwrap();
    assert!(worker.state().serves_bound(), "{said}");
    assert!(rank.is_none_or(|rank| rank < worker.spec().rank_count()), "{said}");
    if step.contains("require=") {
        assert!(step.contains(&format!("require=z:{}", worker.spec().labels["z"])), "{said}");
    }
    let prefill = answer.split_once(" + ").and_then(|(_, half)| half.split_whitespace().nth(1));
    if let Some(prefill) = prefill.filter(|target| *target != "-") {
        let id = prefill.split_once(':').map_or(prefill, |(id, _)| id);
        assert_eq!(world.state.worker(&worker_id(id)).unwrap().spec().phase, Phase::Prefill, "{said}");
    }
    assert_ne!(worker.spec().phase, Phase::Prefill, "{said}");
    let Some((_, named)) = step.split_once("named=") else { return };
    let (named_id, named_rank) = named.split_once(':').map_or((named, None), |(id, rank)| (id, Some(rank)));
    assert_eq!(id, named_id, "{said}");
    let exact = named_rank.is_none_or(|named| rank.is_some_and(|rank| rank.to_string() == named));
    assert!(exact || worker.spec().rank_count() == 1, "{said}");
}
