//! A worker's `/tokenize`: what is asked, what is kept, what happens when it does not answer.

use super::model::{CHATML, clock, folder, local, tokenizer};
use crate::tokenize::body::{Surface, read};
use crate::tokenize::engine::QUESTIONS_MAX;
use crate::tokenize::threads::Threads;
use crate::tokenize::{ANSWER_BYTES_MAX, Ask, Reason, Source, Tokenized, Tokenizer, Tokens, Which};
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// A worker that tokenises as our own model does, and remembers what it was asked.
pub(super) struct Worker {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<Value>>>,
    /// Answers given: all of them, unless a test holds them.
    gate: Arc<Semaphore>,
}

impl Worker {
    pub(super) async fn start(
        answer: impl Fn(&Value) -> (StatusCode, String) + Send + Sync + 'static,
    ) -> Self {
        let (asked, gate) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(10_000)));
        let (kept, held, answer) = (Arc::clone(&asked), Arc::clone(&gate), Arc::new(answer));
        let tokenize = move |body: Bytes| {
            let (kept, held, answer) = (Arc::clone(&kept), Arc::clone(&held), Arc::clone(&answer));
            async move {
                let body: Value = serde_json::from_slice(&body).unwrap();
                kept.lock().unwrap().push(body.clone());
                held.acquire().await.unwrap().forget();
                answer(&body).into_response()
            }
        };
        let config = json!({ "chat_template": CHATML }).to_string();
        let router = Router::new()
            .route("/tokenize", post(tokenize))
            .route("/tokenizer_info", get(|| async { config }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, asked, gate }
    }

    /// One that tokenises with the model of these tests.
    pub(super) async fn real() -> Self {
        let model = Mutex::new(local(CHATML, Which::Reference));
        let oracle = tokenizers::Tokenizer::from_bytes(tokenizer().to_string()).unwrap();
        Self::start(move |body| {
            let surface = if body.get("prompt").is_some() { Surface::Completions } else { Surface::Chat };
            let rendered =
                model.lock().unwrap().render(read(surface, &body.to_string(), true).unwrap()).unwrap();
            let crate::tokenize::render::Rendered::Text { text, marks } = rendered else { panic!() };
            let tokens = oracle.encode_fast(text, marks).unwrap().get_ids().to_vec();
            (
                StatusCode::OK,
                json!({ "count": tokens.len(), "max_model_len": 9, "tokens": tokens, "token_strs": null })
                    .to_string(),
            )
        })
        .await
    }

    fn questions(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

pub(super) fn ask(surface: Surface, body: &Value, workers: &[&Worker]) -> Ask {
    Ask {
        surface,
        body: body.to_string(),
        whole: true,
        lora: None,
        block_size: 16,
        workers: workers.iter().map(|worker| worker.url.clone()).collect(),
        deadline: Duration::from_secs(20),
    }
}

pub(super) fn by_engine() -> Tokenizer {
    Tokenizer::new("p", &Tokens::engine(), Arc::new(Threads::with(1).unwrap()), reqwest::Client::new(), clock)
}

fn messages(turns: usize) -> Value {
    let message = |n: usize| json!({ "role": if n.is_multiple_of(2) { "user" } else { "assistant" }, "content": format!("{n} the flight to you").repeat(20) });
    json!({ "model": "m", "messages": (0..turns).map(message).collect::<Vec<_>>() })
}

async fn chain(tokenizer: &Tokenizer, body: &Value, workers: &[&Worker]) -> Result<Tokenized, Reason> {
    tokenizer.chain(ask(Surface::Chat, body, workers)).await
}

fn locally(body: &Value) -> routing::block::Chain {
    local(CHATML, Which::Reference)
        .chain(read(Surface::Chat, &body.to_string(), true).unwrap(), None, 16)
        .unwrap()
}

#[tokio::test]
async fn a_conversation_is_asked_once_and_its_next_turns_are_estimated_until_too_much_is_new() {
    let (worker, tokenizer) = (Worker::real().await, by_engine());
    let first = chain(&tokenizer, &messages(8), &[&worker]).await.unwrap();
    assert_eq!((first.source, &first.chain), (Source::Engine, &locally(&messages(8))));
    let again = chain(&tokenizer, &messages(8), &[&worker]).await.unwrap();
    assert_eq!((again.source, again.chain), (Source::Engine, first.chain.clone()));
    let next = chain(&tokenizer, &messages(10), &[&worker]).await.unwrap();
    let whole = locally(&messages(10));
    assert_eq!((next.source, worker.questions()), (Source::Estimated, 1));
    assert!(
        whole.hashes.starts_with(&next.chain.hashes)
            && next.chain.hashes.len() + 2 >= first.chain.hashes.len()
    );
    assert!(
        next.chain.tokens.abs_diff(whole.tokens) < whole.tokens / 10,
        "{} for {}",
        next.chain.tokens,
        whole.tokens
    );
    let longer = chain(&tokenizer, &messages(12), &[&worker]).await.unwrap();
    assert_eq!(
        (longer.source, longer.chain, worker.questions()),
        (Source::Engine, locally(&messages(12)), 2)
    );
    let counts: Vec<_> = tokenizer.counters().sources().filter(|(_, n)| *n > 0).collect();
    assert_eq!(counts, [("engine", 3), ("estimated", 1)]);
}

#[tokio::test]
async fn what_is_asked_is_what_the_engine_will_see() {
    let (worker, tokenizer) = (Worker::real().await, by_engine());
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }], "reasoning_effort": "low",
        "tools": [{ "type": "function", "function": { "name": "f" } }], "chat_template_kwargs": { "x": 1 } });
    chain(&tokenizer, &body, &[&worker]).await.unwrap();
    let text = json!({ "prompt": "the flight", "model": "m" });
    let text = tokenizer.chain(ask(Surface::Completions, &text, &[&worker])).await.unwrap();
    let given =
        tokenizer.chain(ask(Surface::Completions, &json!({ "prompt": vec![5; 40] }), &[])).await.unwrap();
    let response =
        tokenizer.chain(ask(Surface::Responses, &json!({ "input": "a" }), &[&worker])).await.unwrap();
    let asked = worker.asked.lock().unwrap().clone();
    assert_eq!(asked[0]["chat_template_kwargs"], json!({ "reasoning_effort": "low", "x": 1 }));
    assert_eq!(
        (&asked[0]["add_generation_prompt"], &asked[0]["add_special_tokens"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(asked[0]["tools"][0]["function"]["name"], "f");
    assert_eq!(asked[1], json!({ "model": "m", "prompt": "the flight", "add_special_tokens": true }));
    assert_eq!(asked[2]["add_special_tokens"], true);
    assert_eq!((given.source, given.chain.hashes.len(), given.chain.tokens), (Source::Given, 2, 40));
    assert!(text.chain.tokens > 1 && response.chain.tokens > 1);
}

#[tokio::test]
async fn a_worker_without_the_endpoint_is_left_alone_and_another_asked() {
    let lacks = Worker::start(|_| (StatusCode::NOT_FOUND, String::new())).await;
    let (real, tokenizer) = (Worker::real().await, by_engine());
    assert_eq!(chain(&tokenizer, &messages(1), &[&lacks]).await.err(), Some(Reason::EngineLacks));
    assert_eq!(chain(&tokenizer, &messages(1), &[&lacks]).await.err(), Some(Reason::EngineLacks));
    assert_eq!(lacks.questions(), 1);
    for turn in 2..6 {
        chain(
            &tokenizer,
            &json!({ "messages": [{ "role": "user", "content": format!("{turn}") }] }),
            &[&lacks, &real],
        )
        .await
        .unwrap();
    }
    assert_eq!((lacks.questions(), real.questions()), (1, 4));
}

#[tokio::test]
async fn wrong_answers_are_no_answers() {
    let table: [(StatusCode, String, Reason); 6] = [
        (StatusCode::OK, "x".to_owned(), Reason::Engine),
        (StatusCode::OK, json!({ "tokens": [-1] }).to_string(), Reason::Engine),
        (StatusCode::OK, json!({ "tokens": "abc" }).to_string(), Reason::Engine),
        (StatusCode::OK, format!("{{\"tokens\":[{}1]}}", "1,".repeat(ANSWER_BYTES_MAX / 2)), Reason::Engine),
        (StatusCode::BAD_REQUEST, String::new(), Reason::Template),
        (StatusCode::SERVICE_UNAVAILABLE, String::new(), Reason::Engine),
    ];
    for (status, text, reason) in table {
        let shown = text.chars().take(40).collect::<String>();
        let worker = Worker::start(move |_| (status, text.clone())).await;
        assert_eq!(
            chain(&by_engine(), &messages(1), &[&worker]).await.err(),
            Some(reason),
            "{status} {shown}"
        );
    }
    let tokenizer = by_engine();
    assert_eq!(chain(&tokenizer, &messages(1), &[]).await.err(), Some(Reason::Engine));
    let nobody =
        Ask { workers: vec!["http://127.0.0.1:1".to_owned()], ..ask(Surface::Chat, &messages(1), &[]) };
    assert_eq!(tokenizer.chain(nobody).await.err(), Some(Reason::Engine));
    assert_eq!(tokenizer.counters().reasons().filter(|(_, n)| *n > 0).collect::<Vec<_>>(), [("engine", 2)]);
}

fn said(n: usize) -> Value {
    json!({ "messages": [{ "role": "user", "content": n.to_string() }] })
}

async fn asked_of(worker: &Worker, n: usize) {
    let asked = async {
        while worker.questions() < n {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it is asked");
}

/// What came too late for one turn is there for the next; until then the worker rests.
#[tokio::test]
async fn a_slow_worker_costs_the_deadline_and_is_not_flooded() {
    let (worker, tokenizer) = (Worker::real().await, by_engine());
    worker.gate.forget_permits(10_000);
    let hurried =
        |n| Ask { deadline: Duration::from_millis(200), ..ask(Surface::Chat, &said(n), &[&worker]) };
    assert_eq!(tokenizer.chain(hurried(0)).await.err(), Some(Reason::Late));
    assert_eq!(tokenizer.chain(hurried(1)).await.err(), Some(Reason::Engine), "it rests");
    assert_eq!(worker.questions(), 1);
    worker.gate.add_permits(10_000);
    let known = async {
        while tokenizer.known_bytes() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), known).await.expect("the late answer was kept");
    // It answered, so it is asked.
    chain(&tokenizer, &said(2), &[&worker]).await.unwrap();
}

/// No more questions are asked at once than there are places, and a worker that hangs gives them back at the deadline.
#[tokio::test]
async fn places_are_free_again_at_the_deadline() {
    let (hung, real) = (Worker::real().await, Worker::real().await);
    let tokenizer = Arc::new(by_engine());
    hung.gate.forget_permits(10_000);
    let ask_of_hung = |n| {
        let (tokenizer, ask) = (Arc::clone(&tokenizer), ask(Surface::Chat, &said(n), &[&hung]));
        tokio::spawn(
            async move { tokenizer.chain(Ask { deadline: Duration::from_secs(3), ..ask }).await.err() },
        )
    };
    let waiting: Vec<_> = (0..QUESTIONS_MAX).map(ask_of_hung).collect();
    asked_of(&hung, QUESTIONS_MAX).await;
    assert_eq!(chain(&tokenizer, &said(98), &[&real]).await.err(), Some(Reason::Queue));
    for one in waiting {
        assert_eq!(one.await.unwrap(), Some(Reason::Late));
    }
    // The worker still hangs: all of its late questions go on for seconds.
    chain(&tokenizer, &said(99), &[&real]).await.unwrap();
}

/// Whoever does not answer costs one question half of its time, and then nobody anything.
#[tokio::test]
async fn a_worker_that_hangs_starves_nobody() {
    let (hung, real, tokenizer) = (Worker::real().await, Worker::real().await, by_engine());
    hung.gate.forget_permits(10_000);
    for n in 0..40 {
        let patient =
            Ask { deadline: Duration::from_secs(4), ..ask(Surface::Chat, &said(n), &[&hung, &real]) };
        assert_eq!(tokenizer.chain(patient).await.map(|found| found.source), Ok(Source::Engine), "{n}");
    }
    assert_eq!(real.questions(), 40);
    // Rests double: in a minute it is tried six times.
    assert!(hung.questions() < 8, "{} questions", hung.questions());
}

/// A connection that is refused, and an error of the engine, are no answers either.
#[tokio::test]
async fn another_worker_is_asked_while_time_is_left() {
    let broken = Worker::start(|_| (StatusCode::INTERNAL_SERVER_ERROR, String::new())).await;
    let (real, tokenizer) = (Worker::real().await, by_engine());
    let mut ask = ask(Surface::Chat, &said(1), &[&broken]);
    ask.workers.extend(["http://127.0.0.1:1".to_owned(), real.url.clone()]);
    assert_eq!(tokenizer.chain(ask).await.map(|found| found.source), Ok(Source::Engine));
    assert_eq!((broken.questions(), real.questions()), (1, 1));
}

/// A folder without a template takes a worker's.
#[tokio::test]
async fn a_template_is_fetched_from_a_worker_that_offers_it() {
    let (worker, folder) = (Worker::real().await, folder(None));
    let threads = Arc::new(Threads::with(1).unwrap());
    let tokenizer =
        Tokenizer::new("p", &Tokens::local(folder.path().to_owned()), threads, reqwest::Client::new(), clock);
    let waited = async {
        loop {
            match chain(&tokenizer, &messages(2), &[&worker]).await {
                Ok(found) if found.source == Source::Local => return found,
                Ok(_) | Err(Reason::NoTemplate | Reason::Loading) => {
                    tokio::time::sleep(Duration::from_millis(5)).await
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), waited).await.expect("the template came");
    assert_eq!(found.chain, locally(&messages(2)));
}
