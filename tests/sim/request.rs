//! One request in an Envoy: decided, dispatched, ended. What happens between dispatch and answer is in `dial.rs`.
//!
//! Mirrors `filter/src/{downstream,upstream}.rs` and, for retries and hosts, what the shipped configs ask of Envoy.

use crate::asks::Demand;
use crate::client::Final;
use crate::envoy::SharedData;
use crate::faults::{Bug, Fault};
use crate::world::{Event, VmAt, World};
use routing::attempt::Attempt;
use routing::contract::RouteReply;
use routing::flow::{
    Counter, Effect, Ending, Env, Head, Ignored, Next, PageChange, RequestFlow, RouteFailure,
};
use routing::header;
use routing::id::{SessionId, WorkerId};
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
pub(crate) struct Dial {
    pub(crate) attempt: Attempt,
    pub(crate) worker: usize,
    pub(crate) rank: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) session: usize,
    pub(crate) at: VmAt,
    pub(crate) phase: Phase,
    pub(crate) flow: RequestFlow,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) note: Option<String>,
    pub(crate) call: Option<u64>,
    pub(crate) paused: bool,
    /// An engine answered below 400.
    pub(crate) accepted: bool,
    /// Addresses left to dial, last first.
    pub(crate) targets: Vec<String>,
    pub(crate) tried: Vec<String>,
    pub(crate) retries_left: u32,
    pub(crate) dial: Option<Dial>,
    pub(crate) dials: u32,
    /// Counters of which each request gets one.
    pub(crate) decisions: Vec<Counter>,
    /// The target its caller named.
    pub(crate) named: Option<(WorkerId, Option<u32>)>,
    pub(crate) responded: bool,
    pub(crate) routes: u32,
    /// Topologies its VM had seen when it was placed.
    pub(crate) topologies: u64,
    /// Sent to a host or cluster that Envoy does not know yet.
    pub(crate) outran: bool,
    /// Its slot was busy or unreachable: served elsewhere this once.
    pub(crate) spilled: bool,
    pub(crate) placed: bool,
    pub(crate) landed: Option<(WorkerId, Option<u32>)>,
    pub(crate) demand: Option<Demand>,
    /// Only what would become of it is asked.
    pub(crate) dry: bool,
    /// It names a pool that is not there.
    pub(crate) lost: bool,
    /// What names the answer it hangs on.
    pub(crate) alias: Option<SessionId>,
    /// This Envoy knew whose answer that is when the request came.
    pub(crate) alias_known: bool,
    /// It asks for a stored answer.
    pub(crate) fetches: bool,
    pub(crate) body: Option<Vec<u8>>,
    /// Its body did not come in time.
    pub(crate) bodiless: bool,
    /// Who prefills it, and on which rank.
    pub(crate) prefill: Option<(usize, Option<u32>)>,
    /// That half may be anywhere this once.
    pub(crate) prefill_loose: bool,
    /// That half counts as load.
    pub(crate) prefilling: bool,
}

impl Request {
    /// Nobody knows its session.
    pub(crate) fn is_keyless(&self) -> bool {
        self.decisions == [Counter::SessionKeyMissing]
    }

    fn new(id: u64, session: usize, at: VmAt) -> Self {
        Self {
            id,
            session,
            at,
            phase: Phase::Deciding,
            flow: RequestFlow::default(),
            headers: BTreeMap::from([(header::VLLM_RANK.to_owned(), "77".to_owned())]),
            note: None,
            call: None,
            paused: false,
            accepted: false,
            targets: Vec::new(),
            tried: Vec::new(),
            retries_left: RETRIES,
            dial: None,
            dials: 0,
            decisions: Vec::new(),
            named: None,
            responded: false,
            routes: 0,
            topologies: 0,
            outran: false,
            spilled: false,
            placed: false,
            landed: None,
            demand: None,
            dry: false,
            lost: false,
            alias: None,
            alias_known: false,
            fetches: false,
            body: None,
            bodiless: false,
            prefill: None,
            prefill_loose: false,
            prefilling: false,
        }
    }
}

