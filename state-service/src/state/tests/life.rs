//! One session's life: hold, join, commit, roll back, re-bind, expire, release, and whatever comes too late.

use super::world::check;
use expect_test::expect;

#[test]
fn first_turn_holds_and_its_answer_binds() {
    check(
        "worker w1; worker w2; route a r1; show a; commit a r1; route a r2; route a r3@B; moves",
        &expect![[r#"
        worker w1 -> Created
        worker w2 -> Created
        route a r1 -> held w1 v1 least_loaded
        show a -> Held { owners: 1 } w1 v1
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        route a r2 -> bound w1 v1 bound
        route a r3@B -> bound w1 v1 bound
        moves -> nothing
    "#]],
    );
}

#[test]
fn concurrent_first_turns_join_one_hold_and_any_of_them_commits() {
    check(
        "worker w1; worker w2; route a r1; route a r2@B; route a r3@C; commit a r2@B; commit a r1; fail a r3@C; moves",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            route a r2@B -> held w1 v1 joined
            route a r3@C -> held w1 v1 joined
            commit a r2@B -> Bound w1 v1 [holds_committed merge_inserted]
            commit a r1 -> Bound w1 v1 [merge_refreshed]
            fail a r3@C -> Bound w1 v1 [failed_late]
            moves -> nothing
        "#]],
    );
}

#[test]
fn asking_twice_for_one_request_makes_one_owner() {
    check(
        "worker w1; route a r1; route a r1; show a; fail a r1",
        &expect![[r#"
        worker w1 -> Created
        route a r1 -> held w1 v1 least_loaded
        route a r1 -> held w1 v1 joined
        show a -> Held { owners: 1 } w1 v1
        fail a r1 -> none [holds_rolled_back]
    "#]],
    );
}

#[test]
fn a_hold_goes_with_its_last_owner() {
    check(
        "worker w1; worker w2; route a r1; route a r2@B; fail a r1; fail a r1; fail a r2@B; route a r3; commit a r1",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            route a r2@B -> held w1 v1 joined
            fail a r1 -> Held { owners: 1 } w1 v1 []
            fail a r1 -> Held { owners: 1 } w1 v1 [failed_late]
            fail a r2@B -> none [holds_rolled_back]
            route a r3 -> held w1 v2 least_loaded
            commit a r1 -> Bound w1 v1 [holds_gave_way merge_inserted]
        "#]],
    );
}

#[test]
fn a_failure_whose_reply_came_too_late_names_no_hold() {
    check(
        "worker w1; route a r1; fail a r2 hold=none; fail a r1 hold=none; count failed_late",
        &expect![[r#"
        worker w1 -> Created
        route a r1 -> held w1 v1 least_loaded
        fail a r2 hold=none -> Held { owners: 1 } w1 v1 [failed_late]
        fail a r1 hold=none -> none [holds_rolled_back]
        count failed_late -> 1
    "#]],
    );
}

#[test]
fn a_route_that_comes_after_the_end_of_its_request_holds_nothing() {
    // Found by the simulation: the caller gave up, failed elsewhere and said so before its route arrived.
    check(
        "worker w1; route b r1; fail a r2 hold=none; route a r2; show a; count route_over; route a r3; show a;
         commit c r4 alone=1/1 on=w1; probe w1 ---; worker w2; route c r4; show c",
        &expect![[r#"
            worker w1 -> Created
            route b r1 -> held w1 v1 least_loaded
            fail a r2 hold=none -> none [failed_late]
            route a r2 -> unpinned w1 v0 over
            show a -> none
            count route_over -> 1
            route a r3 -> held w1 v2 least_loaded
            show a -> Held { owners: 1 } w1 v2
            commit c r4 alone=1/1 on=w1 -> Bound w1 v1/1 [merge_inserted]
            probe w1 --- -> Down
            worker w2 -> Created
            route c r4 -> unpinned w2 v0 over
            show c -> Bound w1 v1/1
        "#]],
    );
}

#[test]
fn an_owner_that_never_heard_of_its_hold_commits_it() {
    // Found by the simulation: the route came late, its caller had placed the turn alone, under a version older than all.
    check(
        "worker w1; route a r1; commit a r1; worker w2; remove w1; route a r2; commit a r2 alone=1/1 on=w2; show a; moves",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            worker w2 -> Created
            remove w1 -> done
            route a r2 -> held w2 v2 rebound
            commit a r2 alone=1/1 on=w2 -> Bound w2 v2 [holds_committed merge_replaced_newer]
            show a -> Bound w2 v2
            moves -> w2 v2
        "#]],
    );
}

#[test]
fn outbidding_ends_a_hold() {
    check(
        "worker w1; route a r1; commit a r1; worker w2; probe w1 ---; route a r2; probe w1 ++; touch a v=9;
         commit a r2; show a",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            worker w2 -> Created
            probe w1 --- -> Down
            route a r2 -> held w2 v2 rebound
            probe w1 ++ -> Ready
            touch a v=9 -> Bound w1 v10 [holds_gave_way touch_newer]
            commit a r2 -> Bound w1 v10 [merge_ignored_conflict]
            show a -> Bound w1 v10
        "#]],
    );
}

#[test]
fn an_answered_request_owns_no_hold_even_when_its_commit_is_too_old() {
    check(
        "worker w1; route a r1; commit a r1; worker w2; probe w1 ---; route a r2; release a v=1; show a;
         commit a r2; show a",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            worker w2 -> Created
            probe w1 --- -> Down
            route a r2 -> held w2 v2 rebound
            release a v=1 -> Held { owners: 1 } w2 v2 [released]
            show a -> Held { owners: 1 } w2 v2
            commit a r2 -> Released - v3 [holds_gave_way merge_ignored_stale]
            show a -> Released - v3
        "#]],
    );
}

#[test]
fn unsent_failure_is_applied_before_the_choice() {
    check(
        "worker w1; worker w2; route a r1; route a r2 failed=r1; count route_joined; count holds_rolled_back",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            route a r2 failed=r1 -> held w1 v2 least_loaded
            count route_joined -> 0
            count holds_rolled_back -> 1
        "#]],
    );
}

#[test]
fn holds_go_with_the_vm_that_owns_them_not_with_time() {
    check(
        "worker w1; route a r1@A; route b r2@B; route a r3@B; wait 60s alive=B; show a; show b; wait 40s; show a; show b;
         count holds_orphaned; count vms_expired",
        &expect![[r#"
            worker w1 -> Created
            route a r1@A -> held w1 v1 least_loaded
            route b r2@B -> held w1 v2 least_loaded
            route a r3@B -> held w1 v1 joined
            wait 60s alive=B -> 2 sessions, 2 held, 1 vms
            show a -> Held { owners: 1 } w1 v1
            show b -> Held { owners: 1 } w1 v2
            wait 40s -> 0 sessions, 0 held, 0 vms
            show a -> none
            show b -> none
            count holds_orphaned -> 2
            count vms_expired -> 2
        "#]],
    );
}

#[test]
fn a_new_epoch_of_a_node_does_not_bury_its_other_vms() {
    check(
        "worker w1; route a r1@A; route b r2@A2; route c r3@A3; wait 20s alive=A; show a",
        &expect![[r#"
        worker w1 -> Created
        route a r1@A -> held w1 v1 least_loaded
        route b r2@A2 -> held w1 v2 least_loaded
        route c r3@A3 -> held w1 v3 least_loaded
        wait 20s alive=A -> 3 sessions, 3 held, 3 vms
        show a -> Held { owners: 1 } w1 v1
    "#]],
    );
}

#[test]
fn late_commit_after_a_rebind_is_a_conflict_and_its_envoy_is_told() {
    check(
        "worker w1; route a r1; commit a r1; worker w2; probe w1 ---; route a r2; commit a r2; moves;
         commit a r1; moves; touch a v=1; release a v=1",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            worker w2 -> Created
            probe w1 --- -> Down
            route a r2 -> held w2 v2 rebound
            commit a r2 -> Bound w2 v2 [holds_committed merge_replaced_newer]
            moves -> w2 v2
            commit a r1 -> Bound w2 v2 [merge_ignored_conflict]
            moves -> w2 v2
            touch a v=1 -> Bound w2 v2 [touch_late]
            release a v=1 -> Bound w2 v2 [release_late]
        "#]],
    );
}

#[test]
fn an_envoy_that_pins_what_was_replaced_is_told_when_it_touches() {
    // Found by the simulation: a VM died between the answer it cached and the report of it, so nobody knew of v1.
    check(
        "worker w1; worker w2; route a r1; commit a r1 alone=5/9 on=w2; moves; touch a v=1; moves",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 alone=5/9 on=w2 -> Bound w2 v5/9 [holds_gave_way merge_inserted]
            moves -> nothing
            touch a v=1 -> Bound w2 v5/9 [touch_late]
            moves -> w2 v5/9
        "#]],
    );
}

#[test]
fn a_touch_of_a_binding_nobody_told_us_is_outbid() {
    // Found by the simulation: v5 replaced v1 on one Envoy, and its commit died with the VM.
    check(
        "worker w1; worker w2; route a r1; commit a r1 alone=1/9 on=w2; touch a v=5; show a; moves;
         probe w2 ---; touch a v=9; moves",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 alone=1/9 on=w2 -> Bound w2 v1/9 [holds_gave_way merge_inserted]
            touch a v=5 -> Bound w2 v6 [touch_newer]
            show a -> Bound w2 v6
            moves -> w2 v6
            probe w2 --- -> Down
            touch a v=9 -> Bound w2 v6 [touch_newer]
            moves -> nothing
        "#]],
    );
}

#[test]
fn a_session_moves_when_its_worker_is_removed_and_only_by_a_commit() {
    check(
        "worker w1; route a r1; commit a r1; worker w2; remove w1; route a r2; moves; fail a r2; show a;
         route a r3; route a r4@B; commit a r3; commit a r4@B; moves",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            worker w2 -> Created
            remove w1 -> done
            route a r2 -> held w2 v2 rebound
            moves -> nothing
            fail a r2 -> Bound - v1 [holds_rolled_back]
            show a -> Bound - v1
            route a r3 -> held w2 v3 rebound
            route a r4@B -> held w2 v3 joined
            commit a r3 -> Bound w2 v3 [holds_committed merge_replaced_newer]
            commit a r4@B -> Bound w2 v3 [merge_refreshed]
            moves -> w2 v3
        "#]],
    );
}

#[test]
fn a_worker_that_comes_back_before_the_next_turn_keeps_its_sessions() {
    check(
        "worker w1; worker w2; route a r1; commit a r1; remove w1; worker w1; route a r2",
        &expect![[r#"
        worker w1 -> Created
        worker w2 -> Created
        route a r1 -> held w1 v1 least_loaded
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        remove w1 -> done
        worker w1 -> Created
        route a r2 -> bound w1 v1 bound
    "#]],
    );
}

#[test]
fn a_hold_on_a_worker_that_went_down_is_chosen_anew() {
    check(
        "worker w1; worker w2; route a r1; probe w1 ---; route a r2@B; commit a r2@B; commit a r1; moves; show a",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            probe w1 --- -> Down
            route a r2@B -> held w2 v2 least_loaded
            commit a r2@B -> Bound w2 v2 [holds_committed merge_inserted]
            commit a r1 -> Bound w2 v2 [merge_ignored_conflict]
            moves -> w2 v2
            show a -> Bound w2 v2
        "#]],
    );
}

#[test]
fn idle_sessions_expire_and_touched_ones_do_not() {
    check(
        "worker w1; route a r1; commit a r1; route b r2; commit b r2; wait 1700s; touch a v=1; wait 200s;
         show a; show b; route b r3; count sessions_expired",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            route b r2 -> held w1 v2 least_loaded
            commit b r2 -> Bound w1 v2 [holds_committed merge_inserted]
            wait 1700s -> 2 sessions, 0 held, 0 vms
            touch a v=1 -> Bound w1 v1 []
            wait 200s -> 1 sessions, 0 held, 0 vms
            show a -> Bound w1 v1
            show b -> none
            route b r3 -> held w1 v3 least_loaded
            count sessions_expired -> 1
        "#]],
    );
}

#[test]
fn a_release_is_remembered_and_nothing_late_raises_it() {
    check(
        "worker w1; route a r1; route a r2@B; commit a r1; release a v=1; moves; commit a r2@B; moves; touch a v=1;
         route a r3; commit a r3; release a v=1; show a; moves",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            route a r2@B -> held w1 v1 joined
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            release a v=1 -> Released - v2 [released]
            moves -> released v2
            commit a r2@B -> Released - v2 [merge_ignored_stale]
            moves -> released v2
            touch a v=1 -> Released - v2 [touch_late]
            route a r3 -> held w1 v3 least_loaded
            commit a r3 -> Bound w1 v3 [holds_committed merge_replaced_newer]
            release a v=1 -> Bound w1 v3 [release_late]
            show a -> Bound w1 v3
            moves -> released v2
        "#]],
    );
}

#[test]
fn a_release_by_hand_ends_hold_and_binding() {
    check(
        "worker w1; route a r1; delete a; show a; commit a r1; delete a; route b r2; commit b r2; delete b; moves",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            delete a -> done
            show a -> Released - v2
            commit a r1 -> Released - v2 [merge_ignored_stale]
            delete a -> refused: session c701fc0e… is not bound
            route b r2 -> held w1 v3 least_loaded
            commit b r2 -> Bound w1 v3 [holds_committed merge_inserted]
            delete b -> done
            moves -> released v2, released v2, released v4
        "#]],
    );
}

#[test]
fn tombstones_are_forgotten_after_the_longer_of_ttl_and_ten_minutes() {
    check(
        "worker w1; route a r1; commit a r1; release a v=1; wait 1799s; show a; wait 2s; show a; count tombstones_expired",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            release a v=1 -> Released - v2 [released]
            wait 1799s -> 0 sessions, 0 held, 0 vms
            show a -> Released - v2
            wait 2s -> 0 sessions, 0 held, 0 vms
            show a -> none
            count tombstones_expired -> 1
        "#]],
    );
}

#[test]
fn what_a_filter_placed_alone_is_merged_by_version() {
    check(
        "worker w1; worker w2; commit a r1 alone=1/50 on=w2; route a r2; commit a r3@B alone=1/60 on=w1; moves;
         commit a r1 alone=1/50 on=w2; moves; commit a r4 alone=1/60 on=w1; moves",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            commit a r1 alone=1/50 on=w2 -> Bound w2 v1/50 [merge_inserted]
            route a r2 -> bound w2 v1/50 bound
            commit a r3@B alone=1/60 on=w1 -> Bound w1 v1/60 [merge_replaced_newer]
            moves -> w1 v1/60
            commit a r1 alone=1/50 on=w2 -> Bound w1 v1/60 [merge_ignored_conflict]
            moves -> w1 v1/60
            commit a r4 alone=1/60 on=w1 -> Bound w1 v1/60 [merge_refreshed]
            moves -> nothing
        "#]],
    );
}

#[test]
fn a_commit_made_alone_ends_the_hold_of_the_others() {
    check(
        "worker w1; worker w2; route a r1; commit a r9@B alone=1/50 on=w2; route a r3; commit a r1; moves",
        &expect![[r#"
        worker w1 -> Created
        worker w2 -> Created
        route a r1 -> held w1 v1 least_loaded
        commit a r9@B alone=1/50 on=w2 -> Bound w2 v1/50 [holds_gave_way merge_inserted]
        route a r3 -> bound w2 v1/50 bound
        commit a r1 -> Bound w2 v1/50 [merge_ignored_conflict]
        moves -> w2 v1/50
    "#]],
    );
}

#[test]
fn one_version_on_two_slots_ends_in_a_newer_version_for_all() {
    check(
        "worker w1; worker w2; route a r1; route a r2@B; commit a r1; commit a r2@B on=w2; show a; moves;
         commit a r1; commit a r2@B on=w2; show a; moves",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            route a r2@B -> held w1 v1 joined
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            commit a r2@B on=w2 -> Bound w2 v2 [merge_equal_conflict]
            show a -> Bound w2 v2
            moves -> w2 v2
            commit a r1 -> Bound w2 v2 [merge_ignored_conflict]
            commit a r2@B on=w2 -> Bound w2 v2 [merge_ignored_conflict]
            show a -> Bound w2 v2
            moves -> w2 v2, w2 v2
        "#]],
    );
}

#[test]
fn a_restarted_service_learns_from_the_callers_cache() {
    check(
        "worker w1; worker w2; route a r1 cached=w2,5/3; route a r2@B; route b r3 cached=w9,8/3; commit b r3;
         route c r4 cached=w1,9223372036854775807/3; count version_implausible",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 cached=w2,5/3 -> bound w2 v5/3 adopted
            route a r2@B -> bound w2 v5/3 bound
            route b r3 cached=w9,8/3 -> held w1 v9 least_loaded
            commit b r3 -> Bound w1 v9 [holds_committed merge_inserted]
            route c r4 cached=w1,9223372036854775807/3 -> held w1 v10 least_loaded
            count version_implausible -> 1
        "#]],
    );
}

#[test]
fn a_cache_newer_than_the_table_wins_and_an_older_one_loses() {
    check(
        "worker w1; worker w2; route a r1; commit a r1; route a r2 cached=w2,9/3; moves; route a r3@B cached=w1,1; show a",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            route a r2 cached=w2,9/3 -> bound w2 v9/3 adopted
            moves -> w2 v9/3
            route a r3@B cached=w1,1 -> bound w2 v9/3 bound
            show a -> Bound w2 v9/3
        "#]],
    );
}

#[test]
fn a_joiner_with_a_newer_dead_cache_raises_the_holds_version() {
    check(
        "worker w1; route a r1; route a r2@B cached=w9,6/3; commit a r1; moves; commit a r2@B; moves; show a",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            route a r2@B cached=w9,6/3 -> held w1 v7 joined
            commit a r1 -> Bound w1 v7 [holds_committed merge_inserted]
            moves -> w1 v7
            commit a r2@B -> Bound w1 v7 [merge_refreshed]
            moves -> nothing
            show a -> Bound w1 v7
        "#]],
    );
}

#[test]
fn commits_on_unknown_workers_wait_for_them() {
    check(
        "worker w1; commit a r1 alone=1/50 on=w8; show a; worker w8; route a r2; count commit_unknown_worker;
         commit b r3 alone=1/50 on=w9; route b r4",
        &expect![[r#"
            worker w1 -> Created
            commit a r1 alone=1/50 on=w8 -> Bound - v1/50 [merge_inserted commit_unknown_worker]
            show a -> Bound - v1/50
            worker w8 -> Created
            route a r2 -> bound w8 v1/50 bound
            count commit_unknown_worker -> 1
            commit b r3 alone=1/50 on=w9 -> Bound - v1/50 [merge_inserted commit_unknown_worker]
            route b r4 -> held w1 v2 rebound
        "#]],
    );
}
