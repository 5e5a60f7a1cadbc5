//! What an explanation says is what a route does, and an explanation does nothing.

use super::world::{World, route_request, session, worker_id};
use expect_test::expect;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use routing::contract::{
    Affinity, Explained, Explanation, OnAllOverloaded, OnOverload, Outcome, Policy, PoolInfo, PrefillAsk,
    RankPick, Removal, RouteReply, RouteRequest, Target,
};
use routing::demand::Label;
use routing::id::{Rank, RequestId};
use routing::policy::mix;

const REQUESTS: usize = 500;

fn kind() -> impl Strategy<Value = PoolInfo> {
    let policy = prop::sample::select(vec![
        Policy::LeastLoaded,
        Policy::RoundRobin,
        Policy::Random,
        Policy::PowerOfTwo,
        Policy::DeviceAware,
        Policy::SessionHash,
        Policy::Direct,
    ]);
    let affinity = prop::sample::select(vec![Affinity::Hard, Affinity::Soft, Affinity::Off]);
    let overload = prop::sample::select(vec![OnOverload::Spill, OnOverload::Refuse]);
    let all = prop::sample::select(vec![OnAllOverloaded::LeastLoaded, OnAllOverloaded::Refuse]);
    let rank_pick = prop::sample::select(vec![RankPick::Hash, RankPick::LeastLoaded]);
    (policy, affinity, overload, all, rank_pick).prop_map(
        |(policy, affinity, on_overload, on_all, rank_pick)| PoolInfo {
            policy,
            affinity,
            on_overload,
            on_all_overloaded: on_all,
            rank_pick,
            in_flight_limit: Some(4),
            soft_margin_percent: 100,
            ..PoolInfo::with_defaults(super::world::pool())
        },
    )
}

/// A fleet of all sorts, with load, trouble and bindings.
fn fleet(kind: PoolInfo, seed: u64) -> World {
    let mut world = World::of(|pool| *pool = kind);
    world.play(
        "worker w1 ranks=0..4 labels=zone:x; worker w2 ranks=0..4 labels=zone:y,gpu:h100; worker w3 labels=zone:x weight=3;
         worker w4 labels=!spot:yes,zone:y; worker w5 labels=zone:y models=m1; worker p1 phase=prefill ranks=0..2; worker p2 phase=prefill;
         probe w1 +; alias x s1",
    );
    for nth in 0..6 {
        let draw = mix(seed, nth);
        world.play(&format!(
            "commit s{} r{} alone={}/5 on=w{}",
            draw % 8,
            9000 + nth,
            1 + nth,
            1 + (draw >> 8) % 5
        ));
    }
    world.play(&format!(
        "report B w1:1={} w1:2={} w2={} w3={} w5={}",
        mix(seed, 1) % 12,
        mix(seed, 2) % 12,
        mix(seed, 3) % 16,
        mix(seed, 4) % 7,
        mix(seed, 5) % 7
    ));
    world.play(
        ["", "drain w2", "probe w3 ---", "slot w1 refused count=2", "slot w5 5xx count=3"]
            [usize::try_from(seed % 5).unwrap()],
    );
    world.play(&format!("commit s{} r1 alone=9/5 on=w1:9; wait 1ms", seed % 8));
    world
}

fn question(n: u64, seed: u64) -> RouteRequest {
    let draw = |salt| mix(mix(seed, n), salt);
    let pick = |salt, of: u64| draw(salt) % of;
    let name = format!("s{}", pick(1, 8));
    let mut asked = route_request(&name, 10 + n, ["A", "B", "C"][usize::try_from(pick(2, 3)).unwrap()]);
    if pick(3, 5) == 0 {
        asked.session = None;
        asked.alias = (pick(4, 2) == 0).then(|| session(["x", "y"][usize::try_from(pick(5, 2)).unwrap()]).id);
    }
    let worker = worker_id(["w1", "w2", "w3", "w4", "w5", "p1", "w9"][usize::try_from(pick(6, 7)).unwrap()]);
    let rank = (pick(7, 3) == 0).then(|| Rank(u32::try_from(pick(8, 5)).unwrap()));
    asked.named = (pick(9, 5) == 0).then_some(Target { worker, rank });
    let lists = ["zone=x", "zone=y,gpu", "spot", "zone=z", "zone"];
    if pick(11, 3) == 0 {
        asked.demands.require = Label::parse_list(lists[usize::try_from(pick(10, 5)).unwrap()]).unwrap();
    }
    asked.demands.prefer =
        Label::parse_list(["", "gpu", "zone=y"][usize::try_from(pick(12, 3)).unwrap()]).unwrap();
    asked.demands.model = (pick(13, 9) == 0).then(|| "m2".to_owned());
    asked.cached = (pick(14, 4) == 0)
        .then(|| super::world::cached(&format!("w{}:1,{}/9", 1 + pick(15, 3), pick(16, 30))));
    asked.prefill = (pick(17, 3) == 0).then(|| {
        Box::new(PrefillAsk {
            request: RequestId(5000 + n),
            session: asked.session.map(|_| session(&format!("p{name}"))),
            cached: None,
            named: None,
            unsent: Vec::new(),
        })
    });
    asked
}

/// The decision, without what only a real route makes.
fn decided(reply: &RouteReply) -> (Outcome, Option<routing::contract::Refusal>, Option<Target>, String) {
    (reply.outcome, reply.refusal, reply.target.clone(), reply.reason.clone())
}

