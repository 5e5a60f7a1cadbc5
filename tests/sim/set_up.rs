//! What a plan becomes before the first event: declared workers, Envoys with their VMs, conversations, faults in the queue.

use crate::client::Session;
use crate::envoy::{Discovered, Envoy, SharedData, VmCell};
use crate::world::{Event, VmAt, World};
use routing::config::{FilterConfig, Trust};
use routing::hash::{Phase, rank_hash, session_id};
use routing::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

impl World {
    pub(crate) fn set_up(&mut self) {
        for worker in 0..self.workers.len() {
            self.workers[worker].newcomer = self.plan.joins_late(worker);
            if !self.workers[worker].newcomer {
                self.declare(worker);
            }
            let first = self.rng.within(1, 900);
            self.after(first, Event::Probe { worker });
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
    }

    fn add_envoy(&mut self, n: usize) {
        let mut config = FilterConfig::parse(b"{}").unwrap();
        config.steering = self.plan.steering;
        config.trust = if self.plan.trust { Trust::Callers } else { Trust::Nobody };
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

    fn add_session(&mut self, n: usize) {
        let key = match n {
            0 => None,
            1 => Some("k".repeat(257)),
            _ => Some(format!("conversation-{n}-{}", self.rng.next())),
        };
        let id = key.as_ref().filter(|key| key.len() <= 256);
        let id = id.map(|key| session_id(b"", b"", "chat", Phase::Aggregated, key.as_bytes()));
        let hash = key.as_ref().map_or(0, |key| rank_hash(key.as_bytes()).0);
        let home = self.home_of();
        self.sessions.push(Session {
            home,
            named: BTreeSet::new(),
            key,
            id,
            rank_hash: hash,
            turns_left: self.plan.turns,
            begun: false,
            open: 0,
            landings: BTreeMap::new(),
            costs: BTreeSet::new(),
            finals_left: Vec::new(),
            finals: Vec::new(),
        });
        let first = self.rng.within(1500, 9000);
        self.after(first, Event::Turn { session: n });
    }
}
