//! Requests that other Envoys had in flight when the fleet was heard of the time before.
//!
//! What others have is known a tick late or two, with turns that are over. Owns what of it may be so; knows no sessions.

use crate::contract::{Fleet, LOAD_REPORTS_APART, LOAD_STANDS_AFTER};
use crate::directory::{Directory, Worker};
use crate::time::Timestamp;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Version of the newest fleet.
    version: u64,
    /// When it came.
    at: Timestamp,
    /// Requests in flight by worker as a fleet before had them, ascending; workers without any are left out.
    before: Vec<(u64, u32)>,
    /// Until when that one was the newest.
    until: Timestamp,
}

impl Heard {
    /// Another fleet came; `directory` does not have it yet.
    pub(super) fn note(&mut self, now: Timestamp, directory: &Directory, fleet: &Fleet) {
        if fleet.version == self.version {
            return;
        }
        (self.version, self.at) = (fleet.version, now);
        if now.since(self.until) < LOAD_REPORTS_APART {
            return;
        }
        self.until = now;
        let busy = directory.workers.iter().filter(|worker| worker.fleet_in_flight > 0);
        self.before = busy.map(|worker| (worker.hash, worker.fleet_in_flight)).collect();
        self.before.sort_unstable();
    }

    /// Of the fleet's requests on a worker, those that the one before had as well, or that were there for a while without a word.
    pub(super) fn standing(&self, now: Timestamp, worker: &Worker) -> u32 {
        if now.since(self.at) >= LOAD_STANDS_AFTER {
            return worker.fleet_in_flight;
        }
        let at = self.before.binary_search_by_key(&worker.hash, |(hash, _)| *hash);
        let before = at.ok().and_then(|at| self.before.get(at)).map_or(0, |(_, count)| *count);
        before.min(worker.fleet_in_flight)
    }
}