/// The explanation as whoever asked reads it.
fn read(explained: &Option<Explained>) -> Explanation {
    serde_json::from_str(&explained.as_ref().unwrap().text(None)).unwrap()
}

fn agrees(shown: &Explanation, reply: &RouteReply) {
    assert_eq!(
        (shown.outcome, shown.refusal, shown.choice.clone(), shown.reason.clone()),
        decided(reply),
        "{shown:?}"
    );
    // A fresh choice of the policy is one of those that were left, and nobody had a better score.
    let Some(choice) =
        shown.choice.as_ref().filter(|_| matches!(shown.outcome, Outcome::Held | Outcome::Unpinned))
    else {
        return;
    };
    if ["joined", "named"].contains(&shown.reason.as_str()) {
        return;
    }
    let chosen = shown.candidates.iter().find(|one| one.worker == choice.worker).unwrap();
    assert!(chosen.removed_by.is_empty(), "{shown:?}");
    let scores =
        || shown.candidates.iter().filter(|one| one.removed_by.is_empty()).filter_map(|one| one.score);
    if !shown.reason.contains("device") && scores().next().is_some() && chosen.score.is_some() {
        assert_eq!(chosen.score, scores().min(), "{shown:?}");
    }
}

#[test]
fn five_hundred_explanations_are_what_the_routes_then_do_and_change_nothing() {
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut said = std::collections::BTreeMap::<String, usize>::new();
    let mut asked_so_far = 0;
    for seed in 0.. {
        let mut world = fleet(kind().new_tree(&mut runner).unwrap().current(), seed);
        for n in 0..10 {
            if asked_so_far == REQUESTS {
                let sorts =
                    ["bound", "joined", "rebound", "moved", "spilled", "excluded", "overloaded", "unmet"];
                assert!(sorts.iter().all(|sort| said.contains_key(*sort)), "of all sorts: {said:?}");
                return;
            }
            let (asked, draw) = (question(n, seed), mix(seed, 1000 + n));
            let dry = RouteRequest { dry_run: true, ..asked.clone() };
            let before = format!("{:?}", world.state);
            let told = world.route(dry, draw);
            assert_eq!(before, format!("{:?}", world.state), "a dry run changes nothing");
            let reply = world.route(asked, draw);
            let shown = read(&told.explained);
            agrees(&shown, &reply);
            assert_eq!((decided(&told), told.session), (decided(&reply), reply.session));
            assert_eq!(shown.prefill.is_some(), reply.prefill.is_some());
            if let Some((shown, reply)) = shown.prefill.as_ref().zip(reply.prefill.as_ref()) {
                agrees(shown, reply);
            }
            *said.entry(reply.reason).or_default() += 1;
            asked_so_far += 1;
        }
    }
}

#[test]
fn every_removal_and_score_is_shown() {
    let mut world = World::of(|pool| pool.in_flight_limit = Some(3));
    world.play(
        "worker a at=10.0.0.1:80 labels=gpu:h100 ranks=0..2; worker b at=10.0.0.2:80; worker c at=10.0.0.3:80 labels=gpu:h100 models=m1;
         worker d at=10.0.0.4:80 labels=gpu:h100; worker e at=10.0.0.5:80 labels=gpu:h100; worker f at=10.0.0.6:80 labels=gpu:h100,zone:x;
         worker g at=10.0.0.7:80 labels=gpu:h100; drain d; report B e=3 f=1 g=1",
    );
    let mut asked = route_request("session-1", 1, "A");
    asked.dry_run = true;
    asked.demands.require = Label::parse_list("gpu").unwrap();
    asked.demands.prefer = Label::parse_list("zone").unwrap();
    asked.demands.model = Some("m2".to_owned());
    asked.demands.addresses = ["1", "2", "3", "5", "6"].map(|n| format!("10.0.0.{n}:80")).to_vec();
    let shown = read(&world.route(asked, 0).explained);
    let lines: Vec<String> = shown
        .candidates
        .iter()
        .map(|one| format!("{} {:?} {} {:?} {:?}", one.worker, one.rank, one.load, one.score, one.removed_by))
        .collect();
    expect![[r#"
        a Some(Rank(1)) 0 None [Preference]
        b None 0 None [Labels, Preference]
        c None 0 None [Model, Preference]
        d None 0 None [State, AllowList, Preference]
        e None 3 None [Preference, Overload]
        f None 1 Some(1) []
        g None 1 None [AllowList, Preference]"#]]
    .assert_eq(&lines.join("\n"));
    assert_eq!((shown.reason.as_str(), shown.choice.unwrap().worker), ("least_loaded", worker_id("f")));
    assert!(shown.candidates.iter().flat_map(|one| &one.removed_by).any(|why| *why == Removal::State));
}

#[test]
fn what_cannot_be_decided_is_said() {
    let mut world = World::of(|_| ());
    world.play("worker w1; earlier some");
    let mut asked = route_request("a", 1, "A");
    asked.dry_run = true;
    let shown = read(&world.route(asked.clone(), 0).explained);
    assert_eq!((shown.outcome, shown.reason.as_str()), (Outcome::Unsure, "settling"));
    let mut world = World::of(|_| ());
    asked.pool = routing::id::PoolName::parse("nowhere").unwrap();
    let shown = read(&world.route(asked, 0).explained);
    assert_eq!((shown.outcome, shown.candidates.len()), (Outcome::UnknownPool, 0));
    assert_eq!(world.state.counters().route_unknown_pool, 0);
}
