//! What the service may count for a request in a pool that goes by caches: told once that it is over, however it ended; and what
//! is told of the overlap it was chosen for.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

/// How often a request is told to be over, of all that a VM has to tell.
fn endings(world: &mut World, request: u64) -> usize {
    let told = world.run("report");
    told.matches(&format!("ended r{request},")).count() + told.matches(&format!("ended r{request}]")).count()
}

#[test]
fn a_request_is_over_once_in_every_way_it_can_end() {
    let placed = [
        "route held w1 rank 5 v1 hold 9",
        "route bound w1 rank 5 v1",
        "route unpinned w1",
        "route timeout",
        "route failed",
        "route malformed",
        "route unsure",
        "route no_worker",
    ];
    let answers = [
        "answer 200",
        "answer 200; said ok",
        "answer 503",
        "answer envoy 503",
        "answer envoy 504",
        "answer 429 5",
        "answer 200; end broken",
        "",
    ];
    let refused = [
        "route refused overloaded",
        "route refused excluded",
        "",
        "route timeout; route held w1 rank 5 v1 hold 9",
        "remove-pool; route timeout",
    ];
    for session in ["session=s", ""] {
        for (placed, answer) in
            placed.iter().flat_map(|placed| answers.iter().map(move |answer| (placed, answer)))
        {
            let mut world = World::endpoints().aware();
            world.run(&format!("head {session} body; body {{}}; {placed}; try w1 200; {answer}"));
            world.run(if answer.ends_with("broken") { "" } else { "end" });
            assert_eq!(endings(&mut world, 1), 1, "{session} {placed} {answer}");
            assert_eq!(world.run("load; report"), "load -> 0\nreport -> [] load []\n");
        }
        for script in refused {
            let mut world = World::kv();
            world.run(&format!("head {session} body; body {{}}; {script}"));
            assert_eq!(endings(&mut world, 1), 0, "{session} {script}: while it runs");
            world.run("end");
            assert_eq!(endings(&mut world, 1), 1, "{session} {script}");
        }
    }
}

