//! Cache events over real sockets, true to what is cached: copies, evictions, clears, replies, replays.

use std::collections::HashMap;

use fake_engine::{Kind, Version};
use rmpv::Value as Packed;
use serde_json::json;

use crate::kv::{Batch, Event, Subscriber, publishing, replay, replayed, run};
use crate::support::chat;

const NEWEST: Version = Version(0, 33, 0);

#[tokio::test]
async fn adapters_have_blocks_of_their_own() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |config| config.loras = vec!["sql".to_owned()]).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    let ask = async |model: &str| {
        let body = json!({ "model": model, "prompt": run(0, 8), "max_tokens": 1, "cache_salt": "t" });
        engine.post("/v1/completions", &[], &body).await.cached()
    };
    assert_eq!((ask("tiny").await, ask("sql").await, ask("sql").await), (0, 0, 4));
    let batches = subscriber.all(&engine, 0).await;
    let stored = &batches[1].events()[0];
    assert_eq!((stored.get("lora_name").as_str(), stored.get("lora_id").as_u64()), (Some("sql"), Some(1)));
    assert_eq!(stored.get("extra_keys").to_string(), r#"[["sql", "t"], ["sql"]]"#);
    assert_ne!(batches[0].events()[0].hashes(), stored.hashes());
    assert_eq!(engine.get("/v1/models").await.json()["data"][1]["parent"], "tiny");

    let sglang = publishing(Kind::Sglang, Kind::Sglang.newest(), 1, |_| {}).await;
    let mut subscriber = Subscriber::of(&sglang, 0).await;
    let body = json!({ "model": "tiny:sql", "prompt": run(0, 8), "max_tokens": 1, "cache_salt": "t" });
    sglang.post("/v1/completions", &[], &body).await;
    let stored = &subscriber.next().await.events()[0];
    assert_eq!(
        (stored.get("lora_name").as_str(), stored.get("cache_salt").as_str()),
        (Some("sql"), Some("t"))
    );
}

#[tokio::test]
async fn replies_are_told_block_by_block_as_they_fill() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    let (_, reply) = engine.tokens("0", &run(0, 6), 11).await;
    // 6 and 11 tokens, the last of which is not computed: 16.
    let batches = subscriber.all(&engine, 0).await;
    let events: Vec<Event> = batches.iter().map(|batch| batch.events()[0].clone()).collect();
    assert_eq!(events.len(), 4, "one batch a block, the prompt's first");
    let told: Vec<u32> = events.iter().flat_map(Event::tokens).collect();
    assert_eq!(told, [run(0, 6), reply[..10].to_vec()].concat());
    for pair in events.windows(2) {
        assert_eq!(pair[1].get("parent_block_hash"), pair[0].hashes()[0]);
    }
    engine.tokens("0", &run(70, 3), 1).await;
    assert!(subscriber.all(&engine, 0).await.is_empty(), "no full block, no batch");
}

#[tokio::test]
async fn a_clear_is_told_with_the_ranks_own_next_step() {
    let engine = publishing(Kind::Vllm, NEWEST, 2, |config| config.decode_us_per_token = 500).await;
    let mut subscribers = [Subscriber::of(&engine, 0).await, Subscriber::of(&engine, 1).await];
    for rank in ["0", "1"] {
        engine.tokens(rank, &run(0, 8), 1).await;
    }
    for (index, subscriber) in subscribers.iter_mut().enumerate() {
        assert_eq!(subscriber.all(&engine, index).await.len(), 1);
    }
    assert_eq!(engine.post("/reset_prefix_cache", &[], &json!({})).await.text, r#"{"success":true}"#);
    for (index, subscriber) in subscribers.iter_mut().enumerate() {
        assert!(subscriber.all(&engine, index).await.is_empty());
    }
    assert_eq!(engine.tokens("0", &run(0, 8), 1).await.0, 0);
    let told = subscribers[0].all(&engine, 0).await;
    assert_eq!(told[0].tags(), ["AllBlocksCleared", "BlockStored"]);
    assert!(subscribers[1].all(&engine, 1).await.is_empty(), "an idle rank says nothing");
    engine.tokens("1", &run(0, 1), 1).await;
    assert_eq!(subscribers[1].next().await.tags(), ["AllBlocksCleared"]);
}

#[tokio::test]
async fn nothing_is_cleared_while_requests_run() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |config| config.decode_us_per_token = 1_000_000).await;
    let body = json!({ "prompt": run(0, 8), "max_tokens": 1000, "stream": true });
    let mut running = engine.send("POST", "/v1/completions", &[], Some(&body)).await;
    assert!(running.chunk().await.unwrap().is_some(), "it runs");
    assert_eq!(engine.post("/reset_prefix_cache", &[], &json!({})).await.text, r#"{"success":false}"#);
    assert_eq!(engine.get("/control/state").await.json()["ranks"][0]["cached_blocks"], 2);
    drop(running);
}

