//! Load beside overlap, rank by rank; and whose events those are.

use super::fleet::{Answer, Ask, BLOCK, all_heard, events, idle_but, plan, start};
use e2e::client::Slot;
use e2e::{World, wait_for};
use serde_json::json;

fn ids(prompt: u32, blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK as u32).map(|at| 10 + (prompt * 131 + at * 17) % 1500).collect()
}

/// A prompt that goes on where `ids` end.
async fn ask(world: &World, prompt: u32, blocks: u32) -> Answer {
    let mut tokens = ids(prompt, blocks);
    tokens.extend([5, 6, 7]);
    Ask::completion(&json!(tokens)).with("max_tokens", json!(1)).send(world).await
}

fn slot(worker: &str, rank: u32) -> Slot {
    Slot { worker: worker.to_owned(), rank: Some(rank) }
}

/// B9, B11: one rank's gauges are its own; what it caches does not beat any load it has.
#[tokio::test(flavor = "multi_thread")]
async fn b9_b11_a_loaded_rank_loses_its_hits_and_its_neighbour_keeps_them() {
    let world = start(plan(2, 2, &[])).await;
    for (prompt, worker, rank) in [(1, "w0", 0), (2, "w0", 1)] {
        world.engine(worker).compute(&ids(prompt, 8), Some(rank)).await.unwrap();
    }
    all_heard(&world).await;
    for (prompt, rank) in [(1, 0), (2, 1)] {
        let answer = ask(&world, prompt, 8).await;
        assert_eq!((answer.slot, answer.said), (slot("w0", rank), Some((8, 8))));
    }
    // Rank 1 says that many wait; rank 0 of the same engine does not.
    world.engine("w0").gauges(Some(1), json!({"waiting": 300, "running": 20})).await.unwrap();
    wait_for("the service to know", async || {
        let said = world.service.call("GET", "/v1/workers/w0", None).await.ok()?;
        let slots = said.body["slots"].as_array()?;
        let waits =
            |rank: u32| slots.iter().find(|one| one["rank"] == rank).map(|one| one["waiting"].as_u64());
        (waits(1)? == Some(300) && waits(0)? == Some(0)).then_some(())
    })
    .await
    .unwrap();
    for _ in 0..3 {
        let answer = ask(&world, 2, 8).await;
        assert_ne!(answer.slot, slot("w0", 1), "a hit of eight blocks against three hundred waiting");
        // That prompt may have gone to rank 0, which is loaded until its end is told.
        idle_but(&world, Some(&slot("w0", 1))).await;
        let answer = ask(&world, 1, 8).await;
        assert_eq!(answer.slot, slot("w0", 0), "its own rank is idle");
        idle_but(&world, Some(&slot("w0", 1))).await;
    }
}

/// B8: batches that name another rank, or none, are of the rank whose socket they came by.
#[tokio::test(flavor = "multi_thread")]
async fn b8_the_socket_says_whose_events_those_are() {
    let world = start(plan(2, 2, &[])).await;
    // The pool's block size is learned of real blocks.
    world.engine("w1").compute(&ids(9, 2), Some(0)).await.unwrap();
    let store = |prompt: u32, rank: Option<u64>| {
        use rmpv::Value;
        let tokens = ids(prompt, 6).into_iter().map(Value::from).collect();
        let hashes = (0..6).map(|at| Value::from(u64::from(prompt) * 1000 + at)).collect();
        let event = Value::Array(vec![
            "BlockStored".into(),
            Value::Array(hashes),
            Value::Nil,
            Value::Array(tokens),
            BLOCK.into(),
        ]);
        let mut batch = vec![Value::from(1.0), Value::Array(vec![event])];
        batch.extend(rank.map(Value::from));
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &Value::Array(batch)).unwrap();
        bytes
    };
    world.engine("w0").kv_publish(&store(1, None), 1).await.unwrap();
    world.engine("w1").kv_publish(&store(2, Some(0)), 1).await.unwrap();
    all_heard(&world).await;
    for (prompt, worker) in [(1, "w0"), (2, "w1")] {
        let answer = ask(&world, prompt, 6).await;
        assert_eq!((answer.slot, answer.said), (slot(worker, 1), Some((6, 6))), "prompt {prompt}");
    }
    assert_eq!(events(&world, "w0", Some(0)).await["blocks"]["gpu"].as_u64().unwrap_or(0), 0);
}
