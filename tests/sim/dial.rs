//! Envoy's router under a request: hosts, attempts, retries, and the head of the answer. As the shipped configs ask of it.

use crate::faults::{Bug, Cost, Fault};
use crate::request::{Dial, Phase, Request};
use crate::worker::Mode;
use crate::world::{Event, World};
use routing::attempt::{Attempt, REMOVED};
use routing::config::Steering;
use routing::flow::{AnswerHead, Next};
use routing::header;

impl World {
    /// Headers go on: Envoy's router takes over.
    pub(crate) fn dispatch(&mut self, request: &mut Request) {
        request.paused = false;
        request.phase = Phase::Waiting;
        if request.decisions.len() != 1 {
            self.violate("one placement or one local reply", &format!("{:?} at dispatch", request.decisions));
        }
        let clusters = &self.envoys[request.at.envoy].discovered.clusters;
        let cluster = request.headers.get(header::CLUSTER).cloned();
        request.targets = match (self.plan.steering, cluster) {
            // The default route: its hosts are no business of this world.
            (_, None) => return self.pass(request),
            (Steering::Cluster, Some(cluster)) => clusters.get(&cluster).cloned().into_iter().collect(),
            (Steering::Endpoints, Some(_)) => {
                let list = request.headers.get(header::ENDPOINTS).cloned().unwrap_or_default();
                let known = |address: &&str| clusters.values().any(|known| known == address);
                list.split(',').filter(known).rev().map(str::to_owned).collect()
            }
        };
        self.next_attempt(request);
    }

    fn pass(&mut self, request: &mut Request) {
        if request.headers.contains_key(header::VLLM_RANK) {
            self.violate("a client's rank reaches nobody", "it went on by the default route");
        }
        let head = AnswerHead { status: 200, by_engine: true };
        let latency = self.rng.within(5, 100);
        self.after(latency, Event::Answered { request: request.id, dial: 0, head });
    }

    fn next_attempt(&mut self, request: &mut Request) {
        let Some(address) = self.next_host(request) else {
            let head = AnswerHead { status: 503, by_engine: false };
            return self.after(0, Event::Answered { request: request.id, dial: request.dials, head });
        };
        request.tried.push(address.clone());
        request.dials += 1;
        let mut attempt = Attempt::default();
        if self.plan.steering == Steering::Endpoints {
            let vm = &mut self.envoys[request.at.envoy].vms[request.at.vm].vm;
            let start = attempt.begin(vm, request.note.as_deref(), &address);
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
        }
        self.dial(request, attempt, &address);
    }

    fn next_host(&mut self, request: &mut Request) -> Option<String> {
        if self.plan.steering == Steering::Cluster {
            return request.targets.last().cloned();
        }
        // Behind the list: maglev over the pool, hosts not tried yet.
        request.targets.pop().or_else(|| {
            let clusters = &self.envoys[request.at.envoy].discovered.clusters;
            clusters.values().find(|address| !request.tried.contains(address)).cloned()
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
            Mode::Accepts | Mode::Answers(_) => {
                let status = if let Mode::Answers(status) = mode { status } else { self.good_status() };
                let head = AnswerHead { status, by_engine: true };
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

    pub(crate) fn refused(&mut self, id: u64, dial: u32) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        if request.dials == dial {
            self.retry_or(&mut request, AnswerHead { status: 503, by_engine: false });
        }
        self.keep(request);
    }

    pub(crate) fn answered(&mut self, id: u64, dial: u32, head: AnswerHead) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        if request.dials != dial || request.phase != Phase::Waiting {
            return self.keep(request);
        }
        if head.status >= 500 && head.by_engine {
            self.fired.count(Fault::WorkerAnswered5xx);
        }
        let vm = &mut self.envoys[request.at.envoy].vms[request.at.vm].vm;
        if let Some(dial) = request.dial.as_mut().filter(|_| head.by_engine)
            && dial.attempt.wants_answer(vm)
        {
            dial.attempt.answered(vm, head.status);
        }
        if head.status == 503 && head.by_engine {
            self.retry_or(&mut request, head);
        } else {
            self.answer_client(&mut request, head);
        }
        self.keep(request);
    }

    fn retry_or(&mut self, request: &mut Request, head: AnswerHead) {
        if request.retries_left == 0 {
            return self.answer_client(request, head);
        }
        request.retries_left -= 1;
        self.cost(request.session, Cost::Retried);
        self.next_attempt(request);
    }

    /// The head that goes down to the client, as `on_http_response_headers`.
    fn answer_client(&mut self, request: &mut Request, head: AnswerHead) {
        request.phase = Phase::Streaming;
        if head.by_engine && head.status < 500 {
            request.landed = request.dial.as_ref().map(|d| (self.workers[d.worker].id.clone(), d.rank));
            self.landed(request);
        }
        let vm = &self.envoys[request.at.envoy].vms[request.at.vm].vm;
        if request.flow.wants_answer(vm) {
            request.answer = Some(head);
            let ((), effects) = self.step(request, |flow, env, _, out| flow.answered(env, head, out));
            self.carry_out(request, effects, Next::Continue);
        }
        let streams = if head.by_engine { self.rng.within(5, 300) } else { 0 };
        self.after(streams, Event::StreamEnds { request: request.id });
    }
}