#[tokio::test]
async fn evictions_come_first_the_tail_before_its_head() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |config| config.cache_blocks = 5).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    engine.tokens("0", &run(0, 12), 1).await;
    engine.tokens("0", &run(50, 8), 1).await;
    engine.tokens("0", &run(90, 8), 1).await;
    let batches = subscriber.all(&engine, 0).await;
    let first = batches[0].events()[0].hashes();
    assert_eq!(batches[2].tags(), ["BlockRemoved", "BlockRemoved", "BlockStored"]);
    let gone: Vec<Packed> = batches[2].events()[..2].iter().flat_map(Event::hashes).collect();
    assert_eq!(gone, [first[2].clone(), first[1].clone()]);

    let sglang = publishing(Kind::Sglang, Kind::Sglang.newest(), 1, |config| config.cache_blocks = 5).await;
    let mut subscriber = Subscriber::of(&sglang, 0).await;
    for prompt in [run(0, 12), run(50, 8), run(90, 8)] {
        sglang.tokens("0", &prompt, 1).await;
    }
    let batches = subscriber.all(&sglang, 0).await;
    assert_eq!(batches[2].tags(), ["BlockRemoved", "BlockStored"], "one event for both");
    assert_eq!(batches[2].events()[0].hashes().len(), 2);
}

#[tokio::test]
async fn a_last_block_computed_again_is_told_again_and_each_copy_goes() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |config| config.cache_blocks = 4).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    assert_eq!(engine.tokens("0", &run(0, 8), 1).await.0, 0);
    assert_eq!(engine.tokens("0", &run(0, 8), 1).await.0, 4);
    assert_eq!(engine.tokens("0", &run(50, 8), 1).await.0, 0);
    assert_eq!(engine.tokens("0", &run(0, 9), 1).await.0, 8, "the other copy serves");
    let batches = subscriber.all(&engine, 0).await;
    let blocks = batches[0].events()[0].hashes();
    let again = &batches[1].events()[0];
    assert_eq!(
        (again.hashes(), again.get("parent_block_hash")),
        (vec![blocks[1].clone()], blocks[0].clone())
    );
    assert_eq!(batches[2].tags(), ["BlockRemoved", "BlockStored"]);
    assert_eq!(batches[2].events()[0].hashes(), [blocks[1].clone()]);
}

#[tokio::test]
async fn a_full_report_tells_every_block_from_the_start() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    engine.tokens("0", &run(0, 8), 1).await;
    let args = json!({ "kv_cache_report_mode": "full" });
    let body = json!({ "prompt": run(0, 14), "max_tokens": 1, "vllm_xargs": args });
    engine.post("/v1/completions", &[], &body).await;
    let told = &subscriber.all(&engine, 0).await[1].events()[0];
    assert_eq!((told.get("parent_block_hash"), told.tokens()), (Packed::Nil, run(0, 12)));
}

/// What a reader of the events knows: how many copies there are of each block, and what a block is.
#[derive(Default)]
struct Known {
    copies: HashMap<String, i64>,
    blocks: HashMap<(Option<String>, Vec<u32>), String>,
}

impl Known {
    fn apply(&mut self, event: &Event) {
        let hashes: Vec<String> = match event.tag().as_str() {
            "AllBlocksCleared" => return self.copies.clear(),
            _ => event.hashes().iter().map(ToString::to_string).collect(),
        };
        if event.tag() == "BlockRemoved" {
            for hash in hashes {
                *self.copies.get_mut(&hash).expect("removed and never stored") -= 1;
            }
            return;
        }
        let parent = event.get("parent_block_hash");
        let mut parent = (parent != Packed::Nil).then(|| parent.to_string());
        for (hash, tokens) in hashes.into_iter().zip(event.tokens().chunks(4)) {
            *self.copies.entry(hash.clone()).or_default() += 1;
            self.blocks.insert((parent, tokens.to_vec()), hash.clone());
            parent = Some(hash);
        }
    }

    fn overlap(&self, prompt: &[u32]) -> u64 {
        let mut parent = None;
        let mut found = 0;
        for block in prompt[..prompt.len() - 1].chunks_exact(4) {
            let Some(hash) = self.blocks.get(&(parent, block.to_vec())) else { break };
            if self.copies.get(hash).copied().unwrap_or_default() < 1 {
                break;
            }
            parent = Some(hash.clone());
            found += 4;
        }
        found
    }
}

