//! One rank's events on their way to its socket: their hashes, their sequence, what is kept for replay, and the faults that fall
//! between. Bounded; knows no sockets.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use super::dialect::Dialect;
use super::event::{Event, Stored};
use crate::prefix_cache::{BlockHash, CacheChange, StoredBlock};
use crate::shared::unix_nanos;
use crate::space::Space;

/// Batches waiting to be sent; the next one is lost, as on a full socket: its number is used up.
const PENDING_MAX: usize = 100_000;
/// Payload bytes kept for replay; the oldest batches go first, whatever the number of steps to keep.
const RING_BYTES_MAX: usize = 64 << 20;

/// A batch and its number.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) seq: u64,
    pub(crate) payload: Bytes,
}

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

/// What is ordered to go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Troubles {
    /// Batches that are not sent but can be replayed.
    pub(crate) drop: u64,
    /// Batches that are neither sent nor kept.
    pub(crate) lose: u64,
    /// Batches that are sent twice.
    pub(crate) duplicate: u64,
    /// Nothing leaves, live or replayed, until then; `Some(None)` is until told otherwise.
    pub(crate) stall: Option<Option<Instant>>,
    /// Nothing is published at all.
    pub(crate) silent: bool,
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

#[derive(Default)]
struct Inner {
    next_seq: u64,
    /// What the next step tells first.
    due: Vec<Event>,
    pending: VecDeque<Batch>,
    ring: VecDeque<Batch>,
    ring_bytes: usize,
    troubles: Troubles,
    /// Changes the hashes of engines that make them anew in every process.
    seed: u64,
    /// Names of blocks where they cannot be computed from the chain.
    names: HashMap<BlockHash, u64>,
}

