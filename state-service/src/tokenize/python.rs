//! What Python's standard library prints into a prompt: `json.dumps`, `repr` of floats, `strftime`, methods of its types; none of it
//! longer than a prompt may be.
//!
//! Knows no template and no prompt. Dates are UTC, as engines in containers have them.

use super::template::TEXT_BYTES_MAX;
use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::{self, Write as _};

/// Largest width or precision of `str.format`.
const WIDTH_MAX: usize = 65_536;

/// How `json.dumps` is asked to print.
#[derive(Clone, Debug)]
pub(crate) struct Dumps {
    /// Spaces of one level; `None`: all on one line.
    pub(crate) indent: Option<usize>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    pub(crate) ensure_ascii: bool,
    pub(crate) sort_keys: bool,
}

impl Dumps {
    /// As `transformers` asks for it within templates: as Python does by itself, but with all of Unicode as it is.
    pub(crate) fn with_indent(indent: Option<usize>) -> Self {
        let item_separator = if indent.is_some() { "," } else { ", " }.to_owned();
        Self { indent, item_separator, key_separator: ": ".to_owned(), ensure_ascii: false, sort_keys: false }
    }
}

/// A method of one of Python's types. What `str.format` makes is measured before it is made.
///
/// # Errors
/// There is none of that name, or it does not take that, or what it makes is longer than a prompt.
pub(crate) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "format"
        && let Some(text) = value.as_str()
    {
        check_format(text, '{', args)?;
    }
    if let ("join", Some(joiner), [items]) = (name, value.as_str(), args) {
        return joined(items, joiner, Ok).map(Value::from);
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// The items' texts.
///
/// # Errors
/// They are none, or longer than a prompt.
#[expect(clippy::needless_pass_by_value, reason = "filters are called so")]
pub(crate) fn join(
    items: &Value,
    joiner: Option<String>,
    attribute: Option<String>,
    options: Kwargs,
) -> Result<String, Error> {
    let named = |name: &str| options.get::<Option<String>>(name);
    let joiner = joiner.map_or_else(|| named("d"), |given| Ok(Some(given)))?.unwrap_or_default();
    let attribute = attribute.map_or_else(|| named("attribute"), |given| Ok(Some(given)))?;
    options.assert_all_used()?;
    let path: Vec<&str> = attribute.as_deref().map_or_else(Vec::new, |path| path.split('.').collect());
    joined(items, &joiner, |item| path.iter().try_fold(item, |item, name| item.get_attr(name)))
}

fn joined(
    items: &Value,
    joiner: &str,
    part: impl Fn(Value) -> Result<Value, Error>,
) -> Result<String, Error> {
    let mut text = Bounded::default();
    for (index, item) in items.try_iter()?.enumerate() {
        let joiner = if index == 0 { "" } else { joiner };
        write!(text, "{joiner}{}", part(item)?).map_err(|_| too_long())?;
    }
    Ok(text.0)
}

/// A value as it is printed.
///
/// # Errors
/// It is longer than a prompt.
pub(crate) fn string(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    let mut text = Bounded::default();
    write!(text, "{value}").map_err(|_| too_long())?;
    Ok(Value::from(text.0))
}

/// A text no longer than a prompt.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > TEXT_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// `format % args`, measured before it is made.
///
/// # Errors
/// The arguments do not fit, or what it makes is longer than a prompt.
#[expect(clippy::needless_pass_by_value, reason = "filters are called so")]
pub(crate) fn printf(format: &str, args: Rest<Value>) -> Result<String, Error> {
    check_format(format, '%', &args)?;
    formatting::format(FormatStyle::Printf, format, &args)
}

/// Whatever is filled in, each time and at its widest, is no longer than a prompt.
fn check_format(format: &str, begin: char, args: &[Value]) -> Result<(), Error> {
    let fields = format.matches(begin).count() + 1;
    let room = (TEXT_BYTES_MAX / fields).saturating_sub(format.len() / fields);
    let room = widest(format).and_then(|widest| room.checked_sub(widest)).ok_or_else(too_long)?;
    args.iter().try_for_each(|arg| check_printed(arg, room))
}

/// The largest number written in a format: it may be a width. `None`: larger than any should be.
fn widest(format: &str) -> Option<usize> {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers
        .map(|digits| digits.parse().ok().filter(|number| *number <= WIDTH_MAX))
        .try_fold(0, |most, one| Some(most.max(one?)))
}

/// What is printed, as far as there is room: how much there still is.
struct Room(usize);

impl fmt::Write for Room {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// # Errors
/// A value takes more bytes than that when it is printed.
fn check_printed(value: &Value, room: usize) -> Result<(), Error> {
    let mut room = Room(room);
    write!(room, "{value}").map_err(|_| too_long())
}

fn too_long() -> Error {
    Error::new(ErrorKind::OutOfFuel, "that is longer than a prompt may be")
}

/// `json.dumps(value)`.
///
/// # Errors
/// What is no JSON (undefined, functions): Python raises, too. What is longer than a prompt.
pub(crate) fn dumps(value: &Value, how: &Dumps) -> Result<String, Error> {
    let mut text = String::new();
    write(&mut text, value, how, 1)?;
    Ok(text)
}

fn write(out: &mut String, value: &Value, how: &Dumps, level: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN))),
        ValueKind::String => quote(out, value.as_str().unwrap_or_default(), how.ensure_ascii),
        ValueKind::Map => members(out, value, how, level)?,
        ValueKind::Seq | ValueKind::Iterable => items(out, value, how, level)?,
        ValueKind::Undefined | ValueKind::Bytes | ValueKind::Plain | ValueKind::Invalid | _ => {
            return Err(Error::new(ErrorKind::InvalidOperation, "is not JSON serializable"));
        }
    }
    if out.len() > TEXT_BYTES_MAX { Err(too_long()) } else { Ok(()) }
}

