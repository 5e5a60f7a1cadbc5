//! One service among several that share a store: what goes out, what comes in, and claims on first turns.
//!
//! Owns the tasks between state and store, their order after a loss on either side, and what waits while the store is away. Which
//! binding wins is the state's to say, how the store keeps it the store's. `docs/STORE.md` tells the whole.

mod claim;
mod declared;
mod hear;
mod index;
mod tell;

use crate::lock::lock;
use crate::state::{Note, Sharing};
use crate::store::{KeptAlias, Standing, Store, StoreError, StoreFigures};
use claim::Asked;
use declared::Declared;
use routing::id::{SessionId, Version};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};

pub(crate) use crate::state::STORE;
pub(crate) use claim::Settled;

/// A replica that finds no store at its start serves apart after so long.
const START_APART: Duration = Duration::from_secs(10);
/// Claims that wait to be given up. Past it the oldest ends by its time.
const OVER_MAX: usize = 65_536;
/// Notes of our own that wait. Past it the oldest is lost.
const NOTES_WAITING_MAX: usize = 1024;

/// One replica's side of the store.
pub struct Replicas {
    store: Store,
    claims: mpsc::Sender<Asked>,
    asked: Mutex<Option<mpsc::Receiver<Asked>>>,
    /// There is something to tell.
    wake: Notify,
    /// Everything known is to be told again: the store may have lost it.
    retell: AtomicBool,
    /// What the store knows was read once.
    loaded: AtomicBool,
    /// Or is not waited for any more.
    waited: AtomicBool,
    /// Why it could not be read last.
    unread: Mutex<Option<String>>,
    /// Why it did not take what was written last although it answers.
    unwritten: watch::Sender<Option<String>>,
    /// A report came since notes were taken from the state.
    reported: AtomicBool,
    over: Mutex<VecDeque<(SessionId, Version)>>,
    notes: Mutex<VecDeque<Note>>,
    declared: Mutex<Declared>,
    joining: index::Joining,
    /// Held while declarations are told, or read: one after the other.
    declaring: tokio::sync::Mutex<()>,
}

impl Replicas {
    /// Over a store that is opened.
    #[must_use]
    pub fn new(store: Store) -> Self {
        let (claims, asked) = mpsc::channel(claim::WAITING_MAX);
        Self {
            store,
            claims,
            asked: Mutex::new(Some(asked)),
            wake: Notify::new(),
            retell: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
            waited: AtomicBool::new(false),
            unread: Mutex::default(),
            unwritten: watch::Sender::default(),
            reported: AtomicBool::new(false),
            over: Mutex::default(),
            notes: Mutex::default(),
            declared: Mutex::default(),
            joining: index::Joining::default(),
            declaring: tokio::sync::Mutex::default(),
        }
    }

    /// Whether the store can be asked and takes what it is told, and why not.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match (self.store.status().standing, self.unwritten.borrow().clone()) {
            (Standing::Up, Some(reason)) => Standing::Away { reason },
            (standing, _) => standing,
        }
    }

    /// What became of a write. A store that answers and takes nothing agrees on nothing.
    fn wrote<T>(&self, outcome: &Result<T, StoreError>) {
        let reason = match outcome {
            Ok(_) => None,
            Err(error @ (StoreError::Refused { .. } | StoreError::Foreign { .. })) => Some(error.to_string()),
            // The connection tells of everything else.
            Err(_) => return,
        };
        self.unwritten.send_if_modified(|known| {
            let differs = *known != reason;
            *known = reason;
            differs
        });
    }

    /// What the store's client counted.
    #[must_use]
    pub fn figures(&self) -> StoreFigures {
        self.store.figures()
    }

    /// Whether it knows what the store has, or does not wait for that any more.
    #[must_use]
    pub fn has_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed) || self.waited.load(Ordering::Relaxed)
    }

    /// Why nothing was ever read from the store; `None` when it was.
    #[must_use]
    pub fn never_loaded(&self) -> Option<String> {
        if self.loaded.load(Ordering::Relaxed) {
            return None;
        }
        let away = match self.standing() {
            Standing::Away { reason } => Some(reason),
            Standing::Up => lock(&self.unread).clone(),
        };
        Some(away.unwrap_or_else(|| "it is being read".to_owned()))
    }

    /// There is something to tell.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// What a response id stands for, as the store knows.
    pub(crate) async fn alias(&self, alias: SessionId) -> Result<Option<KeptAlias>, StoreError> {
        self.store.alias(alias).await
    }

    /// A report came: what the others should hear of it is noted when its time comes.
    pub fn reported(&self) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Claims whose holds ended.
    pub fn give_up(&self, claims: Vec<(SessionId, Version)>) {
        let mut over = lock(&self.over);
        over.extend(claims);
        while over.len() > OVER_MAX {
            over.pop_front();
        }
        drop(over);
        self.wake();
    }

    /// Something for the others to hear.
    pub fn note(&self, note: Note) {
        let mut notes = lock(&self.notes);
        notes.push_back(note);
        while notes.len() > NOTES_WAITING_MAX {
            notes.pop_front();
        }
        drop(notes);
        self.wake();
    }
}

/// Runs everything between one service and the store until it is dropped.
pub async fn run(service: Arc<crate::service::Service>, replicas: Arc<Replicas>) {
    tokio::join!(
        claim::answer(&service, &replicas),
        claim::renew(&service, &replicas),
        tell::run(&service, &replicas),
        hear::run(&service, &replicas),
        stand(&service, &replicas),
        index::join(&service, &replicas),
    );
}

/// Tells the state how it stands with the others.
async fn stand(service: &crate::service::Service, replicas: &Replicas) {
    let patience = Instant::now() + START_APART;
    let mut standing = replicas.store.standing();
    let mut unwritten = replicas.unwritten.subscribe();
    let mut before = None;
    loop {
        standing.borrow_and_update();
        unwritten.borrow_and_update();
        let now = replicas.standing();
        let sharing = if now == Standing::Up { Sharing::Together } else { Sharing::Apart };
        if before != Some(sharing) {
            service.share(sharing);
            match &now {
                Standing::Up => tracing::info!("the store is there"),
                Standing::Away { reason } => {
                    tracing::warn!(reason, "the store is away: going on from memory")
                }
            }
        }
        before = Some(sharing);
        tokio::select! {
            changed = standing.changed() => if changed.is_err() { return },
            changed = unwritten.changed() => if changed.is_err() { return },
            () = sleep_until(patience), if !replicas.has_loaded() => {
                // It may have been loaded while this waited.
                if let Some(reason) = replicas.never_loaded() {
                    tracing::warn!(reason, "the store was not read: what other replicas know is waited for no longer");
                }
                replicas.waited.store(true, Ordering::Relaxed);
            }
        }
    }
}
