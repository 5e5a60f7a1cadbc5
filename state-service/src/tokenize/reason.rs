//! Why a prompt has no chain, and how often what happened. Knows names, not causes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a prompt cannot be compared with what engines cached; such a request is placed by load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The pool's tokens are `off`.
    Off,
    /// A path whose prompts are not known here.
    Surface,
    /// Not JSON, too deep, or without the fields its path has.
    Malformed,
    /// Longer than `BODY_BYTES_MAX`, or it renders to more than `TEXT_BYTES_MAX`.
    TooLong,
    /// Images, audio, video or embeddings: the engine puts other tokens there than the text says.
    Multimodal,
    /// `continue_final_message`: the template's end is cut by rules of its own.
    Continued,
    /// The request brings its own `chat_template`.
    OwnTemplate,
    /// `truncate_prompt_tokens`: the engine drops the beginning.
    Truncated,
    /// `/v1/responses` that goes on from what the engine stored.
    Stored,
    /// Items of `/v1/responses` that engine versions render differently: calls, reasoning, tools.
    Items,
    /// There is no chat template.
    NoTemplate,
    /// The template refuses it, as the engine's would, or asks for something unknown here.
    Template,
    /// The tokenizer is still being loaded.
    Loading,
    /// The tokenizer could not be loaded.
    NotLoaded,
    /// The tokenizer fails on this text.
    Encoder,
    /// All places of the queue are taken.
    Queue,
    /// Not done by the deadline.
    Late,
    /// A bug: it panicked. The thread goes on.
    Panicked,
    /// No worker to ask, or it could not be reached, or it answered nonsense.
    Engine,
    /// Workers do not offer `/tokenize`.
    EngineLacks,
    /// The template takes more work or memory than a prompt may.
    TooCostly,
    /// Nobody says whether the model asked for is the base model or an adapter.
    Model,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 22] = [
        Self::Off,
        Self::Surface,
        Self::Malformed,
        Self::TooLong,
        Self::Multimodal,
        Self::Continued,
        Self::OwnTemplate,
        Self::Truncated,
        Self::Stored,
        Self::Items,
        Self::NoTemplate,
        Self::Template,
        Self::Loading,
        Self::NotLoaded,
        Self::Encoder,
        Self::Queue,
        Self::Late,
        Self::Panicked,
        Self::Engine,
        Self::EngineLacks,
        Self::TooCostly,
        Self::Model,
    ];

    /// Its name in metrics and explanations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Surface => "surface",
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Multimodal => "multimodal",
            Self::Continued => "continued",
            Self::OwnTemplate => "own_template",
            Self::Truncated => "truncated",
            Self::Stored => "stored",
            Self::Items => "items",
            Self::NoTemplate => "no_template",
            Self::Template => "template",
            Self::Loading => "loading",
            Self::NotLoaded => "not_loaded",
            Self::Encoder => "encoder",
            Self::Queue => "queue",
            Self::Late => "late",
            Self::Panicked => "panicked",
            Self::Engine => "engine",
            Self::EngineLacks => "engine_lacks",
            Self::TooCostly => "template_too_costly",
            Self::Model => "model",
        }
    }
}

/// Where a chain comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Tokenised here.
    Local,
    /// Tokenised by a worker.
    Engine,
    /// The known beginning of what a worker tokenised before; the rest is a guess of its length.
    Estimated,
    /// The request brought token ids.
    Given,
    /// Hashes of text, not of tokens.
    Approximate,
}

impl Source {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Local, Self::Engine, Self::Estimated, Self::Given, Self::Approximate];

    /// Its name in metrics and explanations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Engine => "engine",
            Self::Estimated => "estimated",
            Self::Given => "given",
            Self::Approximate => "approximate",
        }
    }
}

/// What happened, since the start.
#[derive(Debug, Default)]
pub struct Counters {
    reasons: [AtomicU64; Reason::ALL.len()],
    sources: [AtomicU64; Source::ALL.len()],
    /// Bytes whose tokens were already known.
    pub(crate) bytes_known: AtomicU64,
    /// Bytes tokenised.
    pub(crate) bytes_encoded: AtomicU64,
    /// Splits that the tokenizer did not keep: it tokenises whole texts from then on.
    pub(crate) splits_refused: AtomicU64,
}

impl Counters {
    pub(crate) fn miss(&self, reason: Reason) {
        add(self.reasons.get(reason as usize), 1);
    }

    pub(crate) fn hit(&self, source: Source) {
        add(self.sources.get(source as usize), 1);
    }

    /// Requests without a chain, by reason.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::ALL.iter().zip(&self.reasons).map(|(reason, n)| (reason.name(), n.load(Ordering::Relaxed)))
    }

    /// Requests with a chain, by source.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Source::ALL.iter().zip(&self.sources).map(|(source, n)| (source.name(), n.load(Ordering::Relaxed)))
    }

    /// Bytes of text whose tokens were known, and those that had to be tokenised.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes_known.load(Ordering::Relaxed), self.bytes_encoded.load(Ordering::Relaxed))
    }

    /// Tokenizers that split where none should.
    #[must_use]
    pub fn splits_refused(&self) -> u64 {
        self.splits_refused.load(Ordering::Relaxed)
    }
}

fn add(counter: Option<&AtomicU64>, amount: u64) {
    if let Some(counter) = counter {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
