//! Clocks: the world's own, which is true; each Envoy's, which jumps both ways by minutes; and the service's, which its shell never
//! lets go back, but which leaps ahead when its machine slept.

use crate::faults::{Cost, Fault};
use crate::world::World;
use routing::time::{Millis, Timestamp};

impl World {
    /// What the VMs of an Envoy read: one machine, one clock.
    pub(crate) fn envoy_now(&self, envoy: usize) -> Timestamp {
        Timestamp(self.now.0.saturating_add_signed(self.envoys[envoy].skew_ms))
    }

    /// What the state is told.
    pub(crate) fn service_now(&self) -> Timestamp {
        self.now + self.service.ahead
    }

    /// Costs no session its place: a record that looks old is asked for, one that looks young is believed.
    pub(crate) fn envoy_clock_jumps(&mut self, envoy: usize, by_ms: i64) {
        self.fired.count(if by_ms < 0 { Fault::EnvoyClockBack } else { Fault::EnvoyClockForward });
        self.envoys[envoy].skew_ms += by_ms;
        self.disturb(envoy);
    }

    /// Every lease, deadline and idle time is over at once.
    pub(crate) fn service_clock_leaps(&mut self, by: Millis) {
        self.fired.count(Fault::ServiceClockLeapt);
        self.cost_all(Cost::ServiceSlept);
        // What expired may come back from an Envoy that still pins it, under the version it had there.
        self.service.bindings_seen.clear();
        self.service.aliases.clear();
        self.service.ahead = Millis(self.service.ahead.0 + by.0);
    }
}
