//! Keys in bodies: which bodies are read, how far, and what a request does while its body comes.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use world::World;

/// The default list, with its body sources behind the headers.
fn reading() -> World {
    World::configured(r#"{"session": {"body": true}}"#)
}

/// A body source before the header.
fn body_first() -> World {
    let sources = r#"["body:/session_id", "header:x-session-id"]"#;
    World::configured(&format!(r#"{{"session": {{"sources": {sources}, "prompt_bytes_max": 1024}}}}"#))
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_key_in_a_header_before_any_body_source_reads_no_body() {
    check(
        reading(),
        r#"head session=s body; route held w1 rank 5 v1 hold 9; answer 200; end; page s;
         head session=s body; body {"session_id":"t"}; end; page t"#,
        expect![[r#"
            head session=s body -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            page s -> bound w1/5 v1
            head session=s body -> continue, #pinned, to worker-w1 rank 5
            body {"session_id":"t"} -> continue, to worker-w1 rank 5
            end -> nothing
            page t -> empty
        "#]],
    );
}

#[test]
fn without_one_the_body_is_read_and_its_key_is_bound() {
    check(
        reading(),
        r#"head body; body {"session_id":"s","mes…; body sages":[]}; route held w1 rank 5 v1 hold 9; answer 200; end; page s;
         head session=s; end; b: head body; b: body {"prompt_cache_key":"s"}; b: end"#,
        expect![[r#"
            head body -> read
            body {"session_id":"s","mes… -> read
            body sages":[]} -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            page s -> bound w1/5 v1
            head session=s -> continue, #pinned, to worker-w1 rank 5
            end -> nothing
            b: head body -> read
            b: body {"prompt_cache_key":"s"} -> continue, #pinned, to worker-w1 rank 5
            b: end -> nothing
        "#]],
    );
}

#[test]
fn a_body_source_that_comes_first_decides_and_the_header_serves_where_it_is_silent() {
    check(
        body_first(),
        r#"head session=h body; body {"session_id":"s"}; route bound w1 rank 5 v1; end; page s; page h;
         b: head session=h body; b: body {}; b: route bound w0 rank 1 v2; b: end; page h; c: head session=h; c: end"#,
        expect![[r#"
            head session=h body -> read
            body {"session_id":"s"} -> pause, ask
            route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            page s -> bound w1/5 v1
            page h -> empty
            b: head session=h body -> read
            b: body {} -> pause, ask
            b: route bound w0 rank 1 v2 -> put bound w0/1 v2, #routed_bound, resume, to worker-w0 rank 1
            b: end -> nothing
            page h -> bound w0/1 v2
            c: head session=h -> continue, #pinned, to worker-w0 rank 1
            c: end -> nothing
        "#]],
    );
}

#[test]
fn of_a_repeated_key_the_last_counts() {
    check(
        reading(),
        r#"head body; body {"session_id":"s",…; body "session_id":"t"}; route bound w1 rank 5 v1; end; page s; page t"#,
        expect![[r#"
            head body -> read
            body {"session_id":"s",… -> read
            body "session_id":"t"} -> pause, ask
            route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to worker-w1 rank 5
            end -> nothing
            page s -> empty
            page t -> bound w1/5 v1
        "#]],
    );
}

#[test]
fn however_a_body_is_cut_into_parts_the_same_is_decided() {
    let body = r#"{"messages":[{"content":"\"session_id\":\"x\""}],"session_id":"s\u0031"}"#;
    let whole = |world: &mut World| world.run(&format!("head body; body {body}; end; page s1"));
    let asked = whole(&mut reading());
    assert!(asked.contains("-> pause, ask\n"), "{asked}");
    for at in 1..body.len() {
        let mut world = reading();
        let (front, back) = body.split_at(at);
        let parts = world.run(&format!("head body; body {front}…; body {back}…; body "));
        assert!(parts.ends_with("body -> pause, ask\n"), "{at}: {parts}");
        assert_eq!(world.question.clone().unwrap().session.unwrap().id, world.session("s1"), "{at}");
    }
}

#[test]
fn a_body_is_read_to_its_limit_and_not_past_it() {
    let padded = |key: &str, len: usize| {
        let rest = len - r#"{"session_id":"","p":""}"#.len() - key.len();
        format!(r#"{{"session_id":"{key}","p":"{}"}}"#, "x".repeat(rest))
    };
    for (len, told) in [(1024, "pause, ask"), (1025, "#body_too_long, ask")] {
        let body = padded("s", len);
        let (front, back) = body.split_at(len / 2);
        for script in [
            format!("head body; body {body}"),
            format!("head body; body {front}…; body {back}"),
            format!("head body; body {body}…; body "),
        ] {
            let trace = body_first().run(&script);
            assert!(trace.contains(told), "{len}: {trace}");
        }
    }
    let late = format!(r#"{{"p":"{}","session_id":"s"}}"#, "x".repeat(1024));
    let mut world = body_first();
    let trace = world.run(&format!("head body; body {late}…; load"));
    assert!(trace.contains("continue, #body_too_long, #session_key_missing, to worker-w"), "{trace}");
    assert!(trace.ends_with("load -> 1\n"), "{trace}");
    let mut world = body_first();
    let trace = world.run(&format!("head session=h body; body {late}…; route bound w1 rank 5 v1; page h"));
    assert!(trace.ends_with("page h -> bound w1/5 v1\n"), "{trace}");
}

#[test]
fn what_is_no_json_names_no_session_and_is_given_up_at_the_fault() {
    check(
        reading(),
        r#"head body; body {"session_id":"s",!…; end; b: head body; b: body {"session_id":"s"; b: end; c: head body; c: body [1]; c: end"#,
        expect![[r#"
            head body -> read
            body {"session_id":"s",!… -> continue, #body_malformed, #session_key_missing, to worker-w1
            end -> nothing
            b: head body -> read
            b: body {"session_id":"s" -> continue, #body_malformed, #session_key_missing, to worker-w2
            b: end -> nothing
            c: head body -> read
            c: body [1] -> continue, #session_key_missing, to worker-w0
            c: end -> nothing
        "#]],
    );
}

#[test]
fn a_body_that_does_not_come_is_decided_without_and_may_come_late() {
    check(
        reading(),
        r#"head body; body {"session_id":"s",…; missing; body "a":1}; missing; end; load;
         b: head body; b: missing; b: answer 200; b: missing; b: end"#,
        expect![[r#"
            head body -> read
            body {"session_id":"s",… -> read
            missing -> continue, #body_missing, #session_key_missing, to worker-w1
            body "a":1} -> continue, to worker-w1
            missing -> continue, to worker-w1
            end -> nothing
            load -> 0
            b: head body -> read
            b: missing -> continue, #body_missing, #session_key_missing, to worker-w2
            b: answer 200 -> nothing
            b: missing -> continue, to worker-w2
            b: end -> nothing
        "#]],
    );
    check(
        body_first(),
        r#"head session=h body; missing; body {"session_id":"s"}; route bound w1 rank 5 v1; body {}; page h; page s; end"#,
        expect![[r#"
            head session=h body -> read
            missing -> pause, #body_missing, ask
            body {"session_id":"s"} -> pause
            route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to worker-w1 rank 5
            body {} -> continue, to worker-w1 rank 5
            page h -> bound w1/5 v1
            page s -> empty
            end -> nothing
        "#]],
    );
}

#[test]
fn forms_packed_bodies_and_other_methods_are_never_read() {
    for words in [
        "content-type=multipart/form-data",
        "content-type=text/plain",
        "content-encoding=gzip",
        "method=GET",
        "method=PUT",
    ] {
        let trace = reading().run(&format!("head body {words}"));
        assert!(trace.contains("-> continue, #session_key_missing, to worker-w"), "{words}: {trace}");
    }
    for words in [
        "content-type=application/json",
        "content-type=Application/JSON",
        "content-type=application/vnd.api+json",
        "content-encoding=identity",
        "content-type=",
        "",
    ] {
        assert!(reading().run(&format!("head body {words}")).ends_with("-> read\n"), "{words}");
    }
}

#[test]
fn while_the_service_is_asked_the_rest_of_the_body_waits_and_then_goes_on() {
    check(
        reading(),
        r#"head session=s body; body {}…; body more…; route held w1 rank 5 v1 hold 9; body more; answer 200; end; load"#,
        expect![[r#"
            head session=s body -> pause, ask
            body {}… -> pause
            body more… -> pause
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            body more -> continue, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            end -> nothing
            load -> 0
        "#]],
    );
}

#[test]
fn a_client_that_leaves_while_its_body_is_read_leaves_nothing() {
    check(
        reading(),
        r#"head body; body {"session_id":"s",…; end; load; report; page s"#,
        expect![[r#"
        head body -> read
        body {"session_id":"s",… -> read
        end -> nothing
        load -> 0
        report -> [] load []
        page s -> empty
    "#]],
    );
}

#[test]
fn a_key_that_is_too_long_is_refused_in_the_body_too() {
    for (length, told) in [(256, "pause, ask"), (257, "#key_too_long, respond 400")] {
        let key = "k".repeat(length);
        let mut world = reading();
        let trace = world.run(&format!(r#"head body; body {{"session_id":"{key}"}}; load; report"#));
        assert!(trace.contains(told), "{trace}");
        assert!(trace.contains("load -> 0\nreport -> [] load []\n"), "{trace}");
    }
}
