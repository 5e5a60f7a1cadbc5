//! Claims: before a first turn's slot is told, all replicas agree on it, in one call for all that ask at once.

use super::Replicas;
use crate::lock::lock;
use crate::service::Service;
use crate::state::Binding;
use crate::store::{BATCH_MAX, Claim, StoreError};
use routing::id::{SessionId, Version};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::sleep;

/// Claims that wait for their call. Past it a turn goes on without: whose binding is the newer one is seen later.
pub(super) const WAITING_MAX: usize = 4096;
/// Calls under way at once; meanwhile the next batch gathers. The server does one at a time: more would only be smaller.
const CALLS_MAX: usize = 2;

/// What became of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The answer holds.
    AsAnswered,
    /// It is elsewhere, or under another version: to be asked again.
    Changed,
}

/// A proposal, and who waits for what became of it.
pub(super) struct Asked {
    proposal: (Binding, Option<Version>),
    answer: oneshot::Sender<Result<Claim, StoreError>>,
}

impl Replicas {
    /// Proposes a place, in place of the record it leaves; `None`: too many wait.
    pub(crate) async fn propose(
        &self,
        proposal: Binding,
        leaves: Option<Version>,
    ) -> Option<Result<Claim, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.claims.try_send(Asked { proposal: (proposal, leaves), answer }).ok()?;
        answered.await.ok()
    }
}

/// Asks the store for all that wait.
pub(super) async fn answer(replicas: &Arc<Replicas>) {
    // Taken once: a task that is started again after a panic finds none, and claims are refused as too many.
    let Some(mut asked) = lock(&replicas.asked).take() else { return std::future::pending().await };
    let calls = Arc::new(Semaphore::new(CALLS_MAX));
    loop {
        let Ok(call) = Arc::clone(&calls).acquire_owned().await else { return };
        let mut batch = Vec::new();
        if asked.recv_many(&mut batch, BATCH_MAX).await == 0 {
            return;
        }
        let replicas = Arc::clone(replicas);
        tokio::spawn(async move {
            let _call = call;
            ask(&replicas, batch).await;
        });
    }
}

async fn ask(replicas: &Replicas, batch: Vec<Asked>) {
    let (proposals, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|asked| (asked.proposal, asked.answer)).unzip();
    match replicas.store.claim_leaving(&proposals).await {
        Ok(claims) => {
            for (claim, answer) in claims.into_iter().zip(answers) {
                // Who asked may be gone.
                let _ = answer.send(Ok(claim));
            }
        }
        Err(error) => {
            for answer in answers {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

/// Lets the claims of holds live on for as long as these do.
pub(super) async fn renew(service: &Service, replicas: &Replicas) {
    let every = Duration::from_millis(replicas.store.config().claim.0 / 3);
    loop {
        sleep(every).await;
        let mut from = Some(SessionId(0));
        while let Some(session) = from {
            let (claims, next) = service.claims(session, BATCH_MAX);
            from = next;
            // A store that is away is no reason to end: what it forgets is claimed anew, or committed.
            if !claims.is_empty() && replicas.store.renew_claims(&claims).await.is_err() {
                break;
            }
        }
    }
}
