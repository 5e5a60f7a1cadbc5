//! The store's memory has a number: a store that comes back without its memory has another. Owns noticing that. What follows from
//! it is for others to say.

use super::figures::Counters;
use super::reply;
use super::scripts::EPOCH;
use super::{StoreConfig, connect::Connection};
use crate::chance::Chance;
use redis::{RedisResult, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::watch;

/// Which memory of the store was seen last.
#[derive(Debug)]
pub(super) struct Epochs {
    known: watch::Sender<Option<u64>>,
    chance: Chance,
    counters: Arc<Counters>,
}

impl Epochs {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { known: watch::Sender::new(None), chance: Chance::from_system(), counters }
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

    /// Reads it, or gives one to a store that has none; keeps what all share alive.
    pub(super) async fn ask(&self, config: &StoreConfig, connection: &mut Connection) -> RedisResult<u64> {
        let keys = &config.keys;
        let mut call = EPOCH.prepare_invoke();
        call.key(&keys.epoch).key(&keys.log).key(&keys.workers).key(&keys.drains).arg(config.clock.argument());
        call.arg(format!("{:016x}", self.chance.epoch().0)).arg(config.shared_ttl.0);
        self.counters.commands.fetch_add(1, Relaxed);
        let answer: Value = call.invoke_async(connection).await?;
        let epoch = reply::list(answer).and_then(|parts| reply::epoch(parts.get(1)?));
        let epoch = epoch.flatten().ok_or_else(|| reply::foreign("the epoch's key"))?;
        self.saw(epoch);
        Ok(epoch)
    }
}
