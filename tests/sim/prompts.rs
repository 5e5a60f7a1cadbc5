//! Pools that go by what engines cache: requests bring their prompts, and each question of theirs is followed by its ending.
//!
//! Prompts are compared as text (`approximate`), so that no engine has to tell what it caches.

use crate::faults::{Cost, Fault};
use crate::plan::POOL;
use crate::planted::Bug;
use crate::request::Request;
use crate::world::{Event, World};
use routing::block::{Chain, Namespace};
use routing::contract::{Entry, Policy, Prompt, Report, RouteRequest};
use routing::flow::{Ending, Next};
use routing::header;
use routing::id::{Epoch, RequestId};
use state_service::tokenize::approximate;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a block of text.
const BLOCK: u32 = 16;

/// A question, by the life of its VM and its number.
type Question = (Epoch, RequestId);

/// What was asked about prompts, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The request of each question; none for a prefill half, which may be over before its request.
    questions: BTreeMap<Question, Option<u64>>,
    over: BTreeSet<Question>,
}

impl World {
    pub(crate) fn is_kv(&self) -> bool {
        self.plan.policy == Policy::KvAware
    }

    /// Whether a pool looks for prompts: of two the second only knows how long they are.
    pub(crate) fn reads_prompts(&self, pool: &str) -> bool {
        self.is_kv() && pool == POOL
    }

    /// A conversation repeats what was said so far; those of one kind begin alike.
    pub(crate) fn say_something(&mut self, request: &mut Request) {
        if !self.is_kv() || request.body.is_some() || request.fetches || self.rng.per_mille(60) {
            return;
        }
        let session = &self.sessions[request.session];
        let said = usize::try_from(self.plan.turns - session.turns_left).unwrap_or(0);
        let begin = format!("system {} ", request.session % 3).repeat(20);
        let rest = format!("é {} and so on ", request.session).repeat(1 + said * 8);
        let body =
            serde_json::json!({"model": "m", "messages": [{"role": "user", "content": begin + &rest}]});
        request.body = Some(body.to_string().into_bytes());
        if self.rng.per_mille(40) {
            request.headers.insert(header::http::CONTENT_TYPE.to_owned(), "text/plain".to_owned());
        }
    }

    /// Some bodies take their time; much may happen meanwhile.
    pub(crate) fn body_comes_later(&mut self, request: &Request) -> bool {
        if !self.is_kv() || !self.rng.per_mille(400) {
            return false;
        }
        let delay = self.rng.within(1, 60);
        self.after(delay, Event::BodyComes { request: request.id });
        true
    }

