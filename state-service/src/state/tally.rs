//! Which counter a verdict is counted by. Every reason has one.

use super::verdict::{Fresh, Loose};
use super::{Counters, State};
use routing::contract::Refusal;
use routing::id::Version;

impl State {
    /// One more of what has no version.
    pub(super) fn count(&mut self, counter: impl FnOnce(&mut Counters) -> &mut u64) -> Version {
        *counter(&mut self.counters) += 1;
        Version::default()
    }

    pub(super) const fn count_hold(&mut self, why: Fresh) {
        let counter = match why {
            Fresh::First(_) | Fresh::Named => &mut self.counters.route_held,
            Fresh::Rebound => &mut self.counters.route_rebound,
            Fresh::Moved => &mut self.counters.route_moved,
            Fresh::Excluded => &mut self.counters.route_excluded,
        };
        *counter += 1;
    }

    pub(super) fn count_loose(&mut self, why: Loose) -> Version {
        let counter = match why {
            Loose::Plain(_) | Loose::Named => None,
            Loose::TableFull => Some(&mut self.counters.unpinned_table_full),
            Loose::VmsFull => Some(&mut self.counters.unpinned_vms_full),
            Loose::Over => Some(&mut self.counters.route_over),
            Loose::Spilled => Some(&mut self.counters.unpinned_spilled),
            Loose::Excluded => Some(&mut self.counters.unpinned_excluded),
        };
        if let Some(counter) = counter {
            *counter += 1;
        }
        self.count(|counters| &mut counters.route_unpinned)
    }

    pub(super) fn count_refusal(&mut self, refusal: Refusal) -> Version {
        self.count(|counters| match refusal {
            Refusal::WorkerRequired => &mut counters.refused_worker_required,
            Refusal::WorkerUnknown => &mut counters.refused_worker_unknown,
            Refusal::RankUndeclared => &mut counters.refused_rank_undeclared,
            Refusal::BoundElsewhere => &mut counters.refused_bound_elsewhere,
            Refusal::Excluded => &mut counters.refused_excluded,
            Refusal::Unmet => &mut counters.refused_unmet,
            Refusal::Overloaded => &mut counters.refused_overloaded,
            Refusal::WorkerUnavailable => &mut counters.refused_worker_unavailable,
        })
    }
}
