//! One request in an Envoy: decided, dialled attempt by attempt, answered, ended.
//!
//! Mirrors `filter/src/{downstream,upstream}.rs` and, for retries and hosts, what the shipped configs ask of Envoy.

use crate::envoy::SharedData;
use crate::faults::{Bug, Cost, Fault};
use crate::worker::Mode;
use crate::world::{Event, VmAt, World};
use routing::attempt::{Attempt, REMOVED};
use routing::config::Steering;
use routing::contract::RouteReply;
use routing::flow::{AnswerHead, Counter, Effect, Env, Head, Next, PageChange, RequestFlow, RouteFailure};
use routing::header;
use routing::id::WorkerId;
use routing::session::RequestView;
use std::collections::BTreeMap;

/// As the shipped `num_retries`.
const RETRIES: u32 = 2;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Deciding,
    Waiting,
    Streaming,
}

/// A dial that may still be answered.
#[derive(Debug)]
struct Dial {
    attempt: Attempt,
    worker: usize,
    rank: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) session: usize,
    pub(crate) at: VmAt,
    pub(crate) phase: Phase,
    flow: RequestFlow,
    headers: BTreeMap<String, String>,
    note: Option<String>,
    call: Option<u64>,
    paused: bool,
    answer: Option<AnswerHead>,
    /// Addresses left to dial, last first.
    targets: Vec<String>,
    tried: Vec<String>,
    retries_left: u32,
    dial: Option<Dial>,
    dials: u32,
    /// Counters of which each request gets one.
    pub(crate) decisions: Vec<Counter>,
    pub(crate) responded: bool,
    pub(crate) routes: u32,
    pub(crate) placed: bool,
    pub(crate) landed: Option<(WorkerId, Option<u32>)>,
}

struct View<'a> {
    headers: &'a BTreeMap<String, String>,
    shared: &'a SharedData,
    blind: bool,
}

impl RequestView for View<'_> {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        self.headers.get(name).map(|value| value.as_bytes().to_vec())
    }
}

impl Head for View<'_> {
    fn page(&self, n: u32) -> Option<Vec<u8>> {
        self.shared.pages.get(n as usize).filter(|_| !self.blind).cloned()
    }
}

impl World {
    pub(crate) fn begin_request(&mut self, session: usize, envoy: usize, vm: usize) {
        let at = VmAt { envoy, vm, life: self.envoys[envoy].vms[vm].life };
        let id = self.new_call();
        let mut request = Request {
            id,
            session,
            at,
            phase: Phase::Deciding,
            flow: RequestFlow::default(),
            headers: BTreeMap::from([(header::VLLM_RANK.to_owned(), "77".to_owned())]),
            note: None,
            call: None,
            paused: false,
            answer: None,
            targets: Vec::new(),
            tried: Vec::new(),
            retries_left: RETRIES,
            dial: None,
            dials: 0,
            decisions: Vec::new(),
            responded: false,
            routes: 0,
            placed: false,
            landed: None,
        };
        if let Some(key) = &self.sessions[session].key {
            request.headers.insert("x-session-id".to_owned(), key.clone());
        }
        let patience = self.patience();
        self.after(patience, Event::ClientLeaves { request: id });
        self.stats.requests += 1;
        self.head(request);
    }

    fn head(&mut self, mut request: Request) {
        self.envoys[request.at.envoy].refresh(request.at.vm);
        let pinned = self.is_pinned(&request);
        let (next, effects) = self.step(&mut request, |flow, env, head, out| flow.head(env, head, out));
        let next = self.carry_out(&mut request, effects, next);
        if pinned && (request.routes > 0 || request.decisions != [Counter::Pinned]) {
            let made = format!("{} calls, {:?}", request.routes, request.decisions);
            self.violate("a pinned turn makes no call", &made);
        }
        match next {
            Next::Continue => self.dispatch(&mut request),
            Next::Pause if request.responded => return self.end(request),
            Next::Pause => request.paused = true,
        }
        self.keep(request);
    }

    /// One step of the flow on its VM's state, as `Downstream::step`.
    fn step<T>(
        &mut self,
        request: &mut Request,
        step: impl FnOnce(&mut RequestFlow, &mut Env<'_>, &View<'_>, &mut Vec<Effect>) -> T,
    ) -> (T, Vec<Effect>) {
        let mut out = Vec::new();
        let blind = self.bug == Some(Bug::SecondVmSeesNoPages) && request.at.vm == 1;
        let envoy = &mut self.envoys[request.at.envoy];
        let view = View { headers: &request.headers, shared: &envoy.shared, blind };
        let vm = &mut envoy.vms[request.at.vm].vm;
        let mut env = Env { config: &envoy.config, vm, now: self.now };
        let result = step(&mut request.flow, &mut env, &view, &mut out);
        (result, out)
    }

