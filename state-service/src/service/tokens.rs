//! The prompts of questions, made into blocks before the state is asked: it never tokenises.
//!
//! Owns a tokenizer for each pool that has one, and for how long a question may wait for it. What cannot be made into blocks in
//! time is placed by its length alone.

mod models;
mod shown;

use super::Service;
use crate::config::ServiceConfig;
use crate::http::problem::Problem;
use crate::metrics::Text;
use crate::state::{Endpoint, Worker};
use crate::tokenize::threads::Threads;
use crate::tokenize::{Ask, Reason, Surface, Tokenizer, system_clock};
use axum::http::StatusCode;
use models::{Models, Named, Names};
use routing::block::{BlockHash, Chain, Namespace};
use routing::contract::{PROMPT_TOKENS_MAX, Prompt, RouteRequest};
use routing::id::PoolName;
use routing::json::{Paths, Reader};
use routing::time::Millis;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a prompt's tokens, whatever its caller's patience: the most a filter's config allows it.
const TOKENS_MAX: Millis = Millis(10_000);
/// Of its caller's patience a question keeps this part, in percent, for the choice and the way back.
const KEPT_PERCENT: u64 = 20;
/// Workers that may be asked for one prompt's tokens.
const ASKED_MAX: usize = 3;
/// Bytes that stand for a token where nothing better is known.
const TOKEN_BYTES: usize = 4;

/// The pools' tokenizers. Without one nothing is started.
#[derive(Default)]
pub struct Tokenizers {
    pools: BTreeMap<PoolName, Tokenizer>,
    models: Models,
    settings: BTreeMap<PoolName, shown::Settings>,
}

impl Tokenizers {
    /// Begins to load what is to be loaded.
    ///
    /// # Errors
    /// The system gives no thread, or no HTTP client can be made.
    pub fn start(config: &ServiceConfig) -> io::Result<Self> {
        let settings = shown::settings(config);
        if config.tokens.is_empty() {
            let none = Self { settings, ..Self::default() };
            none.say_unsaid();
            return Ok(none);
        }
        let threads = Arc::new(Threads::start()?);
        let client = reqwest::Client::builder().no_proxy().build().map_err(io::Error::other)?;
        let start = |pool: &PoolName, tokens| {
            Tokenizer::new(pool.as_str(), tokens, Arc::clone(&threads), client.clone(), system_clock)
        };
        let pools = config.tokens.iter().map(|(pool, tokens)| (pool.clone(), start(pool, tokens))).collect();
        let all = Self { pools, models: Models::default(), settings };
        all.say_unsaid();
        Ok(all)
    }

    pub(super) fn render(&self, text: &mut Text) {
        text.family("rankpin_prompts_total", "counter", "Prompts made into blocks, by pool and how.");
        for (pool, tokenizer) in &self.pools {
            for (source, count) in tokenizer.counters().sources() {
                text.sample("rankpin_prompts_total", &format!("pool=\"{pool}\",source=\"{source}\""), count);
            }
        }
        let help =
            "Prompts of which no blocks could be made, placed by their length alone, by pool and reason.";
        text.family("rankpin_prompts_unread_total", "counter", help);
        for (pool, tokenizer) in &self.pools {
            for (reason, count) in tokenizer.counters().reasons() {
                let labels = format!("pool=\"{pool}\",reason=\"{reason}\"");
                text.sample("rankpin_prompts_unread_total", &labels, count);
            }
        }
        let help =
            "Bytes of prompts that had to be tokenised, and those whose tokens were known from earlier ones.";
        text.family("rankpin_prompt_bytes_total", "counter", help);
        for (pool, tokenizer) in &self.pools {
            let (known, encoded) = tokenizer.counters().bytes();
            for (word, count) in [("known", known), ("encoded", encoded)] {
                let labels = format!("pool=\"{pool}\",tokens=\"{word}\"");
                text.sample("rankpin_prompt_bytes_total", &labels, count);
            }
        }
        let help = "Texts that a tokenizer did not split as it should: it is given whole texts from then on.";
        text.family("rankpin_prompt_splits_refused_total", "counter", help);
        for (pool, tokenizer) in &self.pools {
            let refused = tokenizer.counters().splits_refused();
            text.sample("rankpin_prompt_splits_refused_total", &format!("pool=\"{pool}\""), refused);
        }
        let help = "Bytes of what is known of earlier prompts.";
        text.family("rankpin_prompt_known_bytes", "gauge", help);
        for (pool, tokenizer) in &self.pools {
            text.sample("rankpin_prompt_known_bytes", &format!("pool=\"{pool}\""), tokenizer.known_bytes());
        }
    }
}

/// What of a pool a prompt's blocks depend on.
#[derive(Debug, Default)]
struct Facts {
    block_size: u32,
    workers: Vec<String>,
    model: Named,
}

impl Service {
    /// Takes the prompt out of a question and makes blocks of it.
    ///
    /// # Errors
    /// [`Problem`]: it is longer than any.
    pub(super) async fn blocks_of(&self, request: &mut RouteRequest) -> Result<Option<Box<Chain>>, Problem> {
        let Some(prompt) = request.prompt.take() else { return Ok(None) };
        let patience = Millis(request.deadline_ms.0.min(TOKENS_MAX.0) * (100 - KEPT_PERCENT) / 100);
        let model = request.demands.model.clone();
        self.blocks_of_prompt(&request.pool, *prompt, model, patience).await.map(Some)
    }

