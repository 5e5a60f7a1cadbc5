//! Prompts tokenised here: a model's files, its template, its tokenizer, and what is known of earlier prompts.
//!
//! A next turn costs its new messages: everything before the last cut that a known prompt shares is taken from `prefix`. That the
//! parts have the tokens of the whole follows from where `cuts` cuts; each part is checked for the tokens it is cut at, and a
//! tokenizer that breaks the rule once tokenises whole texts from then on. Knows no network.

use super::body::Prompt;
use super::cuts::{Cut, Cuts};
use super::encode::{Encoder, EncoderError, Which};
use super::json::Json;
use super::prefix::{Chaining, Node, Prefixes, Room, keys};
use super::reason::{Counters, Reason};
use super::render::{Rendered, render};
use super::template::{Clock, TemplateError, Templates};
use routing::block::{self, Chain, Namespace};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest file of a model that is read, in bytes.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Memory for what is known of earlier prompts, of one pool. Behind it the least recently used goes; it costs time, nothing else.
pub const PREFIX_BYTES_MAX: usize = 64 << 20;
/// Tokens at the end of a cut prompt that may differ from the whole one's: what closes the template, and a cut word.
const CUT_TOKENS: u32 = 64;

/// Where a model is, and how it is used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Files {
    /// Folder with `tokenizer.json` and, if they are there, `tokenizer_config.json` and `chat_template.jinja`.
    pub(crate) folder: PathBuf,
    /// Another template, as the engine's `--chat-template`.
    pub(crate) template: Option<PathBuf>,
    /// As the engine's `--default-chat-template-kwargs`.
    pub(crate) kwargs: Vec<(String, Json)>,
    pub(crate) which: Which,
}

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// A file cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// Not a tokenizer.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// Not a template, or one that uses what is unknown here.
    #[error(transparent)]
    Template(TemplateError),
    /// Not JSON.
    #[error("tokenizer_config.json is no JSON")]
    Config,
}

/// A pool's model.
pub(crate) struct Local {
    encoder: Encoder,
    cuts: Cuts,
    /// Until a text was seen that must not be cut.
    cutting: AtomicBool,
    templates: Option<Templates>,
    prefixes: Prefixes,
    counters: Arc<Counters>,
}

impl Local {
    /// Reads the files; `offered` is a worker's `tokenizer_config.json`, for a folder that has none or none with a template.
    ///
    /// # Errors
    /// What is wrong with them. A model without a template serves completions alone.
    pub(crate) fn load(
        files: &Files,
        offered: Option<&str>,
        clock: Clock,
        counters: Arc<Counters>,
    ) -> Result<Self, LoadError> {
        let tokenizer = read(&files.folder.join("tokenizer.json"))?;
        let config = optional(&files.folder.join("tokenizer_config.json"))?;
        let config = merged(config.as_deref(), offered)?;
        let template = match &files.template {
            Some(path) => Some(text(&read(path)?)),
            None => optional(&files.folder.join("chat_template.jinja"))?,
        };
        let mut encoder = Encoder::new(&tokenizer, files.which)?;
        follow_config(&mut encoder, &config);
        let json = serde_json::from_slice(&tokenizer).map_err(EncoderError::Json)?;
        let templates = match Templates::new(&config, template.as_deref(), files.kwargs.clone(), clock) {
            Ok(templates) => Some(templates),
            Err(TemplateError::Missing) => None,
            Err(error) => return Err(LoadError::Template(error)),
        };
        Ok(Self {
            encoder,
            cuts: Cuts::of(&json),
            cutting: AtomicBool::new(true),
            templates,
            prefixes: Prefixes::new(PREFIX_BYTES_MAX),
            counters,
        })
    }

    /// Whether there is a chat template.
    pub(crate) fn has_template(&self) -> bool {
        self.templates.is_some()
    }

    /// Which code tokenises.
    pub(crate) fn is_fast(&self) -> bool {
        self.encoder.is_fast()
    }

    /// Bytes of what is known of earlier prompts.
    pub(crate) fn known_bytes(&self) -> usize {
        self.prefixes.bytes()
    }

    /// The text and whether it gets the tokenizer's marks, or the tokens a request brought.
    ///
    /// # Errors
    /// What cannot be compared.
    pub(crate) fn render(&self, prompt: Prompt) -> Result<Rendered, Reason> {
        render(prompt, self.templates.as_ref())
    }

    /// The blocks of a prompt.
    ///
    /// # Errors
    /// What cannot be compared.
    pub(crate) fn chain(&self, prompt: Prompt, lora: Option<&str>, block_size: u32) -> Result<Chain, Reason> {
        let (salt, whole) = (prompt.salt.clone(), prompt.whole);
        let namespace = Namespace { lora, salt: salt.as_deref() };
        let mut chain = match self.render(prompt)? {
            Rendered::Tokens(tokens) => Chain::of(namespace, block_size, &tokens),
            Rendered::Text { text, marks } => {
                self.chain_of(&text, Room { seed: block::seed(namespace), block_size, marks })?
            }
        };
        if !whole {
            shorten(&mut chain);
        }
        Ok(chain)
    }

