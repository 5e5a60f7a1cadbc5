//! The downstream role: one context a request, whose callbacks drive a `RequestFlow`.

use crate::host::abi::{self, Stop};
use crate::roles::Plugin;
use crate::{host, store, vm};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use routing::contract::{REPORT_PATH, ROUTE_PATH, RouteReply};
use routing::flow::{
    AnswerHead, By, Counter, Effect, Ending, Env, EnvoyReason, Head, Next, RequestFlow, RouteFailure,
};
use routing::header::shared;
use routing::session::RequestView;
use routing::time::{Millis, Timestamp};
use std::rc::Rc;

/// Largest route answer read, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;
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
    paused: bool,
    /// When the answer's head came.
    answered: Option<Timestamp>,
}

/// Headers and pages of the running request, read when asked for.
struct Live;

impl RequestView for Live {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        host::request_header(name)
    }
}

impl Head for Live {
    fn page(&self, n: u32) -> Option<Vec<u8>> {
        store::page_bytes(n)
    }

    fn next_in_turn(&self, n: u32) -> u64 {
        store::next_number(&shared::cursor(n))
    }
}

impl Downstream {
    pub(crate) fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        Self { id, plugin, flow: RequestFlow::default(), call: None, paused: false, answered: None }
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
                Effect::SetHeader(name, value) => host::set_request_header(name, &value),
                Effect::SetResponseHeader(name, value) => host::set_response_header(name, &value),
                Effect::RemoveHeader(name) => host::remove_request_header(name),
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
                Effect::Resume if self.paused => host::resume_request(),
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
        let (_, effects) = self.step(|flow, env, out| flow.routed(env, &Live, answer, out));
        self.run(effects, Next::Pause)
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

/// Who answered.
fn origin(status: u16) -> By {
    let details = host::property("response\0code_details").unwrap_or_default();
    if details == b"via_upstream" {
        By::Engine(host::retry_after(status))
    } else {
        By::Envoy(EnvoyReason::of_details(&details))
    }
}

fn reply(headers: usize, body: usize) -> Result<RouteReply, RouteFailure> {
    match host::call_status().filter(|_| headers > 0) {
        Some(200) if body <= REPLY_BYTES_MAX => {
            serde_json::from_slice(&host::call_body(body)).map_err(|_| RouteFailure::Malformed)
        }
        // Envoy answers 504 in the service's place when the deadline passes.
        Some(504) => Err(RouteFailure::Timeout),
        _ => Err(RouteFailure::Failed),
    }
}

impl Context for Downstream {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body: usize, _trailers: usize) {
        // Answers to urgent reports come here too; they say nothing.
        if self.call == Some(token) {
            self.call = None;
            self.routed(reply(headers, body));
        }
    }
}

/// The request is over, however it ended: Envoy deletes its context. (One callback less than `on_done`, which comes just before.)
impl Drop for Downstream {
    fn drop(&mut self) {
        let now = host::now();
        let ending = self.ending(now);
        let mut effects = Vec::new();
        vm::with(|shared| self.flow.ended(&mut shared.vm, now, ending, &mut effects));
        self.run(effects, Next::Continue);
    }
}

impl HttpContext for Downstream {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        #[cfg(feature = "test-trap")]
        if host::request_header(routing::header::TEST_TRAP).is_some() {
            std::process::abort();
        }
        vm::with(vm::Shared::refresh);
        let (next, effects) = self.step(|flow, env, out| flow.head(env, &Live, out));
        match self.run(effects, next.unwrap_or(Next::Continue)) {
            Next::Continue => Action::Continue,
            Next::Pause => {
                self.paused = true;
                abi::stop(Stop::All)
            }
        }
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
        Action::Continue
    }
}
