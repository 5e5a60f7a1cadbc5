//! Prompts tokenised by a worker: `POST /tokenize` with the whole conversation, exact by construction.
//!
//! What a worker said is kept by the messages it said it of. A later turn begins with the same messages: its chain is estimated
//! from the longest known beginning, and only when too much of it is new is a worker asked again. A question that misses its
//! deadline is let go on, bounded, for the next turn's sake. Knows no template and no tokenizer.

use super::Reason;
use super::body::{Asked, Chat, Prompt};
use super::generations::Generations;
use super::json::Json;
use super::messages::{Contents, seen};
use super::reason::Source;
use reqwest::{Client, Response, StatusCode};
use routing::block::{self, BlockHash, Chain, Namespace};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use xxhash_rust::xxh3::Xxh3;

/// Questions of one pool under way at once; more are not asked.
pub const QUESTIONS_MAX: usize = 16;
/// A worker that has not answered by then is not waited for.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes: some two million tokens.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Memory for what workers said, of one pool.
const KNOWN_BYTES_MAX: usize = 64 << 20;
/// A worker that lacks the endpoint is asked again after that long.
const LACKS_FOR: Duration = Duration::from_secs(60);
/// Workers of which that is remembered; then all are forgotten.
const LACKING_MAX: usize = 4096;
/// A beginning that is at least so many hundredths of a conversation stands for all of it.
const ENOUGH_PERCENT: usize = 75;
/// Tokens of a generation prompt, at the end of what a worker said: the next turn may have others there.
const GENERATION_TOKENS: u32 = 16;

/// What a worker said of a conversation.
struct Known {
    hashes: Box<[BlockHash]>,
    tokens: u32,
    /// Bytes of its messages.
    bytes: usize,
}

/// The beginnings of a conversation: the key and the bytes of its first message, its first two, and so on.
struct Beginnings(Vec<(u128, usize)>);

#[derive(Deserialize)]
struct Answer {
    tokens: Vec<u32>,
}

/// Asks the workers of a pool.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    turn: AtomicUsize,
}

struct Shared {
    client: Client,
    places: Arc<Semaphore>,
    known: Mutex<Generations<u128, Arc<Known>>>,
    lacking: Mutex<HashMap<String, Instant>>,
}

/// Namespace and block size of a chain.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    namespace: Namespace<'a>,
    size: u32,
}

impl Engine {
    pub(crate) fn new(client: Client) -> Self {
        let shared = Shared {
            client,
            places: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            known: Mutex::new(Generations::new(KNOWN_BYTES_MAX)),
            lacking: Mutex::default(),
        };
        Self { shared: Arc::new(shared), turn: AtomicUsize::new(0) }
    }

    /// Bytes of what workers said.
    pub(crate) fn known_bytes(&self) -> usize {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    /// The blocks of a prompt. `workers`: `http://host:port` each.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn chain(
        &self,
        prompt: Prompt,
        lora: Option<String>,
        block_size: u32,
        workers: &[String],
    ) -> Result<(Chain, Source), Reason> {
        let namespace = Namespace { lora: lora.as_deref(), salt: prompt.salt.as_deref() };
        let blocks = Blocks { namespace, size: block_size };
        if let Asked::Tokens(tokens) = &prompt.asked {
            return Ok((Chain::of(namespace, block_size, tokens), Source::Given));
        }
        if !prompt.whole {
            return Err(Reason::TooLong);
        }
        let beginnings = beginnings(&prompt, blocks)?;
        if let Some(found) = self.shared.find(&beginnings, block_size) {
            return Ok(found);
        }
        let place = Arc::clone(&self.shared.places).try_acquire_owned().map_err(|_| Reason::Queue)?;
        let worker = self.worker(workers)?;
        let shared = Arc::clone(&self.shared);
        let asking = tokio::spawn(async move {
            let tokens = shared.ask(&worker, &prompt).await;
            drop(place);
            let namespace = Namespace { lora: lora.as_deref(), salt: prompt.salt.as_deref() };
            let chain = Chain::of(namespace, block_size, &tokens?);
            shared.learn(&beginnings, &chain);
            Ok(chain)
        });
        let chain = asking.await.map_err(|_| Reason::Panicked)?;
        chain.map(|chain| (chain, Source::Engine))
    }

    /// One after the other, of those that have the endpoint.
    fn worker(&self, workers: &[String]) -> Result<String, Reason> {
        if workers.is_empty() {
            return Err(Reason::Engine);
        }
        let lacking = self.shared.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let able = workers.iter().filter(|worker| lacking.get(*worker).is_none_or(|until| *until <= now));
        let able: Vec<_> = able.collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(able.len()).unwrap_or(0);
        able.get(turn).map(|worker| (*worker).clone()).ok_or(Reason::EngineLacks)
    }
}

impl Shared {
    /// What is known of all of it, or enough.
    fn find(&self, beginnings: &Beginnings, block_size: u32) -> Option<(Chain, Source)> {
        let (last, all) = beginnings.0.last().copied()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = |bytes: usize| bytes.saturating_mul(100) >= all.saturating_mul(ENOUGH_PERCENT);
        let candidates = beginnings.0.iter().rev().take_while(|(_, bytes)| enough(*bytes));
        let (key, found) =
            candidates.into_iter().find_map(|(key, _)| Some((*key, Arc::clone(known.peek(key)?))))?;
        known.keep(key, &found, found.cost());
        known.turn();
        drop(known);
        let whole = Chain { hashes: found.hashes.to_vec(), block_size, tokens: found.tokens };
        Some(if key == last {
            (whole, Source::Engine)
        } else {
            (estimate(whole, found.bytes, all), Source::Estimated)
        })
    }

