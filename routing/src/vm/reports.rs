//! What the service has not heard yet. One report is on its way at a time; entries stay until it is acknowledged.
//!
//! Entries about a session are coalesced, newest wins; findings about slots are counted up. So an absent service costs memory
//! for live sessions only.

use crate::contract::{Caller, Entry, InFlight, REPORT_ENTRIES_MAX, Report, SlotFailure, Target};
use crate::id::{RequestId, SessionId};
use crate::order;
use crate::time::{Millis, Timestamp};
use std::collections::BTreeMap;

/// Most entries kept while the service is away; beyond it the oldest goes, counted.
pub const ENTRIES_KEPT_MAX: usize = 65_536;
/// Most entries of an urgent report; the regular one carries the rest.
pub const URGENT_ENTRIES_MAX: usize = 64;
/// Most slots with findings between two reports; findings about further ones are dropped, counted.
const FINDINGS_MAX: usize = 4096;
/// A report without an answer is taken for lost after this long and sent again.
const ANSWER_WITHIN: Millis = Millis(2000);
/// With nothing to say, a report still goes this often: it is the VM's lease.
const HEARTBEAT: Millis = Millis(5000);

/// What two entries must share for the newer one to replace the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// Each request that was answered leaves a hold of its own.
    Committed(SessionId, RequestId),
    Touched(SessionId),
    Released(SessionId),
    Alias(SessionId),
    /// Each request that failed owns its own hold.
    Failed(SessionId, RequestId),
    /// What has ended needs no telling that it began.
    Booked(RequestId),
}

fn subject(entry: &Entry) -> Option<Subject> {
    match entry {
        Entry::Committed { session, request, .. } => Some(Subject::Committed(session.id, *request)),
        Entry::Touched { session, .. } => Some(Subject::Touched(session.id)),
        Entry::Released { session, .. } => Some(Subject::Released(session.id)),
        Entry::Alias { alias, .. } => Some(Subject::Alias(*alias)),
        Entry::Failed { session, request, .. } => Some(Subject::Failed(session.id, *request)),
        Entry::Prefilled { request } | Entry::Ended { request } => Some(Subject::Booked(*request)),
        Entry::SlotFailed { .. } | Entry::SlotAnswered { .. } | Entry::VmGone { .. } | Entry::Unknown => None,
    }
}

/// What attempts found of a slot since the last report: failures after its last good answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Finding {
    answered: bool,
    connection: u32,
    status: u32,
}

#[derive(Debug)]
struct Sent {
    /// Entries up to this number are in it.
    through: u64,
    findings: BTreeMap<Target, Finding>,
    role_missing: u64,
    at: Timestamp,
}

/// Unsent and unacknowledged entries.
#[derive(Debug, Default)]
pub struct Reports {
    /// By number, oldest first.
    entries: BTreeMap<u64, Entry>,
    by_subject: BTreeMap<Subject, u64>,
    next: u64,
    /// Entries below this number were in an urgent report already.
    urgent_from: u64,
    findings: BTreeMap<Target, Finding>,
    sent: Option<Sent>,
    last: Option<Timestamp>,
    last_in_flight: Vec<InFlight>,
    seq: u64,
    dropped: u64,
    dropped_told: u64,
    role_missing: u64,
}

impl Reports {
    /// Adds an entry in place of an older one of the same session and kind; the oldest goes when [`ENTRIES_KEPT_MAX`] are kept.
    pub fn push(&mut self, entry: Entry) {
        self.next += 1;
        if let Some(subject) = subject(&entry)
            && let Some(older) = self.by_subject.insert(subject, self.next)
        {
            self.entries.remove(&older);
        }
        self.entries.insert(self.next, entry);
        if self.entries.len() > ENTRIES_KEPT_MAX
            && let Some((number, oldest)) = self.entries.pop_first()
        {
            self.forget(number, &oldest);
            self.dropped += 1;
        }
    }

    fn forget(&mut self, number: u64, entry: &Entry) {
        if let Some(subject) = subject(entry)
            && self.by_subject.get(&subject) == Some(&number)
        {
            self.by_subject.remove(&subject);
        }
    }

    /// An attempt on a slot failed.
    pub fn slot_failed(&mut self, slot: Target, failure: SlotFailure) {
        let Some(finding) = self.finding(slot) else { return };
        let count = match failure {
            SlotFailure::Connection => &mut finding.connection,
            SlotFailure::Status5xx => &mut finding.status,
        };
        *count = count.saturating_add(1);
    }

    /// A slot in trouble gave a good answer: failures before it are no run any more.
    pub fn slot_answered(&mut self, slot: Target) {
        if let Some(finding) = self.finding(slot) {
            *finding = Finding { answered: true, ..Finding::default() };
        }
    }

    fn finding(&mut self, slot: Target) -> Option<&mut Finding> {
        if self.findings.len() >= FINDINGS_MAX && !self.findings.contains_key(&slot) {
            self.dropped += 1;
            return None;
        }
        Some(self.findings.entry(slot).or_default())
    }

    /// An answer came through a pool cluster without the upstream role.
    pub fn note_role_missing(&mut self) {
        self.role_missing = self.role_missing.saturating_add(1);
    }

