//! A rank that serves although nothing is heard of its cache: seen here, with which of the known causes fits.

use super::{KvStream, Link};
use crate::state::kv_event::{KvBatch, KvEvent};
use routing::time::{Millis, Timestamp};

/// Nothing heard for so long …
pub(super) const SILENT_AFTER: Millis = Millis(30_000);
/// … while so many requests were answered. A short prompt may fill no block; several in a row do.
pub(super) const SILENT_SERVED: u32 = 8;

/// Why nothing is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Declared off.
    Off,
    /// The engine was started without events (vLLM: `--kv-events-config` with `enable_kv_cache_events` and prefix caching on).
    NotPublished,
    /// The engine does not tell its endpoints (before vLLM 0.31 and SGLang 0.5.13): declare them.
    Undiscovered,
    /// Nothing listens there: another port (base + rank), or the publisher connects instead of binding (an endpoint without `*`).
    NotConnected,
    /// Connected, and the ring has batches that were never sent here: the topic differs.
    Topic,
    /// Connected, and nothing was ever published live; nobody can say whether anything was, as the replay socket is not reached.
    ReplayUnreachable,
    /// Connected, and nothing was ever published: prefix caching is off, or the endpoint is another rank's.
    NothingPublished,
    /// What comes is no batch of events: SGLang's load messages, or another publisher.
    NotEvents,
    /// Only removals and clears come, or stores that cannot be read.
    NothingStored,
    /// It was heard before and stopped.
    Stopped,
}

impl Cause {
    /// Stable word for APIs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NotPublished => "not_published",
            Self::Undiscovered => "undiscovered",
            Self::NotConnected => "not_connected",
            Self::Topic => "topic_differs",
            Self::ReplayUnreachable => "replay_unreachable",
            Self::NothingPublished => "nothing_published",
            Self::NotEvents => "not_events",
            Self::NothingStored => "nothing_stored",
            Self::Stopped => "stopped",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Heard {
    at: Option<Timestamp>,
    batches: u64,
    events: u64,
    stores: u64,
    replayed: u64,
    served: u32,
    since: Option<Timestamp>,
}

impl Heard {
    pub(super) fn served(&mut self, now: Timestamp, count: u32) {
        self.since.get_or_insert(now);
        self.served = self.served.saturating_add(count);
    }

    pub(super) fn batch(&mut self, now: Timestamp, batch: &KvBatch) {
        self.batches += 1;
        self.at = Some(now);
        self.more(now, true, batch);
    }

    /// More of a batch, live or replayed.
    pub(super) fn more(&mut self, now: Timestamp, live: bool, batch: &KvBatch) {
        let stores = self.count(batch);
        if stores > 0 && live {
            self.served = 0;
            self.since = Some(now);
        }
    }

    pub(super) fn replayed(&mut self, batch: &KvBatch) {
        self.replayed += 1;
        self.count(batch);
    }

    fn count(&mut self, batch: &KvBatch) -> u64 {
        let stores = batch.events.iter().filter(|event| matches!(event, KvEvent::Stored { .. })).count();
        let [events, stores] = [batch.events.len(), stores].map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        self.events = self.events.saturating_add(events);
        self.stores = self.stores.saturating_add(stores);
        stores
    }
}

impl KvStream {
    /// Events taken, live and replayed.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.heard.events
    }

    /// When the last live batch came.
    #[must_use]
    pub const fn heard_at(&self) -> Option<Timestamp> {
        self.heard.at
    }

    /// Why nothing is heard of a rank that serves; `None` while it is heard, or does nothing.
    #[must_use]
    pub fn silence(&self, now: Timestamp, link: Link) -> Option<Cause> {
        let heard = &self.heard;
        let long = heard.since.is_some_and(|since| now.since(since) >= SILENT_AFTER);
        if heard.served < SILENT_SERVED || !long {
            return None;
        }
        Some(match link {
            Link::Off => Cause::Off,
            Link::NotPublished => Cause::NotPublished,
            Link::Undiscovered => Cause::Undiscovered,
            Link::Connecting => Cause::NotConnected,
            Link::Up | Link::Pushed => match heard.cause() {
                Cause::NothingPublished if self.replay_is_unreachable() => Cause::ReplayUnreachable,
                cause => cause,
            },
        })
    }
}

impl Heard {
    /// A payload that is no batch was made a lone [`KvEvent::Cleared`] by the decoder, so it has events but no stores.
    const fn cause(&self) -> Cause {
        match (self.batches, self.replayed, self.stores) {
            (0, 0, _) => Cause::NothingPublished,
            (0, _, _) => Cause::Topic,
            (_, _, 0) if self.events == self.batches => Cause::NotEvents,
            (_, _, 0) => Cause::NothingStored,
            _ => Cause::Stopped,
        }
    }
}
