//! Polls a TensorRT-LLM that publishes nothing: `POST /kv_cache_events` gives what happened since the last question, and forgets it.
//! What was lost meanwhile cannot be asked for again, so a question that failed makes its ranks cold.

use super::hub::Rank;
use super::run::{Wanted, ranks};
use super::skips::Skips;
use super::slices::Slices;
use super::subscriber::Shared;
use super::trtllm::{ANSWER_BYTES_MAX, Poll};
use crate::state::kv_stream::{Input, Link};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task;
use tokio::time::{sleep, timeout};

/// Between two questions: how far the index lags behind such an engine.
const INTERVAL: Duration = Duration::from_millis(200);
/// An answer that is not whole by then is lost.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Polls until a question fails. A first question that fails changes nothing.
pub(super) async fn keep(client: &reqwest::Client, shared: &Shared, wanted: &Wanted) {
    let mut poll = Poll::default();
    let mut begun = false;
    while let Some(body) = ask(client, wanted).await {
        if !begun {
            begun = true;
            tell_all(shared, wanted, Link::Up, &[Input::Connected]);
        }
        let mut skips = Skips::default();
        // Megabytes of JSON are no work for an async thread.
        let Some(frames) = task::block_in_place(|| poll.read(&body, &mut skips)) else { break };
        shared.hub.left_out(&skips);
        let mut by_rank: BTreeMap<u32, Vec<Input>> = BTreeMap::new();
        for (rank, frame) in frames {
            by_rank.entry(wanted.first.saturating_add(rank)).or_default().push(Input::Live(frame));
        }
        for (rank, inputs) in by_rank.into_iter().filter(|(rank, _)| ranks(wanted).any(|own| own == *rank)) {
            let rank = Rank { worker: wanted.worker.clone(), rank };
            let (mut slices, mut take) = (Slices::default(), |inputs| shared.sink.take(&rank, inputs));
            inputs.into_iter().for_each(|input| slices.add(input, &mut take));
            slices.end(&mut take);
        }
        sleep(INTERVAL).await;
    }
    if begun {
        tell_all(shared, wanted, Link::Connecting, &[Input::Connected]);
    }
}

fn tell_all(shared: &Shared, wanted: &Wanted, link: Link, inputs: &[Input]) {
    for rank in ranks(wanted) {
        let rank = Rank { worker: wanted.worker.clone(), rank };
        shared.sink.link(&rank, link);
        shared.sink.take(&rank, inputs.to_vec());
    }
}

/// `None`: no answer, or one that is too long or says no.
async fn ask(client: &reqwest::Client, wanted: &Wanted) -> Option<Vec<u8>> {
    let url = format!("http://{}/kv_cache_events", wanted.dial);
    let request = client.post(url).header(reqwest::header::HOST, &wanted.authority);
    let answer = async {
        let mut response = request.send().await.ok().filter(|response| response.status().is_success())?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.ok()? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return None;
            }
            body.extend_from_slice(&chunk);
        }
        Some(body)
    };
    timeout(TIMEOUT, answer).await.ok().flatten()
}