/// Whoever counts copies knows exactly what the engine finds: through evictions, copies, replies, clears and restarts of prompts.
#[tokio::test]
async fn events_say_exactly_what_is_cached() {
    for (kind, version) in [
        (Kind::Vllm, NEWEST),
        (Kind::Vllm, Version(0, 20, 0)),
        (Kind::Sglang, Version(0, 5, 23)),
        (Kind::Sglang, Version(0, 5, 12)),
        (Kind::Trtllm, Version(1, 2, 0)),
    ] {
        let engine = publishing(kind, version, 1, |config| config.cache_blocks = 24).await;
        let mut subscriber = Subscriber::of(&engine, 0).await;
        let (mut known, mut state, mut hits) = (Known::default(), 5_u64, 0);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for turn in 0..200 {
            let blocks = random(6) + 1;
            let mut prompt: Vec<u32> = (0..blocks).flat_map(|_| [random(3) as u32; 4]).collect();
            prompt.truncate(prompt.len() - random(2) as usize * 3);
            if random(40) == 0 {
                engine.post("/reset_prefix_cache", &[], &json!({})).await;
                engine.tokens("0", &[7], 1).await;
                subscriber
                    .all(&engine, 0)
                    .await
                    .iter()
                    .flat_map(Batch::events)
                    .for_each(|event| known.apply(&event));
            }
            let expected = known.overlap(&prompt);
            let (cached, _) = engine.tokens("0", &prompt, random(12) as u32 + 1).await;
            assert_eq!(cached, expected, "{kind:?} {version} turn {turn}");
            hits += cached;
            subscriber
                .all(&engine, 0)
                .await
                .iter()
                .flat_map(Batch::events)
                .for_each(|event| known.apply(&event));
        }
        assert!(hits > 400, "{hits}");
    }
}

#[tokio::test]
async fn replay_gives_what_is_kept() {
    let engine =
        publishing(Kind::Vllm, NEWEST, 1, |config| config.kv_events.as_mut().unwrap().buffer_steps = 4).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    let first = engine.standing(0).await["next_seq"].as_u64().unwrap();
    for prompt in 0..6 {
        engine.tokens("0", &run(prompt * 10, 4), 1).await;
    }
    let (live, last) = (subscriber.all(&engine, 0).await, first + 6);
    // The tick of `all` is the newest of the four.
    assert_eq!(replayed(&replay(&engine, 0, 0).await), [last - 3, last - 2, last - 1, last]);
    let replies = replay(&engine, 0, last - 1).await;
    assert_eq!(replies[0].last(), Some(&live[5].payload), "the very bytes");
    assert_eq!(replies.len(), 3);
    assert_eq!(replay(&engine, 0, last + 1000).await.len(), 1, "only the end");
}

#[tokio::test]
async fn the_tokens_it_tells_are_the_tokens_it_counts() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    let mut talk = chat("Where does the path go, past the mill?");
    talk["tools"] = tools;
    let text = json!({ "prompt": "The harbour wakes, and so on.", "max_tokens": 1 });
    for (path, body) in [("/v1/chat/completions", talk), ("/v1/completions", text)] {
        let told = engine.post("/tokenize", &[], &body).await.json();
        let tokens: Vec<u32> = serde_json::from_value(told["tokens"].clone()).unwrap();
        let answer = engine.post(path, &[], &body).await.json();
        assert_eq!((&answer["usage"]["prompt_tokens"], tokens.len()), (&told["count"], tokens.len()));
        let published = subscriber.all(&engine, 0).await[0].events()[0].tokens();
        assert_eq!(published, tokens[..tokens.len() / 4 * 4], "{path}");
    }
    assert_eq!(
        publishing(Kind::Trtllm, Kind::Trtllm.newest(), 1, |_| {})
            .await
            .post("/tokenize", &[], &json!({"prompt": "x"}))
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn who_polls_a_tensorrt_llm_gets_each_event_once() {
    let engine = crate::support::start(2, |config| {
        (config.kind, config.version, config.block_size) = (Kind::Trtllm, Kind::Trtllm.newest(), 4);
        (config.kv_poll, config.cache_blocks) = (Some(3), 3);
    })
    .await;
    let poll =
        async || engine.post("/kv_cache_events", &[], &json!({})).await.json().as_array().unwrap().clone();
    let created = poll().await;
    assert_eq!(created.len(), 2, "one a rank");
    assert_eq!(created[1]["data"], json!({ "type": "created", "num_blocks_per_cache_level": [3, 0] }));
    assert_eq!((&created[1]["event_id"], &created[1]["attention_dp_rank"]), (&json!(0), &json!(1)));
    let ask = async |prompt: &[u32]| {
        let body = json!({ "prompt": prompt, "max_tokens": 1 });
        let got = engine.post("/v1/completions", &[("x-session-id", "one")], &body).await;
        got.rank.unwrap()
    };
    let rank = ask(&run(0, 8)).await;
    ask(&run(50, 8)).await;
    let events = poll().await;
    let kinds: Vec<&str> = events.iter().map(|event| event["data"]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["stored", "removed", "stored"]);
    assert!(events.iter().all(|event| event["attention_dp_rank"] == json!(rank)));
    let blocks = events[0]["data"]["blocks"].as_array().unwrap();
    assert_eq!(blocks[1]["tokens"][3], json!({ "type": "unique_token", "token_id": 7, "token_extra_id": 0 }));
    assert_eq!(events[1]["data"]["block_hashes"], json!([blocks[1]["block_hash"]]), "the tail");
    assert!(poll().await.is_empty());
    for from in 0..4 {
        ask(&run(100 + 10 * from, 8)).await;
    }
    let ids: Vec<u64> = poll().await.iter().map(|event| event["event_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [9, 10, 11], "the oldest went: a gap to be seen");
}
