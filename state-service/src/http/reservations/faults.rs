//! What is wrong with the body of a reservation, field by field. Only asked once it could not be read: a good one is never walked twice.

use super::{ID_BYTES_MAX, TTL_MAX};
use crate::declare::{self, Faults, Fields, NAME_ALLOWED};
use crate::http::problem::Problem;
use axum::http::StatusCode;
use routing::id::{PoolName, WorkerId};
use serde_json::Value;

const PROMPTS: &str = "an object with one of text, tokens, blocks";
const KINDS: [&str; 3] = ["text", "tokens", "blocks"];
const NUMBERS: &str = "a list of whole numbers, at most 1048576";

pub(super) fn problem(body: &[u8]) -> Problem {
    let mut faults = Faults::default();
    let Some(value) = declare::document(body, &mut faults) else {
        return Problem::malformed(faults.to_string());
    };
    walk(&value, &mut faults);
    if faults.list.is_empty() {
        faults.add(
            "",
            "could not be read".to_owned(),
            "a reservation, see /openapi.json of the control listener",
        );
    }
    invalid(faults)
}

pub(super) fn invalid(faults: Faults) -> Problem {
    let detail =
        if faults.list.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.list.len()) };
    let title = "The reservation is not valid";
    let all = faults.list.into_iter().map(Into::into).collect();
    Problem::new(StatusCode::BAD_REQUEST, "reservation_invalid", title, detail).with_errors(all)
}

fn walk(value: &Value, faults: &mut Faults) {
    let Some(mut fields) = Fields::open("", value, faults) else { return };
    fields.short_text(faults, "id", ID_BYTES_MAX);
    fields.required(faults, "pool", NAME_ALLOWED, PoolName::parse);
    match fields.take("prompt") {
        Some(value) => prompt(value, faults),
        None => faults.add("prompt", "is missing".to_owned(), PROMPTS),
    }
    fields.parsed(faults, "worker", NAME_ALLOWED, WorkerId::parse);
    fields.optional_number(faults, "rank", 0..=u32::MAX);
    fields.optional_number(faults, "ttl_ms", 1..=u32::try_from(TTL_MAX.0).unwrap_or(u32::MAX));
    fields.close(faults);
}

fn prompt(value: &Value, faults: &mut Faults) {
    let Some(mut fields) = Fields::open("prompt", value, faults) else { return };
    let given: Vec<&str> = KINDS.into_iter().filter(|kind| fields.has(kind)).collect();
    if given.len() != 1 {
        faults.add("prompt", format!("has {} of them", given.len()), PROMPTS);
    }
    if let Some(text) = fields.take("text") {
        self::text(text, faults);
    }
    if let Some(mut tokens) =
        fields.take("tokens").and_then(|value| Fields::open("prompt.tokens", value, faults))
    {
        numbers(&mut tokens, "ids", u32::MAX.into(), faults);
        for name in ["lora", "salt"] {
            tokens.text(faults, name);
        }
    }
    if let Some(mut blocks) =
        fields.take("blocks").and_then(|value| Fields::open("prompt.blocks", value, faults))
    {
        numbers(&mut blocks, "hashes", u64::MAX, faults);
        for name in ["block_size", "tokens"] {
            if !blocks.has(name) {
                faults.add(&blocks.at(name), "is missing".to_owned(), "a whole number");
            }
            blocks.optional_number(faults, name, 0..=u32::MAX);
        }
    }
    fields.close(faults);
}

fn text(value: &Value, faults: &mut Faults) {
    let Some(mut fields) = Fields::open("prompt.text", value, faults) else { return };
    let any = |text: &str| Ok::<_, std::convert::Infallible>(text.len());
    fields.required(faults, "path", "the request's path, as /v1/chat/completions", any);
    fields.required(faults, "body", "the request's body, as a string", any);
    if !fields.take("whole").is_some_and(Value::is_boolean) {
        faults.add(
            "prompt.text.whole",
            "is missing, or no boolean".to_owned(),
            "true, or false if the body is cut",
        );
    }
}

fn numbers(fields: &mut Fields<'_>, name: &'static str, max: u64, faults: &mut Faults) {
    let at = fields.at(name);
    let Some(Value::Array(values)) = fields.take(name) else {
        return faults.add(&at, "is missing, or no list".to_owned(), NUMBERS);
    };
    let good = |value: &Value| value.as_u64().is_some_and(|number| number <= max);
    if let Some(place) = values.iter().position(|value| !good(value)) {
        faults.add(&format!("{at}[{place}]"), "is no number of that kind".to_owned(), &format!("0..={max}"));
    }
}
