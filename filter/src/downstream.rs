//! The downstream role: one context a request, whose callbacks drive a `RequestFlow`.

use crate::host::abi::{self, Stop};
use crate::live::{LIVE, Live, origin, reply};
use crate::roles::Plugin;
use crate::{host, store, vm};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use routing::contract::{REPORT_PATH, ROUTE_PATH, RouteReply};
use routing::flow::{AnswerHead, By, Counter, Effect, Ending, Env, Next, RequestFlow, RouteFailure};
use routing::header::root;
use routing::time::{Millis, Timestamp};
use std::rc::Rc;

/// An urgent report is given up after this long; the regular one repeats it.
const URGENT_TIMEOUT: Millis = Millis(1000);
/// A stream that ends sooner after its answer's head is not asked how it ended: that costs a hostcall, and so short an answer
/// tells of a broken worker with the next one as well.
const ENDING_ASKED_AFTER: Millis = Millis(50);
/// Envoy's word for an answer that broke off.
const BROKEN: &[u8] = b"upstream_reset_after_response_started";

pub(crate) struct Downstream {
    id: u32,
    plugin: Rc<Plugin>,
    flow: RequestFlow,
    call: Option<u32>,
    hold: Hold,
    /// The answer's body is of use.
    wants_answer_body: bool,
    /// When the answer's head came.
    answered: Option<Timestamp>,
    /// Its headers, while its body is being read.
    headers: Option<Vec<u8>>,
}

/// What holds the request back. Nothing, while one of its callbacks runs: there the callback's answer stops it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Nothing,
    /// Its body is being read; it is among the VM's [`routing::waits::Waits`].
    Body,
    /// It waits for the service, or was answered.
    Decision,
}

impl Downstream {
    pub(crate) fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        Self {
            id,
            plugin,
            flow: RequestFlow::default(),
            call: None,
            hold: Hold::Nothing,
            wants_answer_body: false,
            answered: None,
            headers: None,
        }
    }

    /// One step of the flow, on this VM's state.
    fn step<T>(
        &mut self,
        step: impl FnOnce(&mut RequestFlow, &mut Env<'_>, &mut Vec<Effect>) -> T,
    ) -> (Option<T>, Vec<Effect>) {
        let mut out = Vec::new();
        let now = host::now();
        let result = vm::with(|shared| {
            let mut env = Env { config: &self.plugin.config, vm: &mut shared.vm, now };
            step(&mut self.flow, &mut env, &mut out)
        });
        (result, out)
    }

    /// Turns effects into hostcalls, in order. Says whether the request may go on.
    fn run(&mut self, effects: Vec<Effect>, mut next: Next) -> Next {
        for effect in effects {
            match effect {
                Effect::SetHeader(name, value) => host::set_request_header(&name, &value),
                Effect::SetResponseHeader(name, value) => host::set_response_header(name, &value),
                Effect::RemoveHeader(name) => host::remove_request_header(&name),
                Effect::Note(text) => host::set_property(routing::header::PROPERTY, &text),
                Effect::Count(counter) => {
                    vm::with(|shared| shared.count(counter));
                }
                Effect::Page(change) => {
                    let pages = (self.plugin.config.page_count, self.plugin.config.page_bytes);
                    if !store::change_page(&change, pages) {
                        vm::with(|shared| shared.count(Counter::PageContended));
                    }
                }
                Effect::Route { request, timeout } => {
                    let body = serde_json::to_vec(&request).unwrap_or_default();
                    self.call = self.plugin.call("POST", ROUTE_PATH, Some(&body), timeout);
                    if self.call.is_none() {
                        next = self.routed(Err(RouteFailure::Failed));
                    }
                }
                Effect::ReportNow => self.report_now(),
                Effect::Respond(reply) => host::answer(&reply),
                Effect::Resume => next = Next::Continue,
            }
        }
        next
    }

    fn ending(&self, now: Timestamp) -> Ending {
        let long = self.answered.is_some_and(|at| now.since(at) >= ENDING_ASKED_AFTER);
        let details = long.then(|| host::property("response\0code_details")).flatten();
        if details.is_some_and(|d| d.starts_with(BROKEN)) { Ending::BrokenStream } else { Ending::Plain }
    }

    fn routed(&mut self, answer: Result<RouteReply, RouteFailure>) -> Next {
        let (_, effects) = self.step(|flow, env, out| flow.routed(env, &LIVE, answer, out));
        self.run(effects, Next::Pause)
    }

    /// The body of a request that wants it, as far as it came.
    fn body(&mut self, chunk: &[u8], end: bool) -> Next {
        vm::with(|shared| shared.waits.saw_body(self.id, host::now()));
        let live = Live::body(self.headers.take());
        let (next, effects) = self.step(|flow, env, out| flow.body(env, &live, chunk, end, out));
        if next == Some(Next::Read) {
            self.headers = live.into_headers();
        }
        self.run(effects, next.unwrap_or(Next::Continue))
    }

    /// Its body does not come, or must not be waited for.
    fn body_missing(&mut self) -> Next {
        let live = Live::body(self.headers.take());
        let (next, effects) = self.step(|flow, env, out| flow.body_missing(env, &live, out));
        self.run(effects, next.unwrap_or(Next::Continue))
    }

    fn may_wait(&self) -> bool {
        let limit = self.plugin.config.body_wait;
        vm::with(|shared| shared.waits.begin(self.id, host::now(), limit)) == Some(true)
    }

    /// Notes what holds the request back from now on, and says whether something does.
    fn held(&mut self, next: Next) -> bool {
        let before = self.hold;
        self.hold = match next {
            Next::Continue => Hold::Nothing,
            Next::Read => Hold::Body,
            Next::Pause => Hold::Decision,
        };
        if before == Hold::Body && self.hold != Hold::Body {
            vm::with(|shared| shared.waits.end(self.id));
        }
        self.hold != Hold::Nothing
    }

    /// Outside its callbacks, a request goes on only when told.
    fn held_or_resumed(&mut self, next: Next) {
        if !self.held(next) {
            host::resume_request();
        }
    }

    fn report_now(&self) {
        let report = vm::with(|shared| {
            let in_flight = shared.vm.loads.absolute(shared.vm.directory.as_ref());
            let caller = shared.vm.caller.clone();
            shared.may_send_urgent().then(|| shared.vm.reports.urgent(&caller, in_flight)).flatten()
        });
        if let Some(body) = report.flatten().and_then(|report| serde_json::to_vec(&report).ok()) {
            self.plugin.call_as_root(self.id, REPORT_PATH, &body, URGENT_TIMEOUT);
        }
    }
}

