//! Cache events as each engine in its version writes them, beside recorded frames; and where each says that they are.

use std::collections::BTreeSet;
use std::path::PathBuf;

use fake_engine::{HashForm, Kind, KvEndpoint, Version};
use serde_json::{Value, json};

use crate::kv::{Batch, RANK, Subscriber, publishing, replay, run};
use crate::support::start;

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

/// What written-down samples say of the versions nothing was recorded of: `vllm-0.24..0.25/lora` and so on.
fn written_down() -> Vec<(Kind, Version, &'static str, Batch)> {
    let samples: Vec<Value> =
        serde_json::from_str(include_str!("../../../golden/kv_events/synthetic_samples.json")).unwrap();
    let known =
        ["stored_root_1block", "stored_chain_2blocks_rank1", "removed_then_cleared", "lora", "session"];
    let read = |sample: &Value| {
        let (versions, what) = sample["name"].as_str()?.split_once('/')?;
        let (engine, version) = versions.split_once('-')?;
        let version = format!("{}.0", version.split("..").next()?);
        let version = version.splitn(4, '.').take(3).collect::<Vec<_>>().join(".").parse();
        let (kind, version) = match engine {
            "vllm" => (Kind::Vllm, version.ok()?),
            "sglang" => (Kind::Sglang, version.ok()?),
            "trtllm" => (Kind::Trtllm, Kind::Trtllm.newest()),
            _ => return None,
        };
        let what = known.into_iter().find(|known| *known == what)?;
        let frames: Vec<Vec<u8>> = sample["frames_hex"].as_array()?.iter().map(unhex).collect();
        Some((kind, version, what, Batch { topic: Vec::new(), seq: 0, payload: frames[2].clone() }))
    };
    samples.iter().filter_map(read).collect()
}

#[tokio::test]
async fn every_version_writes_what_is_written_down_of_it() {
    let mut compared = 0;
    for (kind, version, what, sample) in written_down() {
        let engine = publishing(kind, version, 1, |config| {
            config.cache_blocks = 3;
            config.loras = vec!["sql-adapter".to_owned()];
        })
        .await;
        let mut subscriber = Subscriber::of(&engine, 0).await;
        for prompt in [run(0, 8), run(0, 12), run(50, 4)] {
            engine.tokens("0", &prompt, 1).await;
        }
        let adapter = if kind == Kind::Sglang { "tiny:sql-adapter" } else { "sql-adapter" };
        for body in [
            json!({ "model": adapter, "prompt": run(0, 8), "max_tokens": 1 }),
            json!({ "prompt": run(0, 8), "max_tokens": 1, "session_id": "sess-A", "cache_salt": "tenant-a" }),
        ] {
            assert_eq!(engine.post("/v1/completions", &[], &body).await.status, 200);
        }
        engine.post("/reset_prefix_cache", &[], &json!({})).await;
        engine.tokens("0", &run(0, 1), 1).await;
        let mine = shapes(&subscriber.all(&engine, 0).await);
        // A TensorRT-LLM has nothing that clears.
        let theirs =
            shapes(&[sample]).into_iter().filter(|(_, shape)| kind != Kind::Trtllm || shape.len() > 1);
        for shape in theirs {
            assert!(mine.contains(&shape), "{kind:?} {version} {what}: {shape:?}\n{mine:?}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
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
