//! What goes away: a conversation's slot, the service, a prompt's end; and a bound turn that asks for nothing.

use super::burst::at_once;
use super::fleet::{Ask, all_heard, heard, idle, plan, start, words};
use crate::support::{binding, state};
use e2e::client::{CHAT, SESSION, Slot};
use e2e::raw::Raw;
use e2e::{World, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn talk(turns: u32) -> Value {
    let mut messages = vec![json!({"role": "system", "content": words(1, 100)})];
    for turn in 0..turns {
        messages.push(json!({"role": "user", "content": words(10 + turn, 60)}));
        messages.push(json!({"role": "assistant", "content": words(20 + turn, 20)}));
    }
    messages.push(json!({"role": "user", "content": "go on"}));
    json!(messages)
}

/// Has a slot cache a conversation, past Envoy.
async fn cache(world: &World, messages: &Value, worker: &str, rank: u32) {
    let client = e2e::Client::new(world.engine(worker).address()).unwrap();
    let request = client.messages(None, messages, 1).header("x-data-parallel-rank", rank);
    let turn = e2e::client::send(request).await.unwrap();
    let slot = Slot { worker: worker.to_owned(), rank: Some(rank) };
    assert_eq!(turn.slot(), Some(slot.clone()));
    heard(world, &slot).await;
}

/// A bound turn takes no detour; when its slot is gone the next one goes where most of it is. With the service away every turn is
/// served as without one, and the bound ones where they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_whose_slot_died_goes_where_most_of_it_is() {
    let mut world = start(plan(3, 4, &[])).await;
    let first = Ask::chat(&talk(1)).session("moving").send(&world).await;
    binding(&world, "moving").await;
    bound_turns_read_no_body(&world).await;
    let home = first.slot.worker.clone();
    let others: Vec<String> = world.names().into_iter().filter(|name| *name != home).collect();
    cache(&world, &talk(2), &others[0], 3).await;
    cache(&world, &talk(1), &others[1], 1).await;
    cache(&world, &talk(4), &others[1], 2).await;
    world.engine(&home).close().await.unwrap();
    state(&world, &home, "down").await;
    let turn = Ask::chat(&talk(5)).session("moving").send(&world).await;
    assert_eq!(turn.slot, Slot { worker: others[1].clone(), rank: Some(2) }, "{turn:?}");
    assert!(turn.is_as_said() && turn.cached_tokens * 4 > turn.prompt_tokens * 3, "{turn:?}");
    let bound = binding(&world, "moving").await;
    assert_eq!((bound.worker, bound.rank), (others[1].clone(), Some(2)));
    world.service.kill();
    // All at once: one after the other they might all find the same worker idle.
    for name in &others {
        world.engine(name).fault("slow=500", None).await.unwrap();
    }
    let alone = |n: u32| Ask::chat(&json!([{"role": "user", "content": words(500 + n, 60)}]));
    let (served, answers) = at_once(&world, (0..40).map(alone).collect()).await;
    assert!(answers.iter().all(|answer| answer.said.is_none()), "nobody could say it");
    let workers: BTreeSet<&String> = served.keys().map(|slot| &slot.worker).collect();
    assert_eq!(workers, others.iter().collect(), "spread over what is left: {served:?}");
    let turn = Ask::chat(&talk(6)).session("moving").send(&world).await;
    assert_eq!(turn.slot, Slot { worker: others[1].clone(), rank: Some(2) }, "it stays");
}

/// The service is not asked, and the engine has the head before the body is there: its own refusal of half a body says so.
async fn bound_turns_read_no_body(world: &World) {
    let routes = world.service.routes().await.unwrap();
    for _ in 0..3 {
        let answer = Ask::chat(&talk(1)).session("moving").send(world).await;
        assert_eq!((answer.reason.as_str(), answer.said), ("pinned", None));
    }
    assert_eq!(world.service.routes().await.unwrap(), routes, "a pinned turn asked");
    let mut client = Raw::connect(world.envoy().address()).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: t\r\n{SESSION}: moving\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n{{"
    );
    client.send(head).await.unwrap();
    // A filter that read the body would keep this head to itself.
    wait_for("a request in flight at its engine", async || {
        let sum: u64 = world.in_flight(0).await.ok()?.values().sum();
        (sum == 1).then_some(())
    })
    .await
    .unwrap();
}

/// Of a prompt past `session.prompt_bytes_max` its beginning is looked for; it reaches its engine whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_long_is_placed_by_its_beginning() {
    let plan = plan(2, 2, &[]);
    let plan = plan.edit(|config| config.plugin(|own| own["session"]["prompt_bytes_max"] = json!(16_384)));
    let world = start(plan).await;
    let mut long: Vec<Value> = (0..60).map(|n| json!({"role": "user", "content": words(n, 200)})).collect();
    long.push(json!({"role": "user", "content": "what is it?"}));
    let long = json!(long);
    let first = Ask::chat(&long).send(&world).await;
    all_heard(&world).await;
    for _ in 0..3 {
        idle(&world).await;
        let answer = Ask::chat(&long).send(&world).await;
        assert_eq!(answer.slot, first.slot);
        let (blocks, of) = answer.said.unwrap_or_else(|| panic!("{answer:?}"));
        assert!(blocks == of && of > 100, "all of its beginning: {answer:?}");
        assert!(
            answer.cached_tokens > 2 * of * super::fleet::BLOCK,
            "and the engine has the rest: {answer:?}"
        );
    }
    assert!(world.envoy().requests("body_too_long").await.unwrap() >= 4);
}
