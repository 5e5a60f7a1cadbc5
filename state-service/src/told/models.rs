//! What workers list at `GET /v1/models`: their models, and the adapters of them. Asked soon and often until they answer, then now and
//! then: adapters come and go. What a name means for a prompt is the service's.

use super::{ANSWER_BYTES_MAX, ASK_AGAIN, ASK_FIRST, ASK_PAUSE_MAX, ASK_TIMEOUT, Asked};
use crate::declare::TEXT_BYTES_MAX;
use crate::probe;
use crate::service::Service;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Most names that are kept of one worker; of more the first.
const NAMES_MAX: usize = 1024;

/// What a worker lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its model, by every name it is served under.
    pub bases: Vec<String>,
    /// Adapters: those with a `parent`.
    pub adapters: Vec<String>,
}

#[derive(Deserialize)]
struct List {
    data: Vec<Card>,
}

#[derive(Deserialize)]
struct Card {
    id: String,
    #[serde(default)]
    parent: Option<String>,
}

impl Listed {
    /// `None`: that is no list of models, or an empty one.
    fn read(body: &[u8]) -> Option<Self> {
        let list: List = serde_json::from_slice(body).ok()?;
        let short = |card: &Card| (1..=TEXT_BYTES_MAX).contains(&card.id.len());
        let mut listed = Self::default();
        for card in list.data.into_iter().filter(short).take(NAMES_MAX) {
            match card.parent {
                Some(_) => listed.adapters.push(card.id),
                None => listed.bases.push(card.id),
            }
        }
        (listed != Self::default()).then_some(listed)
    }
}

pub(super) async fn keep_asking(service: Arc<Service>, client: reqwest::Client, asked: Asked) {
    let authority = asked.address.to_string();
    let mut pause = ASK_FIRST;
    loop {
        let answer = probe::get(&client, (&asked.dial, &authority), "/v1/models", ANSWER_BYTES_MAX);
        let answer = timeout(ASK_TIMEOUT, answer).await.ok().flatten();
        let listed = answer.and_then(|body| Listed::read(&body));
        pause = if listed.is_some() { ASK_AGAIN } else { (pause * 2).min(ASK_PAUSE_MAX) };
        // One that does not answer now serves what it listed last.
        if let Some(listed) = listed {
            service.models_listed(&asked.worker, listed);
        }
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        sleep(Duration::from_millis(service.chance.jittered(pause_ms).0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_lists_adapters_with_a_parent() {
        let body = br#"{"object":"list","data":[
            {"id":"tiny","object":"model","owned_by":"vllm","root":"/models/tiny","parent":null,"max_model_len":4096},
            {"id":"sql","object":"model","owned_by":"vllm","root":"/loras/sql","parent":"tiny"}]}"#;
        let listed = Listed { bases: vec!["tiny".to_owned()], adapters: vec!["sql".to_owned()] };
        assert_eq!(Listed::read(body), Some(listed));
    }

    #[test]
    fn what_is_no_list_tells_nothing() {
        for body in ["", "{}", "[]", "<html>", r#"{"data":[]}"#, r#"{"data":[{"id":""}]}"#, r#"{"data":{}}"#]
        {
            assert_eq!(Listed::read(body.as_bytes()), None, "{body}");
        }
    }
}
