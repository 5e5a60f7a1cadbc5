//! The tokenizer of a model: `fastokens`, or `tokenizers` where that one does not keep all of a file's rules or is not wanted.
//!
//! Owns loading from `tokenizer.json` and what stands around a text (BOS). Knows no prompts.

use serde_json::Value;

/// Which code tokenises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// `fastokens`, unless the file has rules it does not keep.
    #[default]
    Fast,
    /// `tokenizers`, the reference; a hundredth of the speed.
    Reference,
}

/// Why there is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncoderError {
    /// `tokenizers` says so.
    #[error("tokenizer.json: {0}")]
    Reference(String),
    /// Not even JSON.
    #[error("tokenizer.json: {0}")]
    Json(#[from] serde_json::Error),
}

/// The text cannot be tokenised.
#[derive(Debug)]
pub(crate) struct Refused;

/// Turns text into tokens.
pub(crate) struct Encoder {
    code: Code,
    /// What the tokenizer puts before and behind a text when asked for its marks.
    before: Vec<u32>,
    behind: Vec<u32>,
}

enum Code {
    Fast(Box<fastokens::Tokenizer>),
    Reference(Box<tokenizers::Tokenizer>),
}

impl Encoder {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// Neither code can read it.
    pub(crate) fn new(json: &[u8], which: Which) -> Result<Self, EncoderError> {
        let code = match which {
            Which::Fast => fast(serde_json::from_slice(json)?),
            Which::Reference => None,
        };
        let code = match code {
            Some(code) => code,
            None => reference(json)?,
        };
        let mut encoder = Self { code, before: Vec::new(), behind: Vec::new() };
        // The first text is slow: tables are built. It also tells the marks.
        let (bare, marked) = (encoder.run("a", false), encoder.run("a", true));
        if let (Ok(bare), Ok(marked)) = (bare, marked)
            && let Some(at) = marked.windows(bare.len().max(1)).position(|window| window == bare)
        {
            encoder.before = marked.get(..at).unwrap_or_default().to_vec();
            encoder.behind = marked.get(at + bare.len()..).unwrap_or_default().to_vec();
        }
        Ok(encoder)
    }

    /// Replaces what is put before a text: some tokenizers of `transformers` follow `add_bos_token` whatever the file says.
    pub(crate) fn begin_with(&mut self, bos: Option<u32>) {
        self.before = bos.into_iter().collect();
    }

    /// The id of a token of the vocabulary.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        match &self.code {
            Code::Fast(code) => code.token_to_id(token),
            Code::Reference(code) => code.token_to_id(token),
        }
    }

    /// Whether `fastokens` does the work.
    pub(crate) fn is_fast(&self) -> bool {
        matches!(self.code, Code::Fast(_))
    }

    /// The tokens of a text, without marks.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, Refused> {
        self.run(text, false)
    }

    /// What stands before a text that is to have marks.
    pub(crate) fn before(&self) -> &[u32] {
        &self.before
    }

    /// What stands behind it.
    pub(crate) fn behind(&self) -> &[u32] {
        &self.behind
    }

    fn run(&self, text: &str, marks: bool) -> Result<Vec<u32>, Refused> {
        match &self.code {
            Code::Fast(code) => code.encode_with_special_tokens(text, marks).map_err(|_| Refused),
            Code::Reference(code) => {
                code.encode_fast(text, marks).map(|encoding| encoding.get_ids().to_vec()).map_err(|_| Refused)
            }
        }
    }
}

/// `None`: the file has rules that `fastokens` does not keep, or it cannot read it.
fn fast(json: Value) -> Option<Code> {
    let normalizes = json.get("normalizer").is_some_and(|normalizer| !normalizer.is_null());
    let set = |token: &Value, name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
    let strange = |token: &Value| set(token, "single_word") || (normalizes && set(token, "normalized"));
    if json.get("added_tokens").and_then(Value::as_array).is_some_and(|tokens| tokens.iter().any(strange)) {
        return None;
    }
    let mut code = fastokens::Tokenizer::from_json(json).ok()?;
    // Engines lift both for each call.
    code.set_truncation(None);
    code.set_padding(None);
    Some(Code::Fast(Box::new(code)))
}

fn reference(json: &[u8]) -> Result<Code, EncoderError> {
    let wrong = |error: tokenizers::Error| EncoderError::Reference(error.to_string());
    let mut code = tokenizers::Tokenizer::from_bytes(json).map_err(wrong)?;
    code.with_truncation(None).map_err(wrong)?;
    code.with_padding(None);
    Ok(Code::Reference(Box::new(code)))
}
