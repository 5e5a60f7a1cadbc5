//! The model: a real tokenizer, a chat template, and words to answer with. All embedded in the binary.
//! Knows text and tokens; does not know requests, ranks or caches.
//!
//! Text is cut before encoding at every single space between two other characters. The byte-level pattern
//! starts a new piece there anyway, so the tokens are the same as of the whole, and words repeat: they are
//! looked up instead of computed.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use anyhow::{Context, anyhow};
use minijinja::value::Serde;
use minijinja::{Environment, context};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::token_cache::TokenCache;

const TOKENIZER: &[u8] = include_bytes!("../model/tokenizer.json");
/// What the tokenizer was trained on: tokens that are whole words of it make replies one can read.
const CORPUS: &str = include_str!("../model/corpus.txt");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("../model/tokenizer_config.json");
/// Begin of sequence: what completions and responses start with and chat does not.
pub(crate) const BOS: u32 = 0;
const TEXT_CACHE_BYTES_MAX: usize = 64 << 20;
const WORD_CACHE_BYTES_MAX: usize = 8 << 20;

/// A token that is a whole word, with its text.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub(crate) token: u32,
    pub(crate) text: Box<str>,
}

/// Tokenizer, template and vocabulary of the one model a fake engine serves.
pub(crate) struct Model {
    tokenizer: Tokenizer,
    templates: Environment<'static>,
    texts: TokenCache,
    words: TokenCache,
    /// Words that start a reply: no space before them.
    openers: Vec<Word>,
    /// Words that go on: a space before them.
    followers: Vec<Word>,
    longest_token_bytes: usize,
}

/// Whether a text gets a BOS token in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Chat: the template has all marks there are.
    Plain,
    /// Completions, responses.
    Bos,
}

impl Model {
    /// The model of every engine of this process.
    ///
    /// # Errors
    /// Only when the embedded files are broken, which a test would have found.
    pub(crate) fn shared() -> anyhow::Result<Arc<Self>> {
        static MODEL: LazyLock<Result<Arc<Model>, String>> =
            LazyLock::new(|| Model::load().map(Arc::new).map_err(|error| error.to_string()));
        MODEL.clone().map_err(|error| anyhow!(error))
    }

