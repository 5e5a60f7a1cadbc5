//! Responses kept for `previous_response_id`, for being asked again and for being cancelled. In this process's memory alone, as
//! in an engine's API server. Bounded: the oldest goes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::task::AbortHandle;

use crate::json::Raw;

/// Responses kept.
const RESPONSES_MAX: usize = 10_000;

/// A response and the conversation it ends.
pub(crate) struct Stored {
    /// The response object as it is answered.
    pub(crate) body: Raw,
    /// The messages of its prompt and its reply.
    pub(crate) messages: Vec<Value>,
    /// Its generation, while it runs in the background.
    pub(crate) running: Option<AbortHandle>,
}

#[derive(Default)]
struct Inner {
    stored: HashMap<String, Stored>,
    order: VecDeque<String>,
}

impl Inner {
    fn put(&mut self, id: &str, stored: Stored) {
        if self.stored.insert(id.to_owned(), stored).is_none() {
            self.order.push_back(id.to_owned());
        }
        if self.order.len() > RESPONSES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.stored.remove(&oldest);
        }
    }
}

/// All kept responses.
#[derive(Default)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
}

impl Store {
    /// Keeps a response, in place of an earlier state of the same.
    pub(crate) fn put(&self, id: &str, stored: Stored) {
        self.lock().put(id, stored);
    }

    /// Keeps a response that was just begun, unless it has ended meanwhile.
    pub(crate) fn put_new(&self, id: &str, stored: Stored) {
        let mut inner = self.lock();
        if !inner.stored.contains_key(id) {
            inner.put(id, stored);
        }
    }

    /// The response as it stands.
    pub(crate) fn body(&self, id: &str) -> Option<Raw> {
        self.lock().stored.get(id).map(|stored| stored.body.clone())
    }

    /// The conversation up to and with it.
    pub(crate) fn messages(&self, id: &str) -> Option<Vec<Value>> {
        self.lock().stored.get(id).map(|stored| stored.messages.clone())
    }

    /// Ends a background response: `None` when there is no such response, `Some(None)` when it does not run.
    pub(crate) fn cancel(&self, id: &str, cancelled: impl FnOnce(&Raw) -> Raw) -> Option<Option<Raw>> {
        let mut inner = self.lock();
        let stored = inner.stored.get_mut(id)?;
        let Some(running) = stored.running.take() else { return Some(None) };
        running.abort();
        stored.body = cancelled(&stored.body);
        Some(Some(stored.body.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
