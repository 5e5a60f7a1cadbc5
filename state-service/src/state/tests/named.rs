//! Callers that name the target: exactly there, or refused, and a refusal leaves nothing behind.

use super::world::{World, route_request, session, worker_id};
use expect_test::{Expect, expect};
use routing::contract::{
    Affinity, Outcome, Policy, PoolInfo, RankChoice, RankPick, Refusal, RouteReply, Target,
};
use routing::id::Rank;

fn world(set: impl FnOnce(&mut PoolInfo)) -> World {
    let mut world = World::of(set);
    world.play("worker w1 ranks=4..8; worker w2 ranks=4..8; worker w3; worker o1 pool=other");
    world
}

fn direct() -> World {
    world(|pool| pool.policy = Policy::Direct)
}

fn played(mut world: World, script: &str, expected: &Expect) -> World {
    expected.assert_eq(&world.play(script));
    world
}

fn ask(world: &mut World, name: Option<&str>, named: Option<(&str, Option<u32>)>) -> RouteReply {
    let mut request = route_request(name.unwrap_or("-"), 77, "A");
    request.session = name.map(session);
    request.named = named.map(|(worker, rank)| Target { worker: worker_id(worker), rank: rank.map(Rank) });
    world.route(request, 0)
}

fn refused(world: &mut World, name: Option<&str>, named: Option<(&str, Option<u32>)>, why: Refusal) {
    let before =
        (world.state.sizes(), name.and_then(|name| world.state.session(world.now, session(name).id)));
    let reply = ask(world, name, named);
    assert_eq!(
        (reply.outcome, reply.refusal),
        (Outcome::Refused, Some(why)),
        "{name:?} {named:?}: {reply:?}"
    );
    assert_eq!((reply.target, reply.hold, reply.alternates), (None, None, Vec::new()));
    let after = (world.state.sizes(), name.and_then(|name| world.state.session(world.now, session(name).id)));
    assert_eq!(before, after, "a refused request changes nothing");
    assert!(world.state.workers().all(|worker| worker.reserved() == 0));
}

/// `session-1` has rank 5 of 4..8.
#[test]
fn every_refusal() {
    let mut world = direct();
    world.play("fail x r1 hold=none");
    for name in [None, Some("session-1")] {
        refused(&mut world, name, None, Refusal::WorkerRequired);
        refused(&mut world, name, Some(("w9", None)), Refusal::WorkerUnknown);
        refused(&mut world, name, Some(("o1", None)), Refusal::WorkerUnknown);
        refused(&mut world, name, Some(("w1", Some(8))), Refusal::RankUndeclared);
        refused(&mut world, name, Some(("w1", Some(3))), Refusal::RankUndeclared);
        refused(&mut world, name, Some(("w3", Some(1))), Refusal::RankUndeclared);
    }
    world.play("drain w1");
    refused(&mut world, Some("session-1"), Some(("w1", None)), Refusal::WorkerUnavailable);
    refused(&mut world, None, Some(("w1", Some(4))), Refusal::WorkerUnavailable);
    world.play("resume w1; probe w1 ---");
    refused(&mut world, Some("session-1"), Some(("w1", None)), Refusal::WorkerUnavailable);
    world.play("probe w1 ++; commit session-1 r1 alone=1/5 on=w1:6; report A");
    refused(&mut world, Some("session-1"), Some(("w2", None)), Refusal::BoundElsewhere);
    refused(&mut world, Some("session-1"), Some(("w2", Some(6))), Refusal::BoundElsewhere);
    refused(&mut world, Some("session-1"), Some(("w1", Some(5))), Refusal::BoundElsewhere);
    world.play("commit b r2 alone=2/5 on=w1; report A");
    let hashed = routing::hash::hashed_rank(session("b").rank_hash, 4, 4).unwrap().0;
    refused(&mut world, Some("b"), Some(("w1", Some(4 + (hashed + 1) % 4))), Refusal::BoundElsewhere);
    let count = |name| world.state.counters().iter().find(|(n, _)| *n == name).unwrap().1;
    let counts =
        ["worker_required", "worker_unknown", "rank_undeclared", "worker_unavailable", "bound_elsewhere"]
            .map(|word| count(format!("refused_{word}").as_str().to_owned().leak()));
    assert_eq!(counts, [2, 4, 6, 3, 4]);
}

