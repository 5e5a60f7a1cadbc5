//! What one filter VM keeps between requests, as plain data: directory, breaker, local load, unsent reports, plans of attempts.
//!
//! One VM is one Envoy worker thread. Nothing here is shared between VMs; what is shared travels as [`crate::page`] or gauges.

mod breaker;
mod heard;
mod load;
mod plan;
mod prompts;
mod reports;
mod running;
mod trouble;

pub use breaker::Breaker;
pub use load::Loads;
pub use plan::{Dialled, Plan, PlanRef, Plans};
pub use prompts::{PROMPTS_BYTES_MAX, Prompts};
pub use reports::{ENTRIES_KEPT_MAX, Reports, URGENT_ENTRIES_MAX};
pub use running::{RunRef, Running};
pub use trouble::{Avoid, BUSY_DEFAULT, BUSY_MAX, Troubles, UNREACHABLE_FOR, Verdict};

use crate::contract::{Caller, Report, Target, Topology, WorkerState};
use crate::directory::{Directory, Worker};
use crate::id::{Epoch, Rank, RequestId, Version};
use crate::policy;
use crate::time::Timestamp;
use crate::watch::StoredFleet;
use heard::Heard;

/// State of one VM.
#[derive(Debug)]
pub struct Vm {
    /// Which VM this is.
    pub caller: Caller,
    /// The fleet, once a topology is known.
    pub directory: Option<Directory>,
    /// Cache generation: records of another one are checked through `route` on their next use.
    pub generation: u16,
    /// Whether `route` may be called.
    pub breaker: Breaker,
    /// In flight, counted at the choice.
    pub loads: Loads,
    /// What the service has not heard yet.
    pub reports: Reports,
    /// Failures that outlive their requests.
    pub troubles: Troubles,
    /// What the upstream role needs to know of running requests.
    pub plans: Plans,
    /// Turns that run under a binding.
    pub running: Running,
    /// Prompts that are kept while their bodies come in.
    pub prompts: Prompts,
    heard: Heard,
    seed: u64,
    draws: u64,
    requests: u64,
}

impl Vm {
    /// A fresh VM. `seed` is its randomness; `epoch` must differ between lives of VMs.
    #[must_use]
    pub fn new(node: &str, epoch: Epoch, seed: u64) -> Self {
        Self {
            caller: Caller { node: node.to_owned(), vm: epoch },
            directory: None,
            generation: 0,
            breaker: Breaker::default(),
            loads: Loads::default(),
            reports: Reports::default(),
            troubles: Troubles::default(),
            plans: Plans::default(),
            running: Running::default(),
            prompts: Prompts::default(),
            heard: Heard::default(),
            seed,
            draws: 0,
            requests: 0,
        }
    }

    /// Takes over what shared data has: a topology, if it is another one, and the fleet.
    pub fn take_over(&mut self, now: Timestamp, topology: Option<&Topology>, stored: Option<&StoredFleet>) {
        if let Some(topology) = topology {
            self.directory = Some(Directory::new(topology));
        }
        let Some(stored) = stored else { return };
        self.generation = stored.generation;
        self.stir(stored.salt);
        if let Some(directory) = &mut self.directory {
            self.heard.note(now, directory, &stored.fleet);
            directory.update(&stored.fleet);
        }
    }

    /// Mixes randomness that came from outside (the watch reply's salt) into the seed.
    pub fn stir(&mut self, salt: u64) {
        self.seed = policy::mix(self.seed, salt);
    }

    /// The next random number: for ties and session-less spreading, not for secrets.
    pub fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(1);
        policy::mix(self.seed, self.draws)
    }

    /// A number for a new request.
    pub fn next_request(&mut self) -> RequestId {
        self.requests = self.requests.wrapping_add(1);
        RequestId(self.requests)
    }

    /// Version of a binding this VM makes alone, newer than `seen`.
    #[must_use]
    pub fn version_after(&self, seen: Option<Version>) -> Version {
        Version { seq: seen.map_or(0, |v| v.seq).saturating_add(1), writer: self.caller.vm.0 }
    }

    /// Load of a worker: the fleet's figure, with this VM's share replaced by what it is right now, what its engine has
    /// waiting, and recent failures.
    #[must_use]
    pub fn load(&self, now: Timestamp, worker: &Worker) -> u64 {
        self.load_with(now, worker, worker.fleet_in_flight)
    }

    /// The same without what others may have had only for a moment: a session does not leave its cache for a guess.
    #[must_use]
    pub fn standing_load(&self, now: Timestamp, worker: &Worker) -> u64 {
        self.load_with(now, worker, self.heard.standing(now, worker))
    }

    fn load_with(&self, now: Timestamp, worker: &Worker, fleet: u32) -> u64 {
        let others = u64::from(fleet.saturating_sub(self.loads.reported(worker.hash)));
        let penalty = self.troubles.penalty(now, worker.hash).max(worker.fleet_penalty);
        let own = u64::from(self.loads.of_worker(worker.hash));
        others + own + u64::from(worker.waiting) + u64::from(penalty)
    }

    /// What an attempt found of a slot: remembered here, and told to the service where it would not know by itself.
    pub fn judge(
        &mut self,
        now: Timestamp,
        directory: &Directory,
        at: (u64, Option<Rank>),
        verdict: Verdict,
    ) {
        let troubled = self.troubles.note(now, at.0, at.1, verdict);
        let worker =
            |directory: &Directory| directory.worker_by_hash(at.0).map(|(_, worker)| worker.id.clone());
        match verdict {
            Verdict::Failed(failure) => {
                let Some(worker) = worker(directory) else { return };
                self.reports.slot_failed(Target { worker, rank: at.1 }, failure);
            }
            Verdict::Good if troubled || directory.suspects > 0 && is_suspect(directory, at.0) => {
                let Some(worker) = worker(directory) else { return };
                self.reports.slot_answered(Target { worker, rank: at.1 });
            }
            Verdict::Good | Verdict::Busy(_) => {}
        }
    }

    /// [`Self::judge`] for callers that do not hold the directory.
    pub fn judge_own(&mut self, now: Timestamp, at: (u64, Option<Rank>), verdict: Verdict) {
        if let Some(directory) = self.directory.take() {
            self.judge(now, &directory, at, verdict);
            self.directory = Some(directory);
        }
    }

    /// A request moved to another slot: a retry.
    pub fn recount(&mut self, plan: PlanRef, to: (u64, Option<Rank>)) {
        let Some(plan) = self.plans.get_mut(plan).filter(|plan| plan.counted != to) else { return };
        let from = std::mem::replace(&mut plan.counted, to);
        self.loads.remove(from.0, from.1);
        self.loads.add(to.0, to.1);
    }

    /// The next report to send, if one is due; at most one is on its way at a time.
    pub fn next_report(&mut self, now: Timestamp) -> Option<Report> {
        self.troubles.sweep(now);
        let slots = self.loads.absolute(self.directory.as_ref());
        let report = self.reports.next(now, &self.caller, slots)?;
        self.loads.note_reported();
        Some(report)
    }
}

fn is_suspect(directory: &Directory, worker: u64) -> bool {
    directory.worker_by_hash(worker).is_some_and(|(_, worker)| worker.state == WorkerState::Suspect)
}
