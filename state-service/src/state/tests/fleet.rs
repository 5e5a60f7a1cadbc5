//! Workers: states, drains, ranks, load, and what is refused.

use super::world::check;
use expect_test::expect;

#[test]
fn probes_take_a_worker_down_after_three_and_up_after_two() {
    check(
        "worker w1; states; probe w1 +; probe w1 --+; probe w1 ---; probe w1 +; probe w1 -+; probe w1 +; states; count workers_down",
        &expect![[r#"
            worker w1 -> Created
            states -> w1=Joining
            probe w1 + -> Ready
            probe w1 --+ -> Ready
            probe w1 --- -> Down
            probe w1 + -> Down
            probe w1 -+ -> Down
            probe w1 + -> Ready
            states -> w1=Ready
            count workers_down -> 1
        "#]],
    );
}

#[test]
fn requests_make_a_worker_suspect_slot_by_slot() {
    check(
        "worker w1 ranks=0..4; probe w1 +; slot w1 refused rank=1; slot w1 answered rank=2; slot w1 refused rank=1;
         slot w1 answered rank=2; slot w1 answered rank=1; slot w1 5xx rank=3 count=2; slot w1 answered rank=3;
         slot w1 5xx rank=3 count=3; probe w1 +++++++++; probe w1 +; slot w1 refused rank=99; slot w7 refused;
         count slot_unknown_worker",
        &expect![[r#"
            worker w1 ranks=0..4 -> Created
            probe w1 + -> Ready
            slot w1 refused rank=1 -> Ready
            slot w1 answered rank=2 -> Ready
            slot w1 refused rank=1 -> Suspect
            slot w1 answered rank=2 -> Suspect
            slot w1 answered rank=1 -> Ready
            slot w1 5xx rank=3 count=2 -> Ready
            slot w1 answered rank=3 -> Ready
            slot w1 5xx rank=3 count=3 -> Suspect
            probe w1 +++++++++ -> Suspect
            probe w1 + -> Ready
            slot w1 refused rank=99 -> Ready
            slot w7 refused -> unknown
            count slot_unknown_worker -> 1
        "#]],
    );
}

#[test]
fn a_suspect_keeps_its_sessions_and_gets_new_ones_only_when_alone() {
    check(
        "worker w1; worker w2; route a r1; commit a r1; slot w1 refused count=2; route a r2; route b r3; route c r4;
         probe w2 ---; route d r5; probe w1 ---; route e r6",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            slot w1 refused count=2 -> Suspect
            route a r2 -> bound w1 v1 bound
            route b r3 -> held w2 v2 least_loaded
            route c r4 -> held w2 v3 least_loaded
            probe w2 --- -> Down
            route d r5 -> held w1 v4 least_loaded
            probe w1 --- -> Down
            route e r6 -> noworker - v0 no_worker
        "#]],
    );
}

#[test]
fn draining_keeps_its_sessions_until_the_deadline() {
    check(
        "worker w1; worker w2; route a r1; commit a r1; drain w1 60s; states; route a r2; route b r3; route c r4;
         wait 59s alive=A; route a r5; wait 1s alive=A; states; route a r6; commit a r6; moves; resume w1; states; drain w7",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            drain w1 60s -> done
            states -> w1=Draining w2=Joining
            route a r2 -> bound w1 v1 bound
            route b r3 -> held w2 v2 least_loaded
            route c r4 -> held w2 v3 least_loaded
            wait 59s alive=A -> 3 sessions, 2 held, 1 vms
            route a r5 -> bound w1 v1 bound
            wait 1s alive=A -> 3 sessions, 2 held, 1 vms
            states -> w1=Down w2=Joining
            route a r6 -> held w2 v4 rebound
            commit a r6 -> Bound w2 v4 [holds_committed merge_replaced_newer]
            moves -> w2 v4
            resume w1 -> done
            states -> w1=Joining w2=Joining
            drain w7 -> refused: worker w7 is not declared
        "#]],
    );
}

#[test]
fn a_drain_survives_the_same_declaration_and_a_new_one() {
    check(
        "worker w1; drain w1; worker w1; states; worker w1 weight=5; states; resume w1; states",
        &expect![[r#"
        worker w1 -> Created
        drain w1 -> done
        worker w1 -> Unchanged
        states -> w1=Draining
        worker w1 weight=5 -> Replaced
        states -> w1=Draining
        resume w1 -> done
        states -> w1=Joining
    "#]],
    );
}

#[test]
fn ranks_are_hashed_over_the_declared_range() {
    check(
        "worker w1 ranks=4..8; route session-1 r1; route conv-42 r2; route s r3; route - r4; commit s r3; route s r5",
        &expect![[r#"
            worker w1 ranks=4..8 -> Created
            route session-1 r1 -> held w1:5 v1 least_loaded
            route conv-42 r2 -> held w1:6 v2 least_loaded
            route s r3 -> held w1:7 v3 least_loaded
            route - r4 -> unpinned w1 v0 least_loaded
            commit s r3 -> Bound w1:7 v3 [holds_committed merge_inserted]
            route s r5 -> bound w1:7 v3 bound
        "#]],
    );
}

#[test]
fn a_rank_outside_the_declared_range_re_binds() {
    check(
        "worker w1 ranks=0..8; route session-1 r1; commit session-1 r1; route s r2; commit s r2;
         worker w1 ranks=0..4; route session-1 r3; commit session-1 r3; moves; route s r4; worker w1; route s r5",
        &expect![[r#"
            worker w1 ranks=0..8 -> Created
            route session-1 r1 -> held w1:5 v1 least_loaded
            commit session-1 r1 -> Bound w1:5 v1 [holds_committed merge_inserted]
            route s r2 -> held w1:3 v2 least_loaded
            commit s r2 -> Bound w1:3 v2 [holds_committed merge_inserted]
            worker w1 ranks=0..4 -> Replaced
            route session-1 r3 -> held w1:1 v3 rebound
            commit session-1 r3 -> Bound w1:1 v3 [holds_committed merge_replaced_newer]
            moves -> w1:1 v3
            route s r4 -> bound w1:3 v2 bound
            worker w1 -> Replaced
            route s r5 -> held w1 v4 rebound
        "#]],
    );
}

#[test]
fn a_worker_only_binding_stays_worker_only_when_ranks_appear() {
    check(
        "worker w1; route a r1; commit a r1; worker w1 ranks=0..8; route a r2; route b r3",
        &expect![[r#"
        worker w1 -> Created
        route a r1 -> held w1 v1 least_loaded
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        worker w1 ranks=0..8 -> Replaced
        route a r2 -> bound w1 v1 bound
        route b r3 -> held w1:7 v2 least_loaded
    "#]],
    );
}

#[test]
fn load_is_the_sum_of_last_reports_and_open_choices() {
    check(
        "worker w1; worker w2; report A w1=5 w2=1; report B w1=2; route a r1@A; route b r2@A; report C; report A w1=1 w2=2;
         report A seq=1 w1=99; count reports_old; route c r3@B; fail c r3@B; report C; wait 31s alive=B; report C;
         remove w1; worker w1; report B w1=3; worker w1 weight=2; report C",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            report A w1=5 w2=1 -> w1=5+0 w2=1+0
            report B w1=2 -> w1=7+0 w2=1+0
            route a r1@A -> held w2 v1 least_loaded
            route b r2@A -> held w2 v2 least_loaded
            report C -> w1=7+0 w2=1+2
            report A w1=1 w2=2 -> w1=3+0 w2=2+0
            report A seq=1 w1=99 -> w1=3+0 w2=2+0
            count reports_old -> 1
            route c r3@B -> held w2 v3 least_loaded
            fail c r3@B -> none [holds_rolled_back]
            report C -> w1=1+0 w2=2+0
            wait 31s alive=B -> 0 sessions, 0 held, 1 vms
            report C -> w1=0+0 w2=0+0
            remove w1 -> done
            worker w1 -> Created
            report B w1=3 -> w1=3+0 w2=0+0
            worker w1 weight=2 -> Replaced
            report C -> w1=3+0 w2=0+0
        "#]],
    );
}

#[test]
fn pools_spring_up_without_a_config_and_end_with_their_last_worker() {
    check(
        "route a r1; route a r2 pool=p; worker w1 pool=p; route a r3 pool=p; worker w1; route a r4 pool=p; route a r5",
        &expect![[r#"
            route a r1 -> noworker - v0 no_worker
            route a r2 pool=p -> unknownpool - v0 unknown_pool
            worker w1 pool=p -> Created
            route a r3 pool=p -> held w1 v1 least_loaded
            worker w1 -> Replaced
            route a r4 pool=p -> unknownpool - v0 unknown_pool
            route a r5 -> held w1 v1 joined
        "#]],
    );
}

#[test]
fn what_collides_is_refused_and_changes_nothing() {
    check(
        "worker w1 at=10.0.0.1:8000; worker w2 at=10.0.0.1:8000; worker w1 at=10.0.0.1:8000; states; remove w2; drain w2;
         resume w2; delete a",
        &expect![[r#"
            worker w1 at=10.0.0.1:8000 -> Created
            worker w2 at=10.0.0.1:8000 -> refused: address 10.0.0.1:8000 belongs to worker w1
            worker w1 at=10.0.0.1:8000 -> Unchanged
            states -> w1=Joining
            remove w2 -> refused: worker w2 is not declared
            drain w2 -> refused: worker w2 is not declared
            resume w2 -> refused: worker w2 is not declared
            delete a -> refused: session c701fc0e… is not bound
        "#]],
    );
}