    fn load() -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::from_bytes(TOKENIZER).map_err(|e| anyhow!("tokenizer.json: {e}"))?;
        let config: Value = serde_json::from_slice(TOKENIZER_CONFIG)?;
        let template = config["chat_template"].as_str().context("no chat_template")?;
        let mut templates = Environment::new();
        // What is given to it is printed already, in its own order.
        templates.add_filter("tojson", |printed: String| printed);
        templates.add_template_owned("chat", template.to_owned())?;
        let vocabulary = vocabulary(&tokenizer);
        Ok(Self {
            openers: words(&tokenizer, &vocabulary, |text| !text.starts_with(' ')),
            followers: words(&tokenizer, &vocabulary, |text| {
                text.starts_with(' ') && text.chars().skip(1).all(|c| c.is_ascii_lowercase())
            }),
            longest_token_bytes: vocabulary.iter().map(|(_, text)| text.len()).max().unwrap_or(1),
            tokenizer,
            templates,
            texts: TokenCache::new(TEXT_CACHE_BYTES_MAX),
            words: TokenCache::new(WORD_CACHE_BYTES_MAX),
        })
    }

    /// The prompt of a conversation. `tools`, and `tool_calls` of messages, are printed already.
    ///
    /// # Errors
    /// The template's complaint.
    pub(crate) fn render(
        &self,
        messages: &Value,
        tools: Option<&str>,
        generate: Generate,
    ) -> anyhow::Result<String> {
        let add_generation_prompt = generate == Generate::Reply;
        let template = self.templates.get_template("chat")?;
        let messages = Serde(messages);
        Ok(template.render(context! { messages, tools, add_generation_prompt })?)
    }

    /// The tokens of a text.
    #[must_use]
    pub(crate) fn encode(&self, text: &str, start: Start) -> Arc<[u32]> {
        let plain = self.texts.tokens(text, || self.encode_by_words(text));
        match start {
            Start::Plain => plain,
            Start::Bos => std::iter::once(BOS).chain(plain.iter().copied()).collect(),
        }
    }

    /// Fewest tokens a text can have: cheap enough to refuse what cannot fit before encoding it.
    #[must_use]
    pub(crate) fn tokens_at_least(&self, text: &str) -> usize {
        text.len() / self.longest_token_bytes
    }

    /// A reply's words, chosen by `seed` alone. Encoded again behind the assistant's mark they are the same
    /// tokens, so the next turn finds what this one generated.
    pub(crate) fn reply(&self, seed: u64, count: usize) -> Vec<&Word> {
        let mut state = seed;
        let mut pick = |list: &'_ Vec<Word>| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ (mixed >> 27)) as usize % list.len()
        };
        let choose = |index| match index {
            0 => &self.openers[pick(&self.openers)],
            _ => &self.followers[pick(&self.followers)],
        };
        (0..count).map(choose).collect()
    }

    fn encode_by_words(&self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        for piece in pieces(text) {
            tokens.extend_from_slice(&self.words.tokens(piece, || self.encode_whole(piece)));
        }
        tokens
    }

    /// What the tokenizer says, without cutting: the oracle of [`Self::encode`].
    fn encode_whole(&self, text: &str) -> Vec<u32> {
        // A byte-level tokenizer has a token for every byte: it refuses no text.
        self.tokenizer
            .encode_fast(text, false)
            .map(|encoding| encoding.get_ids().to_vec())
            .unwrap_or_default()
    }
}

/// Whether the template ends with the mark of the assistant's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generate {
    /// The model is to answer.
    Reply,
    /// Only the history.
    Nothing,
}

/// Cuts before each single space that has something else on both sides.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let cut = (!rest.is_empty()).then(|| first_cut(rest))?;
        let (piece, after) = rest.split_at(cut);
        rest = after;
        Some(piece)
    })
}

fn first_cut(text: &str) -> usize {
    let bytes = text.as_bytes();
    // Only beside ASCII, where one byte is one character: elsewhere not to cut is always right.
    let solid = |byte: &u8| byte.is_ascii_graphic();
    let is_cut =
        |&at: &usize| bytes[at] == b' ' && solid(&bytes[at - 1]) && bytes.get(at + 1).is_some_and(solid);
    (1..bytes.len()).find(is_cut).unwrap_or(bytes.len())
}

/// Every token with its text, by id: the order replies are chosen in must not depend on a hash map.
fn vocabulary(tokenizer: &Tokenizer) -> Vec<(u32, String)> {
    let count = tokenizer.get_vocab_size(true) as u32;
    (0..count).map(|id| (id, tokenizer.decode(&[id], false).unwrap_or_default())).collect()
}

/// Tokens that are a whole word of the corpus, begin as wished, and encode to themselves.
fn words(tokenizer: &Tokenizer, vocabulary: &[(u32, String)], begins: impl Fn(&str) -> bool) -> Vec<Word> {
    let known: HashSet<&str> = CORPUS.split(|c: char| !c.is_ascii_alphabetic()).collect();
    let is_word = |text: &str| {
        let letters = text.strip_prefix(' ').unwrap_or(text);
        letters.len() > 2 && known.contains(letters)
    };
    let alone = |id: u32, text: &str| {
        tokenizer.encode_fast(text, false).is_ok_and(|encoding| encoding.get_ids() == [id])
    };
    vocabulary
        .iter()
        .filter(|(id, text)| begins(text) && is_word(text) && alone(*id, text))
        .map(|(id, text)| Word { token: *id, text: text.as_str().into() })
        .collect()
}

#[cfg(test)]
mod tests;
