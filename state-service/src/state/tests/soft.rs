//! Soft sessions: exactly when they move, by whose load, and what a move that fails or is not alone leaves.

use super::world::{World, route_request, session};
use crate::state::{SessionState, StateConfig};
use expect_test::expect;
use proptest::prelude::*;
use routing::contract::{Affinity, Outcome, Policy, RouteReply, soft_stays};
use routing::policy::mix;

const HARD_AND_SOFT: [Affinity; 2] = [Affinity::Hard, Affinity::Soft];

fn soft(margin: u32) -> World {
    let mut world = World::of(|pool| (pool.affinity, pool.soft_margin_percent) = (Affinity::Soft, margin));
    world.play("worker w1; worker w2; worker w3; route a r1; commit a r1");
    world
}

/// Where the next turn of `a`, bound to w1, goes while the workers have so many requests in flight.
fn next_turn(world: &mut World, loads: [u32; 3]) -> RouteReply {
    let [w1, w2, w3] = loads;
    world.play(&format!("report A w1={w1} w2={w2} w3={w3}"));
    world.route(route_request("a", 2, "A"), 0)
}

/// Case C3: a slot that is busy beside idle ones.
#[test]
fn a_session_moves_exactly_past_the_margin() {
    // Margin in percent, least load, most load that keeps the session.
    for (margin, best, last) in [
        (150, 0, 2),
        (100, 0, 2),
        (150, 10, 17),
        (100, 10, 12),
        (150, 7, 12),
        (150, 1000, 1502),
        (10_000, 3, 302),
    ] {
        let stays = next_turn(&mut soft(margin), [last, best, best]);
        assert_eq!(
            (stays.outcome, stays.reason.as_str()),
            (Outcome::Bound, "bound"),
            "{margin} {best} {last}"
        );
        let moves = next_turn(&mut soft(margin), [last + 1, best, best]);
        assert_eq!(
            (moves.outcome, moves.reason.as_str()),
            (Outcome::Held, "moved"),
            "{margin} {best} {last}"
        );
        assert_eq!(moves.target.unwrap().worker.as_str(), "w2", "the first of the best: the draw is 0");
        assert!(moves.version > stays.version);
    }
}

#[test]
fn a_hard_session_never_moves_by_load() {
    let mut world = World::of(|_| ());
    world.play("worker w1; worker w2; worker w3; route a r1; commit a r1");
    let reply = next_turn(&mut world, [1_000_000, 0, 0]);
    assert_eq!((reply.outcome, reply.target.unwrap().worker.as_str()), (Outcome::Bound, "w1"));
}

