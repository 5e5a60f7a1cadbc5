//! The life of one worker, from what probes and requests find.
//!
//! ```text
//!            first probe good            2 connection failures or 3 answers 5xx in a row on one slot
//!  Joining ───────────────────► Ready ──────────────────────────────────────────► Suspect
//!     │                          ▲ ▲ ◄── that slot answers, or 10 good probes ───────┘ │
//!     │ 3 bad probes in a row    │ └───────────────┐ 2 good probes in a row            │
//!     └──────────────────────────┼────────────► Down ◄─────────────────────────────────┘ 3 bad probes in a row
//!                                │ 3 bad probes    ▲
//!                                └─────────────────┘
//!  drain: laid over each of them. Draining until the deadline, Down after it; Down by probes wins over Draining.
//! ```
//! Joining becomes suspect like Ready does, and clears to Ready. A worker with several endpoints is as healthy as its worst
//! one: its ranks step together, so one dead process stops them all.
//!
//! Besides, each failure counts as load for a while ([`routing::penalty`]): it decides no state, and outlives the run.
//!
//! Knows neither sessions nor who is told; ignores nothing silently: an observation of a Down worker changes its runs only.

use super::limits::{
    CONNECTION_FAILURES_SUSPECT, PROBE_FAILURES_DOWN, PROBE_SUCCESSES_CLEAR, PROBE_SUCCESSES_UP, RUN_AGE_MAX,
    STATUS_FAILURES_SUSPECT,
};
use routing::contract::{SlotFailure, WorkerState};
use routing::id::Rank;
use routing::penalty::Penalty;
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;

/// Something seen of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// An active probe of this endpoint ended.
    Probe { endpoint: usize, healthy: bool },
    /// Requests failed on a slot, this often in a row.
    Failed { rank: Option<Rank>, failure: SlotFailure, count: u32 },
    /// A request was answered by a slot.
    Answered { rank: Option<Rank> },
}

/// What probes and requests say, drain apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Joining,
    Ready,
    Suspect,
    Down,
}

/// Whether a worker takes new sessions at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    Until(Option<Timestamp>),
    Over,
}

/// Runs of equal findings of one endpoint's probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Probes {
    bad: u32,
    good: u32,
    down: bool,
}

/// Runs of failures on one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    connection: u32,
    status: u32,
    /// When the last failure was told.
    at: Timestamp,
}

/// A worker's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    life: Life,
    drain: Drain,
    probes: Vec<Probes>,
    /// Slots with a run of failures: at most one a rank, and one for requests without.
    runs: BTreeMap<Option<Rank>, Run>,
    penalty: Penalty,
}

impl Observation {
    /// Whether nobody may be listening there any more.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Failed { failure: SlotFailure::Connection, .. })
    }
}

