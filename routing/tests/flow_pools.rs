//! Several pools behind one listener: by a header, by the model of a body; and the list of what they serve.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use std::collections::BTreeSet;
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

fn by_header() -> World {
    World::two_pools("header x-pool")
}

fn by_body() -> World {
    World::two_pools("body")
}

#[test]
fn a_header_names_the_pool_or_a_model_of_it() {
    check(
        by_header(),
        "head session=s x-pool=embed; route held w2 v1 hold 9; answer 200; end; head session=s x-pool=embed; end;
         b: head session=s x-pool=vec; b: end; c: head session=s x-pool=chat; c: end; d: head session=s x-pool=small; d: end; page s@embed; page s@chat",
        expect![[r#"
            head session=s x-pool=embed -> pause, ask
            route held w2 v1 hold 9 -> put held w2 v1, #routed_held, resume, to worker-w2
            answer 200 -> put bound w2 v1, #committed
            end -> nothing
            head session=s x-pool=embed -> continue, #pinned, to worker-w2
            end -> nothing
            b: head session=s x-pool=vec -> pause, ask
            b: end -> #rolled_back, report now
            c: head session=s x-pool=chat -> pause, ask
            c: end -> #rolled_back, report now
            d: head session=s x-pool=small -> pause, ask
            d: end -> #rolled_back, report now
            page s@embed -> bound w2 v1
            page s@chat -> empty
        "#]],
    );
}

#[test]
fn the_model_in_the_body_chooses_the_pool_wherever_it_stands() {
    check(
        by_body(),
        r#"head session=s body; body {"messages":[],…; body "model":"vec"}; route bound w2 v1; end; page s@embed/vec;
         b: head session=s body; b: body {"model":"vec"}; b: end;
         c: head body; c: body {"model":"vec"}; c: end"#,
        expect![[r#"
            head session=s body -> read
            body {"messages":[],… -> read
            body "model":"vec"} -> pause, ask
            route bound w2 v1 -> put bound w2 v1, #routed_bound, resume, to worker-w2
            end -> nothing
            page s@embed/vec -> bound w2 v1
            b: head session=s body -> read
            b: body {"model":"vec"} -> continue, #pinned, to worker-w2
            b: end -> nothing
            c: head body -> read
            c: body {"model":"vec"} -> continue, #session_key_missing, to worker-w2
            c: end -> nothing
        "#]],
    );
}

#[test]
fn one_key_with_three_models_is_three_sessions() {
    let mut world = by_body();
    let mut sessions = BTreeSet::new();
    for model in ["big", "small", "vec"] {
        world.run(&format!(r#"{model}: head session=s body; {model}: body {{"model":"{model}"}}"#));
        let question = world.question.clone().unwrap();
        assert_eq!(question.pool.as_str(), if model == "vec" { "embed" } else { "chat" });
        assert_eq!(question.demands.model.as_deref(), Some(model));
        sessions.insert(question.session.unwrap().id);
    }
    assert_eq!(sessions.len(), 3);
}

#[test]
fn an_unknown_model_is_404_and_a_missing_one_400_in_openais_shape() {
    check(
        by_header(),
        "head session=s x-pool=gpt; end; b: head session=s; b: end; c: head x-pool=; c: end; load; report",
        expect![[r#"
            head session=s x-pool=gpt -> pause, #model_unknown, respond 404 {"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}
            end -> nothing
            b: head session=s -> continue, #model_unknown, to default
            b: end -> nothing
            c: head x-pool= -> continue, #model_unknown, to default
            c: end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
    check(
        by_body(),
        r#"head session=s body; body {"model":"gpt"}; end; b: head body; b: body {"messages":[]}; b: end; c: head body; c: body {"model":7}; c: end; load; report"#,
        expect![[r#"
            head session=s body -> read
            body {"model":"gpt"} -> pause, #model_unknown, respond 404 {"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}
            end -> nothing
            b: head body -> read
            b: body {"messages":[]} -> pause, #model_unknown, respond 400 {"error":{"message":"you must provide a model","type":"invalid_request_error","param":"model","code":"model_required"}}
            b: end -> nothing
            c: head body -> read
            c: body {"model":7} -> pause, #model_unknown, respond 400 {"error":{"message":"you must provide a model","type":"invalid_request_error","param":"model","code":"model_required"}}
            c: end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
}

#[test]
fn a_pool_called_default_serves_what_names_no_model_and_no_other() {
    let with_default = |pool_by: &str| {
        World::two_pools(pool_by).but(|world| {
            world.topology.pools[0].name = common::pool_name("default");
            world.topology.workers[..2]
                .iter_mut()
                .for_each(|worker| worker.pool = common::pool_name("default"));
        })
    };
    check(
        with_default("body"),
        r#"head body; body {"messages":[]}; end; b: head body content-type=multipart/form-data path=/v1/audio/transcriptions; b: end;
         c: head method=GET path=/health; c: end; d: head body; d: body {"model":"gpt"}; d: end"#,
        expect![[r#"
            head body -> read
            body {"messages":[]} -> continue, #session_key_missing, to worker-w0
            end -> nothing
            b: head body content-type=multipart/form-data path=/v1/audio/transcriptions -> continue, #session_key_missing, to worker-w1
            b: end -> nothing
            c: head method=GET path=/health -> continue, #session_key_missing, to worker-w0
            c: end -> nothing
            d: head body -> read
            d: body {"model":"gpt"} -> pause, #model_unknown, respond 404 {"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}
            d: end -> nothing
        "#]],
    );
    check(
        with_default("header x-pool"),
        "head; end; b: head x-pool=gpt; b: end",
        expect![[r#"
        head -> continue, #session_key_missing, to worker-w0
        end -> nothing
        b: head x-pool=gpt -> pause, #model_unknown, respond 404 {"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}
        b: end -> nothing
    "#]],
    );
}

#[test]
fn a_late_body_is_judged_by_the_model_it_has_shown() {
    check(
        by_body(),
        r#"head session=s body; body {"model":"vec","messages":[…; missing; route held w2 v1 hold 9; end; b: head body; b: body {"messages":[…; b: missing; b: end"#,
        expect![[r#"
            head session=s body -> read
            body {"model":"vec","messages":[… -> read
            missing -> pause, #body_missing, ask
            route held w2 v1 hold 9 -> put held w2 v1, #routed_held, resume, to worker-w2
            end -> forget v1, #rolled_back, report now
            b: head body -> read
            b: body {"messages":[… -> read
            b: missing -> pause, #body_missing, #model_unknown, respond 408 {"error":{"message":"the request body did not come in time to tell which model it asks for","type":"invalid_request_error","param":null,"code":"request_timeout"}}
            b: end -> nothing
        "#]],
    );
}

#[test]
fn the_models_of_all_pools_are_listed_and_nothing_else() {
    let list = "method=GET path=/v1/models";
    check(
        by_header(),
        &format!("head {list}; end; b: head {list}?limit=1 x-pool=chat; b: end; load; report"),
        expect![[r#"
            head method=GET path=/v1/models -> pause, #models_listed, respond 200 {"object":"list","data":[{"id":"big","object":"model","created":0,"owned_by":"rankpin"},{"id":"small","object":"model","created":0,"owned_by":"rankpin"},{"id":"vec","object":"model","created":0,"owned_by":"rankpin"}]}
            end -> nothing
            b: head method=GET path=/v1/models?limit=1 x-pool=chat -> pause, #models_listed, respond 200 {"object":"list","data":[{"id":"big","object":"model","created":0,"owned_by":"rankpin"},{"id":"small","object":"model","created":0,"owned_by":"rankpin"},{"id":"vec","object":"model","created":0,"owned_by":"rankpin"}]}
            b: end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
    check(
        by_body(),
        &format!("head {list}/; end"),
        expect![[r#"
            head method=GET path=/v1/models/ -> pause, #models_listed, respond 200 {"object":"list","data":[{"id":"big","object":"model","created":0,"owned_by":"rankpin"},{"id":"small","object":"model","created":0,"owned_by":"rankpin"},{"id":"vec","object":"model","created":0,"owned_by":"rankpin"}]}
            end -> nothing
        "#]],
    );
    let unnamed = by_body().run(r#"head body; body {"messages":[]}"#);
    assert!(unnamed.contains("model_required"), "a body that names no model is refused: {unnamed}");
    // Without a body nothing can name a model: the default route may know what it is about.
    for script in ["head method=POST path=/v1/models", "head method=GET path=/v1/models/vec"] {
        assert!(by_body().run(script).contains("#model_unknown, to default"), "{script}");
    }
    let one = World::new().run(&format!("head {list}"));
    assert!(one.contains("-> continue, #session_key_missing"), "one pool's engines list their own: {one}");
}

#[test]
fn an_adapter_is_served_where_its_label_is() {
    let lora = || {
        by_body().but(|world| {
            world.topology.workers[0].models = vec!["big".to_owned()];
            world.topology.workers[1].models = vec!["big".to_owned()];
            world.topology.workers[1].labels.insert("lora".to_owned(), "sql, law".to_owned());
        })
    };
    let mut world = lora();
    for _ in 0..20 {
        let trace = world.run(r#"x: head body; x: body {"model":"big:law"}; x: end"#);
        assert!(trace.contains("to worker-w1\n"), "{trace}");
    }
    check(
        lora(),
        r#"head body; body {"model":"big:art"}; end; b: head body; b: body {"model":"gpt:law"}; b: end;
         fleet w1 down; c: head body; c: body {"model":"big:law"}; c: end; d: head body; d: body {"model":"big"}; d: end"#,
        expect![[r#"
            head body -> read
            body {"model":"big:art"} -> pause, #model_unknown, respond 404 {"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}
            end -> nothing
            b: head body -> read
            b: body {"model":"gpt:law"} -> pause, #model_unknown, respond 404 {"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}
            b: end -> nothing
            c: head body -> read
            c: body {"model":"big:law"} -> pause, #named_refused, respond 503 retry-after 1 {"error":{"message":"no worker of this pool meets the demands of the request","type":"server_error","param":null,"code":"demands_unmet"}}
            c: end -> nothing
            d: head body -> read
            d: body {"model":"big"} -> continue, #session_key_missing, to worker-w0
            d: end -> nothing
        "#]],
    );
}

#[test]
fn an_only_pool_that_lists_no_models_serves_them_all() {
    let mut world = World::configured(r#"{"pool_by": "body"}"#);
    let trace = world.run(r#"head session=s body; body {"model":"any:thing"}; route bound w1 rank 5 v1; end; page s@chat/any:thing"#);
    assert!(trace.ends_with("bound w1/5 v1\n"), "{trace}");
}

/// Some clients write it last: it is looked for as far as Envoy holds a body, beyond the budget of keys.
#[test]
fn a_model_behind_a_long_prompt_is_found() {
    let mut world = by_body();
    world.config.prompt_bytes_max = 16;
    check(
        world,
        r#"head session=s body; body {"messages":["a long long prompt"…; body ],"model":"vec"}; route held w2 v1 hold 9; end"#,
        expect![[r#"
            head session=s body -> read
            body {"messages":["a long long prompt"… -> read
            body ],"model":"vec"} -> pause, ask
            route held w2 v1 hold 9 -> put held w2 v1, #routed_held, resume, to worker-w2
            end -> forget v1, #rolled_back, report now
        "#]],
    );
}
