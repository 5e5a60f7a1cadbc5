//! Conversations against the engine: asks the service where a turn goes, sends it there, and keeps what both said beside what a
//! naive model of the ranks' caches expects. Judges nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::client::SESSION;
use e2e::wait::wait_within;
use serde_json::{Value, json};

use crate::engine::{MODEL, RANKS, Vllm};
use crate::fleet::{CHAT, Fleet, Shown};
use crate::front::Served;
use crate::model::Cache;

/// Events come within milliseconds; a lost one would come with the idle check, after 30 s.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Tokens of an answer: less than a block, so that some turns fill one and some do not.
const ANSWER_TOKENS: u32 = 24;
/// The first answer of a rank is slow.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The header that vLLM reads a rank from.
const RANK: &str = "x-data-parallel-rank";

/// Where a turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// Wherever the service says.
    Routed,
    /// Past the service.
    Rank(u32),
    /// By an Envoy, as the conversation of this key.
    Envoy(SocketAddr, &'static str),
}

/// One turn that was played.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) rank: u32,
    /// What the service said: leading blocks at that rank, blocks of the prompt.
    pub(crate) overlap: Option<(u32, u32)>,
    pub(crate) reason: String,
    pub(crate) prompt_tokens: u64,
    /// What the engine said.
    pub(crate) cached_tokens: u64,
    /// What the naive model says, in blocks.
    pub(crate) expected: u64,
}

/// A conversation so far.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    messages: Vec<Value>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Player {
    engine: String,
    http: reqwest::Client,
    pub(crate) fleet: Fleet,
    caches: Vec<Cache>,
    /// Ranks that hold nothing any more and will say so with their next step.
    untold: BTreeSet<u32>,
}

impl Talk {
    /// One with a long beginning, the same for every `topic`.
    pub(crate) fn new(topic: &str) -> Self {
        let lines =
            (1..=24).map(|n| format!("Rule {n} of {topic}: say what the {topic} is, and why it is so. "));
        let system: String = lines.collect();
        Self { messages: vec![json!({ "role": "system", "content": system })] }
    }

    /// Says something.
    pub(crate) fn ask(&mut self, text: &str) {
        self.messages.push(json!({ "role": "user", "content": text }));
    }

    fn body(&self) -> String {
        let body = json!({
            "model": MODEL, "messages": self.messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "return_token_ids": true,
        });
        body.to_string()
    }
}

impl Player {
    pub(crate) fn new(engine: &Vllm, fleet: Fleet) -> Self {
        let caches = (0..RANKS).map(|_| Cache::default()).collect();
        Self {
            engine: format!("http://{}", engine.address()),
            http: reqwest::Client::builder().no_proxy().build().unwrap_or_default(),
            fleet,
            caches,
            untold: BTreeSet::new(),
        }
    }

    /// Plays the next turn and waits until the service knows of it what the engine does.
    pub(crate) async fn turn(&mut self, talk: &mut Talk, to: To) -> Result<Turn> {
        let body = talk.body();
        let (served, answer) = match to {
            To::Rank(rank) => self.past_the_service(&body, rank).await?,
            To::Routed => self.routed(&body).await?,
            To::Envoy(envoy, session) => self.by_envoy(&body, envoy, session).await?,
        };
        let Served { rank, reason, overlap } = served;
        let rank = rank.with_context(|| format!("no rank: {reason}"))?;
        let cache = self.caches.get_mut(rank as usize).context("a rank that the engine has not")?;
        let (prompt, tokens) = (ids(&answer["prompt_token_ids"])?, ids(&answer["choices"][0]["token_ids"])?);
        let expected = cache.hit(&prompt);
        cache.take(&prompt, &tokens);
        self.untold.remove(&rank);
        talk.messages
            .push(json!({ "role": "assistant", "content": answer["choices"][0]["message"]["content"] }));
        let usage = &answer["usage"];
        let turn = Turn {
            rank,
            overlap,
            reason,
            prompt_tokens: usage["prompt_tokens"].as_u64().context("no usage")?,
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
            expected,
        };
        self.settled().await?;
        Ok(turn)
    }

    /// Waits until every rank that has told what it holds is shown with as many blocks as the naive model has.
    pub(crate) async fn settled(&self) -> Result<Vec<Shown>> {
        let mut last = Vec::new();
        let waited = wait_within(SETTLE_MAX, "events", async || {
            last = self.fleet.shown().await.ok()?;
            let shown: Vec<Shown> = last.iter().cloned().collect::<Option<_>>()?;
            let mut ranks = (0..).zip(shown.iter().zip(&self.caches));
            let same = ranks
                .all(|(rank, (shown, cache))| self.untold.contains(&rank) || shown.blocks == cache.len());
            (same && shown.len() == self.caches.len()).then_some(shown)
        })
        .await;
        let expected = self.held();
        waited.with_context(|| format!("the ranks must hold {expected:?} blocks; shown: {last:?}"))
    }

    /// Blocks that each rank must hold.
    pub(crate) fn held(&self) -> Vec<u64> {
        self.caches.iter().map(Cache::len).collect()
    }

    /// The engine's ranks hold nothing any more.
    pub(crate) fn forget(&mut self) {
        self.caches.iter_mut().for_each(Cache::clear);
    }

    /// `POST /reset_prefix_cache`.
    pub(crate) async fn reset(&mut self) -> Result<Value> {
        self.forget();
        self.untold.extend(0..RANKS);
        let answer = self.http.post(format!("{}/reset_prefix_cache", self.engine)).send().await?;
        Ok(answer.error_for_status()?.json().await.unwrap_or(Value::Null))
    }

    async fn past_the_service(&self, body: &str, rank: u32) -> Result<(Served, Value)> {
        let (_, answer) = self.send(&self.engine, body, RANK, &rank.to_string()).await?;
        Ok((Served { rank: Some(rank), reason: "-".to_owned(), overlap: None }, answer))
    }

    async fn routed(&mut self, body: &str) -> Result<(Served, Value)> {
        let (request, reply) = self.fleet.route(body).await?;
        let target = reply.target.as_ref().with_context(|| format!("no target: {reply:?}"))?;
        let rank = target.rank.with_context(|| format!("no rank: {reply:?}"))?.0;
        let answer = self.send(&self.engine, body, RANK, &rank.to_string()).await;
        self.fleet.ended(request).await?;
        let overlap = reply.overlap.map(|overlap| (overlap.blocks, overlap.of));
        Ok((Served { rank: Some(rank), reason: reply.reason, overlap }, answer?.1))
    }

    async fn by_envoy(&self, body: &str, envoy: SocketAddr, session: &str) -> Result<(Served, Value)> {
        let (served, answer) = self.send(&format!("http://{envoy}"), body, SESSION, session).await?;
        let served = served.context("Envoy does not say who served")?;
        Ok((Served::read(&served), answer))
    }

    /// The answer, and who gave it if that is said.
    async fn send(&self, to: &str, body: &str, name: &str, value: &str) -> Result<(Option<String>, Value)> {
        let request = self.http.post(format!("{to}{CHAT}")).timeout(TIMEOUT);
        let request = request.header("content-type", "application/json").header(name, value);
        let answer = request.body(body.to_owned()).send().await?;
        let served = answer.headers().get(routing::header::SERVED);
        let served = served.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "answered {status}: {text}");
        Ok((served, serde_json::from_str(&text)?))
    }
}

fn ids(list: &Value) -> Result<Vec<u32>> {
    let list = list.as_array().context("the engine tells no token ids")?;
    list.iter().map(|id| Ok(u32::try_from(id.as_u64().context("no token id")?)?)).collect()
}
