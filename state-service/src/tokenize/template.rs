//! A model's chat template, with what `transformers` gives to it: Python's methods, `tojson`, `raise_exception`, `strftime_now`,
//! blocks trimmed as there.
//!
//! Knows neither bodies nor tokens. Rendering is bounded by fuel, which pays for instructions and for each
//! byte that is made. Dates are those of `clock`, in UTC: an engine elsewhere on
//! earth may have another day for some hours.

use super::json::Json;
use super::messages::{Contents, seen};
use super::{Reason, body::Chat, python};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::borrow::Cow;
use std::io;

/// Longest prompt, in bytes.
pub const TEXT_BYTES_MAX: usize = 32 << 20;
/// Instructions of one rendering, and 64 bytes of data each: 256 MiB. A conversation of a thousand messages takes some hundred
/// thousand; the longest prompt is made, trimmed and joined a few times over.
const FUEL: u64 = 4_000_000;
const MAIN: &str = "main";
const TOOL_USE: &str = "tool_use";

/// Seconds since 1970.
pub type Clock = fn() -> u64;

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    /// It is not there.
    #[error("no chat_template")]
    Missing,
    /// It uses what is unknown here.
    #[error("chat template: {0}")]
    Wrong(#[from] Error),
}

/// The templates of one model.
pub(crate) struct Templates {
    environment: Environment<'static>,
    /// `bos_token` and the like.
    marks: Vec<(String, Json)>,
    /// From the pool's config; a request's own come after them.
    kwargs: Vec<(String, Json)>,
    /// How each wants contents.
    main: Contents,
    /// Some models have another one for requests with tools.
    tool_use: Option<Contents>,
}

impl Templates {
    /// The template named by `own`, else the one of `tokenizer_config.json`.
    ///
    /// # Errors
    /// There is none, or it uses what is unknown here.
    pub(crate) fn new(
        config: &Json,
        own: Option<&str>,
        kwargs: Vec<(String, Json)>,
        clock: Clock,
    ) -> Result<Self, TemplateError> {
        let named = named(config);
        let text = |name: &str| named.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        let main = own.or_else(|| text("default")).ok_or(TemplateError::Missing)?;
        let mut environment = environment(clock)?;
        environment.add_template_owned(MAIN, without_generation_blocks(main).into_owned())?;
        let tool_use = text(TOOL_USE).filter(|_| own.is_none());
        if let Some(text) = tool_use {
            environment.add_template_owned(TOOL_USE, without_generation_blocks(text).into_owned())?;
        }
        let tool_use = tool_use.map(wanted);
        Ok(Self { environment, marks: marks(config), kwargs, main: wanted(main), tool_use })
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// What cannot be compared, and what the template refuses: the engine's would, too.
    pub(crate) fn render(&self, chat: &Chat) -> Result<String, Reason> {
        let (name, contents) = match (self.tool_use, &chat.tools) {
            (Some(contents), Some(_)) => (TOOL_USE, contents),
            _ => (MAIN, self.main),
        };
        let mut context = self.marks.clone();
        let mut put = |name: &str, value: Json| context.push((name.to_owned(), value));
        put("messages", Json::List(seen(&chat.messages, contents)?));
        put("tools", chat.tools.clone().unwrap_or(Json::Null));
        put("documents", Json::Null);
        put("add_generation_prompt", Json::Bool(chat.add_generation_prompt));
        context.extend(self.kwargs.iter().chain(&chat.kwargs).cloned());
        let template = self.environment.get_template(name).map_err(|_| Reason::NoTemplate)?;
        let mut text = Text(Vec::new());
        let printed = template.render_captured_to(value(Json::Map(context)), &mut text);
        printed.map_err(|error| reason(&error))?;
        String::from_utf8(text.0).map_err(|_| Reason::Template)
    }
}

/// A prompt that is being printed, as long as it is not too long.
struct Text(Vec<u8>);

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > TEXT_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn reason(error: &Error) -> Reason {
    match error.kind() {
        ErrorKind::OutOfFuel => Reason::TooCostly,
        // Nothing else is written to but `Text`.
        ErrorKind::WriteFailure => Reason::TooLong,
        _ => Reason::Template,
    }
}

fn value(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(value),
        Json::Int(value) => Value::from(value),
        Json::UInt(value) => Value::from(value),
        Json::Float(value) => Value::from(value),
        Json::Text(value) => Value::from(value),
        Json::List(list) => list.into_iter().map(value).collect(),
        Json::Map(members) => Value::from_pairs(members.into_iter().map(|(name, json)| (name, value(json)))),
    }
}

