//! What workers are asked: the conversation as they will see it, and how much of an answer is read. Knows no memory of either.

use super::Reason;
use super::body::{Asked, Chat, Prompt};
use super::engine::{ANSWER_BYTES_MAX, ANSWER_TIMEOUT};
use super::json::Json;
use reqwest::{Client, Response};
use tokio::time::timeout;

/// Everything but the messages.
pub(super) fn head(prompt: &Prompt, chat: &Chat) -> Vec<(String, Json)> {
    let mut head = Vec::new();
    let mut put = |name: &str, value: Json| head.push((name.to_owned(), value));
    if let Some(model) = &prompt.model {
        put("model", Json::of(model));
    }
    if let Some(tools) = &chat.tools {
        put("tools", tools.clone());
    }
    if !chat.kwargs.is_empty() {
        put("chat_template_kwargs", Json::Map(chat.kwargs.clone()));
    }
    put("add_generation_prompt", Json::Bool(chat.add_generation_prompt));
    put("add_special_tokens", Json::Bool(chat.marks));
    head
}

pub(super) fn question(prompt: &Prompt) -> Json {
    match &prompt.asked {
        Asked::Chat(chat) => {
            let mut members = head(prompt, chat);
            members.push(("messages".to_owned(), Json::List(chat.messages.clone())));
            Json::Map(members)
        }
        Asked::Text { text, marks } => {
            let model = prompt.model.as_deref().map(|model| ("model".to_owned(), Json::of(model)));
            let rest = [("prompt", Json::of(text)), ("add_special_tokens", Json::Bool(*marks))];
            Json::Map(model.into_iter().chain(rest.map(|(name, value)| (name.to_owned(), value))).collect())
        }
        Asked::Tokens(_) => Json::Null,
    }
}

/// The body of an answer, unless it is too long.
pub(super) async fn bounded(mut response: Response) -> Result<Vec<u8>, Reason> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|_| Reason::Engine)? {
        if body.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(Reason::Engine);
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// A worker's `tokenizer_config.json`, where it offers it (vLLM: `--enable-tokenizer-info-endpoint`).
pub(crate) async fn offered_config(client: &Client, worker: &str) -> Option<String> {
    let asked = timeout(ANSWER_TIMEOUT, async {
        let response = client.get(format!("{worker}/tokenizer_info")).send().await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        String::from_utf8(bounded(response).await.ok()?).ok()
    });
    asked.await.ok().flatten()
}
