//! One short trace a row of the tables of the design: sections 3, 4, 6 and 8, named after the row. Longer ones of the same
//! rows are in the files beside.

use super::world::{World, check};
use crate::state::Limits;
use expect_test::{Expect, expect};
use routing::contract::{Affinity, Policy, PoolInfo};

fn played(set: impl FnOnce(&mut PoolInfo), script: &str, expected: &Expect) {
    expected.assert_eq(&World::of(set).play(script));
}

#[test]
fn s3_1_exactly_one_initializer_and_others_join() {
    check(
        "worker w1; worker w2; route a r1; route a r2@B; route a r3@C; count route_held; count route_joined",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            route a r2@B -> held w1 v1 joined
            route a r3@C -> held w1 v1 joined
            count route_held -> 1
            count route_joined -> 2
        "#]],
    );
}

#[test]
fn s3_2_a_failed_initializer_leaves_nothing_and_the_next_chooses_afresh() {
    check(
        "worker w1; worker w2; route a r1; fail a r1; show a; report B w1=5; route a r2; show a",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            fail a r1 -> none [holds_rolled_back]
            show a -> none
            report B w1=5 -> w1=5+0 w2=0+0
            route a r2 -> held w2 v2 least_loaded
            show a -> Held { owners: 1 } w2 v2
        "#]],
    );
}

