//! Fleets and configs beside the usual one.

use super::World;
use crate::common::{endpoint, pool, pool_name, worker};
use routing::config::{FilterConfig, Trust};
use routing::contract::{EndpointInfo, Policy, RankNumbering, WorkerInfo};
use routing::hash::Phase;

impl World {
    /// A split pool: `wp0` with ranks 0–3 and `wp1` with 4–7, which counts from zero, prefill; `wd0` and `wd1` decode, likewise.
    pub(crate) fn split() -> Self {
        Self::with(|world| {
            let of =
                |name: &str, phase, endpoint: EndpointInfo| WorkerInfo { phase, ..worker(name, &[endpoint]) };
            let local =
                EndpointInfo { rank_numbering: RankNumbering::Local, ..endpoint("10.0.1.2:80", 4, 4) };
            world.topology.workers = vec![
                of("wd0", Phase::Decode, endpoint("10.0.0.1:80", 0, 4)),
                of("wd1", Phase::Decode, endpoint("10.0.0.2:80", 4, 4)),
                of("wp0", Phase::Prefill, endpoint("10.0.1.1:80", 0, 4)),
                of("wp1", Phase::Prefill, local),
            ];
        })
    }

    /// The usual fleet under `kv_aware`, with prompts read. For the other fleets: [`Self::aware`].
    pub(crate) fn kv() -> Self {
        Self::new().aware()
    }

    /// Under `kv_aware`, with prompts read.
    pub(crate) fn aware(self) -> Self {
        self.but(|world| {
            for pool in &mut world.topology.pools {
                (pool.policy, pool.reads_prompt) = (Policy::KvAware, true);
            }
        })
    }

    pub(crate) fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self.publish();
        self
    }

    /// Callers may name targets and demand things.
    pub(crate) fn trusted(self) -> Self {
        self.but(|world| world.config.trust = Trust::Callers)
    }

    /// With another config.
    pub(crate) fn configured(config: &str) -> Self {
        Self::with(|world| world.config = FilterConfig::parse(config.as_bytes()).unwrap())
    }

    /// Two pools behind one listener: `chat` with models `big` and `small` at `w0` and `w1`, `embed` with model `vec` at `w2`.
    pub(crate) fn two_pools(pool_by: &str) -> Self {
        Self::configured(&format!(r#"{{"pool_by": "{pool_by}"}}"#)).but(|world| {
            let models = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            world.topology.pools = vec![pool("chat"), pool("embed")];
            world.topology.pools[0].models = models(&["big", "small"]);
            world.topology.pools[1].models = models(&["vec"]);
            world.topology.workers[2].pool = pool_name("embed");
        })
    }
}
