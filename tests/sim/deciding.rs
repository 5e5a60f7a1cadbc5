//! One request in an Envoy's filter: decided, dispatched, ended. What happens between dispatch and answer is in `dial.rs`.
//!
//! Mirrors `filter/src/downstream.rs`.

use crate::client::Final;
use crate::faults::Fault;
use crate::planted::Bug;
use crate::request::{Phase, Request, View};
use crate::world::{Event, VmAt, World};
use routing::contract::RouteReply;
use routing::flow::{Counter, Effect, Ending, Env, Ignored, Next, PageChange, RequestFlow, RouteFailure};
use routing::header;

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
        self.say_something(&mut request);
        let patience = self.patience();
        self.after(patience, Event::ClientLeaves { request: id });
        self.stats.requests += 1;
        self.head(request);
    }

    fn head(&mut self, mut request: Request) {
        let now = self.envoy_now(request.at.envoy);
        self.envoys[request.at.envoy].refresh(now, request.at.vm);
        let pinned = self.is_pinned(&request);
        self.look_at_prefill(&mut request);
        let (next, effects) = self.step(&mut request, |flow, env, head, out| flow.head(env, head, out));
        let mut next = self.carry_out(&mut request, effects, next);
        if next == Next::Read {
            if pinned {
                self.violate("a pinned turn reads no body", &format!("{:?}", request.headers));
            }
            if self.body_comes_later(&request) {
                return self.keep(request);
            }
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
                Effect::Page(change) => {
                    self.note_release(request, &change);
                    self.change_page(request.at.envoy, &change);
                }
                Effect::Route { request: body, timeout } => {
                    request.routes += 1;
                    self.question(request, &body);
                    let call = self.new_call();
                    request.call = Some(call);
                    let answer = Err(RouteFailure::Timeout);
                    let timed_out = Event::RouteAnswered { request: request.id, call, life: None, answer };
                    self.after(timeout.0, timed_out);
                    let to = self.envoys[request.at.envoy].replica;
                    self.send_route((to, request.id, call), *body, timeout.0);
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

    fn send_route(
        &mut self,
        (to, request, call): (usize, u64, u64),
        body: routing::contract::RouteRequest,
        deadline: u64,
    ) {
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
        self.after(delay, Event::RouteArrives { to, request, call, body: Box::new(body) });
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
            Ok(reply) => {
                request.loose |= self.is_kv() && request.alias.is_some() && reply.session.is_none();
                self.prefill_told(&mut request, reply);
            }
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
    pub(crate) fn end(&mut self, mut request: Request, ending: Ending) {
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