/// `chat_template` is a text, or a list of named ones.
fn named(config: &Json) -> Vec<(&str, &str)> {
    match config.get("chat_template") {
        Some(Json::Text(text)) => vec![("default", text)],
        Some(Json::List(list)) => {
            list.iter().filter_map(|item| Some((item.text_of("name")?, item.text_of("template")?))).collect()
        }
        _ => Vec::new(),
    }
}

/// The special tokens' texts, given as such or as objects.
fn marks(config: &Json) -> Vec<(String, Json)> {
    let Json::Map(members) = config else { return Vec::new() };
    let text = |value: &Json| value.text().or_else(|| value.text_of("content")).map(Json::of);
    let marks = members.iter().filter(|(name, _)| name.ends_with("_token") && !name.starts_with("add_"));
    marks.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

fn environment(clock: Clock) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(python::method);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", tojson);
    environment.add_filter("format", python::printf);
    environment.add_filter("join", python::join);
    environment.add_filter("string", python::string);
    environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_function("strftime_now", move |format: &str| python::strftime(format, clock()));
    Ok(environment)
}

/// `transformers`' own: no escapes for HTML, Unicode as it is.
#[expect(clippy::needless_pass_by_value, reason = "filters are called so")]
fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = indent.filter(|value| !value.is_none()).map(usize::try_from).transpose()?;
    let mut how = python::Dumps::with_indent(indent.map(|spaces| spaces.min(16)));
    how.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    how.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")?
        && let [items, keys] = separators.as_slice()
    {
        (how.item_separator, how.key_separator) = (items.clone(), keys.clone());
    }
    options.assert_all_used()?;
    Ok(Value::from_safe_string(python::dumps(value, &how)?))
}

/// `{% generation %}` marks what is trained on and prints nothing.
fn without_generation_blocks(template: &str) -> Cow<'_, str> {
    if !template.contains("generation %}") && !template.contains("generation -%}") {
        return Cow::Borrowed(template);
    }
    let mut out = String::with_capacity(template.len());
    for (index, piece) in template.split("{%").enumerate() {
        if index > 0 {
            out.push_str("{%");
        }
        match piece.split_once("%}") {
            Some((tag, rest)) => {
                out.push_str(&match tag.trim_matches(['-', '+', ' ']) {
                    "generation" => tag.replace("generation", "if true"),
                    "endgeneration" => tag.replace("endgeneration", "endif"),
                    _ => tag.to_owned(),
                });
                out.push_str("%}");
                out.push_str(rest);
            }
            None => out.push_str(piece),
        }
    }
    Cow::Owned(out)
}

/// Parts, if the template goes through a content's items; as vLLM guesses it, by the text instead of the syntax tree.
fn wanted(template: &str) -> Contents {
    let loops = template.split("{%").filter_map(|piece| piece.split("%}").next());
    let over = loops.filter_map(|tag| tag.trim_matches(['-', '+', ' ']).strip_prefix("for "));
    let over = over.filter_map(|rest| rest.split_once(" in ")).map(|(_, rest)| rest.trim());
    let is_content = |text: &str| {
        let name = text.split([' ', '|']).next().unwrap_or_default();
        name == "content"
            || [".content", "['content']", "[\"content\"]"].iter().any(|end| name.ends_with(end))
    };
    if over.into_iter().any(is_content) { Contents::Parts } else { Contents::Text }
}
