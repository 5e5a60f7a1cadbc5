//! The store that replicas share: Redis 6.2 or later, or Valkey. Sessions' bindings with claims on first turns, a log of changes,
//! declared workers, and an epoch that tells a store that lost its memory.
//!
//! Owns the keys, the scripts and their atomicity, the texts in them, and one kept connection for calls and one for waiting. Every
//! call ends within its deadline, in an answer or a named error. Decides nothing about sessions: which state of a session is the
//! newer one is a matter of comparing texts (`record.rs`); `docs/STORE.md` tells keys, lives and what a loss costs.

mod aliases;
mod claims;
mod config;
mod connect;
mod epoch;
mod error;
mod figures;
mod follow;
mod keys;
mod link;
mod merge;
pub mod record;
mod reply;
mod scripts;
mod snapshot;
mod stream;
mod workers;

pub use aliases::KeptAlias;
pub use claims::Claim;
pub use config::{StoreClock, StoreConfig};
pub use error::{REASONS, StoreError};
pub use figures::{LAG_BUCKETS_MS, StoreFigures};
pub use follow::{Entry, FOLLOW_WAIT_MAX, Followed};
pub use link::Standing;
pub use merge::{Merge, NOTE_BYTES_MAX, NOTES_MAX};
pub use snapshot::{Page, Snapshot};
pub use stream::StreamId;
pub use workers::{DECLARATION_BYTES_MAX, SharedDrain, SharedWorker, SharedWorkers};

use connect::Connection;
use epoch::Epochs;
use figures::Counters;
use link::Link;
use redis::{RedisResult, ScriptInvocation, Value};
use routing::time::Millis;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::watch;

/// Most sessions in one call.
pub const BATCH_MAX: usize = 256;

/// The store, shared by whoever has a clone. The last one dropped ends its connections.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    config: Arc<StoreConfig>,
    counters: Arc<Counters>,
    epochs: Arc<Epochs>,
    calls: Link,
    /// Waits for news; a waiting connection answers nothing else.
    waits: Link,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether it can be asked.
    pub standing: Standing,
    /// Which memory of it was seen last.
    pub epoch: Option<u64>,
    /// Times that it was seen to have forgotten its last writes and not all, by a failover to a replica that lagged.
    pub losses: u64,
}

impl Status {
    /// Which memory of it this is; another one after every loss: what the store should know must be told again.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        self.epoch.map(|epoch| (epoch, self.losses))
    }
}

impl Store {
    /// Opens it. A server that is away is no error: calls fail until it is there.
    ///
    /// # Errors
    /// [`StoreError::Config`]: what no server could make right.
    pub async fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        connect::check(config)?;
        let config = Arc::new(config.clone());
        let counters = Arc::<Counters>::default();
        let epochs = Arc::new(Epochs::new(Arc::clone(&counters)));
        let calls = Link::open(&config, &counters, &epochs, config.deadline, Some(config.beat)).await;
        let longest = Millis(FOLLOW_WAIT_MAX.0 + config.deadline.0);
        let waits = Link::open(&config, &counters, &epochs, longest, None).await;
        Ok(Self { inner: Arc::new(Inner { config, counters, epochs, calls, waits }) })
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        let standing = self.inner.calls.standing().borrow().clone();
        Status { standing, epoch: self.inner.epochs.known(), losses: self.inner.epochs.losses() }
    }

    /// Tells each change between up and away.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.inner.calls.standing()
    }

    /// Tells each change of the store's memory: after one, what the store should know must be told again.
    #[must_use]
    pub fn epochs(&self) -> watch::Receiver<Option<u64>> {
        self.inner.epochs.watch()
    }

    /// Returns once it can be asked and followed.
    pub async fn until_up(&self) {
        for mut standing in [self.inner.calls.standing(), self.inner.waits.standing()] {
            // Fails only when the link is gone, and we hold it.
            let _ = standing.wait_for(|now| *now == Standing::Up).await;
        }
    }

    /// What was counted since it was opened.
    #[must_use]
    pub fn figures(&self) -> StoreFigures {
        self.inner.counters.figures()
    }

    /// What it was opened with.
    #[must_use]
    pub fn config(&self) -> &StoreConfig {
        &self.inner.config
    }

    /// Reads the epoch, gives one to a store that has none, and keeps what all replicas share alive. A store that is up
    /// does so by itself every [`StoreConfig::beat`].
    ///
    /// # Errors
    /// Any of [`StoreError`].
    pub async fn epoch(&self) -> Result<u64, StoreError> {
        let Inner { config, epochs, .. } = &*self.inner;
        let ask = async |mut connection: Connection| epochs.ask(config, &mut connection).await;
        self.inner.calls.call("epoch", config.deadline, ask).await
    }

    /// Calls a script whose answer begins with the time and the epoch; gives the time and the rest.
    async fn ask(
        &self,
        call: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<(u64, Vec<Value>), StoreError> {
        self.inner.counters.commands.fetch_add(1, Relaxed);
        let ask = |mut connection: Connection| async move {
            let answer: RedisResult<Value> = script.invoke_async(&mut connection).await;
            answer
        };
        let answer = self.inner.calls.call(call, self.inner.config.deadline, ask).await?;
        let mut parts = reply::list(answer).ok_or_else(|| StoreError::answer(call))?;
        let rest = parts.split_off(parts.len().min(2));
        let [now, epoch] = parts.as_slice() else { return Err(StoreError::answer(call)) };
        let (now, epoch) = (reply::number(now), reply::epoch(epoch));
        let (Some(now), Some(epoch)) = (now, epoch) else { return Err(StoreError::answer(call)) };
        self.saw_epoch(epoch).await;
        Ok((now, rest))
    }

    async fn saw_epoch(&self, epoch: Option<u64>) {
        match epoch {
            Some(epoch) => self.inner.epochs.saw(epoch),
            // Its memory went while we were connected: the next reader sees a new epoch. Failing is counted.
            None => drop(self.epoch().await),
        }
    }
}

/// Refuses more than a call takes.
fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), StoreError> {
    if count > max { Err(StoreError::TooMany { what, count, max }) } else { Ok(()) }
}
