//! How an Envoy hears of news: its long poll, what it does with the answer, and its discovery.

use crate::envoy::PAUSE_MS;
use crate::faults::Fault;
use crate::planted::Bug;
use crate::world::{Event, VmAt, World};
use routing::contract::{WatchQuery, WatchReply};
use routing::flow::PageChange;
use routing::time::Millis;
use routing::watch::{self, POLL_TIMEOUT};

impl World {
    pub(crate) fn poll(&mut self, at: VmAt) {
        let call = self.new_call();
        let to = self.envoys[at.envoy].replica;
        let envoy = &mut self.envoys[at.envoy];
        envoy.vms[at.vm].watch_call = Some(call);
        let position = &envoy.shared.position;
        let query = WatchQuery {
            node: envoy.node.clone(),
            epoch: position.epoch.0,
            after: position.cursor,
            topology: position.topology,
            fleet: position.fleet,
            wait_ms: watch::POLL_WAIT.0,
        };
        self.after(POLL_TIMEOUT.0, Event::WatchAnswered { at, call, reply: None });
        let lost = self.net().watch_lost;
        if self.rng.per_mille(lost) {
            // Half of a minute is too long for every loss of a short run: most are noticed by the connection.
            if !self.rng.per_mille(50) {
                self.after(40, Event::WatchAnswered { at, call, reply: None });
            }
            return self.fired.count(Fault::WatchLost);
        }
        let delay = self.rng.within(1, 6);
        self.after(delay, Event::WatchArrives { to, at, call, query });
    }

    pub(crate) fn watch_answered(&mut self, at: VmAt, call: u64, reply: Option<WatchReply>) {
        let now = self.envoy_now(at.envoy);
        let Some(cell) = self.cell(at) else { return };
        if cell.watch_call != Some(call) {
            return;
        }
        cell.watch_call = None;
        let Some(reply) = reply else {
            cell.not_before = now + Millis(PAUSE_MS);
            return;
        };
        if self.envoys[at.envoy].leads(at.vm, now) {
            if reply.upload {
                self.wants_upload(at, reply.epoch);
            }
            self.take_in(at.envoy, reply);
            self.poll(at);
            self.upload_on(at);
        }
    }

    fn take_in(&mut self, envoy: usize, mut reply: WatchReply) {
        if self.bug == Some(Bug::MovesAreDropped) {
            reply.moves.clear();
        }
        let now = self.envoy_now(envoy);
        let known = self.envoys[envoy].shared.fleet.clone().unwrap_or_default();
        let applied = self.envoys[envoy].shared.position.apply(reply, &known, now);
        for change in &applied.pages {
            self.change_page(envoy, change);
        }
        self.maybe_told_again(envoy, &applied.pages);
        self.check_dialable(envoy, applied.topology.as_ref());
        let shared = &mut self.envoys[envoy].shared;
        let deaf = self.bug == Some(Bug::TopologiesAreDropped) && envoy == 1 && shared.topology.is_some();
        if let Some(topology) = applied.topology.filter(|_| !deaf) {
            shared.topology = Some(topology);
        }
        if let Some(fleet) = applied.fleet {
            shared.fleet = Some(fleet);
        }
        shared.gauge = applied.position.gauge();
        shared.position = applied.position;
    }

    /// A watcher that dies between pages and position leaves its successor to ask for the same moves.
    fn maybe_told_again(&mut self, envoy: usize, moves: &[PageChange]) {
        if self.faults_on && !moves.is_empty() && self.rng.per_mille(300) {
            self.fired.count(Fault::MovesToldAgain);
            let delay = self.rng.within(50, 3000);
            self.after(delay, Event::MovesAgain { envoy, moves: moves.to_vec() });
        }
    }

    /// Twice a second, as the shipped `refresh_delay`.
    pub(crate) fn poll_xds(&mut self, envoy: usize) {
        self.after(500, Event::XdsPoll { envoy });
        let lost = self.net().xds_lost;
        if self.rng.per_mille(lost) {
            return self.fired.count(Fault::XdsLost);
        }
        let to = self.envoys[envoy].replica;
        let known = (self.envoys[envoy].discovered.epoch, self.envoys[envoy].discovered.version);
        let delay = self.rng.within(1, 6);
        self.after(delay, Event::XdsArrives { to, envoy, known });
    }
}