pub(crate) struct View<'a> {
    headers: &'a BTreeMap<String, String>,
    shared: &'a SharedData,
    blind: bool,
    body: bool,
}

impl RequestView for View<'_> {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        let own = self.headers.get(name).map(String::as_str);
        let text = own.or(match name {
            header::http::METHOD => Some("POST"),
            header::http::PATH => Some("/v1/chat/completions"),
            _ => None,
        });
        text.map(|text| text.as_bytes().to_vec())
    }
}

impl Head for View<'_> {
    fn page(&self, n: u32) -> Option<Vec<u8>> {
        self.shared.pages.get(n as usize).filter(|_| !self.blind).cloned()
    }

    fn next_in_turn(&self, n: u32) -> u64 {
        let turn = &self.shared.turns[n as usize];
        turn.set(turn.get() + 1);
        turn.get()
    }

    fn body_follows(&self) -> bool {
        self.body
    }
}

impl World {
    pub(crate) fn begin_request(&mut self, session: usize, envoy: usize, vm: usize) {
        let at = VmAt { envoy, vm, life: self.envoys[envoy].vms[vm].life };
        let id = self.new_call();
        let mut request = Request::new(id, session, at);
        if let Some(key) = &self.sessions[session].key {
            request.headers.insert("x-session-id".to_owned(), key.clone());
        }
        self.name_target(&mut request);
        self.ask(&mut request);
        self.hang_on(&mut request);
        let patience = self.patience();
        self.after(patience, Event::ClientLeaves { request: id });
        self.stats.requests += 1;
        self.head(request);
    }

    fn head(&mut self, mut request: Request) {
        self.envoys[request.at.envoy].refresh(request.at.vm);
        let pinned = self.is_pinned(&request);
        self.look_at_prefill(&mut request);
        let (next, effects) = self.step(&mut request, |flow, env, head, out| flow.head(env, head, out));
        let mut next = self.carry_out(&mut request, effects, next);
        if next == Next::Read {
            next = self.read_body(&mut request);
        }
        self.check_pinned(&request, pinned);
        match next {
            Next::Continue => self.dispatch(&mut request),
            Next::Pause if request.responded => return self.end(request, Ending::Plain),
            Next::Pause => request.paused = true,
            Next::Read => self.violate("a body is read to its end", "it is not"),
        }
        self.keep(request);
    }

    /// One step of the flow on its VM's state, as `Downstream::step`.
    pub(crate) fn step<T>(
        &mut self,
        request: &mut Request,
        step: impl FnOnce(&mut RequestFlow, &mut Env<'_>, &View<'_>, &mut Vec<Effect>) -> T,
    ) -> (T, Vec<Effect>) {
        let mut out = Vec::new();
        let now = self.envoy_now(request.at.envoy);
        let blind = self.bug == Some(Bug::SecondVmSeesNoPages) && request.at.vm == 1;
        let envoy = &mut self.envoys[request.at.envoy];
        let view =
            View { headers: &request.headers, shared: &envoy.shared, blind, body: request.body.is_some() };
        let vm = &mut envoy.vms[request.at.vm].vm;
        let mut env = Env { config: &envoy.config, vm, now };
        let result = step(&mut request.flow, &mut env, &view, &mut out);
        (result, out)
    }