    pub(crate) fn body_comes(&mut self, id: u64) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        let shared = &self.envoys[request.at.envoy].shared;
        let page = request.alias.and_then(|alias| shared.record(alias));
        request.alias_known = page.is_some_and(|record| record.aliased().is_some());
        self.look_at_prefill(&mut request);
        match self.read_body(&mut request) {
            Next::Continue => self.dispatch(&mut request),
            Next::Pause if request.responded => return self.end(request, Ending::Plain),
            Next::Pause => request.paused = true,
            Next::Read => self.violate("a body is read to its end", "it is not"),
        }
        self.keep(request);
    }

    /// What a question says, and whose it is.
    pub(crate) fn question(&mut self, request: &mut Request, body: &RouteRequest) {
        if !self.is_kv() {
            return;
        }
        request.loose = body.session.is_none() && body.alias.is_none();
        let reads = self.reads_prompts(body.pool.as_str());
        let whole = request.body.clone().unwrap_or_default();
        let sent = body.prompt.as_deref();
        let honest = match sent {
            None => true,
            Some(Prompt::Text { body, whole: all, .. }) => reads && *all && body.as_bytes() == whole,
            Some(_) => false,
        };
        if !honest {
            self.violate("a prompt is what its client sent", &format!("{sent:?}"));
        }
        if sent.is_some() {
            self.fired.count(Fault::PromptSent);
        }
        if body.dry_run {
            return;
        }
        let vm = body.caller.vm;
        let half = body.prefill.as_ref().map(|half| ((vm, half.request), None));
        for (question, request) in [((vm, body.request), Some(request.id))].into_iter().chain(half) {
            if self.asked.questions.insert(question, request).is_some() {
                self.violate("a question is asked once", &format!("{question:?}"));
            }
        }
    }

    /// What the service makes of a prompt: blocks of text.
    pub(crate) fn blocks_of(&self, request: &RouteRequest) -> Option<Box<Chain>> {
        let Some(Prompt::Text { body, .. }) = request.prompt.as_deref() else { return None };
        Some(Box::new(approximate::chain(body, Namespace::default(), BLOCK)))
    }

    /// The answer's body begins, for those that watch it.
    pub(crate) fn first_byte(&mut self, request: &mut Request) {
        if !request.flow.wants_response_body() || self.sessions[request.session].chain.is_some() {
            return;
        }
        let step = self.step(request, |flow, env, _, out| flow.response_body(env, b"x", false, out));
        self.carry_out(request, step.1, Next::Continue);
        if request.flow.wants_response_body() {
            self.violate("an answer is watched until its first byte", "and further");
        }
    }

    /// What a report that arrives says of questions.
    pub(crate) fn endings_told(&mut self, report: &mut Report) {
        if self.bug == Some(Bug::EndingsAreNotTold) {
            report.entries.retain(|entry| !matches!(entry, Entry::Ended { .. }));
        }
        let mut found = None;
        for entry in &report.entries {
            match entry {
                Entry::Ended { request } => {
                    let question = (report.caller.vm, *request);
                    match self.asked.questions.get(&question) {
                        None => found = Some(("an ending has its question", question)),
                        Some(Some(open)) if self.requests.contains_key(open) => {
                            found = Some(("what goes on is not over", question));
                        }
                        Some(_) => drop(self.asked.over.insert(question)),
                    }
                }
                Entry::Prefilled { request } => {
                    self.fired.count(Fault::FirstByteTold);
                    let question = (report.caller.vm, *request);
                    if !self.asked.questions.contains_key(&question) {
                        found = Some(("an ending has its question", question));
                    }
                }
                _ => {}
            }
        }
        if let Some((invariant, question)) = found {
            self.violate(invariant, &format!("{question:?}"));
        }
    }

    /// Once quiet: every question of a living VM had its ending, and nothing is counted for what is over.
    pub(crate) fn check_endings(&mut self) {
        let alive: BTreeSet<Epoch> =
            self.envoys.iter().flat_map(|envoy| &envoy.vms).map(|cell| cell.vm.caller.vm).collect();
        let untold =
            |question: &&Question| alive.contains(&question.0) && !self.asked.over.contains(question);
        if let Some(question) = self.asked.questions.keys().find(untold).copied() {
            self.violate("every question has its ending", &format!("{question:?}"));
        }
        let booked: usize = self.replicas().map(|service| service.state.kv_booked()[0]).sum();
        // Whoever forgets which ends came first takes a late question for a new one.
        let forgot = self.fired.of(Fault::ServiceRestarted) + self.fired.of(Fault::ServiceClockLeapt) > 0;
        if booked > 0 && !forgot {
            self.violate("nothing is counted for what is over", &format!("{booked} bookings"));
        }
        let kept = self.envoys.iter().flat_map(|envoy| &envoy.vms).map(|cell| cell.vm.prompts.bytes());
        let kept: usize = kept.sum();
        if kept > 0 {
            self.violate("no prompt is kept of what is over", &format!("{kept} bytes"));
        }
    }

    /// The answer about a response id that nobody knows is where its request goes.
    pub(crate) fn is_nobodys(&mut self, request: &Request) {
        self.fired.count(Fault::ResponseIdUnknown);
        self.cost(request.session, Cost::ChainBroken);
    }
}
