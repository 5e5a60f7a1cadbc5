//! Publishers that fail as a test says.

use std::time::Duration;

use fake_engine::{Kind, Version};
use serde_json::json;
use zeromq::{SocketRecv, SocketSend};

use crate::kv::{Batch, Subscriber, dealer, message, publishing, replay, replayed, run};
use crate::support::Asked;

const NEWEST: Version = Version(0, 33, 0);

async fn fill(engine: &Asked, from: u32, count: u32) {
    for prompt in from..from + count {
        engine.tokens("0", &run(prompt * 10, 4), 1).await;
    }
}

fn seqs(batches: &[Batch], first: u64) -> Vec<u64> {
    batches.iter().map(|batch| batch.seq - first).collect()
}

#[tokio::test]
async fn batches_are_dropped_lost_and_sent_twice() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    let first = engine.standing(0).await["next_seq"].as_u64().unwrap();
    engine.kv_fault("drop=2", None).await;
    fill(&engine, 0, 3).await;
    assert_eq!(seqs(&subscriber.all(&engine, 0).await, first), [2]);
    assert_eq!(
        replayed(&replay(&engine, 0, first).await),
        run64(first, 4),
        "what was dropped can be replayed"
    );
    engine.kv_fault("lose=1", None).await;
    fill(&engine, 3, 2).await;
    assert_eq!(seqs(&subscriber.all(&engine, 0).await, first), [5]);
    assert_eq!(
        replayed(&replay(&engine, 0, first + 4).await),
        [first + 5, first + 6],
        "what was lost can not"
    );
    engine.kv_fault("duplicate=1", None).await;
    fill(&engine, 5, 2).await;
    assert_eq!(seqs(&subscriber.all(&engine, 0).await, first), [7, 7, 8]);
    let unknown = engine.post("/control/kv-events", &[], &json!({ "fault": "dorp=1" })).await;
    assert_eq!(unknown.status, 400);
    let nobody = engine.post("/control/kv-events", &[], &json!({ "fault": "drop=1", "rank": 9 })).await;
    assert_eq!(nobody.status, 400);
}

fn run64(from: u64, count: u64) -> Vec<u64> {
    (from..from + count).collect()
}

#[tokio::test]
async fn a_stalled_publisher_sends_and_replays_nothing_and_catches_up() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    let first = engine.standing(0).await["next_seq"].as_u64().unwrap();
    engine.kv_fault("stall", None).await;
    fill(&engine, 0, 3).await;
    let standing = engine.standing(0).await;
    assert_eq!((&standing["pending"], &standing["stalled"]), (&json!(3), &json!(true)));
    let mut asking = dealer(&engine, 0).await;
    asking.send(message(&[b"", &first.to_be_bytes()])).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), asking.recv()).await;
    assert!(early.is_err(), "nothing leaves");
    assert_eq!(engine.send("DELETE", "/control/kv-events", &[], None).await.status(), 200);
    assert_eq!(seqs(&subscriber.all(&engine, 0).await, first), [0, 1, 2]);
    tokio::time::timeout(Duration::from_secs(20), asking.recv()).await.expect("the replay goes on").unwrap();
    // By itself, after its time.
    engine.kv_fault("stall=50", None).await;
    fill(&engine, 5, 1).await;
    subscriber.next().await;
}

#[tokio::test]
async fn a_silent_publisher_serves_and_says_nothing() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    let mut subscriber = Subscriber::of(&engine, 0).await;
    let before = engine.standing(0).await["next_seq"].clone();
    engine.kv_fault("silent", None).await;
    fill(&engine, 0, 3).await;
    assert_eq!(engine.standing(0).await["next_seq"], before);
    assert_eq!(engine.tokens("0", &run(0, 5), 1).await.0, 4, "it caches all the same");
    engine.send("DELETE", "/control/kv-events", &[], None).await;
    fill(&engine, 5, 1).await;
    assert_eq!(json!(subscriber.next().await.seq), before, "and goes on where it was");
}

