//! Prompts tokenised by a worker: `POST /tokenize` with the whole conversation, exact by construction.
//!
//! What a worker said is kept by the messages it said it of. A later turn begins with the same messages: its chain is estimated
//! from the longest known beginning, and only when too much of it is new is a worker asked again. A question that misses its
//! deadline is let go on, bounded, for the next turn's sake, in a place of its own: whoever hangs keeps nobody from asking another.
//! Knows no template and no tokenizer.

use super::Reason;
use super::body::{Asked, Prompt};
use super::generations::Generations;
use super::messages::{Contents, seen};
use super::question::{bounded, head, question};
use super::reason::Source;
use super::rest::Resting;
use reqwest::{Client, StatusCode};
use routing::block::{self, BlockHash, Chain, Namespace};
use serde::Deserialize;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use xxhash_rust::xxh3::Xxh3;

/// Questions of one pool under way at once; more are not asked.
pub const QUESTIONS_MAX: usize = 16;
/// A worker that has not answered by then is not waited for.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes: some two million tokens.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Memory for what workers said, of one pool.
const KNOWN_BYTES_MAX: usize = 64 << 20;
/// Questions of one pool that go on although nobody waits any more; others end with their caller's deadline.
const LATE_MAX: usize = 16;
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
    late: Arc<Semaphore>,
    known: Mutex<Generations<u128, Arc<Known>>>,
    resting: Resting,
}

/// What is asked, and what becomes of the answer.
struct Question {
    prompt: Prompt,
    beginnings: Beginnings,
    lora: Option<String>,
    block_size: u32,
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
            late: Arc::new(Semaphore::new(LATE_MAX)),
            known: Mutex::new(Generations::new(KNOWN_BYTES_MAX)),
            resting: Resting::default(),
        };
        Self { shared: Arc::new(shared), turn: AtomicUsize::new(0) }
    }

    /// Bytes of what workers said.
    pub(crate) fn known_bytes(&self) -> usize {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    /// The blocks of a prompt, waited for until then. `workers`: `http://host:port` each.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn chain(
        &self,
        prompt: Prompt,
        lora: Option<String>,
        block_size: u32,
        workers: &[String],
        until: Instant,
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
        let question = Question { prompt, beginnings, lora, block_size };
        let chain = self.asked(Arc::new(question), workers, Arc::new(place), until).await?;
        Ok((chain, Source::Engine))
    }

    /// One worker after the other, each for half of the time that is left, the last for all of it.
    async fn asked(
        &self,
        question: Arc<Question>,
        workers: &[String],
        place: Arc<OwnedSemaphorePermit>,
        until: Instant,
    ) -> Result<Chain, Reason> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let able = self.shared.resting.able(Instant::now(), workers, turn);
        if let Some(worker) = able.tried {
            drop(self.shared.start(worker, &question, None, Instant::now()));
        }
        let mut found = Err(if able.all_lack { Reason::EngineLacks } else { Reason::Engine });
        let others = (0..able.first.len()).rev();
        for (worker, others) in able.first.into_iter().zip(others) {
            let left = until.saturating_duration_since(Instant::now());
            let share = if others == 0 { left } else { left / 2 };
            let waits = Waits { resting: &self.shared.resting, worker: &worker };
            let until = Instant::now() + share;
            let answer = self.shared.start(worker.clone(), &question, Some(Arc::clone(&place)), until);
            found = answer.await.unwrap_or(Err(Reason::Panicked));
            waits.over();
            // A body that one refuses all refuse.
            if matches!(found, Ok(_) | Err(Reason::Template)) {
                break;
            }
        }
        found
    }
}

/// Somebody waits for this worker's answer. Dropped before it is over, by the turn's own deadline, the worker did not answer: that is
/// known before the turn goes on, whichever of the two timers was seen first.
struct Waits<'a> {
    resting: &'a Resting,
    worker: &'a str,
}

impl Waits<'_> {
    fn over(self) {
        std::mem::forget(self);
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.resting.failed(Instant::now(), self.worker);
    }
}

impl Shared {
    /// Asks on a task of its own, so that a late answer is kept. What it gives is waited for until then, as long as it keeps `place`;
    /// without one it is tried, and nobody waits.
    fn start(
        self: &Arc<Self>,
        worker: String,
        question: &Arc<Question>,
        place: Option<Arc<OwnedSemaphorePermit>>,
        until: Instant,
    ) -> oneshot::Receiver<Result<Chain, Reason>> {
        let (reply, answer) = oneshot::channel();
        let (shared, question) = (Arc::clone(self), Arc::clone(question));
        tokio::spawn(async move {
            let mut asking = pin!(shared.ask_and_learn(&worker, &question));
            if let Ok(result) = timeout_at(until, &mut asking).await {
                // Nobody waits any more: nothing to tell.
                let _ = reply.send(result);
                return;
            }
            if place.is_some() {
                shared.resting.failed(Instant::now(), &worker);
            }
            let _ = reply.send(Err(Reason::Late));
            drop(place);
            if let Ok(_late) = shared.late.try_acquire() {
                let _ = asking.await;
            }
        });
        answer
    }

    async fn ask_and_learn(&self, worker: &str, question: &Question) -> Result<Chain, Reason> {
        let Question { prompt, beginnings, lora, block_size } = question;
        let tokens = self.ask(worker, prompt).await;
        match &tokens {
            Ok(_) | Err(Reason::Template) => self.resting.well(worker),
            Err(Reason::EngineLacks) => self.resting.lacks(Instant::now(), worker),
            Err(_) => self.resting.failed(Instant::now(), worker),
        }
        let namespace = Namespace { lora: lora.as_deref(), salt: prompt.salt.as_deref() };
        let chain = Chain::of(namespace, *block_size, &tokens?);
        self.learn(beginnings, &chain);
        Ok(chain)
    }

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
