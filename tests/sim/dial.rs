//! Envoy's router under a request: hosts, attempts and the address dialled. As the shipped configs ask of it. Answers are in
//! `answer.rs`.

use crate::answer::{busy, by_engine, by_envoy};
use crate::faults::{Cost, Fault};
use crate::planted::Bug;
use crate::request::{Dial, Phase, Request};
use crate::worker::Mode;
use crate::world::{Event, World};
use routing::attempt::{Attempt, REMOVED};
use routing::config::Steering;
use routing::contract::Policy;
use routing::flow::{Counter, EnvoyReason};
use routing::header;

impl World {
    /// Headers go on: Envoy's router takes over.
    pub(crate) fn dispatch(&mut self, request: &mut Request) {
        if self.bug == Some(Bug::NamedRanksAreDropped)
            && request.named.as_ref().is_some_and(|(_, rank)| rank.is_some())
        {
            request.headers.remove(header::VLLM_RANK);
        }
        request.paused = false;
        request.phase = Phase::Waiting;
        if request.decisions.len() != 1 {
            self.violate("one placement or one local reply", &format!("{:?} at dispatch", request.decisions));
        }
        self.check_prefill(request);
        let listed = self.listed(request);
        self.check_targets(request, &listed);
        let clusters = self.envoys[request.at.envoy].dialable();
        let cluster = request.headers.get(header::CLUSTER).cloned();
        let outran;
        request.targets = match (self.plan.steering, cluster) {
            // The default route: its hosts are no business of this world.
            (_, None) => return self.pass(request),
            (Steering::Cluster, Some(cluster)) => {
                outran = !clusters.contains_key(cluster.as_str());
                clusters.get(cluster.as_str()).map(|address| (*address).to_owned()).into_iter().collect()
            }
            (Steering::Endpoints, Some(_)) => {
                let list = request.headers.get(header::ENDPOINTS).cloned().unwrap_or_default();
                let known = |address: &&str| clusters.values().any(|known| known == address);
                outran = list.split(',').next().is_some_and(|first| !known(&first));
                list.split(',').filter(known).rev().map(str::to_owned).collect()
            }
        };
        request.outran = outran;
        if outran {
            self.fired.count(Fault::TopologyOutran);
            self.cost(request.session, Cost::Outran);
        }
        self.next_attempt(request);
    }

    /// The addresses that the filter named, known or not.
    fn listed(&self, request: &Request) -> Vec<String> {
        let named = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
        match self.plan.steering {
            Steering::Endpoints => named(header::ENDPOINTS).split(',').map(str::to_owned).collect(),
            Steering::Cluster => {
                let clusters = self.envoys[request.at.envoy].dialable();
                let address = clusters.get(named(header::CLUSTER).as_str());
                address.map(|address| (*address).to_owned()).into_iter().collect()
            }
        }
    }

    fn pass(&mut self, request: &mut Request) {
        // Before there is a topology nobody knows that the pool is direct.
        let direct = self.plan.policy == Policy::Direct && request.decisions != [Counter::NoTopology];
        if request.named.is_some() || direct {
            let found = format!("{:?} by the default route: {:?}", request.named, request.decisions);
            self.violate("a named target is served exactly or not at all", &found);
        }
        if request.headers.contains_key(header::VLLM_RANK) {
            self.violate("a client's rank reaches nobody", "it went on by the default route");
        }
        let head = by_engine(200);
        let latency = self.rng.within(5, 100);
        self.after(latency, Event::Answered { request: request.id, dial: 0, head });
    }

    pub(crate) fn next_attempt(&mut self, request: &mut Request) {
        let Some(address) = self.next_host(request) else {
            // Under cluster steering the only host of a cluster that Envoy does not know.
            let outran = self.plan.steering == Steering::Cluster;
            let reason = if outran { EnvoyReason::NoCluster } else { EnvoyReason::Unreached };
            let head = by_envoy(503, reason);
            return self.after(0, Event::Answered { request: request.id, dial: request.dials, head });
        };
        request.tried.push(address.clone());
        request.dials += 1;
        let mut attempt = Attempt::default();
        if self.plan.steering == Steering::Endpoints {
            let now = self.envoy_now(request.at.envoy);
            let vm = &mut self.envoys[request.at.envoy].vms[request.at.vm].vm;
            let start = attempt.begin(vm, now, request.note.as_deref(), &address);
            let stays = self.bug == Some(Bug::RankStaysOnRetry) && request.dials > 1;
            match start.rank {
                _ if stays => {}
                Some(rank) => drop(request.headers.insert(rank.header.to_owned(), rank.value)),
                None => drop(request.headers.remove(header::VLLM_RANK)),
            }
            REMOVED.iter().for_each(|name| drop(request.headers.remove(*name)));
            if let Some(counter) = start.count {
                self.count(request, counter);
            }
            let goes_on = self.bug == Some(Bug::RefusedAttemptsGoOn);
            if let Some(reply) = start.refuse.filter(|_| !goes_on) {
                return self.attempt_refused(request, reply.status);
            }
        }
        self.dial(request, attempt, &address);
    }

    fn next_host(&mut self, request: &mut Request) -> Option<String> {
        if self.plan.steering == Steering::Cluster {
            return request.targets.last().cloned();
        }
        // Behind the list: maglev over the pool, hosts not tried yet.
        request.targets.pop().or_else(|| {
            let clusters = self.envoys[request.at.envoy].dialable();
            let pool = self.sessions[request.session].pool;
            // Workers that only prefill are not among the hosts of a pool's cluster.
            let is_host = |address: &str| {
                self.worker_at(address).is_some_and(|worker| worker.pool() == pool && !worker.prefills())
            };
            let untried = clusters
                .values()
                .find(|address| is_host(address) && !request.tried.iter().any(|tried| tried == *address));
            untried.map(|address| (*address).to_owned())
        })
    }

    fn dial(&mut self, request: &mut Request, attempt: Attempt, address: &str) {
        let rank = request.headers.get(header::VLLM_RANK).cloned();
        self.note(|| format!("{} dials {address} rank {rank:?}", request.id));
        let Some((worker, rank)) = self.check_wire(request, address, rank.as_deref()) else { return };
        let mode = if self.is_there(worker, address) { self.workers[worker].mode } else { Mode::Refuses };
        request.dial = Some(Dial { attempt, worker, rank });
        let (id, dial) = (request.id, request.dials);
        match mode {
            Mode::Refuses => {
                self.fired.count(Fault::WorkerRefused);
                self.after(1, Event::Refused { request: id, dial });
            }
            Mode::Hangs => self.fired.count(Fault::WorkerHung),
            Mode::Accepts | Mode::Answers(_) | Mode::Busy(_) => {
                let head = match mode {
                    Mode::Answers(status) => by_engine(status),
                    Mode::Busy(status) => busy(status),
                    _ => by_engine(self.good_status()),
                };
                let latency = self.rng.within(2, 120);
                self.after(latency, Event::Answered { request: id, dial, head });
            }
        }
    }

    /// Now and then a client's fault: 4xx commits like 200.
    fn good_status(&mut self) -> u16 {
        if self.rng.per_mille(30) { 400 } else { 200 }
    }

    fn is_there(&self, worker: usize, address: &str) -> bool {
        self.workers[worker].live_endpoints().any(|endpoint| endpoint.address == address)
    }
}
