//! Reports as they arrive at the service: mistakes planted in them, what they tell of response ids, and releases that come late.

use crate::faults::Fault;
use crate::planted::Bug;
use crate::service::Standing;
use crate::world::{Event, VmAt, World};
use routing::contract::{Affinity, Entry, Policy, Report, Target};
use state_service::state::{Command, SessionState};

impl World {
    pub(crate) fn report_arrives(&mut self, at: VmAt, call: u64, mut report: Report) {
        if self.service.standing != Standing::Up {
            return;
        }
        if self.bug == Some(Bug::CommitsTwiceElsewhere) {
            let again: Vec<Entry> = report.entries.iter().filter_map(|entry| self.elsewhere(entry)).collect();
            report.entries.extend(again);
        }
        self.spoil_touches(&mut report);
        self.endings_told(&mut report);
        self.take_report(report);
        let lost = self.net().report_lost;
        if self.rng.per_mille(lost) {
            return self.fired.count(Fault::ReportReplyLost);
        }
        for delay in self.reply_delays(Fault::ReportReplyTwice, Fault::ReportReplyLate) {
            self.after(delay, Event::ReportAnswered { at, call, good: true });
        }
    }

    fn spoil_touches(&self, report: &mut Report) {
        if self.bug == Some(Bug::TouchesAreLost) {
            report.entries.retain(|entry| !matches!(entry, Entry::Touched { .. }));
        }
        for entry in report.entries.iter_mut().filter(|_| self.bug == Some(Bug::TouchesNameNoSlot)) {
            if let Entry::Touched { slot, .. } = entry {
                *slot = None;
            }
        }
    }

    fn elsewhere(&self, entry: &Entry) -> Option<Entry> {
        let mut again = entry.clone();
        let Entry::Committed { target, version, .. } = &mut again else { return None };
        let other = self.workers.iter().find(|worker| worker.id != target.worker)?;
        *target = Target { worker: other.id.clone(), rank: None };
        version.seq += 1;
        Some(again)
    }

    /// A report arrives: what it tells of response ids is remembered, and a release that comes late must end nothing.
    fn take_report(&mut self, mut report: Report) {
        let pins = self.plan.policy != Policy::SessionHash && self.plan.affinity != Affinity::Off;
        let mut fenced = Vec::new();
        for entry in &mut report.entries {
            match entry {
                Entry::Alias { alias, session, .. } if pins => {
                    let told = (self.service_now(), *session);
                    let other = self.service.aliases.values().find(|(_, other)| other.id != session.id);
                    if let (Some(Bug::AliasesAreMixedUp), Some((_, other))) = (self.bug, other) {
                        *session = *other;
                    }
                    self.service.aliases.insert(*alias, told);
                }
                Entry::Released { session, version, .. } => {
                    let view = self.service.state.session(self.service_now(), session.id);
                    let bound =
                        view.filter(|view| view.state == SessionState::Bound && view.version > *version);
                    if let Some(view) = bound {
                        if self.bug == Some(Bug::ReleasesAreNotFenced) {
                            *version = view.version;
                        }
                        fenced.push(view);
                    }
                }
                _ => {}
            }
        }
        let evicted = self.service.state.counters().sessions_evicted;
        self.apply(Command::Report(report));
        // Where there is no room, one entry of a report drops a session and the next brings an older binding of it.
        let room = self.service.state.counters().sessions_evicted == evicted;
        for before in fenced.into_iter().filter(|_| room) {
            self.fired.count(Fault::LateRelease);
            let view = self.service.state.session(self.service_now(), before.id);
            if let Some(after) = view.filter(|view| view.state == SessionState::Released) {
                self.violate("a late release ends nothing", &format!("{before:?} became {after:?}"));
            }
        }
    }
}