#[test]
fn choices_that_no_report_covers_and_failures_count_as_load() {
    let mut world = soft(150);
    let said = world.play(
        "report A w1=2; route a r2; route a r3; show a; fail a r3; report A w1=1; slot w1 5xx; route a r4; count workers_suspect",
    );
    expect![[r#"
        report A w1=2 -> w1=2+0 w2=0+0 w3=0+0
        route a r2 -> bound w1 v1 bound
        route a r3 -> held w2 v2 moved
        show a -> Held { owners: 1 } w2 v2
        fail a r3 -> Bound w1 v1 [holds_rolled_back]
        report A w1=1 -> w1=1+0 w2=0+0 w3=0+0
        slot w1 5xx -> Ready
        route a r4 -> held w2 v3 moved
        count workers_suspect -> 0
    "#]]
    .assert_eq(&said.replace("Joining", "Ready"));
}

/// Of what other VMs have there only that counts which two reports know of, or which stood for a while: what came with the last one
/// may be over, and be this session's own last turn.
#[test]
fn what_others_have_counts_once_it_stands() {
    let mut world = soft(150);
    let said = world.play(
        "report B w1=9; route a r2; fail a r2; wait 49ms; report B w1=9; route a r2; fail a r2; wait 1ms; report B w1=3; route a r3; fail a r3;
         wait 50ms; report C w1=9; report C; route a r4; fail a r4; report B w1=2; route a r5; fail a r5;
         report A w1=1; route a r6; fail a r6; wait 50ms; report B w1=9; route a r7; fail a r7; wait 249ms; route a r8; fail a r8; wait 1ms; route a r9",
    );
    expect![[r#"
        report B w1=9 -> w1=9+0 w2=0+0 w3=0+0
        route a r2 -> bound w1 v1 bound
        fail a r2 -> Bound w1 v1 [failed_late]
        wait 49ms -> 1 sessions, 0 held, 2 vms
        report B w1=9 -> w1=9+0 w2=0+0 w3=0+0
        route a r2 -> bound w1 v1 bound
        fail a r2 -> Bound w1 v1 [failed_late]
        wait 1ms -> 1 sessions, 0 held, 2 vms
        report B w1=3 -> w1=3+0 w2=0+0 w3=0+0
        route a r3 -> held w2 v2 moved
        fail a r3 -> Bound w1 v1 [holds_rolled_back]
        wait 50ms -> 1 sessions, 0 held, 2 vms
        report C w1=9 -> w1=12+0 w2=0+0 w3=0+0
        report C -> w1=3+0 w2=0+0 w3=0+0
        route a r4 -> held w2 v3 moved
        fail a r4 -> Bound w1 v1 [holds_rolled_back]
        report B w1=2 -> w1=2+0 w2=0+0 w3=0+0
        route a r5 -> bound w1 v1 bound
        fail a r5 -> Bound w1 v1 [failed_late]
        report A w1=1 -> w1=3+0 w2=0+0 w3=0+0
        route a r6 -> held w2 v4 moved
        fail a r6 -> Bound w1 v1 [holds_rolled_back]
        wait 50ms -> 1 sessions, 0 held, 3 vms
        report B w1=9 -> w1=9+0 w2=0+0 w3=0+0
        route a r7 -> bound w1 v1 bound
        fail a r7 -> Bound w1 v1 [failed_late]
        wait 249ms -> 1 sessions, 0 held, 3 vms
        route a r8 -> bound w1 v1 bound
        fail a r8 -> Bound w1 v1 [failed_late]
        wait 1ms -> 1 sessions, 0 held, 3 vms
        route a r9 -> held w2 v5 moved
    "#]]
    .assert_eq(&said);
}

/// Load that goes from one of the others to the next is there all the time.
#[test]
fn what_others_have_together_stands_if_its_sum_does() {
    let mut world = soft(150);
    let said = world.play(
        "report B w1=9; wait 60ms; report B; report C w1=9; wait 60ms; report C; report B w1=9; route a r2",
    );
    assert!(said.ends_with("route a r2 -> held w2 v2 moved\n"), "{said}");
}

/// The second goes along even if it would stay by itself by then.
#[test]
fn of_two_moves_at_once_one_wins() {
    let mut world = soft(150);
    let said = world.play(
        "report C w1=3; wait 50ms; report C w1=3; route a r2; report C w2=5; route a r3@B; commit a r3@B; moves; commit a r2; show a;
         report A; wait 50ms; report C w2=5; route a r4; count route_moved; moves",
    );
    expect![[r#"
        report C w1=3 -> w1=3+0 w2=0+0 w3=0+0
        wait 50ms -> 1 sessions, 0 held, 2 vms
        report C w1=3 -> w1=3+0 w2=0+0 w3=0+0
        route a r2 -> held w2 v2 moved
        report C w2=5 -> w1=0+0 w2=5+1 w3=0+0
        route a r3@B -> held w2 v2 joined
        commit a r3@B -> Bound w2 v2 [holds_committed merge_replaced_newer]
        moves -> w2 v2
        commit a r2 -> Bound w2 v2 [merge_refreshed]
        show a -> Bound w2 v2
        report A -> w1=0+0 w2=5+0 w3=0+0
        wait 50ms -> 1 sessions, 0 held, 3 vms
        report C w2=5 -> w1=0+0 w2=5+0 w3=0+0
        route a r4 -> held w1 v3 moved
        count route_moved -> 2
        moves -> nothing
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_move_that_fails_leaves_the_binding_as_it_was_and_alive() {
    let mut world = soft(150);
    let said = world.play(
        "wait 1000s alive=A; report A w1=3; route a r2; route a r3@B; fail a r2; fail a r3@B; show a; moves;
         wait 1000s alive=A; show a; route a r4; wait 1801s alive=A; show a",
    );
    expect![[r#"
        wait 1000s alive=A -> 1 sessions, 0 held, 1 vms
        report A w1=3 -> w1=3+0 w2=0+0 w3=0+0
        route a r2 -> held w2 v2 moved
        route a r3@B -> held w2 v2 joined
        fail a r2 -> Held { owners: 1 } w2 v2 []
        fail a r3@B -> Bound w1 v1 [holds_rolled_back]
        show a -> Bound w1 v1
        moves -> nothing
        wait 1000s alive=A -> 1 sessions, 0 held, 1 vms
        show a -> Bound w1 v1
        route a r4 -> bound w1 v1 bound
        wait 1801s alive=A -> 0 sessions, 0 held, 1 vms
        show a -> none
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_suspect_is_left_while_another_is_ready_and_a_draining_one_is_not() {
    let mut world = soft(150);
    let said = world.play(
        "slot w1 refused count=2; wait 60s alive=A; route a r2; fail a r2; slot w2 refused count=2; slot w3 refused count=2; route a r3;
         slot w1 answered; drain w1; wait 60s alive=A; report A w1=2; route a r4; slot w2 answered; report A w1=2; route a r5;
         report A w1=3; route a r6",
    );
    expect![[r#"
        slot w1 refused count=2 -> Suspect
        wait 60s alive=A -> 1 sessions, 0 held, 1 vms
        route a r2 -> held w2 v2 moved
        fail a r2 -> Bound w1 v1 [holds_rolled_back]
        slot w2 refused count=2 -> Suspect
        slot w3 refused count=2 -> Suspect
        route a r3 -> bound w1 v1 bound
        slot w1 answered -> Ready
        drain w1 -> done
        wait 60s alive=A -> 1 sessions, 0 held, 1 vms
        report A w1=2 -> w1=2+0 w2=0+0 w3=0+0
        route a r4 -> bound w1 v1 bound
        slot w2 answered -> Ready
        report A w1=2 -> w1=2+0 w2=0+0 w3=0+0
        route a r5 -> bound w1 v1 bound
        report A w1=3 -> w1=3+0 w2=0+0 w3=0+0
        route a r6 -> held w2 v3 moved
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_policy_that_chooses_the_bound_worker_keeps_the_session() {
    let set = |policy| {
        move |pool: &mut routing::contract::PoolInfo| (pool.affinity, pool.policy) = (Affinity::Soft, policy)
    };
    let mut world = World::of(set(Policy::RoundRobin));
    let said = world.play(
        "worker w1; worker w2; route a r1; commit a r1; report B w2=9; wait 50ms; report B w2=9; route b r2; fail b r2; route a r3; count route_moved; route a r4",
    );
    expect![[r#"
        worker w1 -> Created
        worker w2 -> Created
        route a r1 -> held w2 v1 round_robin
        commit a r1 -> Bound w2 v1 [holds_committed merge_inserted]
        report B w2=9 -> w1=0+0 w2=9+0
        wait 50ms -> 1 sessions, 0 held, 2 vms
        report B w2=9 -> w1=0+0 w2=9+0
        route b r2 -> held w1 v2 round_robin
        fail b r2 -> none [holds_rolled_back]
        route a r3 -> bound w2 v1 bound
        count route_moved -> 0
        route a r4 -> held w1 v3 moved
    "#]]
    .assert_eq(&said);
    let mut world = World::of(set(Policy::Direct));
    let said =
        world.play("worker w1; worker w2; route a r1 named=w1; commit a r1; report A w1=99; route a r2");
    assert!(said.ends_with("route a r2 -> bound w1 v1 bound\n"), "nobody chooses but the caller: {said}");
}

#[test]
fn whoever_cannot_own_a_hold_stays() {
    let mut world = soft(150);
    let said =
        world.play("report B w1=3; wait 50ms; report B w1=3; fail a r2 hold=none; route a r2; route a r3");
    assert!(said.contains("route a r2 -> bound w1 v1 bound"), "its request is over: {said}");
    assert!(said.contains("route a r3 -> held w2 v2 moved"), "{said}");

    let mut config = soft(150).state.config.clone();
    config.limits.vms_max = 1;
    let mut world = World::with(StateConfig { ..config });
    let said = world.play("worker w1; worker w2; route a r1; commit a r1; report A w1=3; route a r2@B");
    assert!(said.ends_with("route a r2@B -> bound w1 v1 bound\n"), "{said}");
}

#[test]
fn a_lost_slot_is_bound_anew_not_moved() {
    let mut world = soft(150);
    let said = world.play("remove w1; route a r2; commit a r2; count route_rebound; count route_moved");
    expect![[r#"
        remove w1 -> done
        route a r2 -> held w2 v2 rebound
        commit a r2 -> Bound w2 v2 [holds_committed merge_replaced_newer]
        count route_rebound -> 1
        count route_moved -> 0
    "#]]
    .assert_eq(&said);
}

/// However the load is: the session goes on, or a commit moves it to a better worker; nothing else changes a binding.
fn moves_only_by_the_rule(margin: u32, loads: [u32; 3], commits: bool, draw: u64) {
    let mut world = soft(margin);
    let before = world.state.session(world.now, session("a").id).unwrap();
    let [w1, w2, w3] = loads;
    world.play(&format!("report A w1={w1} w2={w2} w3={w3}"));
    let reply = world.route(route_request("a", 2, "A"), draw);
    let best = u64::from(w1.min(w2).min(w3));
    let stays = soft_stays(margin, w1.into(), best);
    assert_eq!(reply.outcome == Outcome::Bound, stays);
    let target = reply.target.clone().unwrap();
    let load = |worker: &str| u64::from(if worker == "w2" { w2 } else { w3 });
    assert_eq!(target.worker.as_str() == "w1", stays);
    assert!(stays || load(target.worker.as_str()) == best);
    let hold = reply.hold;
    let entry = |commits: bool| match (hold, commits) {
        (None, _) => None,
        (Some(hold), true) => Some(routing::contract::Entry::Committed {
            session: session("a"),
            pool: super::world::pool(),
            request: routing::id::RequestId(2),
            hold: Some(hold),
            target: target.clone(),
            version: reply.version,
        }),
        (Some(hold), false) => Some(routing::contract::Entry::Failed {
            session: session("a"),
            pool: super::world::pool(),
            request: routing::id::RequestId(2),
            hold: Some(hold),
        }),
    };
    world.report("A", entry(commits).into_iter().collect(), Vec::new());
    let after = world.state.session(world.now, session("a").id).unwrap();
    assert_eq!(after.state, SessionState::Bound);
    if stays || !commits {
        assert_eq!((after.version, after.target), (before.version, before.target));
    } else {
        assert!(after.version > before.version);
        assert_eq!(after.target, Some(target));
    }
    assert_eq!(world.state.sizes().holds, 0);
}

proptest! {
    #[test]
    fn a_soft_session_moves_by_the_rule_and_by_a_commit_alone(
        margin in 100..=300u32, loads in prop::array::uniform3(0..40u32), commits: bool, draw: u64,
    ) {
        moves_only_by_the_rule(margin, loads, commits, draw);
    }
}

/// A hundred sessions on one worker, all at once: the choice is counted, so they do not herd onto the next one.
#[test]
fn a_crowd_that_moves_spreads() {
    for affinity in HARD_AND_SOFT {
        let mut world = World::of(|pool| pool.affinity = affinity);
        world.play("worker w1");
        for i in 0..100 {
            world.play(&format!("route s{i} r{i}; commit s{i} r{i}"));
        }
        world.play("worker w2; worker w3; worker w4; report A w1=100");
        let mut on = std::collections::BTreeMap::<String, u32>::new();
        for i in 0..100 {
            let reply = world.route(route_request(&format!("s{i}"), 1000 + i, "A"), mix(5, i));
            *on.entry(reply.target.unwrap().worker.to_string()).or_default() += 1;
        }
        match affinity {
            Affinity::Hard => assert_eq!(on, [("w1".to_owned(), 100)].into()),
            // 1.5 x 33 + 2 is below 100 to the end: all leave, a third each.
            _ => assert!(on.len() == 3 && on.values().all(|n| (33..=34).contains(n)), "{on:?}"),
        }
    }
}