    /// All tokens of a text, from nothing.
    ///
    /// # Errors
    /// The tokenizer refuses it.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<u32>, Reason> {
        self.encoder.encode(text).map_err(|_| Reason::Encoder)
    }

    /// Forgets all earlier prompts.
    pub(crate) fn forget(&mut self) {
        self.prefixes = Prefixes::new(PREFIX_BYTES_MAX);
    }

    /// The blocks of a text.
    ///
    /// # Errors
    /// The tokenizer refuses it.
    pub(crate) fn chain_of(&self, text: &str, room: Room) -> Result<Chain, Reason> {
        if self.cutting.load(Ordering::Relaxed) {
            if let Some(chain) = self.in_parts(text, room, &self.cuts.places(text))? {
                return Ok(chain);
            }
            self.cutting.store(false, Ordering::Relaxed);
            self.counters.splits_refused.fetch_add(1, Ordering::Relaxed);
        }
        let whole = self.in_parts(text, room, &[])?;
        whole.ok_or(Reason::Encoder)
    }

    /// `None`: a part does not have the tokens it is cut at.
    fn in_parts(&self, text: &str, room: Room, cuts: &[Cut]) -> Result<Option<Chain>, Reason> {
        let keys = keys(room, text, cuts.iter().map(|cut| cut.at));
        let known = self.prefixes.longest(&keys);
        let done = known.as_ref().map_or(0, |(place, _)| place + 1);
        let mut last = done.checked_sub(1).and_then(|place| cuts.get(place)).copied();
        self.count(text, last);
        let mut newest: Option<Arc<Node>> = known.map(|(_, node)| node);
        let mut chaining = Chaining::from(room, newest.clone());
        if newest.is_none() && room.marks {
            chaining.add(self.encoder.before());
        }
        for (cut, key) in cuts.iter().zip(&keys).skip(done) {
            let Some(tokens) = self.part(text, last, Some(*cut))? else { return Ok(None) };
            chaining.add(&tokens);
            newest = Some(chaining.node(*key));
            last = Some(*cut);
        }
        let Some(tokens) = self.part(text, last, None)? else { return Ok(None) };
        chaining.add(&tokens);
        if room.marks {
            chaining.add(self.encoder.behind());
        }
        if let Some(newest) = &newest {
            self.prefixes.keep(newest);
        }
        Ok(Some(chaining.finish()))
    }

    /// The tokens between two cuts, those of the second cut included.
    fn part(&self, text: &str, from: Option<Cut>, to: Option<Cut>) -> Result<Option<Vec<u32>>, Reason> {
        let begin = from.map_or(0, |cut| cut.from);
        let end = to.map_or(text.len(), |cut| cut.at);
        let part = text.get(begin..end).ok_or(Reason::Encoder)?;
        let mut tokens = self.encoder.encode(part).map_err(|_| Reason::Encoder)?;
        let begins = from.is_none_or(|cut| tokens.first() == Some(&cut.id));
        let ends = to.is_none_or(|cut| tokens.last() == Some(&cut.id));
        if !(begins && ends) {
            return Ok(None);
        }
        if from.is_some() {
            tokens.remove(0);
        }
        Ok(Some(tokens))
    }

    fn count(&self, text: &str, known: Option<Cut>) {
        let known = known.map_or(0, |cut| cut.at);
        let add = |counter: &std::sync::atomic::AtomicU64, bytes: usize| {
            counter.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed)
        };
        add(&self.counters.bytes_known, known);
        add(&self.counters.bytes_encoded, text.len().saturating_sub(known));
    }
}

#[cfg(test)]
impl Local {
    pub(crate) fn splits_refused(&self) -> u64 {
        self.counters.splits_refused()
    }

    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.counters.bytes()
    }

    /// Knows nothing, and cuts as another tokenizer wants it.
    pub(crate) fn forget_with(&mut self, tokenizer: &serde_json::Value) {
        self.cuts = Cuts::of(tokenizer);
        self.forget();
    }
}

/// Some tokenizers of `transformers` put BOS by `add_bos_token`, whatever `tokenizer.json` says.
fn follow_config(encoder: &mut Encoder, config: &Json) {
    let class = config.text_of("tokenizer_class").unwrap_or_default();
    if !["Llama", "CodeLlama", "Gemma"].iter().any(|family| class.starts_with(family)) {
        return;
    }
    let bos = config.get("bos_token").and_then(|bos| bos.text().or_else(|| bos.text_of("content")));
    match config.get("add_bos_token") {
        Some(Json::Bool(true)) => {
            let id = bos.and_then(|bos| encoder.id(bos));
            if id.is_some() {
                encoder.begin_with(id);
            }
        }
        Some(Json::Bool(false)) => encoder.begin_with(None),
        _ => {}
    }
}

/// A folder's config; what it does not say, a worker's says.
fn merged(own: Option<&str>, offered: Option<&str>) -> Result<Json, LoadError> {
    let mut members: Vec<(String, Json)> = Vec::new();
    for text in [offered, own].into_iter().flatten() {
        let Some(Json::Map(more)) = Json::parse(text) else { return Err(LoadError::Config) };
        members.retain(|(name, _)| !more.iter().any(|(other, value)| other == name && *value != Json::Null));
        members.extend(more.into_iter().filter(|(_, value)| *value != Json::Null));
    }
    Ok(Json::Map(members))
}

/// Leaves out the blocks of which the cut text does not say what they are.
fn shorten(chain: &mut Chain) {
    let sure = chain.tokens.saturating_sub(CUT_TOKENS).checked_div(chain.block_size).unwrap_or(0);
    chain.hashes.truncate(usize::try_from(sure).unwrap_or(usize::MAX));
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let wrong = |error| LoadError::File(path.to_owned(), error);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(wrong)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    Ok(bytes)
}

fn optional(path: &Path) -> Result<Option<String>, LoadError> {
    match read(path) {
        Ok(bytes) => Ok(Some(text(&bytes))),
        Err(LoadError::File(_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
