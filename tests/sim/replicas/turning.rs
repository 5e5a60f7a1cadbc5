//! Which replica an Envoy asks: the first of its list that says that it is ready, looked at twice a second.
//!
//! As `envoy/replicas.yaml` has it.

use crate::faults::Fault;
use crate::service::Standing;
use crate::world::{Event, World};

const HEALTH: u64 = 500;

impl World {
    pub(crate) fn begin_turning(&mut self) {
        if !self.is_shared() {
            return;
        }
        for envoy in 0..self.envoys.len() {
            let first = self.rng.within(50, HEALTH);
            self.after(first, Event::HealthDue { envoy });
        }
    }

    pub(crate) fn health_due(&mut self, envoy: usize) {
        self.after(HEALTH, Event::HealthDue { envoy });
        let count = self.plan.replicas;
        let first = self.plan.shared.first_replica(envoy);
        let shuns = self.envoys[envoy].shuns;
        let is_ready = |n: &usize| {
            let service = self.replica(*n);
            service.standing == Standing::Up && service.link.ready && shuns != Some(*n)
        };
        // Where none may be asked it goes on asking the one it asked.
        let Some(next) = (0..count).map(|n| (first + n) % count).find(is_ready) else { return };
        if std::mem::replace(&mut self.envoys[envoy].replica, next) != next && self.now.0 > 0 {
            self.fired.count(Fault::EnvoyTurned);
            self.note(|| format!("envoy {envoy} asks replica {next}"));
        }
    }

    /// Its checks of one replica fail, though that one lives.
    pub(crate) fn envoy_shuns(&mut self, envoy: usize, replica: usize, lasts: u64) {
        if envoy < self.envoys.len() && replica < self.plan.replicas {
            self.envoys[envoy].shuns = Some(replica);
            self.after(lasts, Event::ShunsNobody { envoy });
        }
    }
}
