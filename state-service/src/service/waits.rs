//! Requests whose answer the state holds back: who waits for which, and that nobody is waited for in vain.
//!
//! Owns the wires between a held request and its answer. Who waits, and for how long, is the state's.

use super::Service;
use crate::state::{Command, Later, Ticket};
use routing::contract::RouteReply;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Where the answers go; as many as the state lets wait.
#[derive(Default)]
pub(super) struct Waits(Mutex<BTreeMap<Ticket, oneshot::Sender<Box<RouteReply>>>>);

impl Waits {
    /// To be called under the state's lock: the very next command may bring the answer.
    pub(super) fn open(&self, ticket: Ticket) -> oneshot::Receiver<Box<RouteReply>> {
        let (sender, receiver) = oneshot::channel();
        self.places().insert(ticket, sender);
        receiver
    }

    /// Brings an answer; whoever has left does without.
    pub(super) fn answer(&self, ticket: Ticket, reply: Box<RouteReply>) {
        let place = self.places().remove(&ticket);
        drop(place.map(|place| place.send(reply)));
    }

    fn close(&self, ticket: Ticket) -> bool {
        self.places().remove(&ticket).is_some()
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<Ticket, oneshot::Sender<Box<RouteReply>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One held request. Dropped when it is answered, or when its client is gone: then the state is told.
pub(super) struct Waiting<'a> {
    pub(super) service: &'a Service,
    pub(super) later: Later,
    pub(super) answer: oneshot::Receiver<Box<RouteReply>>,
}

impl Waiting<'_> {
    /// The answer; `None` would be the state's fault.
    pub(super) async fn answered(mut self) -> Option<Box<RouteReply>> {
        let within = Duration::from_millis(self.later.within.0);
        tokio::select! {
            reply = &mut self.answer => return reply.ok(),
            () = sleep(within) => {}
        }
        // Any command answers those whose time is up; another one may have done so just now.
        self.service.apply(Command::Due);
        (&mut self.answer).await.ok()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.service.waits.close(self.later.ticket) {
            self.service.apply(Command::Leave { ticket: self.later.ticket });
        }
    }
}
