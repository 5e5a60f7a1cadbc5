//! The ways to tokens together: which one is taken, deadlines, queues, the config's words.

use super::engine::{Worker, ask};
use super::model::{CHATML, clock, folder};
use crate::config::parse;
use crate::tokenize::body::Surface;
use crate::tokenize::threads::Threads;
use crate::tokenize::{Ask, Reason, Source, Tokenizer, Tokens, Which};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn tokenizer(tokens: &Tokens, threads: Arc<Threads>) -> Tokenizer {
    Tokenizer::new("p", tokens, threads, reqwest::Client::new(), clock)
}

async fn ready(tokens: &Tokens) -> Tokenizer {
    let tokenizer = tokenizer(tokens, Arc::new(Threads::with(1).unwrap()));
    let loaded = async {
        while tokenizer.loaded().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), loaded).await.expect("loaded");
    tokenizer
}

fn hi() -> Value {
    json!({ "messages": [{ "role": "user", "content": "the flight ".repeat(50) }] })
}

#[tokio::test]
async fn each_mode_goes_its_way() {
    let folder = folder(Some(CHATML));
    let local = ready(&Tokens::local(folder.path().to_owned())).await;
    assert_eq!(local.loaded(), Some(Ok(Which::Fast)));
    let found = local.chain(ask(Surface::Chat, &hi(), &[])).await.unwrap();
    assert_eq!((found.source, found.chain.block_size), (Source::Local, 16));
    let given = local.chain(ask(Surface::Completions, &json!({ "prompt": vec![1; 16] }), &[])).await.unwrap();
    assert_eq!(given.source, Source::Given);
    let approximate = ready(&Tokens::approximate()).await;
    let found = approximate.chain(ask(Surface::Chat, &hi(), &[])).await.unwrap();
    assert_eq!(
        (found.source, found.chain.hashes.len() as u32),
        (Source::Approximate, found.chain.tokens / 16)
    );
    let off = ready(&Tokens::default()).await;
    assert_eq!(off.chain(ask(Surface::Chat, &hi(), &[])).await.err(), Some(Reason::Off));
    assert_eq!(off.counters().reasons().find(|(_, n)| *n > 0), Some(("off", 1)));
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_leaves_it_to_the_workers() {
    let tokenizer = ready(&Tokens::local(PathBuf::from("no/such/folder"))).await;
    assert_eq!(tokenizer.loaded(), Some(Err(Reason::NotLoaded)));
    assert_eq!(tokenizer.chain(ask(Surface::Chat, &hi(), &[])).await.err(), Some(Reason::NotLoaded));
    let worker = Worker::real().await;
    let found = tokenizer.chain(ask(Surface::Chat, &hi(), &[&worker])).await.unwrap();
    assert_eq!(found.source, Source::Engine);
}

#[tokio::test]
async fn the_queue_is_bounded_and_the_deadline_is_kept() {
    let threads = Arc::new(Threads::with(1).unwrap());
    let tokenizer = tokenizer(&Tokens::approximate(), Arc::clone(&threads));
    let (go, gate) = mpsc::channel::<()>();
    let (inside, at_work) = mpsc::channel();
    threads
        .submit(move || {
            inside.send(()).unwrap();
            let _ = gate.recv_timeout(Duration::from_secs(30));
        })
        .unwrap();
    at_work.recv_timeout(Duration::from_secs(10)).unwrap();
    let hurried = Ask { deadline: Duration::from_millis(20), ..ask(Surface::Chat, &hi(), &[]) };
    assert_eq!(tokenizer.chain(hurried).await.err(), Some(Reason::Late));
    while threads.submit(|| {}).is_ok() {}
    assert_eq!(tokenizer.chain(ask(Surface::Chat, &hi(), &[])).await.err(), Some(Reason::Queue));
    drop(go);
}

#[test]
fn a_pool_says_how_its_tokens_are_got() {
    let tokens = |value: Value| {
        let file = json!({ "pools": [{ "name": "p", "policy": "kv_aware", "tokens": value }] });
        parse(file.to_string().as_bytes())
            .map(|config| config.tokens.into_values().next().unwrap_or_default())
    };
    assert_eq!(tokens(json!(null)).unwrap(), Tokens::default());
    assert_eq!(tokens(json!("off")).unwrap(), Tokens::default());
    assert_eq!(tokens(json!({ "mode": "off" })).unwrap(), Tokens::default());
    assert_eq!(tokens(json!({ "mode": "engine" })).unwrap(), Tokens::engine());
    assert_eq!(tokens(json!({ "mode": "approximate" })).unwrap(), Tokens::approximate());
    assert_eq!(tokens(json!({ "mode": "local", "path": "m" })).unwrap(), Tokens::local(PathBuf::from("m")));
    let all = json!({ "mode": "local", "path": "m", "chat_template": "t", "chat_template_kwargs": { "a": 1 }, "encoder": "reference" });
    assert_ne!(tokens(all).unwrap(), Tokens::local(PathBuf::from("m")));
    for (wrong, at) in [
        (json!("on"), "pools[0].tokens"),
        (json!({ "mode": "local" }), "pools[0].tokens.path"),
        (json!({ "mode": "x" }), "pools[0].tokens.mode"),
        (json!({ "mode": "engine", "x": 1 }), "pools[0].tokens.x"),
        (
            json!({ "mode": "local", "path": "m", "chat_template_kwargs": [] }),
            "pools[0].tokens.chat_template_kwargs",
        ),
        (json!({ "mode": "local", "path": "m", "encoder": "slow" }), "pools[0].tokens.encoder"),
    ] {
        let faults = tokens(wrong.clone()).expect_err("accepted").to_string();
        assert!(faults.contains(at), "{wrong}: {faults}");
    }
}

#[test]
fn what_is_wrong_with_tokens_is_said_once_and_with_what_would_be_right() {
    let faults = |pool: Value| {
        let mut pool = pool;
        pool["name"] = json!("p");
        parse(json!({ "pools": [pool] }).to_string().as_bytes()).expect_err("accepted").to_string()
    };
    let aware = |tokens: Value| faults(json!({ "policy": "kv_aware", "tokens": tokens }));
    assert_eq!(
        aware(json!({ "path": "m" })),
        "pools[0].tokens.mode: is missing (allowed: off, local, engine, approximate)"
    );
    assert_eq!(
        aware(json!({ "mode": "local", "path": 7 })),
        "pools[0].tokens.path: is a number (allowed: a string)"
    );
    let unused = |name, mode| {
        format!(
            "pools[0].tokens.{name}: is not used by mode {mode} (allowed: mode \"local\", or leave it out)"
        )
    };
    assert_eq!(aware(json!({ "mode": "engine", "path": "m" })), unused("path", "engine"));
    let template = json!({ "mode": "approximate", "chat_template": "t" });
    assert_eq!(aware(template), unused("chat_template", "approximate"));
    // Whatever else such a pool says is nothing to complain about.
    let mistyped = faults(json!({ "policy": "kv-aware", "tokens": { "mode": "engine" }, "kv": {} }));
    assert!(mistyped.starts_with("pools[0].policy: \"kv-aware\" is not known"), "{mistyped}");
    assert_eq!(mistyped.lines().count(), 1, "{mistyped}");
}