    /// The same of any prompt.
    ///
    /// # Errors
    /// [`Problem`]: it is longer than any.
    pub(super) async fn blocks_of_prompt(
        &self,
        pool: &PoolName,
        prompt: Prompt,
        model: Option<String>,
        patience: Millis,
    ) -> Result<Box<Chain>, Problem> {
        check_length(&prompt)?;
        let chain = match prompt {
            Prompt::Blocks { hashes, block_size, tokens } => {
                Chain { hashes: hashes.into_iter().map(BlockHash).collect(), block_size, tokens }
            }
            Prompt::Tokens { ids, lora, salt } => {
                let namespace = Namespace { lora: lora.as_deref(), salt: salt.as_deref() };
                let block_size = self.lock().kv_block_size(pool);
                Chain::of(namespace, block_size, &ids)
            }
            Prompt::Text { path, body, whole } => {
                let model = model.or_else(|| model_of(&body));
                let facts = self.facts(pool, model.as_deref(), whole);
                let long = u32::try_from(body.len() / TOKEN_BYTES).unwrap_or(u32::MAX);
                let unread = Chain { hashes: Vec::new(), block_size: facts.block_size, tokens: long };
                let text = (path.as_str(), body, whole);
                self.tokenised(pool, text, facts, patience).await.unwrap_or(unread)
            }
        };
        Ok(Box::new(chain))
    }

    async fn tokenised(
        &self,
        pool: &PoolName,
        (path, body, whole): (&str, String, bool),
        facts: Facts,
        patience: Millis,
    ) -> Option<Chain> {
        let tokenizer = self.tokenizers.pools.get(pool)?;
        let Some(surface) = Surface::of(path) else {
            tokenizer.counters().miss(Reason::Surface);
            return None;
        };
        let Facts { block_size, workers, model } = facts;
        let lora = match model {
            Named::Base => None,
            Named::Adapter(name) => Some(name),
            // Of own placements it is known what they asked for.
            Named::Unknown(Some(name)) if tokenizer.is_approximate() => Some(name),
            Named::Unknown(_) => {
                self.tokenizers.models.say_unknown(pool);
                tokenizer.counters().miss(Reason::Model);
                return None;
            }
        };
        let deadline = Duration::from_millis(patience.0);
        let ask = Ask { surface, body, whole, lora, block_size, workers, deadline };
        tokenizer.chain(ask).await.ok().map(|tokenized| tokenized.chain)
    }

    fn facts(&self, pool: &PoolName, model: Option<&str>, whole: bool) -> Facts {
        let reads = self.tokenizers.pools.contains_key(pool);
        let state = self.lock();
        let block_size = state.kv_block_size(pool);
        if !reads {
            return Facts { block_size, ..Facts::default() };
        }
        let of_pool: Vec<&Worker> = state.workers().filter(|worker| worker.spec().pool == *pool).collect();
        let listed = self.tokenizers.models.listed();
        let workers = of_pool.iter().map(|worker| (worker.spec(), listed.get(worker.id()))).collect();
        let own = state.pools().find(|info| info.name == *pool).map_or(&[][..], |info| &info.models);
        let model = Names { pool: own, workers }.find(model, whole);
        let open: Vec<&Endpoint> = of_pool.iter().filter_map(|worker| open_endpoint(worker)).collect();
        let workers = some(&open, self.chance.draw()).map(url).collect();
        Facts { block_size, workers, model }
    }
}

/// A few, beginning anywhere, so that not always the same worker tokenises.
fn some<'a>(all: &'a [&'a Endpoint], draw: u64) -> impl Iterator<Item = &'a Endpoint> {
    let first = u64::try_from(all.len()).ok().and_then(|len| draw.checked_rem(len));
    let first = first.and_then(|first| usize::try_from(first).ok()).unwrap_or(0);
    all.iter().cycle().skip(first).take(all.len().min(ASKED_MAX)).copied()
}

/// Where a worker may be asked; not those behind TLS, whose certificates only Envoy can check.
fn open_endpoint(worker: &Worker) -> Option<&Endpoint> {
    let serves = worker.state().serves_bound();
    worker.endpoints().iter().find(|endpoint| endpoint.spec.tls.is_none()).filter(|_| serves)
}

fn url(open: &Endpoint) -> String {
    let dial = open.resolved.map_or_else(|| open.spec.address.to_string(), |at| at.to_string());
    format!("http://{dial}")
}

fn model_of(body: &str) -> Option<String> {
    const MODEL: &str = "/model";
    let paths = Arc::new(Paths::new([MODEL]).ok()?);
    let mut reader = Reader::new(&paths);
    reader.feed(body.as_bytes());
    let fields = reader.so_far();
    fields.text(MODEL).and_then(|text| String::from_utf8(text.to_vec()).ok())
}

fn check_length(prompt: &Prompt) -> Result<(), Problem> {
    let units = match prompt {
        Prompt::Text { .. } => 0,
        Prompt::Tokens { ids, .. } => ids.len(),
        Prompt::Blocks { hashes, .. } => hashes.len(),
    };
    if units <= PROMPT_TOKENS_MAX {
        return Ok(());
    }
    let detail = format!("{units} tokens or blocks, at most {PROMPT_TOKENS_MAX} are taken");
    Err(Problem::new(StatusCode::BAD_REQUEST, "prompt_too_long", "The prompt is too long", detail))
}
