//! The upstream role: one context an attempt, which knows the host really dialled and sets the rank that belongs to it.

use crate::{host, vm};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use routing::attempt::{Attempt, REMOVED};
use routing::header;

#[derive(Default)]
pub(crate) struct Upstream {
    attempt: Attempt,
}

impl Context for Upstream {}

impl HttpContext for Upstream {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        let note = host::text_property(header::PROPERTY);
        let address = host::text_property("upstream\0address").unwrap_or_default();
        let start = vm::with(|shared| {
            let start = self.attempt.begin(&mut shared.vm, host::now(), note.as_deref(), &address);
            if let Some(counter) = start.count {
                shared.count(counter);
            }
            start
        });
        let start = start.unwrap_or_default();
        if let Some(reply) = &start.refuse {
            host::answer(reply);
            return Action::Pause;
        }
        match start.rank {
            Some(rank) => host::set_request_header(rank.header, &rank.value),
            None => host::remove_request_header(header::VLLM_RANK),
        }
        for name in REMOVED {
            host::remove_request_header(name);
        }
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end: bool) -> Action {
        let status = host::response_status().unwrap_or(0);
        let retry_after = host::retry_after(status);
        let now = host::now();
        vm::with(|shared| self.attempt.answered(&mut shared.vm, now, status, retry_after.as_deref()));
        Action::Continue
    }
}
