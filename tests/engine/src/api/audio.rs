//! `POST /v1/audio/transcriptions` and `/translations`: a form with a file. Never reads the rank header.

use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;

use super::Call;
use crate::answer::{Answer, Refusal, ok};
use crate::ask;
use crate::generate::Generations;
use crate::json::object;
use crate::multipart;

/// Bytes of a file that count as a second of sound, and as a token.
const BYTES_PER_SECOND: usize = 32_000;

pub(crate) fn answer(call: &Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let kind = call.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let form = multipart::fields(kind, &call.body).ok_or_else(|| Refusal::missing(&["body.file"], 0))?;
    let field = |name: &str| form.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
    let file = field("file").ok_or_else(|| Refusal::missing(&["body.file"], form.len()))?;
    if let Some(model) = field("model") {
        let model = std::str::from_utf8(model).map_err(|_| Refusal::plain(StatusCode::BAD_REQUEST))?;
        ask::check_model_name(shared, model)?;
    }
    let seconds = file.len().div_ceil(BYTES_PER_SECOND);
    // Counts as a request on the rank the engine would have chosen.
    let served = Generations::admit_pooling(shared, &call.outcome, seconds);
    let text = format!("{} bytes of sound", file.len());
    let usage = object! { "type": "duration", "seconds": seconds };
    Ok(served.answer(|()| ok(object! { "text": text, "usage": usage })))
}
