//! What a plan becomes before the first event: declared workers, Envoys with their VMs, conversations, faults in the queue.

use crate::chains::Chain;
use crate::client::Session;
use crate::envoy::{Discovered, Envoy, SharedData, VmCell};
use crate::faults::Fault;
use crate::plan::{OTHER_MODEL, OTHER_POOL, POOL, POOL_HEADER};
use crate::service::Standing;
use crate::world::{Event, VmAt, World};
use routing::config::{FilterConfig, Trust};
use routing::hash::{Phase, rank_hash, session_id};
use routing::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

impl World {
    pub(crate) fn set_up(&mut self) {
        self.set_up_replicas();
        for worker in 0..self.workers.len() {
            self.workers[worker].newcomer = self.plan.joins_late(worker);
            if !self.workers[worker].newcomer {
                self.declare(worker);
            }
            let first = self.rng.within(1, 900);
            self.after(first, Event::Probe { worker });
            if self.plan.extra.gauges {
                self.after(first, Event::Scrape { worker });
            }
        }
        for n in 0..self.plan.envoys {
            self.add_envoy(n);
        }
        for n in 0..self.plan.sessions {
            self.add_session(n);
        }
        for (at, fault) in self.plan.timed.clone() {
            self.after(at, Event::Fault(fault));
        }
        self.after(100, Event::Expire);
        self.begin_turning();
    }

    fn set_up_replicas(&mut self) {
        if !self.is_shared() {
            return;
        }
        self.at_each(Self::join_store);
        if let Some((replica, at)) = self.plan.shared.joins_late {
            self.turn_to(replica);
            self.fired.count(Fault::ReplicaJoined);
            self.stop_service(Standing::Refusing);
            self.service.link.cut = self.plan.shared.joins_cut;
            let life = self.service.life;
            self.after(at, Event::ServiceIsBack { life });
            self.turn_to(0);
        }
    }

    fn add_envoy(&mut self, n: usize) {
        let mut config = self.filter_config();
        config.steering = self.plan.steering;
        config.trust = if self.plan.trusts() { Trust::Callers } else { Trust::Nobody };
        config.served_header = self.plan.served_header;
        (config.page_count, config.page_bytes) = self.plan.pages;
        let node = format!("edge-{n}");
        let vms = (0..self.plan.vms).map(|_| VmCell::new(&node, 1, self.rng.next())).collect();
        let shared = SharedData::new(config.page_count);
        let by_files = self.plan.by_files == Some(n);
        let discovered = Discovered::default();
        self.envoys.push(Envoy {
            node,
            config,
            shared,
            discovered,
            hidden: BTreeSet::new(),
            by_files,
            skew_ms: 0,
            disturbed: Timestamp(0),
            replica: self.plan.shared.first_replica(n) % self.plan.replicas,
            shuns: None,
            deaths: 0,
            vms,
        });
        self.after(1, Event::XdsPoll { envoy: n });
        for vm in 0..self.plan.vms {
            // Listeners start once discovery has answered.
            let first = self.rng.within(600, 700);
            self.after(first, Event::Tick(VmAt { envoy: n, vm, life: 1 }));
        }
    }

    fn filter_config(&self) -> FilterConfig {
        let mut text = serde_json::json!({});
        if self.plan.extra.pools {
            text["pool_by"] = format!("header {POOL_HEADER}").into();
        }
        if self.plan.extra.chains > 0 {
            text["response_ids"] = true.into();
        }
        FilterConfig::parse(text.to_string().as_bytes()).unwrap()
    }

    fn add_session(&mut self, n: usize) {
        let (chains, pools) = (self.plan.extra.chains, self.plan.extra.pools);
        let chain = n > 1 && chains > 0 && self.rng.per_mille(chains);
        let asks_for = match pools && !chain && self.rng.per_mille(400) {
            true if self.rng.per_mille(500) => OTHER_MODEL,
            true => OTHER_POOL,
            false => POOL,
        };
        let key = match n {
            0 => None,
            1 => Some("k".repeat(257)),
            _ => Some(format!("conversation-{n}-{}", self.rng.next())),
        };
        let key = key.filter(|_| !chain);
        let pool = if asks_for == POOL { POOL } else { OTHER_POOL };
        let home = self.home_of(pool).filter(|_| !chain);
        let session = Session { home, ..Session::new(key, asks_for, self.plan.extra.split, self.plan.turns) };
        self.sessions.push(Session { chain: chain.then(Chain::default), ..session });
        let first = self.rng.within(1500, 9000);
        self.after(first, Event::Turn { session: n });
    }
}

impl Session {
    fn new(key: Option<String>, asks_for: &'static str, split: bool, turns: u64) -> Self {
        let pool = if asks_for == POOL { POOL } else { OTHER_POOL };
        // One conversation with two models is two sessions.
        let place = if asks_for == pool { pool.to_owned() } else { format!("{pool}/{asks_for}") };
        let split = split && pool == POOL;
        let usable = key.as_ref().filter(|key| key.len() <= 256);
        let id = |phase| usable.map(|key| session_id(b"", b"", &place, phase, key.as_bytes()));
        Self {
            id: id(if split { Phase::Decode } else { Phase::Aggregated }),
            prefill_id: split.then(|| id(Phase::Prefill)).flatten(),
            rank_hash: key.as_ref().map_or(0, |key| rank_hash(key.as_bytes()).0),
            key,
            pool,
            asks_for,
            chain: None,
            tolerated: false,
            ended: false,
            home: None,
            named: BTreeSet::new(),
            turns_left: turns,
            begun: false,
            open: 0,
            landings: BTreeMap::new(),
            prefill_landings: BTreeMap::new(),
            costs: BTreeSet::new(),
            finals_left: Vec::new(),
            finals: Vec::new(),
            refusals: 0,
        }
    }
}