    /// Effects in order, as `Downstream::run`.
    fn carry_out(&mut self, request: &mut Request, effects: Vec<Effect>, mut next: Next) -> Next {
        for effect in effects {
            self.note(|| format!("{} {effect:?}", request.id));
            match effect {
                Effect::SetHeader(name, value) => drop(request.headers.insert(name.to_owned(), value)),
                Effect::RemoveHeader(name) => drop(request.headers.remove(name)),
                Effect::Note(text) => request.note = Some(text),
                Effect::Count(counter) => self.count(request, counter),
                Effect::Page(change) => self.change_page(request.at.envoy, &change),
                Effect::Route { request: body, timeout } => {
                    request.routes += 1;
                    let call = self.new_call();
                    request.call = Some(call);
                    let answer = Err(RouteFailure::Timeout);
                    let timed_out = Event::RouteAnswered { request: request.id, call, life: None, answer };
                    self.after(timeout.0, timed_out);
                    self.send_route(request.id, call, body, timeout.0);
                }
                Effect::ReportNow => self.report_now(request.at),
                Effect::Respond(_) => request.responded = true,
                Effect::Resume if request.paused => self.dispatch(request),
                Effect::Resume => next = Next::Continue,
            }
        }
        next
    }

    fn send_route(&mut self, request: u64, call: u64, body: routing::contract::RouteRequest, deadline: u64) {
        let net = self.net();
        if self.rng.per_mille(net.route_lost) {
            return self.fired.count(Fault::RouteLost);
        }
        let late = self.rng.per_mille(net.route_late);
        let delay = if late { self.rng.within(deadline, deadline * 20) } else { self.rng.within(1, 6) };
        if late {
            self.fired.count(Fault::RouteLate);
        }
        self.after(delay, Event::RouteArrives { request, call, body: Box::new(body) });
    }

    fn count(&mut self, request: &mut Request, counter: Counter) {
        *self.stats.counters.entry(counter).or_default() += 1;
        use Counter as C;
        match counter {
            C::KeyTooLong | C::NoTopology | C::NoWorker => request.decisions.push(counter),
            C::Pinned | C::Joined | C::RoutedBound | C::RoutedHeld | C::RoutedUnpinned | C::PlacedAlone => {
                self.placed(request, counter);
            }
            C::SessionHash | C::SessionKeyMissing | C::AffinityOff => self.placed(request, counter),
            C::Committed | C::BreakerOpen | C::RouteFailed(_) => {}
            C::RolledBack => self.cost(request.session, Cost::RolledBack),
            C::UpstreamRoleMissing | C::PlanMissing | C::PageContended | C::Ignored(_) => {
                self.violate("nothing odd is counted", counter.word());
            }
        }
        match counter {
            C::PlacedAlone | C::RouteFailed(_) => self.cost(request.session, Cost::Alone),
            C::NoTopology | C::NoWorker => self.cost(request.session, Cost::Passed),
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
        self.envoys[request.at.envoy].vms[request.at.vm].placed += 1;
    }

    pub(crate) fn change_page(&mut self, envoy: usize, change: &PageChange) {
        let before = self.envoys[envoy].shared.record(change.session());
        let (bytes, bug) = (self.envoys[envoy].config.page_bytes, self.bug);
        self.envoys[envoy].shared.change_page(change, bytes, bug);
        self.check_page(envoy, change, before);
    }

    pub(crate) fn route_answered(
        &mut self,
        id: u64,
        call: u64,
        answer: Result<Box<RouteReply>, RouteFailure>,
    ) {
        if self.requests.get(&id).is_none_or(|request| request.call != Some(call)) {
            return;
        }
        let Some(mut request) = self.requests.remove(&id) else { return };
        request.call = None;
        let answer = answer.map(|reply| *reply);
        let ((), effects) =
            self.step(&mut request, |flow, env, head, out| flow.routed(env, head, answer, out));
        self.carry_out(&mut request, effects, Next::Pause);
        self.keep(request);
    }

    /// Headers go on: Envoy's router takes over.
    fn dispatch(&mut self, request: &mut Request) {
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
            self.to_client(&mut request, head);
        }
        self.keep(request);
    }

    fn retry_or(&mut self, request: &mut Request, head: AnswerHead) {
        if request.retries_left == 0 {
            return self.to_client(request, head);
        }
        request.retries_left -= 1;
        self.cost(request.session, Cost::Retried);
        self.next_attempt(request);
    }

    /// The head that goes down to the client, as `on_http_response_headers`.
    fn to_client(&mut self, request: &mut Request, head: AnswerHead) {
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

    pub(crate) fn stream_ends(&mut self, id: u64) {
        if let Some(request) = self.requests.remove(&id) {
            self.end(request);
        }
    }

    pub(crate) fn client_leaves(&mut self, id: u64) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.count_leaving(request.phase == Phase::Deciding, request.phase == Phase::Streaming);
        if self.bug == Some(Bug::EndsAreLost) {
            return self.over(request);
        }
        self.end(request);
    }

    /// However it came about, as `on_done`.
    fn end(&mut self, mut request: Request) {
        let answer = request.answer;
        let ((), effects) = self.step(&mut request, |flow, env, _, out| flow.ended(env, answer, out));
        self.carry_out(&mut request, effects, Next::Continue);
        self.over(request);
    }

    fn over(&mut self, request: Request) {
        if request.placed {
            self.envoys[request.at.envoy].vms[request.at.vm].placed -= 1;
        }
        self.check_over(&request);
        self.request_over(request.session, request.landed);
    }

    fn keep(&mut self, request: Request) {
        self.requests.insert(request.id, request);
    }
}
