//! From prompts to replies: whole or streamed. Knows ranks and words; the shape of what is sent is a [`Format`].

use std::sync::Arc;

use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::answer::{Answer, ENGINE_RANK, events};
use crate::ask::{Plan, Prompt};
use crate::body::STREAM_FRAMES_MAX;
use crate::model::Word;
use crate::ranks::{Finish, Prefill, Turn};
use crate::record::Outcome;
use crate::shared::Shared;

/// Tokens spent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    /// Of the prompt: found in the cache.
    pub(crate) cached: usize,
    /// Of the prompt: newly cached.
    pub(crate) written: usize,
}

impl Usage {
    pub(crate) fn total(&self) -> usize {
        self.prompt + self.completion
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            prompt: self.prompt + other.prompt,
            completion: self.completion + other.completion,
            cached: self.cached + other.cached,
            written: self.written + other.written,
        }
    }
}

/// A whole reply.
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) finish: Finish,
    pub(crate) usage: Usage,
    pub(crate) prompt: Arc<[u32]>,
}

/// How one endpoint words a stream. Each method's text goes out as one frame; empty sends none.
pub(crate) trait Format: Send + 'static {
    /// The prompt of choice `index` is computed.
    fn begin(&mut self, index: usize, prompt: &[u32], usage: &Usage) -> String;
    /// One more word of it; `last` with the last.
    fn word(&mut self, index: usize, word: &Word, last: Option<Finish>, usage: &Usage) -> String;
    /// All choices are complete.
    fn end(&mut self, usage: &Usage) -> String;
}

/// Prompts of one request, admitted to one rank.
pub(crate) struct Generations {
    shared: Arc<Shared>,
    outcome: Outcome,
    rank: u32,
    turns: Vec<Generation>,
}

struct Generation {
    turn: Turn,
    prompt: Prompt,
    plan: Plan,
}

impl Generations {
    /// Admits every prompt of a request; without a wish the first one's rank serves them all.
    pub(crate) fn admit(
        shared: &Arc<Shared>,
        outcome: Outcome,
        asked: Option<usize>,
        prompts: Vec<(Prompt, Plan)>,
    ) -> Self {
        let mut place = asked;
        let mut turns = Vec::with_capacity(prompts.len());
        for (prompt, plan) in prompts {
            let turn = shared.ranks.admit(place);
            place = Some(turn.index());
            turns.push(Generation { turn, prompt, plan });
        }
        let rank = turns.first().map_or(0, |generation| generation.turn.rank());
        outcome.rank(rank);
        Self { shared: Arc::clone(shared), outcome, rank, turns }
    }

    /// A request that makes no tokens: counted on the rank the engine chooses, and gone.
    pub(crate) fn admit_pooling(shared: &Arc<Shared>, outcome: &Outcome, tokens: usize) -> Served<()> {
        let turn = shared.ranks.admit(None);
        let rank = turn.rank();
        turn.finish(Finish::Stop, 0);
        outcome.rank(rank);
        outcome.prompt(tokens, 0);
        Served { rank, value: () }
    }

    /// Every reply, when all are complete.
    pub(crate) async fn run(self) -> Served<Vec<Reply>> {
        let mut replies = Vec::with_capacity(self.turns.len());
        for generation in self.turns {
            replies.push(generation.run(&self.shared, &self.outcome).await);
        }
        Served { rank: self.rank, value: replies }
    }

    /// An event stream that starts at once and follows the generation.
    pub(crate) fn stream(self, mut format: impl Format) -> Answer {
        let (frames, receiver) = mpsc::channel(STREAM_FRAMES_MAX);
        let rank = self.rank;
        let task = async move {
            let mut total = Usage::default();
            for (index, generation) in self.turns.into_iter().enumerate() {
                match generation.stream(index, &self.shared, &self.outcome, &mut format, &frames).await {
                    Some(usage) => total = total.plus(usage),
                    // The client went away, or the connection was reset: the turn is dropped, so aborted.
                    None => return,
                }
            }
            send(&frames, format.end(&total)).await;
        };
        // Ends when the receiver, which is the response's body, is dropped.
        tokio::spawn(task);
        Served { rank, value: events(receiver) }.answer(|answer| answer)
    }
}

/// Something a rank made.
pub(crate) struct Served<T> {
    rank: u32,
    value: T,
}

impl<T> Served<T> {
    /// The answer, naming the rank.
    pub(crate) fn answer(self, make: impl FnOnce(T) -> Answer) -> Answer {
        let mut answer = make(self.value);
        answer.headers_mut().insert(ENGINE_RANK, self.rank.into());
        answer
    }
}

impl Generation {
    async fn run(mut self, shared: &Shared, outcome: &Outcome) -> Reply {
        let (found, mut usage) = self.prefill(outcome).await;
        let words = shared.model.reply(found.fingerprint, self.plan.tokens);
        self.turn.decode_until(Instant::now(), words.len()).await;
        let tokens: Vec<u32> = words.iter().map(|word| word.token).collect();
        self.turn.extend(tokens[..tokens.len() - 1].iter().copied());
        usage.completion = tokens.len();
        self.turn.finish(self.plan.finish, tokens.len());
        let text = words.iter().map(|word| &*word.text).collect();
        Reply { text, tokens, finish: self.plan.finish, usage, prompt: self.prompt.tokens }
    }

    async fn stream(
        mut self,
        index: usize,
        shared: &Shared,
        outcome: &Outcome,
        format: &mut impl Format,
        frames: &mpsc::Sender<Bytes>,
    ) -> Option<Usage> {
        let (found, mut usage) = tokio::select! {
            prefilled = self.prefill(outcome) => prefilled,
            () = frames.closed() => return None,
        };
        send(frames, format.begin(index, &self.prompt.tokens, &usage)).await?;
        let words = shared.model.reply(found.fingerprint, self.plan.tokens);
        let started = Instant::now();
        for (at, word) in words.iter().enumerate() {
            self.turn.decode_until(started, at + 1).await;
            usage.completion = at + 1;
            let last = (at + 1 == words.len()).then_some(self.plan.finish);
            send(frames, format.word(index, word, last, &usage)).await?;
            if last.is_none() {
                self.turn.extend([word.token]);
            }
        }
        self.turn.finish(self.plan.finish, words.len());
        Some(usage)
    }

    async fn prefill(&mut self, outcome: &Outcome) -> (Prefill, Usage) {
        let found = self.turn.prefill(&self.prompt.space, &self.prompt.tokens).await;
        let prompt = self.prompt.tokens.len();
        outcome.prompt(prompt, found.cached);
        (found, Usage { prompt, completion: 0, cached: found.cached, written: found.written })
    }
}

/// `None` when nobody reads any more.
async fn send(frames: &mpsc::Sender<Bytes>, text: String) -> Option<()> {
    if text.is_empty() {
        return Some(());
    }
    frames.send(Bytes::from(text)).await.ok()
}
