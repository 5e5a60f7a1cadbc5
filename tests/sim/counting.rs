//! What the filter counts of a request: how it was decided, and what that may cost its session.

use crate::faults::{Cost, Fault};
use crate::request::Request;
use crate::world::World;
use routing::flow::Counter;

impl World {
    pub(crate) fn count(&mut self, request: &mut Request, counter: Counter) {
        *self.stats.counters.entry(counter).or_default() += 1;
        use Counter as C;
        match counter {
            C::KeyTooLong | C::NamedRefused | C::NoTopology | C::NoWorker | C::OverloadRefused => {
                request.decisions.push(counter);
            }
            C::ModelUnknown if request.lost => request.decisions.push(counter),
            C::DryRun if request.dry => request.decisions.push(counter),
            C::BodyMissing if request.bodiless => {}
            C::PromptUnread if self.is_kv() => self.fired.count(Fault::PromptUnread),
            C::Pinned | C::Joined | C::RoutedBound | C::RoutedHeld | C::RoutedUnpinned | C::PlacedAlone => {
                self.placed(request, counter);
            }
            C::SessionHash | C::SessionKeyMissing | C::AffinityOff | C::Named | C::Spilled => {
                self.placed(request, counter);
            }
            C::Released => self.session_ended(request),
            C::Committed | C::BreakerOpen | C::RouteFailed(_) | C::ExactRefused | C::StreamBroken => {}
            C::ClusterMissing if request.outran => {}
            C::RolledBack => self.cost(request.session, Cost::RolledBack),
            C::ClusterMissing
            | C::UpstreamRoleMissing
            | C::PlanMissing
            | C::RankBodyTooLong
            | C::RankBodyMalformed
            | C::PageContended
            | C::EntryDropped
            | C::Spoofed
            | C::ModelUnknown
            | C::ModelsListed
            | C::DryRun
            | C::PromptUnread
            | C::BodyMissing
            | C::BodyTooLong
            | C::BodyMalformed
            | C::Ignored(_) => {
                self.violate("nothing odd is counted", counter.word());
            }
        }
        match counter {
            C::PlacedAlone | C::RouteFailed(_) => self.cost(request.session, Cost::Alone),
            C::NoTopology | C::NoWorker => self.cost(request.session, Cost::Passed),
            C::SessionKeyMissing => self.chain_broke(request),
            C::RoutedUnpinned if request.loose && request.alias.is_some() => self.is_nobodys(request),
            C::RoutedUnpinned => self.cost(request.session, Cost::Evicted),
            _ => {}
        }
        if request.decisions.len() > 1 {
            self.violate("one placement or one local reply", &format!("{:?}", request.decisions));
        }
    }

    fn placed(&mut self, request: &mut Request, counter: Counter) {
        request.decisions.push(counter);
        request.placed = true;
        request.spilled = counter == Counter::Spilled;
        let cell = &mut self.envoys[request.at.envoy].vms[request.at.vm];
        request.topologies = cell.topologies();
        cell.placed += 1;
    }
}