impl Context for Downstream {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body: usize, _trailers: usize) {
        // Answers to urgent reports come here too; they say nothing.
        if self.call == Some(token) {
            self.call = None;
            let next = self.routed(reply(headers, body));
            self.held_or_resumed(next);
        }
    }

    /// The guard's knock ([`abi::knock`]): the body is not waited for any longer.
    fn on_foreign_function(&mut self, _function: u32, _size: usize) {
        if self.hold == Hold::Body {
            vm::with(|shared| vm::rescued(&mut shared.waits, root::DOWNSTREAM));
            let next = self.body_missing();
            self.held_or_resumed(next);
        }
    }
}

/// The request is over, however it ended: Envoy deletes its context. (One callback less than `on_done`, which comes just before.)
impl Drop for Downstream {
    fn drop(&mut self) {
        self.held(Next::Continue);
        let now = host::now();
        let ending = self.ending(now);
        let mut effects = Vec::new();
        vm::with(|shared| self.flow.ended(&mut shared.vm, now, ending, &mut effects));
        self.run(effects, Next::Continue);
    }
}

impl HttpContext for Downstream {
    fn on_http_request_headers(&mut self, _headers: usize, end: bool) -> Action {
        #[cfg(feature = "test-trap")]
        if host::request_header(routing::header::TEST_TRAP).is_some() {
            std::process::abort();
        }
        vm::with(vm::Shared::refresh);
        let live = Live::head(!end);
        let (next, effects) = self.step(|flow, env, out| flow.head(env, &live, out));
        let mut next = self.run(effects, next.unwrap_or(Next::Continue));
        if next == Next::Read {
            self.headers = live.into_headers();
        }
        if next == Next::Read && !self.may_wait() {
            next = self.body_missing();
        }
        match self.held(next) {
            true if next == Next::Read => abi::stop(Stop::UntilBody),
            true => abi::stop(Stop::All),
            false => Action::Continue,
        }
    }

    /// Parts that come after the request went on pass unseen: its headers are no longer ours.
    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let next = match self.hold {
            Hold::Nothing => return Action::Continue,
            Hold::Decision => return abi::stop(Stop::Held),
            Hold::Body => self.body(&host::body::request(size), end),
        };
        if self.held(next) { abi::stop(Stop::Held) } else { Action::Continue }
    }

    /// Trailers end a body that did not say it was the last of it.
    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        let next = match self.hold {
            Hold::Nothing => return Action::Continue,
            Hold::Decision => return Action::Pause,
            Hold::Body => self.body(&[], true),
        };
        if self.held(next) { Action::Pause } else { Action::Continue }
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end: bool) -> Action {
        self.answered = Some(host::now());
        let tells = self.plugin.config.served_header;
        if vm::with(|shared| self.flow.wants_answer(&shared.vm, tells)) == Some(true) {
            let status = host::response_status().unwrap_or(0);
            let asks = vm::with(|shared| self.flow.wants_origin(&shared.vm, status)) == Some(true);
            let by = if asks { origin(status) } else { By::Engine(None) };
            let head = AnswerHead { status, by };
            let (_, effects) = self.step(|flow, env, out| flow.answered(env, &head, out));
            self.run(effects, Next::Continue);
        }
        self.wants_answer_body = self.flow.wants_response_body();
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        if self.wants_answer_body {
            let part = host::body::response(size);
            let (_, effects) = self.step(|flow, env, out| flow.response_body(env, &part, end, out));
            self.run(effects, Next::Continue);
            self.wants_answer_body = self.flow.wants_response_body();
        }
        Action::Continue
    }
}