    /// This VM's unacknowledged entries about a session: `route` carries them.
    #[must_use]
    pub fn about(&self, id: SessionId) -> Vec<Entry> {
        let fixed = [Subject::Touched(id), Subject::Released(id)];
        let mut numbers: Vec<u64> =
            fixed.iter().filter_map(|subject| self.by_subject.get(subject)).copied().collect();
        for kind in [Subject::Committed, Subject::Failed] {
            let all = kind(id, RequestId(0))..=kind(id, RequestId(u64::MAX));
            numbers.extend(self.by_subject.range(all).map(|(_, number)| *number));
        }
        let numbers = order::by_number(numbers, |number| *number);
        numbers.iter().filter_map(|number| self.entries.get(number)).cloned().collect()
    }

    /// Entries that no urgent report has told yet, the newest [`URGENT_ENTRIES_MAX`], to be told at once; they stay queued
    /// until a regular report is acknowledged.
    pub fn urgent(&mut self, caller: &Caller, in_flight: Vec<InFlight>) -> Option<Report> {
        let news = self.entries.range(self.urgent_from..).rev().take(URGENT_ENTRIES_MAX);
        let mut entries: Vec<Entry> = news.map(|(_, entry)| entry.clone()).collect();
        entries.reverse();
        self.urgent_from = self.next + 1;
        if entries.is_empty() {
            return None;
        }
        self.seq += 1;
        let caller = caller.clone();
        Some(Report { caller, seq: self.seq, in_flight, entries, upstream_role_missing: 0 })
    }

    /// The next regular report, when there is news, a changed load, or the lease wants renewing.
    pub fn next(&mut self, now: Timestamp, caller: &Caller, in_flight: Vec<InFlight>) -> Option<Report> {
        if self.sent.as_ref().is_some_and(|sent| now.since(sent.at) < ANSWER_WITHIN && now >= sent.at) {
            return None;
        }
        // The service may still believe in the load before a report that was lost.
        let unheard = self.sent.is_some();
        self.take_back();
        let lease_due = unheard || self.last.is_none_or(|last| now.since(last) >= HEARTBEAT || now < last);
        let nothing = self.entries.is_empty() && self.findings.is_empty() && self.role_missing == 0;
        if nothing && in_flight == self.last_in_flight && !lease_due {
            return None;
        }
        Some(self.send(now, caller, in_flight))
    }

    fn send(&mut self, now: Timestamp, caller: &Caller, in_flight: Vec<InFlight>) -> Report {
        let findings = std::mem::take(&mut self.findings);
        let mut entries: Vec<Entry> = findings.iter().flat_map(told).collect();
        let room = REPORT_ENTRIES_MAX.saturating_sub(entries.len());
        let mut through = 0;
        for (number, entry) in self.entries.iter().take(room) {
            entries.push(entry.clone());
            through = *number;
        }
        self.seq += 1;
        self.urgent_from = self.urgent_from.max(through + 1);
        let role_missing = self.role_missing;
        self.sent = Some(Sent { through, findings, role_missing, at: now });
        self.last = Some(now);
        self.last_in_flight.clone_from(&in_flight);
        let caller = caller.clone();
        Report { caller, seq: self.seq, in_flight, entries, upstream_role_missing: role_missing }
    }

    /// The service has it: its entries are done.
    pub fn acknowledged(&mut self) {
        let Some(sent) = self.sent.take() else { return };
        let left = self.entries.split_off(&(sent.through + 1));
        for (number, entry) in std::mem::replace(&mut self.entries, left) {
            self.forget(number, &entry);
        }
        self.role_missing = self.role_missing.saturating_sub(sent.role_missing);
    }

    /// It got lost: its entries go with the next one.
    pub fn lost(&mut self) {
        self.take_back();
        self.last = None;
    }

    /// Findings of a report that nobody heard, before those made since.
    fn take_back(&mut self) {
        let Some(sent) = self.sent.take() else { return };
        for (slot, old) in sent.findings {
            let Some(new) = self.finding(slot) else { continue };
            if new.answered {
                continue;
            }
            new.answered = old.answered;
            new.connection = new.connection.saturating_add(old.connection);
            new.status = new.status.saturating_add(old.status);
        }
    }

    /// Entries waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the service has heard everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.findings.is_empty()
    }

    /// Entries and findings given up since the VM began.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The same since this was last asked.
    pub fn newly_dropped(&mut self) -> u64 {
        let told = std::mem::replace(&mut self.dropped_told, self.dropped);
        self.dropped - told
    }
}

/// A finding as entries: the answer first, since the failures came after it.
fn told((slot, finding): (&Target, &Finding)) -> Vec<Entry> {
    let failed =
        |failure, count| (count > 0).then(|| Entry::SlotFailed { target: slot.clone(), failure, count });
    let answered = finding.answered.then(|| Entry::SlotAnswered { target: slot.clone() });
    let failures =
        [failed(SlotFailure::Connection, finding.connection), failed(SlotFailure::Status5xx, finding.status)];
    answered.into_iter().chain(failures.into_iter().flatten()).collect()
}