impl Health {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            life: Life::Joining,
            drain: Drain::No,
            probes: vec![Probes::default(); endpoints],
            runs: BTreeMap::new(),
            penalty: Penalty::default(),
        }
    }

    /// What the fleet is told.
    pub(super) const fn state(&self) -> WorkerState {
        match (self.life, self.drain) {
            (Life::Down, _) | (_, Drain::Over) => WorkerState::Down,
            (_, Drain::Until(_)) => WorkerState::Draining,
            (Life::Joining, Drain::No) => WorkerState::Joining,
            (Life::Ready, Drain::No) => WorkerState::Ready,
            (Life::Suspect, Drain::No) => WorkerState::Suspect,
        }
    }

    /// The one place where life changes.
    pub(super) fn observe(&mut self, now: Timestamp, observation: Observation) {
        match observation {
            Observation::Probe { endpoint, healthy } => self.probed(endpoint, healthy),
            Observation::Failed { rank, failure, count } => self.failed(now, rank, failure, count),
            Observation::Answered { rank } => {
                self.runs.remove(&rank);
                self.penalty.proved(now);
            }
        }
        self.life = self.next_life(observation);
    }

    fn next_life(&self, observation: Observation) -> Life {
        let down = self.probes.iter().any(|p| p.down);
        let suspect = self.runs.values().any(|run| run.is_suspect());
        let probed = matches!(observation, Observation::Probe { healthy: true, .. });
        match self.life {
            _ if down => Life::Down,
            _ if suspect => Life::Suspect,
            Life::Joining if !probed => Life::Joining,
            Life::Joining | Life::Ready | Life::Suspect | Life::Down => Life::Ready,
        }
    }

    fn probed(&mut self, endpoint: usize, healthy: bool) {
        let Some(probes) = self.probes.get_mut(endpoint) else { return };
        probes.count(healthy);
        let down_before = self.life == Life::Down;
        let cleared = self.probes.iter().all(|p| !p.down && p.good >= PROBE_SUCCESSES_CLEAR);
        let came_back = down_before && self.probes.iter().all(|p| !p.down);
        if cleared || came_back {
            self.runs.clear();
        }
    }

    fn failed(&mut self, now: Timestamp, rank: Option<Rank>, failure: SlotFailure, count: u32) {
        self.runs.entry(rank).or_default().add(now, failure, count);
        self.penalty.add(now, count);
        // Good probes from before this failure say nothing about it.
        self.probes.iter_mut().for_each(|p| p.good = 0);
    }

    /// What recent failures count as now, in requests.
    pub(super) fn penalty(&self, now: Timestamp) -> u32 {
        self.penalty.requests(now)
    }

    pub(super) const fn start_drain(&mut self, deadline: Option<Timestamp>) {
        self.drain = Drain::Until(deadline);
    }

    pub(super) const fn resume(&mut self) {
        self.drain = Drain::No;
    }

    /// When this drain ends, if it has an end that is not reached yet.
    pub(super) const fn drain_deadline(&self) -> Option<Timestamp> {
        match self.drain {
            Drain::Until(deadline) => deadline,
            Drain::No | Drain::Over => None,
        }
    }

    /// Whether it drains, and how long yet, if its drain has an end; 0: it is over.
    pub(super) fn drain_left(&self, now: Timestamp) -> Option<Option<Millis>> {
        match self.drain {
            Drain::No => None,
            Drain::Until(end) => Some(end.map(|end| end.since(now))),
            Drain::Over => Some(Some(Millis(0))),
        }
    }

    /// A drain whose deadline is reached is over.
    pub(super) fn expire_drain(&mut self, now: Timestamp) {
        if self.drain_deadline().is_some_and(|deadline| deadline <= now) {
            self.drain = Drain::Over;
        }
    }

    /// A worker declared anew elsewhere is still being drained.
    pub(super) const fn keep_drain(&mut self, of: &Self) {
        self.drain = of.drain;
    }

    pub(super) const fn is_draining(&self) -> bool {
        !matches!(self.drain, Drain::No)
    }
}

impl Probes {
    const fn count(&mut self, healthy: bool) {
        if healthy {
            self.good = self.good.saturating_add(1);
            self.bad = 0;
            self.down = self.down && self.good < PROBE_SUCCESSES_UP;
        } else {
            self.bad = self.bad.saturating_add(1);
            self.good = 0;
            self.down = self.down || self.bad >= PROBE_FAILURES_DOWN;
        }
    }
}

impl Run {
    /// Failures far apart are no run. One that made its worker suspect is over by a good finding alone.
    fn add(&mut self, now: Timestamp, failure: SlotFailure, count: u32) {
        if !self.is_suspect() && now.since(self.at) > RUN_AGE_MAX {
            *self = Self::default();
        }
        self.at = now;
        let run = match failure {
            SlotFailure::Connection => &mut self.connection,
            SlotFailure::Status5xx => &mut self.status,
        };
        *run = run.saturating_add(count);
    }

    const fn is_suspect(self) -> bool {
        self.connection >= CONNECTION_FAILURES_SUSPECT || self.status >= STATUS_FAILURES_SUSPECT
    }
}
