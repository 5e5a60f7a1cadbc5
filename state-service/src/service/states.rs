//! What the log says of workers: one line for each change of a state. Owns what was said; decides nothing.

use routing::contract::{Fleet, WorkerState};
use routing::id::WorkerId;
use std::collections::BTreeMap;

/// States as last told.
#[derive(Debug, Default)]
pub(super) struct States {
    version: u64,
    told: BTreeMap<WorkerId, WorkerState>,
}

impl States {
    /// Workers whose state differs from what was told; a new one, which its declaration tells of, is only remembered.
    pub(super) fn changes(&mut self, fleet: &Fleet) -> Vec<(WorkerId, WorkerState, WorkerState)> {
        if self.version == fleet.version {
            return Vec::new();
        }
        self.version = fleet.version;
        let now: BTreeMap<WorkerId, WorkerState> =
            fleet.workers.iter().map(|worker| (worker.id.clone(), worker.state)).collect();
        let before = std::mem::replace(&mut self.told, now);
        let changed = |(id, state): (&WorkerId, &WorkerState)| {
            let old = before.get(id).filter(|old| *old != state)?;
            Some((id.clone(), *old, *state))
        };
        self.told.iter().filter_map(changed).collect()
    }
}

/// Says it: trouble as a warning.
pub(super) fn say(worker: &WorkerId, from: WorkerState, to: WorkerState) {
    match to {
        WorkerState::Down => tracing::warn!(%worker, ?from, "worker down: nothing is sent there"),
        WorkerState::Suspect => {
            tracing::warn!(%worker, ?from, "worker suspect: requests fail there; bound sessions stay, new ones avoid it");
        }
        WorkerState::Ready => tracing::info!(%worker, ?from, "worker ready"),
        WorkerState::Joining | WorkerState::Draining => {
            tracing::info!(%worker, ?from, ?to, "worker changed its state");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use routing::contract::WorkerStatus;

    fn fleet(version: u64, states: &[(&str, WorkerState)]) -> Fleet {
        let status =
            |(id, state): &(&str, WorkerState)| WorkerStatus::idle(WorkerId::parse(id).unwrap(), *state);
        Fleet { version, workers: states.iter().map(status).collect() }
    }

    #[test]
    fn each_change_is_told_once() {
        use WorkerState::{Down, Joining, Ready};
        let mut states = States::default();
        assert_eq!(states.changes(&fleet(1, &[("a", Joining), ("b", Ready)])), []);
        let a = || WorkerId::parse("a").unwrap();
        assert_eq!(states.changes(&fleet(2, &[("a", Ready), ("b", Ready)])), [(a(), Joining, Ready)]);
        assert_eq!(states.changes(&fleet(2, &[("a", Down)])), [], "the same version says nothing new");
        assert_eq!(states.changes(&fleet(3, &[("a", Ready), ("b", Ready)])), [], "only load changed");
        assert_eq!(
            states.changes(&fleet(4, &[("a", Down)])),
            [(a(), Ready, Down)],
            "b was removed by somebody who knows"
        );
        assert_eq!(
            states.changes(&fleet(5, &[("a", Down), ("b", Ready)])),
            [],
            "and comes back as a new one"
        );
    }
}
