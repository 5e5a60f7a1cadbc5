//! Engines differ in what they read: where no rank is read none is sent and none is counted, and the session keeps its slot.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::config::Steering;
use routing::contract::{Engine, RankIn, WorkerInfo};
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

/// Every worker is such an engine.
fn all(steering: Steering, change: impl Fn(&mut WorkerInfo)) -> World {
    World::with(|world| {
        world.config.steering = steering;
        world.topology.workers.iter_mut().for_each(&change);
    })
}

/// A bound session: a turn that is told its rank, one on another path, and the first again, each with a report while it runs.
const TURNS: &str = "head session=s; route bound w0 rank 2 v1; answer 200; end;
    a: head session=s path=/v1/chat/completions; report; a: end;
    b: head session=s path=PATH; report; b: end;
    c: head session=s path=/v1/chat/completions; c: end; page s; load";

#[test]
fn embeddings_carry_no_rank_and_load_no_slot() {
    check(
        all(Steering::Cluster, |_| {}),
        &TURNS.replace("PATH", "/v1/embeddings"),
        expect![[r#"
            head session=s -> pause, ask
            route bound w0 rank 2 v1 -> put bound w0/2 v1, #routed_bound, resume, to worker-w0 rank 2
            answer 200 -> nothing
            end -> nothing
            a: head session=s path=/v1/chat/completions -> continue, #pinned, to worker-w0 rank 2
            report -> [] load [w0/2x1]
            a: end -> nothing
            b: head session=s path=/v1/embeddings -> continue, #pinned, to worker-w0
            report -> [] load [w0x1]
            b: end -> nothing
            c: head session=s path=/v1/chat/completions -> continue, #pinned, to worker-w0 rank 2
            c: end -> nothing
            page s -> bound w0/2 v1
            load -> 0
        "#]],
    );
}

#[test]
fn old_vllm_reads_no_rank_of_responses() {
    let old = |worker: &mut WorkerInfo| worker.engine_version = Some("0.32.0".to_owned());
    check(
        all(Steering::Cluster, old),
        &TURNS.replace("PATH", "/v1/responses"),
        expect![[r#"
        head session=s -> pause, ask
        route bound w0 rank 2 v1 -> put bound w0/2 v1, #routed_bound, resume, to worker-w0 rank 2
        answer 200 -> nothing
        end -> nothing
        a: head session=s path=/v1/chat/completions -> continue, #pinned, to worker-w0 rank 2
        report -> [] load [w0/2x1]
        a: end -> nothing
        b: head session=s path=/v1/responses -> continue, #pinned, to worker-w0
        report -> [] load [w0x1]
        b: end -> nothing
        c: head session=s path=/v1/chat/completions -> continue, #pinned, to worker-w0 rank 2
        c: end -> nothing
        page s -> bound w0/2 v1
        load -> 0
    "#]],
    );
}

#[test]
fn a_rank_for_the_body_is_left_out_where_nobody_could_write_it() {
    let old = |worker: &mut WorkerInfo| {
        (worker.engine, worker.rank_in) = (Engine::Sglang, RankIn::Body);
        worker.engine_version = Some("0.5.9".to_owned());
    };
    check(
        all(Steering::Cluster, old),
        &TURNS.replace("PATH", "/v1/responses"),
        expect![[r#"
        head session=s -> pause, ask
        route bound w0 rank 2 v1 -> put bound w0/2 v1, #routed_bound, resume, to worker-w0
        answer 200 -> nothing
        end -> nothing
        a: head session=s path=/v1/chat/completions -> continue, #pinned, to worker-w0
        report -> [] load [w0x1]
        a: end -> nothing
        b: head session=s path=/v1/responses -> continue, #pinned, to worker-w0
        report -> [] load [w0x1]
        b: end -> nothing
        c: head session=s path=/v1/chat/completions -> continue, #pinned, to worker-w0
        c: end -> nothing
        page s -> bound w0/2 v1
        load -> 0
    "#]],
    );
}

#[test]
fn a_retry_that_lands_on_another_engine_is_counted_as_that_one_reads() {
    let mixed = |worker: &mut WorkerInfo| {
        if worker.id.as_str() == "w1" {
            worker.engine = Engine::Trtllm;
        }
    };
    check(
        all(Steering::Endpoints, mixed),
        "head session=session-1; route bound w0 rank 2 v1; try w0; report; try w1 200; report; answer 200; end; load",
        expect![[r#"
            head session=session-1 -> pause, ask
            route bound w0 rank 2 v1 -> put bound w0/2 v1, #routed_bound, resume, to pool-chat [10.0.0.1:80,10.0.0.2:80,10.0.0.3:80]
            try w0 -> rank 2
            report -> [] load [w0/2x1]
            try w1 200 -> no rank
            report -> [slot w0/2 failed x1: Connection] load [w1x1]
            answer 200 -> not looked at
            end -> nothing
            load -> 0
        "#]],
    );
}