#[test]
fn s3_3_an_accepting_answer_commits() {
    check(
        "worker w1; route a r1; show a; commit a r1; show a; route a r2; fail a r2; show a",
        &expect![[r#"
        worker w1 -> Created
        route a r1 -> held w1 v1 least_loaded
        show a -> Held { owners: 1 } w1 v1
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        show a -> Bound w1 v1
        route a r2 -> bound w1 v1 bound
        fail a r2 -> Bound w1 v1 [failed_late]
        show a -> Bound w1 v1
    "#]],
    );
}

#[test]
fn s3_4_idle_longer_than_the_ttl_is_forgotten_and_a_running_turn_never() {
    check(
        "worker w1; route a r1; commit a r1; route b r2; commit b r2; wait 900s; touch a v=1; wait 900s; touch a v=1; show b; wait 1s; show a; show b;
         wait 1800s; show a",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            route b r2 -> held w1 v2 least_loaded
            commit b r2 -> Bound w1 v2 [holds_committed merge_inserted]
            wait 900s -> 2 sessions, 0 held, 0 vms
            touch a v=1 -> Bound w1 v1 []
            wait 900s -> 2 sessions, 0 held, 0 vms
            touch a v=1 -> Bound w1 v1 []
            show b -> Bound w1 v2
            wait 1s -> 1 sessions, 0 held, 1 vms
            show a -> Bound w1 v1
            show b -> none
            wait 1800s -> 0 sessions, 0 held, 0 vms
            show a -> none
        "#]],
    );
}

#[test]
fn s3_6_what_comes_late_is_ignored() {
    check(
        "worker w1; worker w2; route a r1; commit a r1; delete a; route a r2; commit a r2; commit a r9 alone=1 on=w1; release a v=1; touch a v=1;
         fail a r1; show a; release a v=3; show a; release a v=3",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            delete a -> done
            route a r2 -> held w1 v3 least_loaded
            commit a r2 -> Bound w1 v3 [holds_committed merge_replaced_newer]
            commit a r9 alone=1 on=w1 -> Bound w1 v3 [merge_ignored_conflict]
            release a v=1 -> Bound w1 v3 [release_late]
            touch a v=1 -> Bound w1 v3 [touch_late]
            fail a r1 -> Bound w1 v3 [failed_late]
            show a -> Bound w1 v3
            release a v=3 -> Released - v4 [released]
            show a -> Released - v4
            release a v=3 -> Released - v4 [release_late]
        "#]],
    );
}

#[test]
fn s3_7_a_full_table_evicts_the_oldest_idle_and_then_goes_unpinned() {
    let mut world = World::new(Limits { sessions_max: 2, ..Limits::SERVICE });
    expect![[r#"
        worker w1 -> Created
        route a r1 -> held w1 v1 least_loaded
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        wait 1s -> 1 sessions, 0 held, 1 vms
        route b r2 -> held w1 v2 least_loaded
        route c r3 -> held w1 v3 least_loaded
        show a -> none
        route d r4 -> unpinned w1 v0 table_full
        count sessions_evicted -> 1
        count unpinned_table_full -> 1
    "#]].assert_eq(&world.play(
        "worker w1; route a r1; commit a r1; wait 1s; route b r2; route c r3; show a; route d r4; count sessions_evicted; count unpinned_table_full",
    ));
}

#[test]
fn s3_8_released_by_the_final_turn_or_by_hand() {
    check(
        "worker w1; route a r1; commit a r1; release a v=1; moves; route a r2; commit a r2; delete a; show a; delete a; moves",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            release a v=1 -> Released - v2 [released]
            moves -> released v2
            route a r2 -> held w1 v3 least_loaded
            commit a r2 -> Bound w1 v3 [holds_committed merge_replaced_newer]
            delete a -> done
            show a -> Released - v4
            delete a -> refused: session c701fc0e… is not bound
            moves -> released v4
        "#]],
    );
}

#[test]
fn s4_hard_goes_to_its_slot_whatever_the_load() {
    played(
        |_| (),
        "worker w1; worker w2; route a r1; commit a r1; report B w1=99; route a r2",
        &expect![[r#"
        worker w1 -> Created
        worker w2 -> Created
        route a r1 -> held w1 v1 least_loaded
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        report B w1=99 -> w1=99+0 w2=0+0
        route a r2 -> bound w1 v1 bound
    "#]],
    );
}

#[test]
fn s4_soft_leaves_past_its_margin() {
    played(
        |pool| pool.affinity = Affinity::Soft,
        "worker w1; worker w2; route a r1; commit a r1; report B w1=2; route a r2; report A; report B w1=3; wait 50ms; report B w1=3; route a r3",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            report B w1=2 -> w1=2+0 w2=0+0
            route a r2 -> bound w1 v1 bound
            report A -> w1=2+0 w2=0+0
            report B w1=3 -> w1=3+0 w2=0+0
            wait 50ms -> 1 sessions, 0 held, 2 vms
            report B w1=3 -> w1=3+0 w2=0+0
            route a r3 -> held w2 v2 moved
        "#]],
    );
}

#[test]
fn s4_off_keeps_nothing() {
    played(
        |pool| pool.affinity = Affinity::Off,
        "worker w1 ranks=0..4; route a r1; commit a r1 alone=1/5 on=w1; show a",
        &expect![[r#"
            worker w1 ranks=0..4 -> Created
            route a r1 -> unpinned w1 v0 least_loaded
            commit a r1 alone=1/5 on=w1 -> none [commit_unstored]
            show a -> none
        "#]],
    );
}

#[test]
fn s4_slot_gone_binds_anew_in_the_same_request() {
    for gone in ["remove w1", "probe w1 ---", "worker w1 ranks=0..2"] {
        let mut world = World::of(|_| ());
        world.play("worker w1 ranks=0..8; worker w2; commit a r1 alone=1/5 on=w1:7");
        world.play(gone);
        world.play("report B w1=9");
        let said = world.play("route a r2; show a; commit a r2; moves");
        assert!(said.starts_with("route a r2 -> held w2 v2 rebound\nshow a -> Held"), "{gone}: {said}");
        assert!(said.ends_with("moves -> w2 v2\n"), "{gone}: {said}");
    }
}

#[test]
fn s4_refused_or_reset_keeps_the_binding_while_the_slot_is_suspect() {
    played(
        |_| (),
        "worker w1; worker w2; route a r1; commit a r1; slot w1 refused count=2; route a r2; route b r3; probe w1 ---; route a r4",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            slot w1 refused count=2 -> Suspect
            route a r2 -> bound w1 v1 bound
            route b r3 -> held w2 v2 least_loaded
            probe w1 --- -> Down
            route a r4 -> held w2 v3 rebound
        "#]],
    );
}

#[test]
fn s4_a_5xx_answer_keeps_the_binding_and_counts_in_the_failure_memory() {
    played(
        |_| (),
        "worker w1; worker w2; route a r1; commit a r1; slot w1 5xx; report A; route a r2; report A; route b r3; show a",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            slot w1 5xx -> Joining
            report A -> w1=0+0 w2=0+0
            route a r2 -> bound w1 v1 bound
            report A -> w1=0+0 w2=0+0
            route b r3 -> held w2 v2 least_loaded
            show a -> Bound w1 v1
        "#]],
    );
}

#[test]
fn s4_draining_keeps_its_sessions_until_the_deadline() {
    played(
        |_| (),
        "worker w1; worker w2; route a r1; commit a r1; drain w1 10s; route a r2; route b r3; wait 10s alive=A; route a r4",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            drain w1 10s -> done
            route a r2 -> bound w1 v1 bound
            route b r3 -> held w2 v2 least_loaded
            wait 10s alive=A -> 2 sessions, 1 held, 1 vms
            route a r4 -> held w2 v3 rebound
        "#]],
    );
}

fn named(script: &str, expected: &Expect) {
    let mut world = World::of(|_| ());
    world.play("worker w1 ranks=4..8; worker w2 ranks=4..8; worker o1 pool=other; commit session-1 r1 alone=1/5 on=w1:6");
    expected.assert_eq(&world.play(script));
}

#[test]
fn s6_worker_and_rank_exactly() {
    named(
        "route b r2 named=w2:7; route c r3 named=w1",
        &expect![[r#"
        route b r2 named=w2:7 -> held w2:7 v1 named
        route c r3 named=w1 -> held w1:7 v2 named
    "#]],
    );
}

#[test]
fn s6_disagrees_with_the_binding_400_and_unchanged() {
    named(
        "route session-1 r2 named=w2; route session-1 r3 named=w1:5; show session-1",
        &expect![[r#"
        route session-1 r2 named=w2 -> refused - v0 bound_elsewhere
        route session-1 r3 named=w1:5 -> refused - v0 bound_elsewhere
        show session-1 -> Bound w1:6 v1/5
    "#]],
    );
}

#[test]
fn s6_only_the_worker_the_bound_rank_is_merged_in() {
    named(
        "route session-1 r2 named=w1",
        &expect![[r#"
        route session-1 r2 named=w1 -> bound w1:6 v1/5 bound
    "#]],
    );
}

#[test]
fn s6_a_rank_for_a_worker_only_binding_is_the_hashed_one_or_400() {
    named(
        "commit conv-42 r2 alone=1/5 on=w2; route conv-42 r3 named=w2:5; route conv-42 r4 named=w2:6; show conv-42",
        &expect![[r#"
            commit conv-42 r2 alone=1/5 on=w2 -> Bound w2 v1/5 [merge_inserted]
            route conv-42 r3 named=w2:5 -> refused - v0 bound_elsewhere
            route conv-42 r4 named=w2:6 -> bound w2:6 v2 rank_added
            show conv-42 -> Bound w2:6 v2
        "#]],
    );
}

#[test]
fn s6_unknown_404_draining_or_down_503() {
    named(
        "route b r2 named=w9; route b r3 named=o1; drain w2; route b r4 named=w2; resume w2; probe w2 ---; route b r5 named=w2",
        &expect![[r#"
            route b r2 named=w9 -> refused - v0 worker_unknown
            route b r3 named=o1 -> refused - v0 worker_unknown
            drain w2 -> done
            route b r4 named=w2 -> refused - v0 worker_unavailable
            resume w2 -> done
            probe w2 --- -> Down
            route b r5 named=w2 -> refused - v0 worker_unavailable
        "#]],
    );
}

#[test]
fn s6_direct_without_a_target_400() {
    played(
        |pool| pool.policy = Policy::Direct,
        "worker w1; route a r1; route a r2 named=w1; route - r3",
        &expect![[r#"
            worker w1 -> Created
            route a r1 -> refused - v0 worker_required
            route a r2 named=w1 -> held w1 v1 named
            route - r3 -> refused - v0 worker_required
        "#]],
    );
}

#[test]
fn s6_a_dry_run_honours_a_binding_and_creates_nothing() {
    named(
        "route session-1 r2 dry=1; route b r3 dry=1; show b; route b r4 named=w2:7 dry=1; show b; count route_bound; count route_held; report A",
        &expect![[r#"
            route session-1 r2 dry=1 -> bound w1:6 v1/5 bound
            route b r3 dry=1 -> held w1:7 v0 least_loaded
            show b -> none
            route b r4 named=w2:7 dry=1 -> held w2:7 v0 named
            show b -> none
            count route_bound -> 0
            count route_held -> 0
            report A -> o1=0+0 w1=0+0 w2=0+0
        "#]],
    );
}

#[test]
fn s8_nothing_have_any_inserted() {
    check(
        "worker w1; commit a r1 alone=3/9 on=w1",
        &expect![[r#"
        worker w1 -> Created
        commit a r1 alone=3/9 on=w1 -> Bound w1 v3/9 [merge_inserted]
    "#]],
    );
}

#[test]
fn s8_a_hold_of_the_same_slot_joins_and_of_another_gives_way() {
    check(
        "worker w1; worker w2; route a r1; commit a r2@B alone=3/9 on=w1; route b r3; commit b r4@B alone=3/9 on=w2; show a; show b; commit b r3; show b",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r2@B alone=3/9 on=w1 -> Bound w1 v3/9 [holds_gave_way merge_inserted]
            route b r3 -> held w2 v2 least_loaded
            commit b r4@B alone=3/9 on=w2 -> Bound w2 v3/9 [holds_gave_way merge_inserted]
            show a -> Bound w1 v3/9
            show b -> Bound w2 v3/9
            commit b r3 -> Bound w2 v3/9 [merge_ignored_conflict]
            show b -> Bound w2 v3/9
        "#]],
    );
}

#[test]
fn s8_the_same_version_is_refreshed() {
    check(
        "worker w1; commit a r1 alone=3/9 on=w1; wait 1000s; commit a r1 alone=3/9 on=w1; wait 1000s; show a",
        &expect![[r#"
            worker w1 -> Created
            commit a r1 alone=3/9 on=w1 -> Bound w1 v3/9 [merge_inserted]
            wait 1000s -> 1 sessions, 0 held, 0 vms
            commit a r1 alone=3/9 on=w1 -> Bound w1 v3/9 [merge_refreshed]
            wait 1000s -> 1 sessions, 0 held, 0 vms
            show a -> Bound w1 v3/9
        "#]],
    );
}

#[test]
fn s8_a_lower_version_is_replaced_whatever_its_slot() {
    check(
        "worker w1; worker w2; commit a r1 alone=3/9 on=w1; commit a r2 alone=4/1 on=w2; commit b r3 alone=3/1 on=w1; commit b r4 alone=3/2 on=w2",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            commit a r1 alone=3/9 on=w1 -> Bound w1 v3/9 [merge_inserted]
            commit a r2 alone=4/1 on=w2 -> Bound w2 v4/1 [merge_replaced_newer]
            commit b r3 alone=3/1 on=w1 -> Bound w1 v3/1 [merge_inserted]
            commit b r4 alone=3/2 on=w2 -> Bound w2 v3/2 [merge_replaced_newer]
        "#]],
    );
}

#[test]
fn s8_a_higher_version_stays_and_a_release_is_stale() {
    check(
        "worker w1; worker w2; commit a r1 alone=4/9 on=w1; commit a r2 alone=3/10 on=w2; delete a; commit a r3 alone=4/9 on=w2; show a",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            commit a r1 alone=4/9 on=w1 -> Bound w1 v4/9 [merge_inserted]
            commit a r2 alone=3/10 on=w2 -> Bound w1 v4/9 [merge_ignored_conflict]
            delete a -> done
            commit a r3 alone=4/9 on=w2 -> Released - v5 [merge_ignored_stale]
            show a -> Released - v5
        "#]],
    );
}

#[test]
fn s8_a_worker_not_known_yet_is_parked() {
    check(
        "upload a on=w1 v=3/9; show a; route b r1; worker w1; show a; count unparked",
        &expect![[r#"
        upload a on=w1 v=3/9 -> none [upload_parked]
        show a -> none
        route b r1 -> noworker - v0 no_worker
        worker w1 -> Created
        show a -> Bound w1 v3/9
        count unparked -> 1
    "#]],
    );
}
