//! Prompts in pools that go by caches: which turns bring theirs, how much of it, and what becomes of those that cannot.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::pool_name;
use expect_test::{Expect, expect};
use routing::contract::{Affinity, BODY_BYTES_MAX, Prompt, RouteRequest};
use routing::vm::PROMPTS_BYTES_MAX;
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

/// The prompt of the last question: its text, and whether that is all.
fn prompt(world: &World) -> Option<(String, bool)> {
    match *world.question.clone()?.prompt? {
        Prompt::Text { body, whole, .. } => Some((body, whole)),
        other => panic!("{other:?}"),
    }
}

/// A pool that reads 1024 bytes of a prompt.
fn small() -> World {
    World::configured(r#"{"session": {"prompt_bytes_max": 1024}}"#).aware()
}

#[test]
fn a_first_turn_brings_its_prompt_and_a_bound_one_reads_nothing() {
    check(
        World::kv(),
        r#"head session=s body path=/v1/chat/completions?x=1; body {"messages":…; body []}; route held w1 rank 5 v1 hold 9 overlap 2/7; answer 200; end; page s;
         head session=s body; body {"messages":[]}; answer 200; said ok; end; report"#,
        expect![[r#"
            head session=s body path=/v1/chat/completions?x=1 -> read
            body {"messages":… -> read
            body []} -> pause, ask prompt /v1/chat/completions {"messages":[]} within 250
            route held w1 rank 5 v1 hold 9 overlap 2/7 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            page s -> bound w1/5 v1
            head session=s body -> continue, #pinned, to worker-w1 rank 5
            body {"messages":[]} -> continue, to worker-w1 rank 5
            answer 200 -> nothing
            said ok -> not looked at
            end -> nothing
            report -> [committed r1 hold 9 w1/5 v1, ended r1] load []
        "#]],
    );
}

#[test]
fn a_turn_without_a_session_is_placed_by_the_service() {
    check(
        World::kv(),
        r#"head body; body {}; route unpinned w1 rank 5; load w1; answer 200; end; load; report;
         b: head body; b: body {}; b: route unpinned w2; b: end; c: head body; c: body {}; c: route refused overloaded; c: end;
         d: head body; d: body {}; d: route unpinned w9; d: end; e: head body; e: body {}; e: route no_worker; e: end; report"#,
        expect![[r#"
            head body -> read
            body {} -> pause, ask prompt /v1/chat/completions {} within 250
            route unpinned w1 rank 5 -> #routed_unpinned, resume, to worker-w1 rank 5
            load w1 -> 1
            answer 200 -> nothing
            end -> nothing
            load -> 0
            report -> [ended r1] load []
            b: head body -> read
            b: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            b: route unpinned w2 -> #routed_unpinned, resume, to worker-w2
            b: end -> nothing
            c: head body -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            c: route refused overloaded -> #overload_refused, respond 429 retry-after 1 {"error":{"message":"the model workers are overloaded; try again shortly","type":"rate_limit_error","param":null,"code":"overloaded"}}
            c: end -> nothing
            d: head body -> read
            d: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            d: route unpinned w9 -> #session_key_missing, resume, to worker-w0
            d: end -> nothing
            e: head body -> read
            e: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            e: route no_worker -> #session_key_missing, resume, to worker-w0
            e: end -> nothing
            report -> [ended r2, ended r3, ended r4, ended r5] load []
        "#]],
    );
}

#[test]
fn what_has_no_body_is_placed_here() {
    check(
        World::kv(),
        "head method=GET path=/v1/models; end; b: head session=s method=GET; b: route held w1 rank 5 v1 hold 9; b: end",
        expect![[r#"
            head method=GET path=/v1/models -> continue, #session_key_missing, to worker-w1
            end -> nothing
            b: head session=s method=GET -> pause, ask within 250
            b: route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: end -> forget v1, #rolled_back, report now
        "#]],
    );
}

#[test]
fn a_pool_without_tokens_is_asked_at_once() {
    let world = World::kv().but(|world| world.topology.pools[0].reads_prompt = false);
    check(
        world,
        "head session=s body; route held w1 rank 5 v1 hold 9; end; b: head body; b: route unpinned w1 rank 5; b: end; report",
        expect![[r#"
            head session=s body -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            end -> forget v1, #rolled_back, report now
            b: head body -> pause, ask
            b: route unpinned w1 rank 5 -> #routed_unpinned, resume, to worker-w1 rank 5
            b: end -> nothing
            report -> [ended r1, failed r1 hold 9, ended r2] load []
        "#]],
    );
}

#[test]
fn without_affinity_all_turns_are_placed_by_the_service_and_none_is_bound() {
    let world = World::kv().but(|world| world.topology.pools[0].affinity = Affinity::Off);
    check(
        world,
        "head session=s body; body {}; route unpinned w1 rank 5 overlap 1/2; answer 200; end; page s; b: head session=s body; b: body {}; b: route timeout; b: end; report",
        expect![[r#"
            head session=s body -> read
            body {} -> pause, ask prompt /v1/chat/completions {} within 250
            route unpinned w1 rank 5 overlap 1/2 -> #routed_unpinned, resume, to worker-w1 rank 5
            answer 200 -> nothing
            end -> nothing
            page s -> empty
            b: head session=s body -> read
            b: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            b: route timeout -> #route_timeout, #affinity_off, resume, to worker-w1
            b: end -> nothing
            report -> [ended r1, ended r2] load []
        "#]],
    );
}

#[test]
fn of_a_longer_prompt_the_head_is_sent_and_no_character_is_halved() {
    for (last, sent) in [("x", 1024), ("é", 1023), ("€", 1022), ("𝄞", 1021)] {
        let body = format!("{}{last}yyyy", "a".repeat(sent));
        for at in (0..body.len()).step_by(7).chain([sent, sent + 1]) {
            let mut world = small();
            world.run("head session=s body");
            let (front, back) = body.as_bytes().split_at(at);
            let first = world.raw_body("a", front, false);
            let told = if first == "read" { world.raw_body("a", back, false) } else { first };
            assert!(told.starts_with("pause, #body_too_long, ask prompt"), "{at}: {told}");
            assert_eq!(prompt(&world), Some((body[..sent].to_owned(), false)), "{last} {at}");
        }
    }
    let mut world = small();
    world.run(&format!("head session=s body; body {}", "a".repeat(1024)));
    assert_eq!(prompt(&world), Some(("a".repeat(1024), true)));
}

#[test]
fn a_prompt_is_the_same_however_its_body_is_cut_into_parts() {
    let body = r#"{"messages":[{"role":"user","content":"grüße 𝄞"}]}"#;
    for at in 0..=body.len() {
        let mut world = World::kv();
        world.run("head session=s body");
        let (front, back) = body.as_bytes().split_at(at);
        assert_eq!(world.raw_body("a", front, false), "read");
        assert_eq!(world.raw_body("a", back, false), "read");
        world.raw_body("a", b"", true);
        assert_eq!(prompt(&world), Some((body.to_owned(), true)), "{at}");
        assert_eq!(world.vms[0].prompts.bytes(), 0);
    }
}

#[test]
fn what_cannot_be_had_as_text_is_not_sent() {
    check(
        World::kv(),
        r#"head session=s body content-type=audio/wav; end; b: head session=t body content-encoding=gzip; b: end;
         c: head session=u body content-type=application/vnd.x+json; c: body {}; c: end; d: head session=v hidden; d: end; e: head hidden; e: end;
         f: head session=w body method=PUT; f: end; g: head session=x body; g: missing; g: end; h: head session=y body; h: body "#,
        expect![[r#"
            head session=s body content-type=audio/wav -> pause, #prompt_unread, ask within 250
            end -> #rolled_back, report now
            b: head session=t body content-encoding=gzip -> pause, #prompt_unread, ask within 250
            b: end -> #rolled_back, report now
            c: head session=u body content-type=application/vnd.x+json -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            c: end -> #rolled_back, report now
            d: head session=v hidden -> pause, #prompt_unread, ask within 250
            d: end -> #rolled_back, report now
            e: head hidden -> pause, #prompt_unread, ask within 250
            e: end -> nothing
            f: head session=w body method=PUT -> pause, #prompt_unread, ask within 250
            f: end -> #rolled_back, report now
            g: head session=x body -> read
            g: missing -> pause, #body_missing, ask within 250
            g: end -> #rolled_back, report now
            h: head session=y body -> read
            h: body -> pause, #prompt_unread, ask within 250
        "#]],
    );
    for bytes in [&b"\xff{}"[..], b"{\"a\":\"\xc3\"}", b"{}\xe2\x82"] {
        let mut world = World::kv();
        world.run("head session=s body");
        assert_eq!(world.raw_body("a", bytes, true), "pause, #prompt_unread, ask within 250", "{bytes:?}");
    }
}

#[test]
fn a_body_read_for_its_key_is_read_once() {
    let reading = || World::configured(r#"{"session": {"body": true, "prompt_bytes_max": 1024}}"#).aware();
    check(
        reading(),
        r#"head body; body {"session_id":"s"…; body }; route held w1 rank 5 v1 hold 9; answer 200; end;
         b: head body; b: body {"session_id":"s"}; b: end; c: head body; c: body {}; c: route unpinned w1; c: end;
         d: head body; d: body {"session_id":!…; d: route unpinned w1; d: end; e: head session=t body; e: body {}; e: end"#,
        expect![[r#"
            head body -> read
            body {"session_id":"s"… -> read
            body } -> pause, ask prompt /v1/chat/completions {"session_id":"s"} within 250
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            b: head body -> read
            b: body {"session_id":"s"} -> continue, #pinned, to worker-w1 rank 5
            b: end -> nothing
            c: head body -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            c: route unpinned w1 -> #routed_unpinned, resume, to worker-w1
            c: end -> nothing
            d: head body -> read
            d: body {"session_id":!… -> pause, #body_malformed, ask within 250
            d: route unpinned w1 -> #routed_unpinned, resume, to worker-w1
            d: end -> nothing
            e: head session=t body -> read
            e: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            e: end -> #rolled_back, report now
        "#]],
    );
    let mut world = reading();
    let long = format!(r#"{{"session_id":"s","p":"{}"}}"#, "x".repeat(2000));
    let told = world.run(&format!("head body; body {long}…"));
    assert!(told.contains("pause, #body_too_long, ask prompt"), "{told}");
    assert_eq!(prompt(&world), Some((long[..1024].to_owned(), false)));
    assert_eq!(world.question.unwrap().session.unwrap().id, reading().session("s"));
}

#[test]
fn a_body_read_for_its_model_is_the_prompt_of_a_pool_that_wants_it() {
    let mixed = || World::two_pools("body").but(|world| world.topology.pools[0].reads_prompt = true);
    check(
        mixed(),
        r#"head session=s body; body {"model":"big"}; end; b: head session=s body; b: body {"model":"vec"}; b: end; c: head session=t body; c: missing; c: end"#,
        expect![[r#"
            head session=s body -> read
            body {"model":"big"} -> pause, ask prompt /v1/chat/completions {"model":"big"} within 250
            end -> #rolled_back, report now
            b: head session=s body -> read
            b: body {"model":"vec"} -> pause, ask
            b: end -> #rolled_back, report now
            c: head session=t body -> read
            c: missing -> pause, #body_missing, #model_unknown, respond 408 {"error":{"message":"the request body did not come in time to tell which model it asks for","type":"invalid_request_error","param":null,"code":"request_timeout"}}
            c: end -> nothing
        "#]],
    );
    let mut world = mixed();
    world.config.prompt_bytes_max = 1024;
    let body = format!(r#"{{"p":"{}","model":"big"}}"#, "x".repeat(5000));
    let told = world.run(&format!("head session=s body; body {body}"));
    assert!(told.ends_with("within 250\n"), "{told}");
    assert_eq!(
        prompt(&world),
        Some((body[..1024].to_owned(), false)),
        "the model stands behind what a prompt may have"
    );
    assert_eq!(world.question.unwrap().pool, pool_name("chat"));
}

#[test]
fn a_header_that_names_the_pool_says_whether_the_prompt_is_wanted() {
    let world = World::two_pools("header x-pool").but(|world| world.topology.pools[0].reads_prompt = true);
    check(
        world,
        "head session=s body x-pool=chat; body {}; end; b: head session=s body x-pool=embed; b: end",
        expect![[r#"
            head session=s body x-pool=chat -> read
            body {} -> pause, ask prompt /v1/chat/completions {} within 250
            end -> #rolled_back, report now
            b: head session=s body x-pool=embed -> pause, ask
            b: end -> #rolled_back, report now
        "#]],
    );
}

#[test]
fn a_session_bound_while_its_body_came_is_pinned() {
    check(
        World::kv(),
        r#"head session=s body; b: head session=s body; b: body {}; b: route held w1 rank 5 v1 hold 9; b: answer 200; b: end; body {}; end;
         c: head session=t body; d: head session=t body; d: body {}; d: route held w0 rank 1 v2 hold 3; c: body {}; d: answer 200; c: end; d: end; report"#,
        expect![[r#"
            head session=s body -> read
            b: head session=s body -> read
            b: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            b: route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            b: answer 200 -> put bound w1/5 v1, #committed
            b: end -> nothing
            body {} -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            c: head session=t body -> read
            d: head session=t body -> read
            d: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            d: route held w0 rank 1 v2 hold 3 -> put held w0/1 v2, #routed_held, resume, to worker-w0 rank 1
            c: body {} -> continue, #joined, to worker-w0 rank 1
            d: answer 200 -> put bound w0/1 v2, #committed, report now
            c: end -> #rolled_back, report now
            d: end -> nothing
            report -> [committed r1 hold 9 w1/5 v1, ended r1, committed r2 hold 3 w0/1 v2, failed r3, ended r2] load []
        "#]],
    );
}

#[test]
fn callers_that_name_their_target_bring_no_prompt() {
    check(
        World::kv().trusted(),
        "head session=s worker=w1 rank=5 body; route held w1 rank 5 v1 hold 9; end; b: head worker=w0 body; b: end; c: head session=t body x-rankpin-dry-run=1; c: body {}; c: end; report",
        expect![[r#"
            head session=s worker=w1 rank=5 body -> pause, ask within 250
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            end -> forget v1, #rolled_back, report now
            b: head worker=w0 body -> continue, #named, to worker-w0
            b: end -> nothing
            c: head session=t body x-rankpin-dry-run=1 -> read
            c: body {} -> pause, ask dry prompt /v1/chat/completions {} within 250
            c: end -> nothing
            report -> [ended r1, failed r1 hold 9] load []
        "#]],
    );
}

#[test]
fn without_the_service_sessions_go_by_rendezvous_and_the_rest_by_load() {
    check(
        World::kv(),
        r#"head session=s body; body {}; route timeout; end; b: head body; b: body {}; b: route timeout; b: end; report;
         c: head body; c: body {}; c: route failed; c: end; c: head body; c: body {}; c: route failed; c: end; c: head body; c: body {}; c: route failed; c: end;
         d: head body; d: end; e: head session=t body; e: end; report; @2100; f: head body; f: body {}; g: head body; f: route unpinned w1; f: end; g: body {}; g: end"#,
        expect![[r#"
            head session=s body -> read
            body {} -> pause, ask prompt /v1/chat/completions {} within 250
            route timeout -> #route_timeout, #placed_alone, resume, to worker-w0 rank 3
            end -> #rolled_back, report now
            b: head body -> read
            b: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            b: route timeout -> #route_timeout, #session_key_missing, resume, to worker-w1
            b: end -> nothing
            report -> [ended r1, failed r1, ended r2] load []
            c: head body -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            c: route failed -> #route_failed, #session_key_missing, resume, to worker-w2
            c: end -> nothing
            c: head body -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            c: route failed -> #route_failed, #session_key_missing, resume, to worker-w0
            c: end -> nothing
            c: head body -> read
            c: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            c: route failed -> #route_failed, #session_key_missing, resume, to worker-w2
            c: end -> nothing
            d: head body -> continue, #breaker_open, #session_key_missing, to worker-w2
            d: end -> nothing
            e: head session=t body -> continue, #breaker_open, #placed_alone, to worker-w2
            e: end -> #rolled_back, report now
            report -> [ended r3, ended r4, ended r5, failed r6] load []
            f: head body -> read
            f: body {} -> pause, ask prompt /v1/chat/completions {} within 250
            g: head body -> continue, #breaker_open, #session_key_missing, to worker-w2
            f: route unpinned w1 -> #routed_unpinned, resume, to worker-w1
            f: end -> nothing
            g: body {} -> continue, to worker-w2
            g: end -> nothing
        "#]],
    );
}

#[test]
fn prompts_of_one_vm_are_bounded_together() {
    let mut world = World::kv();
    let taken = world.vms[0].prompts.take(PROMPTS_BYTES_MAX - 3);
    world.run("head session=s body");
    assert_eq!(world.raw_body("a", b"ab", false), "read");
    assert_eq!(
        world.raw_body("a", b"cde", false),
        "pause, #body_too_long, ask prompt /v1/chat/completions the head abc within 250"
    );
    world.vms[0].prompts.give_back(taken);
    assert_eq!(world.vms[0].prompts.bytes(), 0);
    // A client that leaves gives its share back.
    world.run("b: head session=t body; b: body abc…; b: end");
    assert_eq!(world.vms[0].prompts.bytes(), 0);
}

#[test]
fn a_question_is_one_that_the_service_reads_whatever_its_prompt() {
    for byte in ["\"", "\u{1}", "x", "é", "\\"] {
        let mut world = World::configured(r#"{"session": {"prompt_bytes_max": 16777216}}"#).aware();
        world.run("head session=s body");
        let body = byte.repeat((6 << 20) / byte.len());
        world.raw_body("a", body.as_bytes(), true);
        let question = world.question.clone().unwrap();
        let written = serde_json::to_vec(&question).unwrap();
        assert!(
            written.len() <= BODY_BYTES_MAX && written.len() > BODY_BYTES_MAX - (300 << 10),
            "{byte}: {}",
            written.len()
        );
        assert_eq!(serde_json::from_slice::<RouteRequest>(&written).unwrap(), question);
        assert!(!prompt(&world).unwrap().1);
    }
}
