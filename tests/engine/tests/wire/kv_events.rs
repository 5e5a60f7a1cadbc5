//! Cache events over real sockets: shaped as each engine's own, and true to what is cached.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use fake_engine::{HashForm, Kind, KvEndpoint, Version};
use rmpv::Value as Packed;
use serde_json::{Value, json};

use crate::kv::{Batch, Event, RANK, Subscriber, publishing, replay, replayed, run};
use crate::support::{chat, start};

const NEWEST: Version = Version(0, 33, 0);

/// Recorded live frames, and replies to a replay.
fn golden(name: &str) -> (Vec<Batch>, Vec<Vec<Vec<u8>>>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/kv_events").join(name);
    let rows = std::fs::read_to_string(&path).unwrap();
    let (mut live, mut replies) = (Vec::new(), Vec::new());
    for row in rows.lines().map(|row| serde_json::from_str::<Value>(row).unwrap()) {
        let frames: Vec<Vec<u8>> = row["frames"].as_array().unwrap().iter().map(unhex).collect();
        match row["kind"].as_str() {
            None | Some("live") => {
                let seq = u64::from_be_bytes(frames[1][..].try_into().unwrap());
                live.push(Batch { topic: frames[0].clone(), seq, payload: frames[2].clone() });
            }
            Some(_) => replies.push(frames),
        }
    }
    (live, replies)
}

fn unhex(frame: &Value) -> Vec<u8> {
    let digits = frame.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// The envelope's length and every shape of event in it.
fn shapes(batches: &[Batch]) -> BTreeSet<(usize, Vec<String>)> {
    let of = |batch: &Batch| {
        let length = batch.decoded().as_array().unwrap().len();
        batch.events().into_iter().map(move |event| (length, event.shape()))
    };
    batches.iter().flat_map(of).collect()
}

/// Which frames a reply has, without what is in them.
fn framing(replies: &[Vec<Vec<u8>>]) -> BTreeSet<Vec<&'static str>> {
    let kind = |frame: &Vec<u8>| match frame.len() {
        0 => "empty",
        8 if frame[..] == [0xff; 8] => "end",
        8 => "seq",
        _ if frame.starts_with(b"kv@") => "topic",
        _ => "payload",
    };
    replies.iter().map(|frames| frames.iter().map(kind).collect()).collect()
}

#[tokio::test]
async fn every_version_writes_as_its_own_publisher_does() {
    for (kind, name, version) in [
        (Kind::Vllm, "vllm", Version(0, 9, 2)),
        (Kind::Vllm, "vllm", Version(0, 10, 2)),
        (Kind::Vllm, "vllm", Version(0, 14, 0)),
        (Kind::Vllm, "vllm", Version(0, 17, 0)),
        (Kind::Vllm, "vllm", Version(0, 20, 0)),
        (Kind::Vllm, "vllm", Version(0, 23, 0)),
        (Kind::Vllm, "vllm", Version(0, 26, 0)),
        (Kind::Sglang, "sglang", Version(0, 5, 8)),
        (Kind::Sglang, "sglang", Version(0, 5, 9)),
        (Kind::Sglang, "sglang", Version(0, 5, 17)),
        (Kind::Sglang, "sglang", Version(0, 5, 23)),
    ] {
        let (live, replies) = golden(&format!("real_publisher_{name}-{version}.jsonl"));
        let engine = publishing(kind, version, 1, |config| {
            config.cache_blocks = 3;
            config.kv_events.as_mut().unwrap().topic = "kv@10.0.0.7:8000@tiny".to_owned();
        })
        .await;
        let mut subscriber = Subscriber::of(&engine, 0).await;
        // As when it was recorded: two blocks, one after them, one that goes, all that go.
        engine.tokens("0", &run(0, 8), 1).await;
        engine.tokens("0", &run(0, 12), 1).await;
        engine.tokens("0", &run(50, 4), 1).await;
        engine.post("/reset_prefix_cache", &[], &json!({})).await;
        engine.tokens("0", &run(0, 1), 1).await;
        let mine = subscriber.all(&engine, 0).await;
        assert_eq!(shapes(&mine), shapes(&live), "{name} {version}");
        assert!(mine.iter().all(|batch| batch.topic == live[0].topic));
        assert_eq!(framing(&replay(&engine, 0, 0).await), framing(&replies), "{name} {version}");
    }
}