#[test]
fn a_named_turn_goes_exactly_there_and_is_pinned_there() {
    played(
        direct(),
        "route session-1 r1 named=w2:7; commit session-1 r1; route session-1 r2; route session-1 r3 named=w2; route session-1 r4 named=w2:7;
         route s r5 named=w1; commit s r5; route s r6; route t r7 named=w3; route t r8@B named=w3:0; commit t r7",
        &expect![[r#"
            route session-1 r1 named=w2:7 -> held w2:7 v1 named
            commit session-1 r1 -> Bound w2:7 v1 [holds_committed merge_inserted]
            route session-1 r2 -> bound w2:7 v1 bound
            route session-1 r3 named=w2 -> bound w2:7 v1 bound
            route session-1 r4 named=w2:7 -> bound w2:7 v1 bound
            route s r5 named=w1 -> held w1:7 v2 named
            commit s r5 -> Bound w1:7 v2 [holds_committed merge_inserted]
            route s r6 -> bound w1:7 v2 bound
            route t r7 named=w3 -> held w3 v3 named
            route t r8@B named=w3:0 -> held w3 v3 joined
            commit t r7 -> Bound w3 v3 [holds_committed merge_inserted]
        "#]],
    );
}

#[test]
fn nothing_else_is_offered_to_an_exact_turn() {
    for policy in [Policy::Direct, Policy::LeastLoaded] {
        let mut world = world(|pool| pool.policy = policy);
        assert_eq!(ask(&mut world, Some("a"), Some(("w1", None))).alternates, []);
        assert_eq!(ask(&mut world, None, Some(("w1", None))).alternates, []);
        let unnamed = ask(&mut world, Some("a"), None);
        assert_eq!((unnamed.outcome, unnamed.reason.as_str()), (Outcome::Held, "joined"));
        assert_eq!(unnamed.alternates.is_empty(), policy == Policy::Direct);
    }
}

#[test]
fn a_hold_elsewhere_refuses_and_a_hold_there_is_joined() {
    played(
        direct(),
        "route session-1 r1 named=w1; route session-1 r2@B named=w2; route session-1 r2@B named=w1:4; route session-1 r2@B named=w1:5;
         drain w1; route session-1 r3@C named=w1; route session-1 r4@C named=w2; fail session-1 r1; fail session-1 r2@B; fail session-1 r3@C;
         route session-1 r5 named=w1; route session-1 r6 named=w2; show session-1",
        &expect![[r#"
            route session-1 r1 named=w1 -> held w1:5 v1 named
            route session-1 r2@B named=w2 -> refused - v0 bound_elsewhere
            route session-1 r2@B named=w1:4 -> refused - v0 bound_elsewhere
            route session-1 r2@B named=w1:5 -> held w1:5 v1 joined
            drain w1 -> done
            route session-1 r3@C named=w1 -> held w1:5 v1 joined
            route session-1 r4@C named=w2 -> refused - v0 bound_elsewhere
            fail session-1 r1 -> Held { owners: 2 } w1:5 v1 []
            fail session-1 r2@B -> Held { owners: 1 } w1:5 v1 []
            fail session-1 r3@C -> none [holds_rolled_back]
            route session-1 r5 named=w1 -> refused - v0 worker_unavailable
            route session-1 r6 named=w2 -> held w2:5 v2 named
            show session-1 -> Held { owners: 1 } w2:5 v2
        "#]],
    );
}

#[test]
fn a_bound_session_goes_on_while_its_worker_drains_but_not_when_it_is_down() {
    played(
        direct(),
        "route a r1 named=w1:4; commit a r1; drain w1 60s; route a r2 named=w1; route a r3; wait 60s alive=A; route a r4 named=w1;
         route a r5; route a r6 named=w2:6; commit a r6; moves; resume w1; route a r7; route a r8 named=w1",
        &expect![[r#"
            route a r1 named=w1:4 -> held w1:4 v1 named
            commit a r1 -> Bound w1:4 v1 [holds_committed merge_inserted]
            drain w1 60s -> done
            route a r2 named=w1 -> bound w1:4 v1 bound
            route a r3 -> bound w1:4 v1 bound
            wait 60s alive=A -> 1 sessions, 0 held, 1 vms
            route a r4 named=w1 -> refused - v0 worker_unavailable
            route a r5 -> refused - v0 worker_required
            route a r6 named=w2:6 -> held w2:6 v2 rebound
            commit a r6 -> Bound w2:6 v2 [holds_committed merge_replaced_newer]
            moves -> w2:6 v2
            resume w1 -> done
            route a r7 -> bound w2:6 v2 bound
            route a r8 named=w1 -> refused - v0 bound_elsewhere
        "#]],
    );
}

#[test]
fn a_direct_pool_chooses_nobody() {
    played(
        direct(),
        "route a r1; show a; route - r2; route a r3 named=w1:4; route a r4@B; commit a r4@B; remove w1; route a r5; show a; count route_no_worker;
         fail c r6 hold=none; route c r6; fail c r7 hold=none; route c r7 named=w2; show c",
        &expect![[r#"
            route a r1 -> refused - v0 worker_required
            show a -> none
            route - r2 -> refused - v0 worker_required
            route a r3 named=w1:4 -> held w1:4 v1 named
            route a r4@B -> held w1:4 v1 joined
            commit a r4@B -> Bound w1:4 v1 [holds_committed merge_inserted]
            remove w1 -> done
            route a r5 -> refused - v0 worker_required
            show a -> Bound - v1
            count route_no_worker -> 0
            fail c r6 hold=none -> none [failed_late]
            route c r6 -> refused - v0 worker_required
            fail c r7 hold=none -> none [failed_late]
            route c r7 named=w2 -> unpinned w2:7 v0 over
            show c -> none
        "#]],
    );
}

/// A worker-only binding takes its hashed rank, and has it from then on.
#[test]
fn a_rank_is_added_to_a_worker_only_binding() {
    for rank in [RankChoice::Auto, RankChoice::Pinned, RankChoice::Engine] {
        let mut world = world(|pool| (pool.affinity, pool.rank) = (Affinity::Soft, rank));
        world.play("commit session-1 r1 alone=1/99 on=w1");
        let said = world.play(
            "route session-1 r2 named=w1; route session-1 r3 named=w1:6; route session-1 r4 named=w1:5; route session-1 r5; moves",
        );
        let expected = "route session-1 r2 named=w1 -> bound w1 v1/99 bound\n\
                        route session-1 r3 named=w1:6 -> refused - v0 bound_elsewhere\n\
                        route session-1 r4 named=w1:5 -> bound w1:5 v2 rank_added\n\
                        route session-1 r5 -> bound w1:5 v2 bound\n\
                        moves -> w1:5 v2\n";
        assert_eq!(said, expected, "{rank:?}");
    }
}

#[test]
fn a_worker_hint_binds_the_hashed_rank_or_none() {
    let all = [
        (Affinity::Hard, RankChoice::Auto, RankPick::Hash, Some(5)),
        // The idlest rank is for those that name no worker.
        (Affinity::Hard, RankChoice::Auto, RankPick::LeastLoaded, Some(5)),
        (Affinity::Hard, RankChoice::Engine, RankPick::Hash, None),
        (Affinity::Soft, RankChoice::Auto, RankPick::Hash, None),
    ];
    for (affinity, rank, rank_pick, expected) in all {
        let mut world = world(|pool| {
            (pool.affinity, pool.rank, pool.rank_pick, pool.policy) =
                (affinity, rank, rank_pick, Policy::Direct);
        });
        world.play("report B w1:5=50");
        let reply = ask(&mut world, Some("session-1"), Some(("w1", None)));
        assert_eq!((reply.outcome, reply.target.unwrap().rank.map(|r| r.0)), (Outcome::Held, expected));
    }
}

#[test]
fn a_soft_session_named_home_stays_whatever_the_load_and_a_move_is_no_binding() {
    played(
        world(|pool| pool.affinity = Affinity::Soft),
        "route a r1; commit a r1; report A w1=50; route a r2 named=w1; route a r3; route a r4 named=w1; route a r5 named=w2; commit a r3;
         route a r6 named=w1; route a r7 named=w2",
        &expect![[r#"
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report A w1=50 -> o1=0+0 w1=50+0 w2=0+0 w3=0+0
            route a r2 named=w1 -> bound w1 v1 bound
            route a r3 -> held w2 v2 moved
            route a r4 named=w1 -> bound w1 v1 bound
            route a r5 named=w2 -> refused - v0 bound_elsewhere
            commit a r3 -> Bound w2 v2 [holds_committed merge_replaced_newer]
            route a r6 named=w1 -> refused - v0 bound_elsewhere
            route a r7 named=w2 -> bound w2 v2 bound
        "#]],
    );
}

#[test]
fn pools_that_keep_no_sessions_serve_exactly_there_unpinned() {
    let all = [
        (Policy::SessionHash, Affinity::Hard, Some(5)),
        (Policy::SessionHash, Affinity::Soft, None),
        (Policy::LeastLoaded, Affinity::Off, None),
        (Policy::Direct, Affinity::Off, None),
    ];
    for (policy, affinity, rank) in all {
        let mut world = world(|pool| (pool.policy, pool.affinity) = (policy, affinity));
        world.play("fail x r1 hold=none; slot w2 refused count=2");
        let mut served = |name, rank| {
            let reply = ask(&mut world, name, Some(("w2", rank)));
            let target = reply.target.unwrap();
            assert_eq!(
                (reply.outcome, target.worker.as_str()),
                (Outcome::Unpinned, "w2"),
                "a suspect serves its callers"
            );
            target.rank.map(|rank| rank.0)
        };
        assert_eq!(served(Some("session-1"), None), rank, "{policy:?} {affinity:?}");
        assert_eq!(served(Some("session-1"), Some(6)), Some(6));
        assert_eq!((served(None, None), served(None, Some(6))), (None, Some(6)));
        world.play("report A");
        refused(&mut world, Some("session-1"), Some(("w9", None)), Refusal::WorkerUnknown);
        refused(&mut world, Some("session-1"), Some(("w1", Some(9))), Refusal::RankUndeclared);
        world.play("drain w1");
        refused(&mut world, Some("session-1"), Some(("w1", None)), Refusal::WorkerUnavailable);
        if policy == Policy::Direct {
            refused(&mut world, Some("session-1"), None, Refusal::WorkerRequired);
        }
        assert_eq!(world.state.sizes().sessions, 0);
    }
}
