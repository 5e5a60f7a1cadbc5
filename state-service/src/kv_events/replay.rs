//! One replay: asks a publisher's ROUTER for everything from a number on, by a DEALER of its own, and hands the answers on.

use super::frames::{self, Answer};
use super::hub::{Ask, Rank};
use super::pipeline::{Pipeline, Raw, limited};
use super::subscriber::connect;
use super::zmtp::{Connection, Role};
use crate::state::kv_stream::{Input, ReplayFailure};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A replay socket that says nothing for so long has failed. Engines answer between two polls of their queue, within 100 ms.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Answers handed on at once.
const BURST: usize = 64;

/// Makes the replay; its end, or its failure, is the last thing handed on. False: it failed.
pub(super) async fn make(
    pipeline: &Pipeline,
    places: &Semaphore,
    rank: &Arc<Rank>,
    endpoint: &str,
    ask: Ask,
) -> bool {
    // The semaphore is never closed.
    let place = places.acquire().await;
    let failure = match connect(endpoint, Role::Dealer).await {
        Ok(connection) => {
            run(pipeline, rank, connection, ask).await.is_none().then_some(ReplayFailure::Broken)
        }
        Err(_) => Some(ReplayFailure::Unreachable),
    };
    drop(place);
    if let Some(failure) = failure {
        pipeline.send(rank, vec![Raw::Input(Input::ReplayFailed(ask.attempt, failure))]).await;
    }
    failure.is_none()
}

async fn run(pipeline: &Pipeline, rank: &Arc<Rank>, mut connection: Connection, ask: Ask) -> Option<()> {
    timeout(SILENCE_MAX, connection.send(&[b"", &ask.from.to_be_bytes()])).await.ok()?.ok()?;
    let mut raws = Vec::new();
    loop {
        let message = match connection.try_recv().ok()? {
            Some(message) => message,
            None => {
                pipeline.send(rank, std::mem::take(&mut raws)).await;
                timeout(SILENCE_MAX, connection.recv()).await.ok()?.ok()?
            }
        };
        // What is neither is passed over: a hole in the numbers tells what it cost.
        match frames::answer(&message) {
            Some(Answer::Batch(batch)) => raws.push(Raw::Replayed(ask.attempt, limited(batch))),
            Some(Answer::End) => {
                raws.push(Raw::Input(Input::ReplayEnd(ask.attempt)));
                pipeline.send(rank, raws).await;
                return Some(());
            }
            None => {}
        }
        if raws.len() >= BURST {
            pipeline.send(rank, std::mem::take(&mut raws)).await;
        }
    }
}
