//! Claims: before a first turn's slot is told, all replicas agree on it, in one call for all that ask at once.

use super::Replicas;
use crate::lock::lock;
use crate::service::Service;
use crate::state::Proposal;
use crate::store::BATCH_MAX;
use routing::contract::SessionRef;
use routing::id::SessionId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
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
    session: SessionRef,
    proposal: Proposal,
    answer: oneshot::Sender<Settled>,
}

impl Replicas {
    /// Proposes a place; `None`: too many wait. What becomes of it counts also when nobody waits for it any more.
    pub(crate) fn propose(
        &self,
        session: SessionRef,
        proposal: Proposal,
    ) -> Option<oneshot::Receiver<Settled>> {
        let (answer, answered) = oneshot::channel();
        self.claims.try_send(Asked { session, proposal, answer }).ok()?;
        Some(answered)
    }
}

/// Asks the store for all that wait.
pub(super) async fn answer(service: &Arc<Service>, replicas: &Arc<Replicas>) {
    // Taken once: a task that is started again after a panic finds none, and claims are refused as too many.
    let Some(mut asked) = lock(&replicas.asked).take() else { return std::future::pending().await };
    let calls = Arc::new(Semaphore::new(CALLS_MAX));
    loop {
        let Ok(call) = Arc::clone(&calls).acquire_owned().await else { return };
        let mut batch = Vec::new();
        if asked.recv_many(&mut batch, BATCH_MAX).await == 0 {
            return;
        }
        let (service, replicas) = (Arc::clone(service), Arc::clone(replicas));
        tokio::spawn(async move {
            ask(&service, &replicas, batch, call).await;
        });
    }
}

async fn ask(service: &Service, replicas: &Replicas, batch: Vec<Asked>, call: OwnedSemaphorePermit) {
    let proposal = |asked: &Asked| (asked.proposal.binding.clone(), asked.proposal.leaves);
    let proposals: Vec<_> = batch.iter().map(proposal).collect();
    // After a failure answers go out as they are: what waits is let go.
    let claims = replicas.store.claim(&proposals).await;
    replicas.wrote(&claims);
    let Ok(claims) = claims else { return };
    // The next batch may go while this one is told.
    drop(call);
    for (claim, Asked { session, proposal, answer }) in claims.into_iter().zip(batch) {
        let settled = service.take_claim(session, &proposal, claim);
        // Who asked may be gone.
        let _ = answer.send(settled);
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
