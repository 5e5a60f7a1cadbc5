//! `tokens` of a pool, from the config file. Knows its words and limits, not what becomes of them.

use super::encode::Which;
use super::json::Json;
use super::local::Files;
use crate::declare::{Faults, Fields};
use serde_json::Value;
use std::path::PathBuf;

/// What the field may be, for the documentation.
pub(crate) const FORMS: &str = "`\"off\"`, or an object: `mode` (`local`, `engine`, `approximate` or `off`); for `local` also \
     `path` (a folder with `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`), `chat_template` (a file), \
     `chat_template_kwargs`, `encoder` (`fast` or `reference`)";
const ALLOWED: &str = "\"off\", or an object with \"mode\"";
const LOCAL: &str = "local";
const MODES: &[(&str, Mode); 4] =
    &[("off", Mode::Off), (LOCAL, Mode::Local), ("engine", Mode::Engine), ("approximate", Mode::Approximate)];
const ENCODERS: &[(&str, Which); 2] = &[("fast", Which::Fast), ("reference", Which::Reference)];
const PATH_BYTES_MAX: usize = 4096;

#[derive(Clone, Copy)]
enum Mode {
    Off,
    Local,
    Engine,
    Approximate,
}

/// How a pool gets its prompts' tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens(pub(crate) How);

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum How {
    #[default]
    Off,
    Local(Files),
    Engine,
    Approximate,
}

// Numbers of template arguments come from JSON: never NaN.
impl Eq for Tokens {}

impl Tokens {
    /// Whether prompts are read at all.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.0 == How::Off
    }

    /// Whether blocks are made of text, and nothing that engines tell can be compared with them.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.0 == How::Approximate
    }

    /// Of a folder with a model's files.
    #[must_use]
    pub fn local(folder: PathBuf) -> Self {
        Self(How::Local(Files { folder, template: None, kwargs: Vec::new(), which: Which::Fast }))
    }

    /// By the workers' `/tokenize`.
    #[must_use]
    pub fn engine() -> Self {
        Self(How::Engine)
    }

    /// By text alone.
    #[must_use]
    pub fn approximate() -> Self {
        Self(How::Approximate)
    }

    pub(crate) fn parse(value: Option<&Value>, path: &str, faults: &mut Faults) -> Self {
        match value {
            None => Self::default(),
            Some(Value::String(word)) if word == "off" => Self::default(),
            Some(value @ Value::Object(_)) => Self(object(value, path, faults).unwrap_or_default()),
            Some(value) => {
                faults.add(path, format!("is {value:.80}"), ALLOWED);
                Self::default()
            }
        }
    }
}

fn object(value: &Value, path: &str, faults: &mut Faults) -> Option<How> {
    let mut fields = Fields::open(path, value, faults)?;
    let mode = mode(&mut fields, faults);
    let has_path = fields.has("path");
    let folder = fields.short_text(faults, "path", PATH_BYTES_MAX).map(PathBuf::from);
    let template = fields.short_text(faults, "chat_template", PATH_BYTES_MAX).map(PathBuf::from);
    let kwargs = kwargs(&mut fields, faults);
    let which = fields.choice_or(faults, "encoder", ENCODERS, Which::Fast);
    let (word, mode) = mode.unzip();
    if let Some(word) = word.filter(|word| *word != LOCAL) {
        ignored(&fields, word, faults);
    }
    let at = fields.at("path");
    fields.close(faults);
    match (mode?, folder) {
        (Mode::Off, _) => Some(How::Off),
        (Mode::Engine, _) => Some(How::Engine),
        (Mode::Approximate, _) => Some(How::Approximate),
        (Mode::Local, Some(folder)) => Some(How::Local(Files { folder, template, kwargs, which })),
        (Mode::Local, None) if has_path => None,
        (Mode::Local, None) => {
            faults.add(&at, "is missing".to_owned(), "a folder with tokenizer.json");
            None
        }
    }
}

/// With its word. `None`: it is missing, or none of them.
fn mode(fields: &mut Fields<'_>, faults: &mut Faults) -> Option<(&'static str, Mode)> {
    let given = fields.choice_or(faults, "mode", &MODES.map(|(word, mode)| (word, Some((word, mode)))), None);
    if given.is_none() && !fields.has("mode") {
        let words: Vec<&str> = MODES.iter().map(|(word, _)| *word).collect();
        faults.add(&fields.at("mode"), "is missing".to_owned(), &words.join(", "));
    }
    given
}

/// What only `local` has.
fn ignored(fields: &Fields<'_>, word: &str, faults: &mut Faults) {
    for name in ["path", "chat_template", "chat_template_kwargs", "encoder"] {
        if fields.has(name) {
            let problem = format!("is not used by mode {word}");
            faults.add(&fields.at(name), problem, "mode \"local\", or leave it out");
        }
    }
}

fn kwargs(fields: &mut Fields<'_>, faults: &mut Faults) -> Vec<(String, Json)> {
    let at = fields.at("chat_template_kwargs");
    let Some(value) = fields.take("chat_template_kwargs") else { return Vec::new() };
    match Json::parse(&value.to_string()) {
        Some(Json::Map(members)) => members,
        _ => {
            faults.add(&at, "is not an object".to_owned(), "a JSON object");
            Vec::new()
        }
    }
}
