//! What the service has not heard yet. One report is on its way at a time; entries stay until it is acknowledged.

use crate::contract::{Caller, Entry, InFlight, REPORT_ENTRIES_MAX, Report};
use crate::id::SessionId;
use crate::time::{Millis, Timestamp};
use std::collections::VecDeque;

/// Most entries kept while the service is away; beyond it the oldest goes, counted.
pub const ENTRIES_KEPT_MAX: usize = 65_536;
/// A report without an answer is taken for lost after this long and sent again.
const ANSWER_WITHIN: Millis = Millis(2000);
/// With nothing to say, a report still goes this often: it is the VM's lease.
const HEARTBEAT: Millis = Millis(5000);

#[derive(Debug)]
struct Sent {
    entries: usize,
    role_missing: u64,
    at: Timestamp,
}

/// Unsent and unacknowledged entries.
#[derive(Debug, Default)]
pub struct Reports {
    entries: VecDeque<Entry>,
    sent: Option<Sent>,
    last: Option<Timestamp>,
    last_in_flight: Vec<InFlight>,
    seq: u64,
    dropped: u64,
    role_missing: u64,
}

impl Reports {
    /// Adds an entry; the oldest unsent one goes when [`ENTRIES_KEPT_MAX`] are kept.
    pub fn push(&mut self, entry: Entry) {
        if self.entries.len() >= ENTRIES_KEPT_MAX {
            self.entries.pop_front();
            self.dropped += 1;
            if let Some(sent) = &mut self.sent {
                sent.entries = sent.entries.saturating_sub(1);
            }
        }
        self.entries.push_back(entry);
    }

    /// An answer came through a pool cluster without the upstream role.
    pub fn note_role_missing(&mut self) {
        self.role_missing = self.role_missing.saturating_add(1);
    }

    /// This VM's unacknowledged entries about a session: `route` carries them.
    #[must_use]
    pub fn about(&self, id: SessionId) -> Vec<Entry> {
        self.entries.iter().filter(|entry| session_of(entry) == Some(id)).cloned().collect()
    }

    /// The newest entry alone, to be told at once; it stays queued until a regular report is acknowledged.
    pub fn urgent(&mut self, caller: &Caller, in_flight: Vec<InFlight>) -> Option<Report> {
        let entry = self.entries.back()?.clone();
        self.seq += 1;
        let caller = caller.clone();
        Some(Report { caller, seq: self.seq, in_flight, entries: vec![entry], upstream_role_missing: 0 })
    }

    /// The next regular report, when there is news, a changed load, or the lease wants renewing.
    pub fn next(&mut self, now: Timestamp, caller: &Caller, in_flight: Vec<InFlight>) -> Option<Report> {
        if self.sent.as_ref().is_some_and(|sent| now.since(sent.at) < ANSWER_WITHIN && now >= sent.at) {
            return None;
        }
        // The service may still believe in the load before a report that was lost.
        let unheard = self.sent.is_some();
        let lease_due = unheard || self.last.is_none_or(|last| now.since(last) >= HEARTBEAT || now < last);
        let news = !self.entries.is_empty() || self.role_missing > 0 || in_flight != self.last_in_flight;
        if !news && !lease_due {
            return None;
        }
        let entries: Vec<Entry> = self.entries.iter().take(REPORT_ENTRIES_MAX).cloned().collect();
        self.seq += 1;
        let role_missing = self.role_missing;
        self.sent = Some(Sent { entries: entries.len(), role_missing, at: now });
        self.last = Some(now);
        self.last_in_flight.clone_from(&in_flight);
        let caller = caller.clone();
        Some(Report { caller, seq: self.seq, in_flight, entries, upstream_role_missing: role_missing })
    }

    /// The service has it: its entries are done.
    pub fn acknowledged(&mut self) {
        if let Some(sent) = self.sent.take() {
            self.entries.drain(..sent.entries.min(self.entries.len()));
            self.role_missing = self.role_missing.saturating_sub(sent.role_missing);
        }
    }

    /// It got lost: its entries go with the next one.
    pub fn lost(&mut self) {
        self.sent = None;
        self.last = None;
    }

    /// Entries waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the service has heard everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries given up since the VM began.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn session_of(entry: &Entry) -> Option<SessionId> {
    match entry {
        Entry::Committed { session, .. }
        | Entry::Failed { session, .. }
        | Entry::Touched { session, .. }
        | Entry::Released { session, .. } => Some(session.id),
        Entry::SlotFailed { .. } | Entry::SlotAnswered { .. } | Entry::VmGone { .. } | Entry::Unknown => None,
    }
}
