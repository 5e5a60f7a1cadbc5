//! Response ids: learned from answers, found again here or by the service, and kept apart between tenants.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::flow::RESPONSE_BYTES_MAX;
use routing::id::SessionId;
use world::World;

fn chains() -> World {
    World::configured(r#"{"response_ids": true}"#)
}

/// A first turn whose answer was called `r1`, told to the service.
fn begun() -> World {
    let mut world = chains();
    world.run(&format!(
        "{FIRST}; body {{}}; route held w1 rank 5 v1 hold 9; answer 200; said {{\"id\":\"r1\"}}; end; report"
    ));
    world
}

const FIRST: &str = "head body path=/v1/responses";
const JSON: &str = r#"{"object":"response","metadata":{"id":"no"},"id":"r1","output":[]}"#;
const SSE: &str = r#":hello\nevent: response.created\ndata: {"type":"response.created","response":{"id":"r1","output":[{"id":"no"}]}}\n\ndata: {"id":"r2"}\n\n"#;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn a_first_response_gets_a_session_and_the_next_of_its_chain_goes_there() {
    let mut world = begun();
    let minted = world.question.clone().unwrap().session.unwrap().id;
    let trace = world.run(r#"head body path=/v1/responses; body {"previous_response_id":"r1"}; answer 200; said {"id":"r2"}; end; page resp:r1; page resp:r2; load; report"#);
    let same = minted.prefix();
    assert!(trace.contains("#pinned, to worker-w1 rank 5"), "{trace}");
    assert!(
        trace.contains(&format!("page resp:r1 -> alias of {same}\npage resp:r2 -> alias of {same}\n")),
        "{trace}"
    );
    assert!(
        trace.ends_with("load []\n")
            && trace.contains(&format!("[alias {} of {same}]", world.session("resp:r2").prefix())),
        "{trace}"
    );
    let mut sessions = vec![minted];
    for _ in 0..20 {
        world.run(&format!("x: {FIRST}; x: body {{}}; x: route bound w1 rank 5 v3; x: end"));
        sessions.push(world.question.clone().unwrap().session.unwrap().id);
    }
    sessions.sort_by_key(|id: &SessionId| id.0);
    sessions.dedup();
    assert_eq!(sessions.len(), 21, "each conversation is a session of its own");
}

#[test]
fn an_id_is_learned_however_its_answer_is_cut_into_parts() {
    for answer in [JSON, SSE, " \\n {\"id\":\"r1\"}"] {
        for at in 0..=answer.len() {
            let (front, back) = answer.split_at(at);
            if front.ends_with('\\') {
                continue;
            }
            let mut world = chains();
            let trace = world.run(&format!(
                "{FIRST}; body {{}}; route held w1 rank 5 v1 hold 9; answer 200; a: said {front}…; a: said {back}; end; page resp:r1; page resp:no; page resp:r2"
            ));
            assert!(trace.contains("page resp:r1 -> alias of"), "{at}: {trace}");
            assert!(trace.ends_with("page resp:no -> empty\npage resp:r2 -> empty\n"), "{at}: {trace}");
        }
    }
}

#[test]
fn of_a_long_answer_only_the_front_is_looked_at() {
    let pad = "x".repeat(RESPONSE_BYTES_MAX);
    for (answer, learned) in [
        (format!(r#"{{"id":"r1","p":"{pad}"}}"#), true),
        (format!(r#"data: {{"response":{{"id":"r1","instructions":"{pad}"#), true),
        (format!(r#"{{"p":"{pad}","id":"r1"}}"#), false),
        (format!(r#"data: {pad}\ndata: {{"id":"r1"}}\n"#), false),
    ] {
        let mut world = chains();
        let trace = world.run(&format!(
            "{FIRST}; body {{}}; route bound w1 rank 5 v1; answer 200; a: said {answer}…; said more"
        ));
        assert!(trace.ends_with("said more -> not looked at\n"), "{learned}");
        assert_eq!(world.run("page resp:r1") != "page resp:r1 -> empty\n", learned);
    }
}

#[test]
fn answers_without_an_id_and_answers_of_other_requests_teach_nothing() {
    check(
        chains(),
        r#"head body path=/v1/responses; body {}; route held w1 rank 5 v1 hold 9; answer 400; said {"error":{"id":"r1"}}; end; page resp:r1;
         b: head session=s body; b: route bound w1 rank 5 v1; b: answer 200; b: said {"id":"r1"}; b: end;
         c: head body path=/v1/responses; c: body {}; c: route bound w1 rank 5 v1; c: answer 500; c: said {"id":"r1"}; c: end; page resp:r1"#,
        expect![[r#"
            head body path=/v1/responses -> read
            body {} -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 400 -> put bound w1/5 v1, #committed
            said {"error":{"id":"r1"}} -> nothing
            end -> nothing
            page resp:r1 -> empty
            b: head session=s body -> pause, ask
            b: route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to worker-w1 rank 5
            b: answer 200 -> nothing
            b: said {"id":"r1"} -> not looked at
            b: end -> nothing
            c: head body path=/v1/responses -> read
            c: body {} -> pause, ask
            c: route bound w1 rank 5 v1 -> put bound w1/5 v1, #routed_bound, resume, to worker-w1 rank 5
            c: answer 500 -> nothing
            c: said {"id":"r1"} -> not looked at
            c: end -> nothing
            page resp:r1 -> empty
        "#]],
    );
}

#[test]
fn a_session_with_a_key_names_its_answers_too_and_its_key_goes_first() {
    check(
        chains(),
        r#"head session=s body path=/v1/responses; route held w1 rank 5 v1 hold 9; answer 200; said {"id":"r1"}; end;
         b: head body path=/v1/responses; b: body {"previous_response_id":"r1"}; b: end;
         c: head session=t body path=/v1/responses; c: end"#,
        expect![[r#"
            head session=s body path=/v1/responses -> pause, ask
            route held w1 rank 5 v1 hold 9 -> put held w1/5 v1, #routed_held, resume, to worker-w1 rank 5
            answer 200 -> put bound w1/5 v1, #committed
            said {"id":"r1"} -> put alias of 3f545be1, report now
            end -> nothing
            b: head body path=/v1/responses -> read
            b: body {"previous_response_id":"r1"} -> continue, #pinned, to worker-w1 rank 5
            b: end -> nothing
            c: head session=t body path=/v1/responses -> pause, ask
            c: end -> #rolled_back, report now
        "#]],
    );
}

#[test]
fn behind_a_pools_cluster_ids_of_pinned_turns_are_learned_too() {
    check(
        World::configured(r#"{"response_ids": true, "steering": "endpoints"}"#),
        r#"head session=s path=/v1/responses; route bound w2 v1; end; head session=s path=/v1/responses; try w2 200; answer 200; said {"id":"r1"}; end; page resp:r1"#,
        expect![[r#"
            head session=s path=/v1/responses -> pause, ask
            route bound w2 v1 -> put bound w2 v1, #routed_bound, resume, to pool-chat [10.0.0.3:80,10.0.0.2:80,10.0.0.1:80]
            end -> nothing
            head session=s path=/v1/responses -> continue, #pinned, to pool-chat [10.0.0.3:80,10.0.0.2:80,10.0.0.1:80]
            try w2 200 -> no rank
            answer 200 -> nothing
            said {"id":"r1"} -> put alias of 3f545be1, report now
            end -> nothing
            page resp:r1 -> alias of 3f545be1
        "#]],
    );
}

#[test]
fn an_id_of_another_envoy_is_the_services_to_know() {
    let mut world = chains();
    let trace = world.run(
        r#"head body path=/v1/responses; body {"previous_response_id":"r1"}; route bound w1 rank 5 v3 session s; answer 200; said {"id":"r2"}; end; page s;
         head body path=/v1/responses; body {"previous_response_id":"r1"}; end; head body path=/v1/responses; body {"previous_response_id":"r2"}; end; load"#,
    );
    let (r1, r2, s) =
        (world.session("resp:r1").prefix(), world.session("resp:r2").prefix(), world.session("s").prefix());
    let told = trace.replace(&r1, "R1").replace(&r2, "R2").replace(&s, "S");
    expect![[r#"
        head body path=/v1/responses -> read
        body {"previous_response_id":"r1"} -> pause, ask alias R1
        route bound w1 rank 5 v3 session s -> put alias of S, put bound w1/5 v3, #routed_bound, resume, to worker-w1 rank 5
        answer 200 -> nothing
        said {"id":"r2"} -> put alias of S, report now
        end -> nothing
        page s -> bound w1/5 v3
        head body path=/v1/responses -> read
        body {"previous_response_id":"r1"} -> continue, #pinned, to worker-w1 rank 5
        end -> nothing
        head body path=/v1/responses -> read
        body {"previous_response_id":"r2"} -> continue, #pinned, to worker-w1 rank 5
        end -> nothing
        load -> 0
    "#]].assert_eq(&told);
}

#[test]
fn an_unknown_id_is_no_session_and_a_named_target_stays_named() {
    check(
        chains().trusted(),
        r#"head body path=/v1/responses; body {"previous_response_id":"r9"}; route unpinned w1; answer 200; said {"id":"r1"}; end; page resp:r1; report;
         b: head worker=w2 body path=/v1/responses; b: body {"previous_response_id":"r9"}; b: route unpinned w1; b: end;
         c: head body path=/v1/responses; c: body {"previous_response_id":"r9"}; c: route timeout; c: end; load; report"#,
        expect![[r#"
            head body path=/v1/responses -> read
            body {"previous_response_id":"r9"} -> pause, ask alias 56352f7e
            route unpinned w1 -> #session_key_missing, resume, to worker-w1
            answer 200 -> nothing
            said {"id":"r1"} -> not looked at
            end -> nothing
            page resp:r1 -> empty
            report -> [] load []
            b: head worker=w2 body path=/v1/responses -> read
            b: body {"previous_response_id":"r9"} -> pause, ask alias 56352f7e
            b: route unpinned w1 -> #named, resume, to worker-w2
            b: end -> nothing
            c: head body path=/v1/responses -> read
            c: body {"previous_response_id":"r9"} -> pause, ask alias 56352f7e
            c: route timeout -> #route_timeout, #session_key_missing, resume, to worker-w0
            c: end -> nothing
            load -> 0
            report -> [failed r3] load []
        "#]],
    );
}

#[test]
fn a_stored_response_is_fetched_and_cancelled_where_it_is() {
    for words in [
        "method=GET path=/v1/responses/r1",
        "method=GET path=/v1/responses/r1?stream=true",
        "method=DELETE path=/v1/responses/r1",
        "path=/v1/responses/r1/cancel",
        "path=/openai/v1/responses/r1/cancel body",
    ] {
        let trace = begun().run(&format!("head {words}; answer 200; said {{\"id\":\"r1\"}}; end; load"));
        assert!(trace.contains("-> continue, #pinned, to worker-w1"), "{words}: {trace}");
        assert!(
            trace.contains("said {\"id\":\"r1\"} -> not looked at\nend -> nothing\nload -> 0\n"),
            "{words}: {trace}"
        );
    }
    let unknown = begun().run("head method=GET path=/v1/responses/r9");
    assert!(unknown.contains("-> pause, ask alias "), "{unknown}");
}

#[test]
fn tenants_do_not_meet_in_a_response_id() {
    let mut world = World::configured(r#"{"response_ids": true, "session": {"scope": ["header:x-tenant"]}}"#);
    let turn =
        |tenant: &str, id: &str| format!("head body path=/v1/responses x-tenant={tenant}; body {{{id}}}");
    world.run(&format!(
        "{}; route bound w1 rank 5 v1; answer 200; said {{\"id\":\"r1\"}}; end",
        turn("a", "")
    ));
    let own = world.run(&format!("{}; end", turn("a", "\"previous_response_id\":\"r1\"")));
    assert!(own.contains("#pinned, to worker-w1 rank 5"), "{own}");
    let first = world.run(&format!("{}; end", turn("b", "\"previous_response_id\":\"r1\"")));
    assert!(first.contains("-> pause, ask alias "), "{first}");
    let fetched = world.run("head method=GET path=/v1/responses/r1 x-tenant=b");
    assert!(fetched.contains("-> pause, ask"), "{fetched}");
}

#[test]
fn a_chain_keeps_both_halves_of_a_split_pool() {
    let mut world = World::split().but(|world| world.config = chains().config);
    world.run(r#"head body path=/v1/responses; body {}; route held wd0 rank 3 v1 hold 9 + held wp1 rank 7 v2 hold 10; answer 200; said {"id":"r1"}; end; report"#);
    check(
        world,
        r#"head body path=/v1/responses; body {"previous_response_id":"r1"}; end; report;
         b: head body path=/v1/responses vm=2; b: body {"previous_response_id":"r1"}; b: route bound wd0 rank 3 v1 session s; b: answer 200; b: end; load"#,
        expect![[r#"
            head body path=/v1/responses -> read
            body {"previous_response_id":"r1"} -> continue, #pinned, to worker-wd0 rank 3, prefill at 10.0.1.2:80 rank 3
            end -> nothing
            report -> [] load []
            b: head body path=/v1/responses vm=2 -> read
            b: body {"previous_response_id":"r1"} -> pause, ask alias 174ec240
            b: route bound wd0 rank 3 v1 session s -> put alias of 3f545be1, put bound wd0/3 v1, #routed_bound, resume, to worker-wd0 rank 3, prefill at 10.0.1.1:80 rank 3
            b: answer 200 -> nothing
            b: end -> nothing
            load -> 0
        "#]],
    );
}