#[test]
fn what_was_never_asked_is_never_over() {
    check(
        World::kv(),
        r#"head session=s body; end; b: head session=s body; b: body {"a…; b: end; c: head session=s body; c: body {}; c: route held w1 rank 5 v1 hold 9; c: answer 200; c: end; report;
         d: head session=s body; d: answer 200; d: end; e: head method=GET; e: end; report"#,
        expect![[r#"
            head session=s body -> read
            end -> nothing
            b: head session=s body -> read
            b: body {"a… -> read
            b: end -> nothing
            c: head session=s body -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            c: route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            c: answer 200 -> put bound w1/5 v1, #committed
            c: end -> nothing
            report -> [committed r1 hold 9 w1/5 v1, ended r1] load []
            d: head session=s body -> continue, #pinned, to worker-w1 rank 5
            d: answer 200 -> nothing
            d: end -> nothing
            e: head method=GET -> continue, #session_key_missing, to worker-w1
            e: end -> nothing
            report -> [] load []
        "#]],
    );
    // Nor in any other pool.
    check(
        World::new(),
        "head session=s body; route held w1 rank 5 v1 hold 9; answer 200; said ok; end; report",
        expect![[r#"
            head session=s body -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            said ok -> not looked at
            end -> nothing
            report -> [committed r1 hold 9 w1/5 v1] load []
        "#]],
    );
}

#[test]
fn the_first_byte_of_an_answer_is_told_once() {
    check(
        World::kv(),
        r#"head session=s body; body {}; route held w1 rank 5 v1 hold 9; said x…; report; answer 200; said x…; said y; end; report;
         b: head body; b: body {}; b: route unpinned w1; b: answer 200; b: said …; b: said x…; report; b: said y; b: end; report"#,
        expect![[r#"
            head session=s body -> read
            body {} -> pause, ask prompt /v1/chat/completions {} within 250
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            said x… -> nothing
            report -> [prefilled r1] load [w1/5x1]
            answer 200 -> put bound w1/5 v1, #committed
            said x… -> not looked at
            said y -> not looked at
            end -> nothing
            report -> [committed r1 hold 9 w1/5 v1, ended r1] load []
            b: head body -> read
            b: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            b: route unpinned w1 -> #routed_unpinned, resume, to worker-w1
            b: answer 200 -> nothing
            b: said … -> nothing
            b: said x… -> nothing
            report -> [prefilled r2] load [w1x1]
            b: said y -> not looked at
            b: end -> nothing
            report -> [ended r2] load []
        "#]],
    );
}

#[test]
fn both_halves_of_a_split_request_are_over() {
    check(
        World::split().aware(),
        r#"head session=s body; body {}; route held wd1 rank 5 v1 hold 9 + held wp0 rank 2 v2 hold 8; report; answer 200; report; end; report;
         b: head session=t body; b: body {}; b: route timeout; b: end; report; c: head session=u body; c: body {}; c: end; report;
         d: head body; d: body {}; d: route unpinned wd1 rank 5 + unpinned wp0 rank 2; d: answer 200; d: end; load; report;
         e: head body; e: body {}; e: route unpinned wd1 rank 5; e: answer 503; e: end; load; report"#,
        expect![[r#"
            head session=s body -> read
            body {} -> pause, ask prompt /v1/chat/completions {} within 250 + prefill r2
            route held wd1 rank 5 v1 hold 9 + held wp0 rank 2 v2 hold 8 -> put held wp0/2 v2, put held wd1/5 v1, #routed_held, resume, to worker-wd1 rank 5, prefill at 10.0.1.1:80 rank 2
            report -> [] load [wd1/5x1, wp0/2x1]
            answer 200 -> put bound wp0/2 v2, #committed, report now, put bound wd1/5 v1, #committed
            report -> [committed r2 hold 8 wp0/2 v2, ended r2, committed r1 hold 9 wd1/5 v1] load [wd1/5x1]
            end -> nothing
            report -> [ended r1] load []
            b: head session=t body -> read
            b: body {} -> pause, ask prompt /v1/chat/completions {} within 250 + prefill r4
            b: route timeout -> #route_timeout, #placed_alone, resume, to worker-wd0 rank 1, prefill at 10.0.1.1:80 rank 1
            b: end -> #rolled_back, report now, #rolled_back, report now
            report -> [ended r4, ended r3, failed r4, failed r3] load []
            c: head session=u body -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250 + prefill r6
            c: end -> #rolled_back, report now, #rolled_back, report now
            report -> [ended r6, ended r5, failed r6, failed r5] load []
            d: head body -> read
            d: body {} -> pause, ask prompt /v1/chat/completions {} within 250 + prefill r8 without a session
            d: route unpinned wd1 rank 5 + unpinned wp0 rank 2 -> #routed_unpinned, resume, to worker-wd1 rank 5, prefill at 10.0.1.1:80 rank 2
            d: answer 200 -> nothing
            d: end -> nothing
            load -> 0
            report -> [ended r8, ended r7] load []
            e: head body -> read
            e: body {} -> pause, ask prompt /v1/chat/completions {} within 250 + prefill r10 without a session
            e: route unpinned wd1 rank 5 -> #routed_unpinned, resume, to worker-wd1 rank 5, prefill at 10.0.1.1:80
            e: answer 503 -> nothing
            e: end -> nothing
            load -> 0
            report -> [slot wd1/5 failed x1: Connection, ended r10, ended r9] load []
        "#]],
    );
}

#[test]
fn a_bound_half_beside_one_that_is_not_brings_the_prompt() {
    let mut world = World::split().aware();
    world.run("head session=s body; body {}; route held wd1 rank 5 v1 hold 9 + held wp0 rank 2 v2 hold 8; answer 200; end; report");
    let half = world.session("s@prefill");
    world.forget(half);
    assert_eq!(world.run("head session=s body; end"), "head session=s body -> read\nend -> nothing\n");
}

#[test]
fn clients_and_logs_are_told_how_much_was_cached_where_the_request_went() {
    let told = |steering: World, script: &str| {
        let mut world = steering.but(|world| world.config.served_header = true).aware();
        let trace = world.run(&format!("head session=s body; body {{}}; {script}"));
        let note = world.note("a").unwrap().split(";w=").nth(1).unwrap().to_owned();
        format!(
            "{} | {note}",
            trace.lines().last().unwrap().split_once(" [").map_or("-", |(_, header)| header)
        )
    };
    let held = "route held w1 rank 5 v1 hold 9 overlap 41/52";
    assert_eq!(
        told(World::new(), &format!("{held}; answer 200")),
        "x-rankpin-served: w1;rank=5;reason=overlap;blocks=41/52] | w1;r=5;why=routed_held;blocks=41/52"
    );
    assert_eq!(
        told(World::endpoints(), &format!("{held}; try w1 200; answer 200")),
        "x-rankpin-served: w1;rank=5;reason=overlap;blocks=41/52] | w1;r=5;why=routed_held;blocks=41/52"
    );
    assert_eq!(
        told(World::new(), "route held w1 rank 5 v1 hold 9 overlap 0/52; answer 200"),
        "x-rankpin-served: w1;rank=5;reason=kv_aware;blocks=0/52] | w1;r=5;why=routed_held;blocks=0/52"
    );
    // Another worker has something else.
    assert_eq!(
        told(World::endpoints(), &format!("{held}; try w1; try w0 200; answer 200")),
        "x-rankpin-served: w0;rank=3;reason=routed_held] | w1;r=5;why=routed_held;blocks=41/52"
    );
    assert_eq!(
        told(World::new(), "route held w1 rank 5 v1 hold 9; answer 200"),
        "x-rankpin-served: w1;rank=5;reason=routed_held] | w1;r=5;why=routed_held"
    );
    assert_eq!(told(World::new(), &format!("{held}; answer 503")), "- | w1;r=5;why=routed_held;blocks=41/52");
}

#[test]
fn a_chain_that_nobody_knows_is_placed_by_the_answer_that_says_so() {
    let world = World::configured(r#"{"response_ids": true}"#).aware();
    check(
        world,
        r#"head body path=/v1/responses; body {"previous_response_id":"r1"}; route unpinned w1 rank 5; answer 200; end; report;
         b: head body path=/v1/responses; b: body {"previous_response_id":"r1"}; b: route bound w1 rank 5 v3 session s; b: answer 200; b: end; report;
         c: head body path=/v1/responses; c: body {"previous_response_id":"r2"}; c: route timeout; c: end; report"#,
        expect![[r#"
            head body path=/v1/responses -> read
            body {"previous_response_id":"r1"} -> pause, ask prompt /v1/responses {"previous_response_id":"r1"} within 250 alias 174ec240
            route unpinned w1 rank 5 -> #routed_unpinned, resume, to worker-w1 rank 5
            answer 200 -> nothing
            end -> nothing
            report -> [ended r1] load []
            b: head body path=/v1/responses -> read
            b: body {"previous_response_id":"r1"} -> pause, ask prompt /v1/responses {"previous_response_id":"r1"} within 250 alias 174ec240
            b: route bound w1 rank 5 v3 session s -> put alias of 3f545be1, put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
            b: answer 200 -> nothing
            b: end -> nothing
            report -> [ended r2] load []
            c: head body path=/v1/responses -> read
            c: body {"previous_response_id":"r2"} -> pause, ask prompt /v1/responses {"previous_response_id":"r2"} within 250 alias 24ee6018
            c: route timeout -> #route_timeout, #session_key_missing, resume, to worker-w1
            c: end -> nothing
            report -> [failed r3, ended r3] load []
        "#]],
    );
}

#[cfg(not(target_arch = "wasm32"))]
mod whatever_comes {
    use super::World;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const STEPS: &[&str] = &[
        "head session=s body",
        "head session=t body",
        "head body",
        "head session=s hidden",
        "head method=GET",
        "body {}…",
        "body {}",
        "body \u{e9}…",
        "missing",
        "route held w1 rank 5 v1 hold 9",
        "route held w0 rank 1 v2 hold 3 overlap 1/2",
        "route bound w1 rank 5 v4",
        "route unpinned w0 overlap 0/3",
        "route refused overloaded",
        "route timeout",
        "route unsure",
        "route no_worker",
        "answer 200",
        "answer 503",
        "said x…",
        "said x",
        "end",
        "end broken",
    ];
    const NAMES: &[&str] = &["a", "b", "c"];

    /// Whether Envoy, or the service, would do that to a request that waits for this.
    fn may_come(waits_for: Option<&str>, step: &str) -> bool {
        matches!(
            (step.split(' ').next().unwrap(), waits_for),
            ("head", None)
                | ("end", Some(_))
                | ("body" | "missing", Some("its body"))
                | ("route", Some("the service"))
                | ("answer" | "said", Some("its answer"))
        )
    }

    fn steps() -> impl Strategy<Value = Vec<(usize, usize)>> {
        prop::collection::vec((0..NAMES.len(), 0..STEPS.len()), 0..60)
    }

    proptest! {
        /// Each question is followed by one ending, after it, and none is without its question; nothing is kept of what is over.
        #[test]
        fn every_question_has_one_ending(steps in steps(), split in any::<bool>()) {
            let mut world = if split { World::split().aware() } else { World::endpoints().aware() };
            // What each request that is open waits for.
            let mut open: BTreeMap<&str, &str> = BTreeMap::new();
            let mut asked = BTreeMap::new();
            let mut told = String::new();
            let all = steps.into_iter().map(|(name, step)| (NAMES[name], STEPS[step]));
            for (name, step) in all.chain(NAMES.iter().map(|name| (*name, "end"))) {
                if !may_come(open.get(name).copied(), step) {
                    continue;
                }
                world.question = None;
                let trace = world.run(&format!("{name}: {step}"));
                let (_, what) = trace.split_once("-> ").unwrap();
                let now = [("read", "its body"), ("pause, respond", "nothing"), ("pause", "the service"), ("", "its answer")];
                let now = now.iter().find(|(begin, _)| what.starts_with(begin)).unwrap().1;
                match step.split(' ').next() {
                    Some("end") => drop(open.remove(name)),
                    Some("head" | "body" | "missing" | "route") => drop(open.insert(name, now)),
                    _ => {}
                }
                if let Some(question) = world.question.take() {
                    let half = question.prefill.map(|half| half.request);
                    for request in [Some(question.request), half].into_iter().flatten() {
                        prop_assert_eq!(asked.insert(request.0, told.len()), None);
                    }
                }
                told.push_str(&world.run("report"));
            }
            for (request, from) in &asked {
                let endings = ["ended r{},", "ended r{}]"].map(|form| form.replace("{}", &request.to_string()));
                let count = |text: &str| endings.iter().map(|form| text.matches(form.as_str()).count()).sum::<usize>();
                prop_assert_eq!((count(&told), count(&told[*from..])), (1, 1), "r{} in {}", request, told);
            }
            prop_assert_eq!(told.matches("ended r").count(), asked.len());
            prop_assert_eq!(world.vms[0].prompts.bytes(), 0);
            prop_assert_eq!(world.run("load"), "load -> 0\n");
        }
    }
}
