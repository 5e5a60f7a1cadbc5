//! The store's memory has a number: a store that comes back without its memory has another; and one that forgot its last writes alone,
//! by a failover to a replica that lagged, lacks the last entry of the log that was seen here. Owns noticing both. What follows from it is
//! for others to say.

use super::figures::Counters;
use super::reply;
use super::scripts::EPOCH;
use super::{StoreConfig, StreamId, connect::Connection};
use crate::chance::Chance;
use crate::lock::lock;
use redis::{RedisResult, Value};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// Which memory of the store was seen last.
#[derive(Debug)]
pub(super) struct Epochs {
    known: watch::Sender<Option<u64>>,
    /// The last entry of the log that it was seen to have.
    entry: Mutex<Option<StreamId>>,
    chance: Chance,
    counters: Arc<Counters>,
}

impl Epochs {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self {
            known: watch::Sender::new(None),
            entry: Mutex::default(),
            chance: Chance::from_system(),
            counters,
        }
    }

    pub(super) fn watch(&self) -> watch::Receiver<Option<u64>> {
        self.known.subscribe()
    }

    pub(super) fn known(&self) -> Option<u64> {
        *self.known.borrow()
    }

    /// An answer came with this one.
    pub(super) fn saw(&self, epoch: u64) {
        self.known.send_if_modified(|known| {
            let changed = *known != Some(epoch);
            self.counters.epoch_changes.fetch_add(u64::from(changed && known.is_some()), Relaxed);
            *known = Some(epoch);
            changed
        });
    }

    /// Times that it forgot its last writes and not all.
    pub(super) fn losses(&self) -> u64 {
        self.counters.lost_writes.load(Relaxed)
    }

    /// Its log has this entry.
    pub(super) fn saw_entry(&self, entry: StreamId) {
        let mut last = lock(&self.entry);
        *last = Some(last.map_or(entry, |last| last.max(entry)));
    }

    /// An entry that was there is not.
    fn lost(&self, entry: StreamId) {
        let mut last = lock(&self.entry);
        // Both connections ask: the first one counts.
        if *last == Some(entry) {
            *last = None;
            self.counters.lost_writes.fetch_add(1, Relaxed);
        }
    }

    /// Reads it, or gives one to a store that has none; keeps what all share alive.
    pub(super) async fn ask(&self, config: &StoreConfig, connection: &mut Connection) -> RedisResult<u64> {
        let keys = &config.keys;
        let mut call = EPOCH.prepare_invoke();
        call.key(&keys.epoch)
            .key(&keys.log)
            .key(&keys.workers)
            .key(&keys.drains)
            .arg(config.clock.argument());
        let entry = *lock(&self.entry);
        // One argument: a server that wants a password refuses longer calls than this one before it can say so.
        let seen = entry.map(|entry| entry.to_string()).unwrap_or_default();
        call.arg(format!("{:016x}{seen}", self.chance.epoch().0)).arg(config.shared_ttl.0);
        self.counters.commands.fetch_add(1, Relaxed);
        let answer: Value = call.invoke_async(connection).await?;
        let parts = reply::list(answer).unwrap_or_default();
        let epoch = parts.get(1).and_then(reply::epoch).flatten();
        let epoch = epoch.ok_or_else(|| reply::foreign("the epoch's key"))?;
        if let Some(entry) = entry
            && parts.get(3).and_then(reply::number) == Some(1)
        {
            self.lost(entry);
        }
        self.saw(epoch);
        Ok(epoch)
    }
}
