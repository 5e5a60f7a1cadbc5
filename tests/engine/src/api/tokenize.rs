//! `POST /tokenize`: a conversation or a text as the engine's tokens.

use serde_json::Value;

use super::{Call, chat};
use crate::answer::{Answer, Refusal, ok};
use crate::ask;
use crate::json::object;
use crate::model::Start;
use crate::printed::Ordered;

pub(crate) async fn answer(call: Call) -> Result<Answer, Refusal> {
    let shared = &call.shared;
    let fields = ask::fields(&call.body, &[])?;
    ask::check_model(shared, &fields)?;
    let special = fields.get("add_special_tokens").and_then(Value::as_bool);
    let (text, special) = match (fields.get("messages"), fields.get("prompt").and_then(Value::as_str)) {
        (Some(messages), _) => (
            chat::render(shared, Some(messages), &fields, &Ordered::of(&call.body))?,
            special.unwrap_or(false),
        ),
        (None, Some(prompt)) => (prompt.to_owned(), special.unwrap_or(true)),
        (None, None) => return Err(Refusal::missing(&["body.prompt", "body.messages"], fields.len())),
    };
    let tokens = ask::encode(shared, text, if special { Start::Bos } else { Start::Plain }).await?;
    Ok(ok(object! {
        "count": tokens.len(), "max_model_len": shared.config.max_model_len, "tokens": tokens.to_vec(),
        "token_strs": (),
    }))
}