#[tokio::test]
async fn the_newest_writes_as_the_real_engine_did() {
    for (hash, name) in [
        (HashForm::Int, "real_vllm0.32.0_dp2_int_hashes_topic_kv-events.jsonl"),
        (HashForm::Bytes, "real_vllm0.32.0_dp2_bytes_hashes_evictions.jsonl"),
    ] {
        let (live, _) = golden(name);
        let engine = publishing(Kind::Vllm, Version(0, 32, 0), 2, |config| {
            config.cache_blocks = 3;
            config.kv_events.as_mut().unwrap().hash = hash;
        })
        .await;
        let mut subscriber = Subscriber::of(&engine, 1).await;
        engine.tokens("1", &run(0, 12), 1).await;
        let salted =
            json!({ "prompt": run(100, 12), "max_tokens": 1, "cache_salt": "tenant-a", "session_id": "s-A" });
        engine.post("/v1/completions", &[(RANK, "1")], &salted).await;
        engine.post("/reset_prefix_cache", &[], &json!({})).await;
        engine.tokens("1", &run(0, 1), 1).await;
        let mine = subscriber.all(&engine, 1).await;
        assert!(shapes(&live).is_subset(&shapes(&mine)), "{:?}\n{:?}", shapes(&live), shapes(&mine));
        let kinds = |batches: &[Batch]| -> BTreeSet<_> {
            let hashes =
                batches.iter().flat_map(Batch::events).filter(|event| event.tag() != "AllBlocksCleared");
            hashes.flat_map(|event| event.hashes()).map(|hash| hash.as_slice().map(<[u8]>::len)).collect()
        };
        assert_eq!(kinds(&mine), kinds(&live));
        assert!(mine.iter().all(|batch| batch.rank() == Some(1)));
        let stored = &mine[1].events()[3];
        assert_eq!(stored.get("extra_keys").to_string(), r#"[["tenant-a"], nil, nil]"#);
        assert_eq!(stored.get("session_id").as_str(), Some("s-A"));
    }
}

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
    let running = engine.send("POST", "/v1/completions", &[], Some(&body)).await;
    while engine.get("/control/state").await.json()["ranks"][0]["running"] != 1 {}
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
    copies: HashMap<Packed2, i64>,
    blocks: HashMap<(Option<Packed2>, Vec<u32>), Packed2>,
}

type Packed2 = String;

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
async fn each_engine_says_where_its_events_are() {
    let engine = publishing(Kind::Vllm, NEWEST, 2, |config| config.dp_start = 4).await;
    let sources = engine.get("/kv_event_sources").await.json();
    for (index, rank) in ["4", "5"].into_iter().enumerate() {
        let standing = engine.standing(index).await;
        let source = &sources[rank];
        assert_eq!(source["endpoint"], format!("tcp://127.0.0.1:{}", standing["port"]));
        assert_eq!(source["replay_endpoint"], format!("tcp://127.0.0.1:{}", standing["replay_port"]));
        assert_eq!(
            (&source["enable_kv_cache_events"], &source["buffer_steps"]),
            (&json!(true), &json!(10_000))
        );
        let mut subscriber = Subscriber::of(&engine, index).await;
        engine.tokens(&index.to_string(), &run(0, 4), 1).await;
        assert_eq!(subscriber.next().await.rank(), Some(4 + index as u64), "the global number");
    }
    let old = publishing(Kind::Vllm, Version(0, 30, 0), 1, |_| {}).await;
    assert_eq!(old.get("/kv_event_sources").await.status, 404);

    let sglang = publishing(Kind::Sglang, Kind::Sglang.newest(), 3, |config| config.dp_start = 4).await;
    let told = sglang.get("/server_info").await.json()["kv_events"].clone();
    let base = told["endpoint_port_base"].as_u64().unwrap();
    let replay_base = told["replay_endpoint_port_base"].as_u64().unwrap();
    assert_eq!((&told["block_size"], &told["dp_size"]), (&json!(4), &json!(3)));
    for index in 0..3 {
        let standing = sglang.standing(index as usize).await;
        assert_eq!(
            (&standing["port"], &standing["replay_port"]),
            (&json!(base + index), &json!(replay_base + index))
        );
        assert_eq!(standing["batch_rank"], json!(index), "counted in the server");
    }
    assert!(
        start(1, |config| config.kind = Kind::Sglang).await.get("/server_info").await.json()["kv_events"]
            .is_null()
    );
}

#[tokio::test]
async fn a_base_port_counts_up_by_global_rank() {
    // vLLM's own default port, on a loopback address that is this process's alone.
    let process = std::process::id();
    let host = format!("127.{}.{}.{}", 1 + (process >> 16), (process >> 8) & 0xff, process & 0xff);
    let port = 5557;
    let engine = publishing(Kind::Vllm, NEWEST, 2, |config| {
        config.dp_start = 1;
        config.kv_events.as_mut().unwrap().endpoint = KvEndpoint { host, port };
    })
    .await;
    assert_eq!(engine.standing(0).await["port"], json!(port + 1));
    assert_eq!(engine.standing(1).await["port"], json!(port + 2));
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
