//! Asks each worker that is declared by its URL alone what it is: engine, version, ranks, block size. Tells the state, which decides.
//! Asks those whose prompts become tokens for their models, too.
//!
//! One task a worker. It asks soon and often until the engine answers, then now and then: a restart may bring other ranks.

mod models;
mod read;

pub use models::Listed;

use crate::declare::{Address, Told};
use crate::keepers;
use crate::probe;
use crate::service::Service;
use read::Answers;
use routing::id::WorkerId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// An answer that is not whole by then is none.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Most of an answer that is read.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Between two rounds of questions to an engine that told.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// The first and the longest pause before another round to one that did not.
const ASK_FIRST: Duration = Duration::from_millis(250);
const ASK_PAUSE_MAX: Duration = Duration::from_secs(5);

/// One engine to ask.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// Its worker.
    pub worker: WorkerId,
    /// As declared; also for the `host` header.
    pub address: Address,
    /// `host:port` to dial: resolved where possible.
    pub dial: String,
}

/// Asks until the service stops.
///
/// # Errors
/// When no HTTP client can be made.
pub async fn run(service: Arc<Service>) -> Result<(), reqwest::Error> {
    let client = probe::client()?;
    let start = |asked| keep_asking(Arc::clone(&service), client.clone(), asked);
    let told = keepers::follow(service.members_changed(), || service.asked(), start);
    let start = |asked| models::keep_asking(Arc::clone(&service), client.clone(), asked);
    let listed = keepers::follow(service.members_changed(), || service.models_asked(), start);
    tokio::join!(told, listed);
    Ok(())
}

async fn keep_asking(service: Arc<Service>, client: reqwest::Client, asked: Asked) {
    let mut pause = ASK_FIRST;
    let mut last = None;
    loop {
        let told = ask(&client, &asked).await;
        pause = if told.is_some() { ASK_AGAIN } else { (pause * 2).min(ASK_PAUSE_MAX) };
        if told.is_some() && told != last {
            tracing::info!(worker = %asked.worker, ?told, "an engine told what it is");
            last.clone_from(&told);
        }
        if let Some(told) = told {
            service.told(&asked, told);
        }
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        sleep(Duration::from_millis(service.chance.jittered(pause_ms).0)).await;
    }
}

/// `None`: it did not answer, or with nothing that is known of vLLM or SGLang.
async fn ask(client: &reqwest::Client, asked: &Asked) -> Option<Told> {
    let authority = asked.address.to_string();
    let get = async |path| {
        let answer = probe::get(client, (&asked.dial, &authority), path, ANSWER_BYTES_MAX);
        timeout(ASK_TIMEOUT, answer).await.ok().flatten()
    };
    // Whoever does not answer the first question is not asked the others.
    let mut answers = Answers { sources: get("/kv_event_sources").await?, ..Answers::default() };
    answers.metrics = get("/metrics").await?;
    answers.version = get("/version").await?;
    if !answers.are_of_vllm() {
        answers.info = get("/server_info").await?;
        if answers.info.is_empty() {
            answers.info = get("/get_server_info").await?;
        }
    }
    answers.told()
}