#[tokio::test]
async fn a_restarted_rank_counts_from_zero_with_an_empty_cache_on_the_same_ports() {
    for version in [NEWEST, Version(0, 20, 0)] {
        let engine = publishing(Kind::Vllm, version, 2, |_| {}).await;
        let mut before = Subscriber::of(&engine, 0).await;
        let ports = engine.standing(0).await;
        fill(&engine, 0, 2).await;
        let told = before.all(&engine, 0).await;
        engine.tokens("1", &run(0, 4), 1).await;
        engine.kv_fault("restart", Some(0)).await;
        let standing = engine.standing(0).await;
        assert_eq!((&standing["next_seq"], &standing["kept"]), (&json!(0), &json!(0)));
        assert_eq!((&standing["port"], &standing["replay_port"]), (&ports["port"], &ports["replay_port"]));
        assert_eq!(engine.tokens("0", &run(0, 5), 1).await.0, 0, "its cache is empty");
        assert_eq!(engine.tokens("1", &run(0, 5), 1).await.0, 4, "the other rank's is not");
        let replies = replay(&engine, 0, 0).await;
        assert_eq!(replayed(&replies), [0], "and one may ask for all of it");
        let mut after = Subscriber::of(&engine, 0).await;
        fill(&engine, 0, 1).await;
        assert_eq!(after.all(&engine, 0).await.len(), 1, "nothing of before");
        let fresh =
            &Batch { topic: Vec::new(), seq: 0, payload: replies[0].last().unwrap().clone() }.events()[0];
        let same = fresh.hashes() == told[0].events()[0].hashes();
        assert_eq!(same, version == NEWEST, "old versions hash anew in every process");
    }
}

#[tokio::test]
async fn a_request_that_outlives_a_restart_holds_nothing() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |config| config.decode_us_per_token = 1_000).await;
    let body = json!({ "prompt": run(0, 8), "max_tokens": 100_000, "stream": true });
    let mut running = engine.send("POST", "/v1/completions", &[], Some(&body)).await;
    let mut words = async |count| {
        for _ in 0..count {
            running.chunk().await.unwrap().expect("the stream goes on");
        }
    };
    words(1).await;
    assert!(engine.get("/control/state").await.json()["ranks"][0]["used_blocks"].as_u64().unwrap() >= 2);
    engine.kv_fault("restart", None).await;
    // Chunks may hold several words: at least two blocks of four.
    words(12).await;
    let state = engine.get("/control/state").await.json();
    assert_eq!(
        (&state["ranks"][0]["cached_blocks"], &state["ranks"][0]["used_blocks"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(engine.standing(0).await["next_seq"], 0, "and tells nothing");
}

#[tokio::test]
async fn closed_sockets_refuse_and_what_was_missed_can_be_replayed() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    let _before = Subscriber::of(&engine, 0).await;
    let standing = engine.standing(0).await;
    let first = standing["next_seq"].as_u64().unwrap();
    engine.kv_fault("close", None).await;
    let address = format!("127.0.0.1:{}", standing["port"]);
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
    fill(&engine, 0, 2).await;
    engine.kv_fault("open", None).await;
    assert_eq!(replayed(&replay(&engine, 0, first).await), [first, first + 1]);
    let mut after = Subscriber::of(&engine, 0).await;
    fill(&engine, 2, 1).await;
    assert_eq!(after.next().await.tags(), ["BlockStored"]);
}

#[tokio::test]
async fn what_is_no_request_gets_no_answer() {
    let engine = publishing(Kind::Vllm, NEWEST, 1, |_| {}).await;
    fill(&engine, 0, 1).await;
    let mut asking = dealer(&engine, 0).await;
    for wrong in [&[&b""[..], &b"0"[..]][..], &[&[0; 8]], &[b"", &[0; 8], b"more"], &[b"x", &[0; 8]]] {
        asking.send(message(wrong)).await.unwrap();
    }
    asking.send(message(&[b"", &[0; 8]])).await.unwrap();
    let reply = tokio::time::timeout(Duration::from_secs(20), asking.recv()).await.unwrap().unwrap();
    assert_eq!(reply.len(), 4, "the first answer is the right one's");
    let end = tokio::time::timeout(Duration::from_secs(20), asking.recv()).await.unwrap().unwrap();
    assert_eq!(end.get(2).map(|frame| frame.to_vec()), Some(vec![0xff; 8]));
}

#[tokio::test]
async fn without_events_there_is_nothing_to_order() {
    let engine = crate::support::start(1, |_| {}).await;
    assert_eq!(engine.post("/control/kv-events", &[], &json!({ "fault": "drop=1" })).await.status, 400);
    assert_eq!(engine.get("/control/kv-events").await.json()["ranks"], json!([]));
    assert_eq!(engine.get("/kv_event_sources").await.json()["0"]["enable_kv_cache_events"], json!(false));
}
