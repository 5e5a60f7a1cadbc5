//! What must be so of replicas and their store: once all is healed and quiet they say the same of every session.

use crate::faults::Fault;
use crate::service::Standing;
use crate::world::World;
use routing::contract::{Affinity, Policy, Target};
use routing::id::{SessionId, Version};
use state_service::state::{SessionState, SessionView};
use std::collections::BTreeSet;

/// What ends so soon may have ended elsewhere.
const ENDING_MS: u64 = 2000;

type Known = Option<(Version, Option<Target>)>;

const fn is_bound(view: &SessionView) -> bool {
    matches!(view.state, SessionState::Bound)
}

impl World {
    /// Whether every replica that is asked, and the store, have the session bound at one place, and nobody has news of it.
    pub(crate) fn is_agreed(&self, session: usize) -> bool {
        if self.plan.policy == Policy::SessionHash || self.plan.affinity == Affinity::Off {
            return true;
        }
        let session = &self.sessions[session];
        let told = |id: SessionId| {
            let cells = self.envoys.iter().flat_map(|envoy| &envoy.vms);
            cells.into_iter().all(|cell| cell.vm.reports.about(id).is_empty())
        };
        session.open == 0 && session.ids().all(|id| told(id) && self.is_bound_by_all(id))
    }

    fn is_bound_by_all(&self, id: SessionId) -> bool {
        let asked = |n: usize| self.replica(n).standing == Standing::Up && self.replica(n).link.ready;
        let views = self.views(id).filter(|(n, _)| asked(*n));
        let mut known: BTreeSet<(Version, String)> = BTreeSet::new();
        for (_, view) in views {
            let Some(view) = view.filter(is_bound) else { return false };
            known.insert((view.version, format!("{:?}", view.target)));
        }
        let Some(kept) = self.store.binding(self.now, id) else { return false };
        known.insert((kept.version, format!("{:?}", kept.target)));
        known.len() == 1
    }

    /// Once all is quiet.
    pub(crate) fn check_replicas(&mut self) {
        if !self.is_shared() {
            return;
        }
        let unready = self.replicas().find(|service| !service.link.ready).map(|one| one.life.replica);
        let ids: BTreeSet<SessionId> = self.sessions.iter().flat_map(|session| session.ids()).collect();
        let differs = ids.into_iter().find_map(|id| self.disagreement(id));
        let claimed = self.store.claimed(self.now);
        let apart = self.replicas().find(|service| !service.link.calls_up).map(|one| one.life.replica);
        let found = [
            ("replicas agree in the end", differs),
            ("every replica is ready in the end", unready.map(|n| n.to_string())),
            ("no replica stays apart", apart.map(|n| n.to_string())),
            ("no claim outlives its hold", (!claimed.is_empty()).then(|| format!("{claimed:?}"))),
        ];
        for (invariant, found) in found {
            if let Some(found) = found {
                self.violate(invariant, &found);
            }
        }
        let parked: usize = self.replicas().map(|service| service.state.sizes().parked).sum();
        if parked > 0 {
            self.violate("nothing waits for a slot that is declared", &format!("{parked} are parked"));
        }
    }

    /// What a store lost that does not know of its loss is told to nobody before it is touched.
    fn may_be_untold(&self) -> bool {
        self.fired.of(Fault::StoreFailedOver) > 0 && !self.in_finals
    }

    /// Where somebody has a session bound, and another one has not.
    fn disagreement(&self, id: SessionId) -> Option<String> {
        let views: Vec<_> = self.views(id).collect();
        if self.may_be_untold() {
            return None;
        }
        let kept = self.store.binding(self.now, id);
        let ends = views.iter().filter_map(|(_, view)| view.as_ref()).map(|view| view.expires_in.0);
        let ends = ends.chain(kept.as_ref().map(|kept| kept.expires_in_ms.0));
        if ends.min().is_some_and(|left| left < ENDING_MS) {
            return None;
        }
        let mut known: Vec<Known> = views
            .iter()
            .map(|(_, view)| {
                view.as_ref().filter(|view| is_bound(view)).map(|v| (v.version, v.target.clone()))
            })
            .collect();
        let bound = kept.as_ref().filter(|kept| kept.target.is_some());
        known.push(bound.map(|kept| (kept.version, kept.target.clone())));
        let agree = known.windows(2).all(|pair| pair[0] == pair[1]);
        (!agree).then(|| format!("{id:?}: {views:?}, the store {kept:?}"))
    }
}
