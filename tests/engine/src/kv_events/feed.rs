//! One rank's events between its cache and its socket, or who polls it: made in the cache's own order, waited for, replayed. Knows no
//! sockets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::dialect::Dialect;
use super::event::{Event, Stored};
use super::names::Names;
use super::poll::Poll;
use super::ring::{Batch, Ring, Troubles};
use crate::json::Raw;
use crate::prefix_cache::{BlockHash, CacheChange, StoredBlock};
use crate::shared::unix_nanos;
use crate::space::Space;

/// The tokens of a chain from one of its blocks on.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) first_block: usize,
    pub(crate) block_size: usize,
    pub(crate) tokens: &'a [u32],
}

impl<'a> Tokens<'a> {
    fn of(self, first: usize, count: usize) -> &'a [u32] {
        let from = (first - self.first_block) * self.block_size;
        &self.tokens[from..from + count * self.block_size]
    }
}

/// What a test may see of a feed.
pub(crate) struct FeedFigures {
    pub(crate) rank: u32,
    pub(crate) next_seq: u64,
    pub(crate) pending: usize,
    pub(crate) ring: usize,
    pub(crate) ring_first: Option<u64>,
    pub(crate) troubles: Troubles,
}

/// One rank's feed.
pub(crate) struct Feed {
    rank: u32,
    dialect: Dialect,
    buffer_steps: usize,
    inner: Mutex<Inner>,
    wake: Notify,
}

struct Inner {
    /// What the next step tells first.
    due: Vec<Event>,
    names: Names,
    ring: Ring,
    /// Where events go instead of to the ring.
    poll: Option<Poll>,
}

impl Feed {
    /// To a socket, or for one who asks.
    pub(crate) fn new(rank: u32, dialect: Dialect, buffer_steps: usize, poll: Option<Poll>) -> Self {
        let names = Names::new(&dialect, fresh(rank));
        let inner = Mutex::new(Inner { due: Vec::new(), names, ring: Ring::default(), poll });
        Self { rank, dialect, buffer_steps, inner, wake: Notify::new() }
    }

    /// A step is done: what it did to the cache leaves as one batch, if it did anything or something was due.
    /// `chain` is what its request holds now.
    pub(crate) fn step(
        &self,
        change: &CacheChange,
        tokens: Tokens<'_>,
        space: &Arc<Space>,
        chain: &[BlockHash],
    ) {
        let mut inner = self.lock();
        let all = space.tells_all.then(|| rows(chain, tokens.first_block));
        let stored = all.as_ref().unwrap_or(&change.stored);
        let events = inner.events(&self.dialect, change, stored, tokens, space);
        if inner.ring.troubles.silent || events.is_empty() {
            return;
        }
        match &mut inner.poll {
            Some(poll) => poll.push(&events),
            None => inner.ring.publish(self.dialect.batch(now(), &events, self.rank)),
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// What has not been asked for yet, which is forgotten.
    pub(crate) fn drain(&self) -> Vec<Raw> {
        self.lock().poll.as_mut().map(Poll::drain).unwrap_or_default()
    }

    /// The cache was cleared; told with the next step, however long that takes.
    pub(crate) fn cleared(&self) {
        self.lock().due.push(Event::Cleared);
    }

    /// A batch without events: who subscribes sees that it is heard.
    pub(crate) fn tick(&self) {
        self.lock().ring.publish(self.dialect.batch(now(), &[], self.rank));
        self.wake.notify_one();
    }

    /// A batch whose payload is the test's own.
    pub(crate) fn publish(&self, payload: Vec<u8>) {
        self.lock().ring.publish(payload);
        self.wake.notify_one();
    }

    /// As in a process just started.
    pub(crate) fn restart(&self) {
        let mut inner = self.lock();
        inner.due.clear();
        inner.names = Names::new(&self.dialect, fresh(self.rank));
        inner.ring.restart();
    }

    /// Changes what is ordered to go wrong.
    pub(crate) fn trouble(&self, change: impl FnOnce(&mut Troubles)) {
        change(&mut self.lock().ring.troubles);
        self.wake.notify_one();
    }

    pub(crate) fn figures(&self) -> FeedFigures {
        let Inner { ring, .. } = &*self.lock();
        FeedFigures {
            rank: self.rank,
            next_seq: ring.next_seq,
            pending: ring.pending.len(),
            ring: ring.kept.len(),
            ring_first: ring.kept.front().map(|batch| batch.seq),
            troubles: ring.troubles,
        }
    }

    /// Whether replayed batches carry the topic.
    pub(crate) fn replays_topic(&self) -> bool {
        self.dialect.replays_topic()
    }

    /// Whether nothing leaves right now.
    pub(crate) fn is_stalled(&self) -> bool {
        self.lock().ring.stalled_until().is_some()
    }

    /// The next batch to send and how often, kept for replay from now on; or nothing, when something else has changed.
    pub(crate) async fn next(&self) -> Option<(Batch, u64)> {
        let stalled = {
            let ring = &mut self.lock().ring;
            let stalled = ring.stalled_until();
            if stalled.is_none()
                && let Some(taken) = ring.take(self.buffer_steps)
            {
                return Some(taken);
            }
            stalled
        };
        match stalled {
            Some(Some(until)) => {
                // Not only the time: it may be told to go on earlier.
                let _ = tokio::time::timeout_at(until, self.wake.notified()).await;
            }
            _ => self.wake.notified().await,
        }
        None
    }

    /// What is kept from `start` on.
    pub(crate) fn replay(&self, start: u64) -> Vec<Batch> {
        self.lock().ring.kept.iter().filter(|batch| batch.seq >= start).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    unix_nanos() as f64 / 1e9
}

/// Another number for every rank and start.
fn fresh(rank: u32) -> u64 {
    unix_nanos() ^ u64::from(rank).rotate_left(40)
}

/// A chain from one of its blocks on, as if it were all new.
fn rows(chain: &[BlockHash], from: usize) -> Vec<StoredBlock> {
    let row = |(index, &hash): (usize, &BlockHash)| {
        let parent = index.checked_sub(1).map(|before| chain[before]);
        StoredBlock { hash, parent, index }
    };
    chain.iter().enumerate().skip(from).map(row).collect()
}

impl Inner {
    fn events(
        &mut self,
        dialect: &Dialect,
        change: &CacheChange,
        stored: &[StoredBlock],
        tokens: Tokens<'_>,
        space: &Arc<Space>,
    ) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.due);
        if !change.removed.is_empty() {
            let gone = change.removed.iter().map(|&hash| self.names.forget(dialect, hash)).collect();
            events.push(Event::Removed(gone));
        }
        for run in stored.chunk_by(|one, next| one.index + 1 == next.index) {
            events.push(Event::Stored(self.stored(dialect, run, tokens, space)));
        }
        events
    }

    fn stored(
        &mut self,
        dialect: &Dialect,
        run: &[StoredBlock],
        tokens: Tokens<'_>,
        space: &Arc<Space>,
    ) -> Stored {
        let names = &mut self.names;
        let hashes =
            run.iter().map(|block| names.make(dialect, block.hash, tokens.of(block.index, 1))).collect();
        let first = run[0];
        Stored {
            hashes,
            parent: first.parent.and_then(|parent| names.of(dialect, parent)),
            is_start: first.index == 0,
            tokens: tokens.of(first.index, run.len()).to_vec(),
            space: Arc::clone(space),
        }
    }
}
