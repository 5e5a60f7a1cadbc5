//! All cached bindings of one Envoy, page by page, for a service that lost its memory (`decisions`, race 10).
//!
//! Pure: pages come in as bytes. One batch is on its way at a time, and a batch that got lost is read again.

use crate::contract::{Caller, KeptBinding, KeptSlot, PageUpload, SessionRef};
use crate::id::Epoch;
use crate::page::{self, Certainty, Record};
use crate::time::Timestamp;

/// A batch ends with the page that brings it to this many bindings, well below [`crate::contract::UPLOAD_BINDINGS_MAX`]
/// whatever the geometry of pages.
const BATCH: usize = 1024;
/// Times one batch is tried before the upload is given up: each binding is still offered on its own next turn.
const TRIES_MAX: u32 = 10;

/// How far an upload got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// The life of the service it is for.
    pub epoch: Epoch,
    from: u32,
    next: u32,
    tries: u32,
    done: bool,
}

impl Upload {
    /// From the first page on.
    #[must_use]
    pub const fn new(epoch: Epoch) -> Self {
        Self { epoch, from: 0, next: 0, tries: 0, done: false }
    }

    /// The next batch, or the same one after [`Self::lost`]; `None` when everything was told.
    pub fn batch(
        &mut self,
        caller: &Caller,
        pages: u32,
        now: Timestamp,
        page: impl Fn(u32) -> Option<Vec<u8>>,
    ) -> Option<PageUpload> {
        if self.done {
            return None;
        }
        let mut bindings = Vec::new();
        self.next = self.from;
        while self.next < pages && bindings.len() < BATCH {
            let bytes = page(self.next).unwrap_or_default();
            let bound = page::all(&bytes).filter(|record| record.certainty == Certainty::Bound);
            bindings.extend(bound.map(|record| kept(&record, now)));
            self.next += 1;
        }
        bindings.truncate(crate::contract::UPLOAD_BINDINGS_MAX);
        Some(PageUpload { caller: caller.clone(), last: self.next >= pages, bindings })
    }

    /// The service has the last batch.
    pub fn acknowledged(&mut self, pages: u32) {
        self.tries = 0;
        self.from = self.next;
        self.done = self.from >= pages;
    }

    /// It got lost.
    pub fn lost(&mut self) {
        self.tries += 1;
        self.done = self.tries >= TRIES_MAX;
    }
}

fn kept(record: &Record, now: Timestamp) -> KeptBinding {
    KeptBinding {
        session: SessionRef { id: record.id, rank_hash: record.rank_hash },
        slot: KeptSlot { worker_hash: record.worker_hash, rank: record.rank },
        version: record.version,
        idle_ms: record.idle(now),
    }
}