fn items(out: &mut String, value: &Value, how: &Dumps, level: usize) -> Result<(), Error> {
    out.push('[');
    let mut any = false;
    for item in value.try_iter()? {
        between(out, how, level, any);
        any = true;
        write(out, &item, how, level + 1)?;
    }
    end(out, how, level, any, ']');
    Ok(())
}

fn members(out: &mut String, value: &Value, how: &Dumps, level: usize) -> Result<(), Error> {
    out.push('{');
    let mut keys: Vec<Value> = value.try_iter()?.collect();
    if how.sort_keys {
        keys.sort();
    }
    let any = !keys.is_empty();
    for (index, key) in keys.iter().enumerate() {
        between(out, how, level, index > 0);
        quote(out, &key.to_string(), how.ensure_ascii);
        out.push_str(&how.key_separator);
        write(out, &value.get_item(key)?, how, level + 1)?;
    }
    end(out, how, level, any, '}');
    Ok(())
}

fn between(out: &mut String, how: &Dumps, level: usize, any: bool) {
    if any {
        out.push_str(&how.item_separator);
    }
    new_line(out, how, level);
}

fn end(out: &mut String, how: &Dumps, level: usize, any: bool, close: char) {
    if any {
        new_line(out, how, level.saturating_sub(1));
    }
    out.push(close);
}

fn new_line(out: &mut String, how: &Dumps, level: usize) {
    if let Some(indent) = how.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent.saturating_mul(level)));
    }
}

fn quote(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && c > '~') => escape(out, c),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn escape(out: &mut String, c: char) {
    let mut units = [0; 2];
    for unit in c.encode_utf16(&mut units) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// `repr` of a float: shortest digits; an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = value.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// `datetime.fromtimestamp(seconds).strftime(format)` in UTC. A directive it does not know stays as it is written.
///
/// # Errors
/// It is longer than a prompt.
pub(crate) fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let named = |names: &[&'static str], index: u64| {
        names.get(usize::try_from(index).unwrap_or(usize::MAX)).copied().unwrap_or_default()
    };
    let (month_name, day_name) = (named(&MONTHS, month - 1), named(&DAYS, days % 7));
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if out.len() > TEXT_BYTES_MAX {
            return Err(too_long());
        }
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        out.push_str(&match directive {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name.chars().take(3).collect(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name.chars().take(3).collect(),
            Some('H') => format!("{hour:02}"),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{:02}", second % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('%') => "%".to_owned(),
            other => format!("%{}", other.map(String::from).unwrap_or_default()),
        });
    }
    Ok(out)
}

/// Year, month and day of a day since 1970 (Howard Hinnant's `civil_from_days`, for days not before it).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}