    fn learn(&self, beginnings: &Beginnings, chain: &Chain) {
        let Some((key, bytes)) = beginnings.0.last().copied() else { return };
        let known = Known { hashes: chain.hashes.clone().into_boxed_slice(), tokens: chain.tokens, bytes };
        let cost = known.cost();
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.keep(key, &Arc::new(known), cost);
        all.turn();
    }

    async fn ask(&self, worker: &str, prompt: &Prompt) -> Result<Vec<u32>, Reason> {
        let request = self.client.post(format!("{worker}/tokenize")).json(&question(prompt));
        let answer = timeout(ANSWER_TIMEOUT, async {
            let response = request.send().await.map_err(|_| Reason::Engine)?;
            match response.status() {
                status if status.is_success() => bounded(response).await,
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                    self.lacks(worker);
                    Err(Reason::EngineLacks)
                }
                // Its template or its schema refuses the body: the real request will fail alike.
                status if status.is_client_error() => Err(Reason::Template),
                _ => Err(Reason::Engine),
            }
        });
        let bytes = answer.await.map_err(|_| Reason::Late)??;
        serde_json::from_slice::<Answer>(&bytes).map(|answer| answer.tokens).map_err(|_| Reason::Engine)
    }

    fn lacks(&self, worker: &str) {
        let mut lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        if lacking.len() >= LACKING_MAX {
            lacking.clear();
        }
        lacking.insert(worker.to_owned(), Instant::now() + LACKS_FOR);
    }
}

impl Known {
    fn cost(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.hashes)
    }
}

/// The known beginning of a longer conversation: what is sure of its blocks, and as many tokens as its bytes make likely.
fn estimate(mut chain: Chain, known: usize, all: usize) -> Chain {
    let sure = chain.tokens.saturating_sub(GENERATION_TOKENS).checked_div(chain.block_size).unwrap_or(0);
    chain.hashes.truncate(usize::try_from(sure).unwrap_or(usize::MAX));
    let scaled = u64::from(chain.tokens).saturating_mul(all as u64).checked_div(known as u64).unwrap_or(0);
    chain.tokens = u32::try_from(scaled).unwrap_or(u32::MAX);
    chain
}

/// # Errors
/// What a text does not tell all of: the engine would be asked in vain.
fn beginnings(prompt: &Prompt, blocks: Blocks<'_>) -> Result<Beginnings, Reason> {
    let mut hash = Xxh3::with_seed(block::seed(blocks.namespace));
    hash.update(&blocks.size.to_le_bytes());
    let mut bytes = 0;
    let mut list = Vec::new();
    let mut begin = |hash: &mut Xxh3, part: &[u8]| {
        bytes += part.len();
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
        list.push((hash.digest128(), bytes));
    };
    match &prompt.asked {
        Asked::Chat(chat) => {
            seen(&chat.messages, Contents::Text)?;
            hash.update(&serde_json::to_vec(&head(prompt, chat)).unwrap_or_default());
            for message in &chat.messages {
                begin(&mut hash, &serde_json::to_vec(message).unwrap_or_default());
            }
        }
        Asked::Text { text, marks } => {
            hash.update(&[u8::from(*marks)]);
            begin(&mut hash, text.as_bytes());
        }
        Asked::Tokens(_) => {}
    }
    Ok(Beginnings(list))
}

/// Everything but the messages.
fn head(prompt: &Prompt, chat: &Chat) -> Vec<(String, Json)> {
    let mut head = Vec::new();
    let mut put = |name: &str, value: Json| head.push((name.to_owned(), value));
    if let Some(model) = &prompt.model {
        put("model", Json::of(model));
    }
    if let Some(tools) = &chat.tools {
        put("tools", tools.clone());
    }
    if !chat.kwargs.is_empty() {
        put("chat_template_kwargs", Json::Map(chat.kwargs.clone()));
    }
    put("add_generation_prompt", Json::Bool(chat.add_generation_prompt));
    put("add_special_tokens", Json::Bool(chat.marks));
    head
}

fn question(prompt: &Prompt) -> Json {
    match &prompt.asked {
        Asked::Chat(chat) => {
            let mut members = head(prompt, chat);
            members.push(("messages".to_owned(), Json::List(chat.messages.clone())));
            Json::Map(members)
        }
        Asked::Text { text, marks } => {
            let model = prompt.model.as_deref().map(|model| ("model".to_owned(), Json::of(model)));
            let rest = [("prompt", Json::of(text)), ("add_special_tokens", Json::Bool(*marks))];
            Json::Map(model.into_iter().chain(rest.map(|(name, value)| (name.to_owned(), value))).collect())
        }
        Asked::Tokens(_) => Json::Null,
    }
}

/// The body of an answer, unless it is too long.
async fn bounded(mut response: Response) -> Result<Vec<u8>, Reason> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|_| Reason::Engine)? {
        if body.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(Reason::Engine);
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// A worker's `tokenizer_config.json`, where it offers it (vLLM: `--enable-tokenizer-info-endpoint`).
pub(crate) async fn offered_config(client: &Client, worker: &str) -> Option<String> {
    let asked = timeout(ANSWER_TIMEOUT, async {
        let response = client.get(format!("{worker}/tokenizer_info")).send().await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        String::from_utf8(bounded(response).await.ok()?).ok()
    });
    asked.await.ok().flatten()
}