impl Feed {
    pub(crate) fn new(rank: u32, dialect: Dialect, buffer_steps: usize) -> Self {
        let feed = Self { rank, dialect, buffer_steps, inner: Mutex::default(), wake: Notify::new() };
        feed.lock().seed = feed.fresh_seed();
        feed
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
        let mut events = std::mem::take(&mut inner.due);
        if !change.removed.is_empty() {
            let gone = change.removed.iter().map(|&hash| inner.forget(&self.dialect, hash)).collect();
            events.push(Event::Removed(gone));
        }
        let all = space.tells_all.then(|| rows(chain, tokens.first_block));
        let stored = all.as_ref().unwrap_or(&change.stored);
        for run in stored.chunk_by(|one, next| one.index + 1 == next.index) {
            events.push(Event::Stored(inner.stored(&self.dialect, run, tokens, space)));
        }
        if !inner.troubles.silent && !events.is_empty() {
            inner.publish(self.dialect.batch(unix_nanos() as f64 / 1e9, &events, self.rank));
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// The cache was cleared; told with the next step, however long that takes.
    pub(crate) fn cleared(&self) {
        self.lock().due.push(Event::Cleared);
    }

    /// A batch without events: who subscribes sees that it is heard.
    pub(crate) fn tick(&self) {
        self.lock().publish(self.dialect.batch(unix_nanos() as f64 / 1e9, &[], self.rank));
        self.wake.notify_one();
    }

    /// As in a process just started.
    pub(crate) fn restart(&self) {
        let mut inner = self.lock();
        *inner = Inner { troubles: inner.troubles, seed: self.fresh_seed(), ..Inner::default() };
    }

    /// Changes what is ordered to go wrong.
    pub(crate) fn trouble(&self, change: impl FnOnce(&mut Troubles)) {
        change(&mut self.lock().troubles);
        self.wake.notify_one();
    }

    pub(crate) fn figures(&self) -> FeedFigures {
        let inner = self.lock();
        FeedFigures {
            rank: self.rank,
            next_seq: inner.next_seq,
            pending: inner.pending.len(),
            ring: inner.ring.len(),
            ring_first: inner.ring.front().map(|batch| batch.seq),
            troubles: inner.troubles,
        }
    }

    /// Whether replayed batches carry the topic.
    pub(crate) fn replays_topic(&self) -> bool {
        self.dialect.replays_topic()
    }

    /// Whether nothing leaves right now.
    pub(crate) fn is_stalled(&self) -> bool {
        self.lock().stalled_until().is_some()
    }

    /// The next batch to send and how often, kept for replay from now on; or nothing, when something else has changed.
    pub(crate) async fn next(&self) -> Option<(Batch, u64)> {
        let stalled = {
            let mut inner = self.lock();
            let stalled = inner.stalled_until();
            if stalled.is_none()
                && let Some(batch) = inner.pending.pop_front()
            {
                let times = inner.keep(&batch, self.buffer_steps);
                return Some((batch, times));
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
        self.lock().ring.iter().filter(|batch| batch.seq >= start).cloned().collect()
    }

    fn fresh_seed(&self) -> u64 {
        let seed = unix_nanos() ^ u64::from(self.rank).rotate_left(40);
        if self.dialect.is_seeded_per_process() { seed | 1 } else { 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    fn publish(&mut self, payload: Vec<u8>) {
        let seq = self.next_seq;
        self.next_seq += 1;
        if self.pending.len() < PENDING_MAX {
            self.pending.push_back(Batch { seq, payload: payload.into() });
        }
    }

    fn stored(
        &mut self,
        dialect: &Dialect,
        run: &[StoredBlock],
        tokens: Tokens<'_>,
        space: &Arc<Space>,
    ) -> Stored {
        let name = |inner: &mut Self, block: &StoredBlock| {
            inner.name(dialect, block.hash, tokens.of(block.index, 1))
        };
        let hashes = run.iter().map(|block| name(self, block)).collect();
        let first = run[0];
        Stored {
            hashes,
            parent: first.parent.and_then(|parent| self.known(dialect, parent)),
            is_start: first.index == 0,
            tokens: tokens.of(first.index, run.len()).to_vec(),
            space: Arc::clone(space),
        }
    }

    /// A new block's hash as it is told.
    fn name(&mut self, dialect: &Dialect, hash: BlockHash, tokens: &[u32]) -> u64 {
        if !dialect.is_unchained() {
            return mixed(hash.value() ^ self.seed);
        }
        let page = BlockHash::root("", None).chain(tokens).value();
        self.names.insert(hash, page);
        page
    }

    fn known(&self, dialect: &Dialect, hash: BlockHash) -> Option<u64> {
        match dialect.is_unchained() {
            true => self.names.get(&hash).copied(),
            false => Some(mixed(hash.value() ^ self.seed)),
        }
    }

    fn forget(&mut self, dialect: &Dialect, hash: BlockHash) -> u64 {
        let known = self.known(dialect, hash).unwrap_or_default();
        self.names.remove(&hash);
        known
    }

    /// Puts a batch into the ring, unless it shall be lost; says how often it is sent.
    fn keep(&mut self, batch: &Batch, steps: usize) -> u64 {
        let troubles = &mut self.troubles;
        if troubles.lose > 0 {
            troubles.lose -= 1;
            return 0;
        }
        let times = if troubles.drop > 0 {
            troubles.drop -= 1;
            0
        } else if troubles.duplicate > 0 {
            troubles.duplicate -= 1;
            2
        } else {
            1
        };
        self.ring_bytes += batch.payload.len();
        self.ring.push_back(batch.clone());
        while self.ring.len() > steps || self.ring_bytes > RING_BYTES_MAX {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.ring_bytes -= oldest.payload.len();
        }
        times
    }

    /// `Some` while stalled; within, until when.
    fn stalled_until(&mut self) -> Option<Option<Instant>> {
        if let Some(Some(until)) = self.troubles.stall
            && until <= Instant::now()
        {
            self.troubles.stall = None;
        }
        self.troubles.stall
    }
}

/// One to one, so that no two blocks share a name.
fn mixed(hash: u64) -> u64 {
    let x = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

/// How long a stall of so many milliseconds lasts.
pub(crate) fn stall_until(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}
