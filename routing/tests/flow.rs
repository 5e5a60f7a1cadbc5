//! A binding's life as the filter sees it: first turn, commit, pinned turns, idle time, endings.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::flow::Counter;
use routing::hash::rank_hash;
use routing::id::{Epoch, RequestId};
use routing::time::Millis;
use std::collections::BTreeSet;
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(script: &str, expected: Expect) {
    expected.assert_eq(&World::new().run(script));
}

#[test]
fn a_first_turn_asks_and_commits_and_the_next_is_pinned() {
    check(
        "head session=s; page s; route held w1 rank 5 v1 hold 9; page s; load; answer 200; page s; end; load;
         report; @4000; head session=s; answer 200; end; load; report",
        expect![[r#"
            head session=s -> pause, ask
            page s -> empty
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            page s -> held w1/5 v1
            load -> 1
            answer 200 -> put bound w1/5 v1, #committed
            page s -> bound w1/5 v1
            end -> nothing
            load -> 0
            report -> [committed r1 hold 9 w1/5 v1] load []
            head session=s -> continue, #pinned, to worker-w1 rank 5
            answer 200 -> nothing
            end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
}

#[test]
fn a_pinned_turn_makes_no_call_and_no_page_write_on_any_vm_of_its_envoy() {
    check(
        "head session=s; route bound w1 rank 5 v3; end;
         b: head session=s vm=1; b: answer 500; b: end;
         c: head session=s vm=2",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            b: head session=s vm=1 -> continue, #pinned, to worker-w1 rank 5
            b: answer 500 -> nothing
            b: end -> nothing
            c: head session=s vm=2 -> pause, ask
        "#]],
    );
}

#[test]
fn an_engines_4xx_commits() {
    for status in ["400", "404", "429", "499"] {
        let trace = World::new().run(&format!(
            "head session=s; route held w1 rank 5 v1 hold 9; answer {status}; end; page s; report"
        ));
        assert!(trace.contains("page s -> bound w1/5 v1"), "{trace}");
        assert!(trace.contains("committed r1 hold 9 w1/5 v1"), "{trace}");
    }
}

#[test]
fn a_stream_that_breaks_later_keeps_the_binding() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; answer 200; end; page s; head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            page s -> bound w1/5 v1
            head session=s -> continue, #pinned, to worker-w1 rank 5
        "#]],
    );
}

#[test]
fn a_bound_turn_that_fails_stays_bound() {
    check(
        "head session=s; route bound w1 rank 5 v3; answer 500; end; b: head session=s; b: end; page s; load; report",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            answer 500 -> nothing
            end -> nothing
            b: head session=s -> continue, #pinned, to worker-w1 rank 5
            b: end -> nothing
            page s -> bound w1/5 v3
            load -> 0
            report -> [slot w1/5 failed x1: Status5xx] load []
        "#]],
    );
}

#[test]
fn a_binding_is_touched_once_in_an_eighth_of_its_ttl() {
    check(
        "head session=s; route bound w1 rank 5 v3; end; report;
         @225999; head session=s; end; report; @226000; head session=s; end; page s; report;
         @450999; head session=s; end; report",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            report -> [] load []
            head session=s -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            report -> [] load []
            head session=s -> continue, put bound w1/5 v3, #pinned, to worker-w1 rank 5
            end -> nothing
            page s -> bound w1/5 v3
            report -> [touched v3] load []
            head session=s -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            report -> [] load []
        "#]],
    );
}

#[test]
fn an_idle_binding_is_asked_for_again() {
    check(
        "head session=s; route bound w1 rank 5 v3; end; @1801000; b: head session=s; b: end;
         @5000000; head session=s; route bound w0 rank 1 v4; end; page s",
        expect![[r#"
            head session=s -> pause, ask
            route bound w1 rank 5 v3 -> put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            b: head session=s -> continue, put bound w1/5 v3, #pinned, to worker-w1 rank 5
            b: end -> nothing
            head session=s -> pause, ask cached w1/5 v3 unsent [touched v3]
            route bound w0 rank 1 v4 -> put bound w0/1 v4, #routed_bound, resume, to worker-w0 rank 1
            end -> nothing
            page s -> bound w0/1 v4
        "#]],
    );
}

#[test]
fn several_sessions_do_not_touch_each_other() {
    check(
        "head session=s; b: head session=t; c: head session=u vm=1;
         b: route held w0 rank 1 v1 hold 2; route held w1 rank 5 v1 hold 1; c: route held w2 v1 hold 3;
         b: answer 503; answer 200; c: answer 200; c: end; b: end; end; page s; page t; page u; load; report; report 1",
        expect![[r#"
            head session=s -> pause, ask
            b: head session=t -> pause, ask
            c: head session=u vm=1 -> pause, ask
            b: route held w0 rank 1 v1 hold 2 -> put held w0/1 v1, #routed_held, resume, to worker-w0 rank 1
            route held w1 rank 5 v1 hold 1 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            c: route held w2 v1 hold 3 -> put held w2 v1, #routed_held, resume, to worker-w2
            b: answer 503 -> nothing
            answer 200 -> put bound w1/5 v1, #committed
            c: answer 200 -> put bound w2 v1, #committed
            c: end -> nothing
            b: end -> forget v1, #rolled_back, report now
            end -> nothing
            page s -> bound w1/5 v1
            page t -> empty
            page u -> bound w2 v1
            load -> 0
            report -> [slot w0/1 failed x1: Connection, committed r1 hold 1 w1/5 v1, failed r2 hold 2] load []
            report 1 -> [committed r1 hold 3 w2 v1] load []
        "#]],
    );
}

#[test]
fn an_unpinned_answer_binds_nothing() {
    check(
        "head session=s; route unpinned w1 rank 5; answer 200; end; page s; report; load",
        expect![[r#"
            head session=s -> pause, ask
            route unpinned w1 rank 5 -> #routed_unpinned, resume, to worker-w1 rank 5
            answer 200 -> nothing
            end -> nothing
            page s -> empty
            report -> [] load []
            load -> 0
        "#]],
    );
}

#[test]
fn inputs_that_make_no_sense_are_ignored_and_counted() {
    check(
        "head session=s; route held w1 rank 5 v1 hold 9; route held w0 rank 1 v2 hold 8; head session=s;
         route timeout; answer 200; page s; end; load",
        expect![[r#"
            head session=s -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            route held w0 rank 1 v2 hold 8 -> #ignored_late_route
            head session=s -> continue, #ignored_second_head
            route timeout -> #ignored_late_route
            answer 200 -> put bound w1/5 v1, #committed
            page s -> bound w1/5 v1
            end -> nothing
            load -> 0
        "#]],
    );
}

#[test]
fn a_single_rank_is_bound_without_a_rank() {
    check(
        "head session=s; route held w2 v1 hold 9; answer 200; end; page s; report; head session=s",
        expect![[r#"
            head session=s -> pause, ask
            route held w2 v1 hold 9 -> put held w2 v1, #routed_held, resume, to worker-w2
            answer 200 -> put bound w2 v1, #committed
            end -> nothing
            page s -> bound w2 v1
            report -> [committed r1 hold 9 w2 v1] load []
            head session=s -> continue, #pinned, to worker-w2
        "#]],
    );
}

#[test]
fn the_load_returns_to_zero_after_every_ending() {
    for ending in [
        "end",
        "answer 200; end",
        "answer 500; end",
        "answer envoy 503; end",
        "answer envoy 413; end",
        "fleet w1 down; end",
        "remove w1; answer 200; end",
        "remove-pool; end",
        "ranks w1 4 1; answer 200; end",
        "generation 4; end",
    ] {
        for (start, what) in [
            ("head session=s; route held w1 rank 5 v1 hold 9", "held"),
            ("head session=s; route bound w1 rank 5 v1", "bound"),
            ("head session=s; route unpinned w1", "unpinned"),
            ("head session=s; route timeout", "alone"),
            ("head", "no session"),
        ] {
            for mut world in [World::new(), World::endpoints()] {
                let trace = world.run(&format!("{start}; load; {ending}; load"));
                assert!(trace.contains("load -> 1\n") && trace.ends_with("load -> 0\n"), "{what}\n{trace}");
                assert!(world.vms.iter().all(|vm| vm.plans.is_empty()), "{what}: a plan leaked\n{trace}");
            }
        }
    }
}

#[test]
fn a_question_names_caller_pool_and_session_and_not_the_key() {
    let mut world = World::new();
    world.run("head session=hunter2 vm=2");
    let question = world.question.clone().unwrap();
    assert_eq!((question.caller.node.as_str(), question.caller.vm), ("envoy", Epoch(103)));
    assert_eq!((question.pool.as_str(), question.request), ("chat", RequestId(1)));
    let session = question.session.unwrap();
    assert_eq!((session.id, session.rank_hash), (world.session("hunter2"), rank_hash(b"hunter2")));
    assert_eq!((question.deadline_ms, question.cached), (Millis(30), None));
    assert!(!format!("{question:?}").contains("hunter2"));
    assert!(!serde_json::to_string(&question).unwrap().contains("hunter2"));
}

#[test]
fn every_counter_has_a_word_of_its_own() {
    let words: BTreeSet<&str> = Counter::ALL.iter().map(|counter| counter.word()).collect();
    assert_eq!(words.len(), Counter::ALL.len());
    assert!(
        words
            .iter()
            .all(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'))
    );
}
