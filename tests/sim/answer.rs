//! How an attempt ends in Envoy's router: the engine's head, a refused connection, a retry, the head that goes to the client.

use crate::faults::{Cost, Fault};
use crate::request::{Phase, Request};
use crate::world::{Event, World};
use routing::flow::{AnswerHead, By, EnvoyReason, Next};

/// Seconds after which a busy engine may be asked again.
const RETRY_AFTER: &[u8] = b"2";

pub(crate) const fn by_engine(status: u16) -> AnswerHead {
    AnswerHead { status, by: By::Engine(None) }
}

/// An engine that is there and has no room.
pub(crate) fn busy(status: u16) -> AnswerHead {
    AnswerHead { status, by: By::Engine(Some(RETRY_AFTER.to_vec())) }
}

pub(crate) const fn by_envoy(status: u16, reason: EnvoyReason) -> AnswerHead {
    AnswerHead { status, by: By::Envoy(reason) }
}

fn is_engines(head: &AnswerHead) -> bool {
    matches!(head.by, By::Engine(_))
}

impl World {
    pub(crate) fn refused(&mut self, id: u64, dial: u32) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        if request.dials == dial {
            self.retry_or(&mut request, by_envoy(503, EnvoyReason::Unreached));
        }
        self.keep(request);
    }

    /// The upstream role answers in its host's place. Envoy may take that for an answer it retries.
    pub(crate) fn attempt_refused(&mut self, request: &mut Request, status: u32) {
        self.fired.count(Fault::ExactTargetMissed);
        request.dial = None;
        let head = by_envoy(u16::try_from(status).unwrap(), EnvoyReason::Other);
        if self.rng.per_mille(500) {
            self.retry_or(request, head);
        } else {
            let (id, dial) = (request.id, request.dials);
            self.after(0, Event::Answered { request: id, dial, head });
        }
    }

    pub(crate) fn answered(&mut self, id: u64, dial: u32, head: AnswerHead) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        if request.dials != dial || request.phase != Phase::Waiting {
            return self.keep(request);
        }
        if let By::Engine(retry_after) = &head.by {
            self.upstream_answered(&mut request, head.status, retry_after.as_deref());
        }
        if head.status == 503 && is_engines(&head) {
            self.retry_or(&mut request, head);
        } else {
            self.answer_client(&mut request, head);
        }
        self.keep(request);
    }

    /// The upstream role sees the head of each engine's answer.
    fn upstream_answered(&mut self, request: &mut Request, status: u16, retry_after: Option<&[u8]>) {
        match (status, retry_after) {
            (_, Some(_)) => self.fired.count(Fault::WorkerBusy),
            (500.., None) => self.fired.count(Fault::WorkerAnswered5xx),
            _ => {}
        }
        let now = self.envoy_now(request.at.envoy);
        let vm = &mut self.envoys[request.at.envoy].vms[request.at.vm].vm;
        if let Some(dial) = &mut request.dial {
            dial.attempt.answered(vm, now, status, retry_after);
        }
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
        let engines = is_engines(&head);
        if engines && head.status < 500 {
            request.landed = request.dial.as_ref().map(|d| (self.workers[d.worker].id.clone(), d.rank));
            self.landed(request);
            self.prefill_landed(request);
        } else {
            self.prefill_failed(request);
        }
        request.accepted = engines && head.status < 400;
        let envoy = &self.envoys[request.at.envoy];
        let vm = &envoy.vms[request.at.vm].vm;
        if request.flow.wants_answer(vm, envoy.config.served_header) {
            let asks = request.flow.wants_origin(vm, head.status);
            let head = if asks { head } else { by_engine(head.status) };
            let ((), effects) = self.step(request, |flow, env, _, out| flow.answered(env, &head, out));
            self.carry_out(request, effects, Next::Continue);
        }
        // Its head came: the prefill is done.
        self.prefill_ends(request);
        self.answer_id(request);
        self.first_byte(request);
        let streams = if engines { self.rng.within(5, 300) } else { 0 };
        self.after(streams, Event::StreamEnds { request: request.id, broken: false });
    }
}