    /// Effects in order, as `Downstream::run`.
    pub(crate) fn carry_out(&mut self, request: &mut Request, effects: Vec<Effect>, mut next: Next) -> Next {
        for effect in effects {
            self.note(|| format!("{} {effect:?}", request.id));
            self.learn_session(request, &effect);
            match effect {
                Effect::SetHeader(name, value) if name == header::PREFILL_HOST_PORT => {
                    request.headers.insert(name.into_owned(), value);
                    self.prefill_begins(request);
                }
                Effect::SetHeader(name, value) => drop(request.headers.insert(name.into_owned(), value)),
                Effect::RemoveHeader(name) => drop(request.headers.remove(&*name)),
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
                    self.send_route(request.id, call, *body, timeout.0);
                }
                Effect::SetResponseHeader(name, value) => self.check_told(request, name, &value),
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
        // What may wait for its slot may wait long, and be on its way as short as any other.
        let deadline = deadline.min(30);
        let delay = if late { self.rng.within(deadline, deadline * 20) } else { self.rng.within(1, 6) };
        if late {
            self.fired.count(Fault::RouteLate);
        }
        self.after(delay, Event::RouteArrives { request, call, body: Box::new(body) });
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
        let Some(mut request) = self.requests.remove(&id) else { return };
        let answer = answer.map(|reply| *reply);
        if request.call != Some(call) {
            self.stray_reply(&mut request, answer);
            return self.keep(request);
        }
        request.call = None;
        match &answer {
            Ok(reply) => self.prefill_told(&mut request, reply),
            Err(_) => self.stops_waiting(id),
        }
        self.look_at_prefill(&mut request);
        let ((), effects) =
            self.step(&mut request, |flow, env, head, out| flow.routed(env, head, answer, out));
        self.carry_out(&mut request, effects, Next::Pause);
        if request.responded {
            return self.end(request, Ending::Plain);
        }
        self.keep(request);
    }

    /// A second reply, or one after the deadline: Envoy drops most of them, and the flow must bear the rest.
    fn stray_reply(&mut self, request: &mut Request, answer: Result<RouteReply, RouteFailure>) {
        if request.call.is_some() {
            return;
        }
        if answer.is_ok() {
            self.fired.count(Fault::RouteReplyStray);
        }
        let ((), effects) = self.step(request, |flow, env, head, out| flow.routed(env, head, answer, out));
        if !matches!(effects[..], [Effect::Count(Counter::Ignored(Ignored::LateRoute))]) {
            self.violate("a stray reply changes nothing", &format!("{effects:?}"));
        }
    }

    /// Not asked of an answer that just began, as in the filter.
    pub(crate) fn stream_ends(&mut self, id: u64, broken: bool) {
        if let Some(request) = self.requests.remove(&id) {
            let ending = if broken { Ending::BrokenStream } else { Ending::Plain };
            self.end(request, ending);
        }
    }

    pub(crate) fn client_leaves(&mut self, id: u64) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.stops_waiting(id);
        if request.phase == Phase::Deciding {
            self.leak_prefill(&request);
        }
        self.count_leaving(request.phase == Phase::Deciding, request.phase == Phase::Streaming);
        if self.bug == Some(Bug::EndsAreLost) {
            return self.over(request);
        }
        self.end(request, Ending::Plain);
    }

    /// However it came about, as `on_done`.
    fn end(&mut self, mut request: Request, ending: Ending) {
        let ((), effects) =
            self.step(&mut request, |flow, env, _, out| flow.ended(env.vm, env.now, ending, out));
        self.carry_out(&mut request, effects, Next::Continue);
        self.over(request);
    }

    fn over(&mut self, mut request: Request) {
        self.prefill_ends(&mut request);
        if request.placed {
            self.envoys[request.at.envoy].vms[request.at.vm].placed -= 1;
        }
        self.check_over(&request);
        if self.in_finals && request.decisions == [Counter::OverloadRefused] {
            return self.final_refused(request.session, request.at.envoy);
        }
        let spilled = request.spilled || request.is_keyless();
        let outcome = request.landed.map(|at| if spilled { Final::Elsewhere } else { Final::Served(at) });
        self.request_over(request.session, outcome.unwrap_or(Final::Unserved));
    }

    pub(crate) fn keep(&mut self, request: Request) {
        self.requests.insert(request.id, request);
    }
}
