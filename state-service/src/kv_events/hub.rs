//! Where the state's wishes find the tasks that can fulfil them, and what these count. One entry a rank, as long as its task lives.

use super::skips::Skips;
use super::subscriber::Source;
use crate::state::kv_stream::Attempt;
use routing::id::WorkerId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::{Semaphore, broadcast, watch};

/// One rank of one worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The worker.
    pub worker: WorkerId,
    /// Its global rank.
    pub rank: u32,
}

/// A replay to make. A newer one replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Bears the answers.
    pub attempt: Attempt,
    /// First number wanted.
    pub from: u64,
}

/// Where a rank's task listens, and how it is asked.
#[derive(Debug)]
struct Listener {
    asks: watch::Sender<Option<Ask>>,
    endpoint: String,
    replay: Option<String>,
}

type Asks = BTreeMap<Rank, Listener>;

/// Lost connections that wait for whoever asks engines again; past it the oldest are forgotten, and all engines are asked.
const LOST_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Hub {
    asks: Mutex<Asks>,
    lost: broadcast::Sender<WorkerId>,
    skips: Mutex<Skips>,
    /// Held while a batch is pushed: parts of two must not mix.
    pub pushing: Mutex<()>,
    /// Shared while parts of one batch are handed on, alone while there must be none under way.
    parts: RwLock<()>,
    /// Places for snapshots of the index of caches.
    pub snapshots: Arc<Semaphore>,
    /// Multipart messages that are none of an event stream.
    pub bad_messages: AtomicU64,
    /// Batches taken from sockets, live and replayed.
    pub batches: AtomicU64,
    /// Bytes of their payloads.
    pub bytes: AtomicU64,
    /// Connections made.
    pub connections: AtomicU64,
    /// Ranks connected now.
    pub connected: AtomicU64,
}

/// A rank's entry; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    hub: Arc<Hub>,
    rank: Rank,
    pub(super) asks: watch::Receiver<Option<Ask>>,
}

impl Default for Hub {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            asks: Mutex::default(),
            lost: broadcast::Sender::new(LOST_MAX),
            skips: Mutex::default(),
            pushing: Mutex::default(),
            parts: RwLock::default(),
            snapshots: Arc::new(Semaphore::new(crate::http::index::AT_ONCE_MAX)),
            bad_messages: zero(),
            batches: zero(),
            bytes: zero(),
            connections: zero(),
            connected: zero(),
        }
    }
}

impl Hub {
    /// Tells each worker that loses a connection: what it told of its sockets may be of an earlier life.
    pub(super) fn lost(&self) -> broadcast::Receiver<WorkerId> {
        self.lost.subscribe()
    }

    /// To be held while a batch is handed on.
    pub(super) fn a_batch(&self) -> RwLockReadGuard<'_, ()> {
        self.parts.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no batch from a socket is handed on in parts; none begins until it is dropped.
    pub fn between_batches(&self) -> RwLockWriteGuard<'_, ()> {
        self.parts.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a replay to the rank's task. False: it has none.
    pub fn ask(&self, rank: &Rank, ask: Ask) -> bool {
        self.lock().get(rank).is_some_and(|listener| listener.asks.send(Some(ask)).is_ok())
    }

    /// Whether a task listens to the rank.
    pub fn listens(&self, rank: &Rank) -> bool {
        self.lock().contains_key(rank)
    }

    /// Its event socket and its replay socket; `None` while it has no task.
    pub fn sockets(&self, rank: &Rank) -> Option<(String, Option<String>)> {
        self.lock().get(rank).map(|listener| (listener.endpoint.clone(), listener.replay.clone()))
    }

    pub(super) fn enter(self: &Arc<Self>, source: &Source) -> Entry {
        let (sender, asks) = watch::channel(None);
        let listener =
            Listener { asks: sender, endpoint: source.endpoint.clone(), replay: source.replay.clone() };
        self.lock().insert(source.rank.clone(), listener);
        Entry { hub: Arc::clone(self), rank: source.rank.clone(), asks }
    }

    pub(super) fn left_out(&self, skips: &Skips) {
        if skips.total() > 0 {
            self.skips.lock().unwrap_or_else(PoisonError::into_inner).add(skips);
        }
    }

    /// What decoders left out.
    pub fn skips(&self) -> Skips {
        *self.skips.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut asks = self.hub.lock();
        // A newer task of the same rank has an entry of its own.
        if asks.get(&self.rank).is_some_and(|listener| listener.asks.subscribe().same_channel(&self.asks)) {
            asks.remove(&self.rank);
        }
    }
}

/// One more rank connected, until it is dropped.
#[derive(Debug)]
pub(super) struct Connected {
    hub: Arc<Hub>,
    worker: WorkerId,
}

impl Connected {
    pub(super) fn new(hub: &Arc<Hub>, worker: &WorkerId) -> Self {
        hub.connections.fetch_add(1, Ordering::Relaxed);
        hub.connected.fetch_add(1, Ordering::Relaxed);
        Self { hub: Arc::clone(hub), worker: worker.clone() }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.hub.connected.fetch_sub(1, Ordering::Relaxed);
        // Nobody need listen.
        let _ = self.hub.lost.send(self.worker.clone());
    }
}
