//! The upstream role: one context an attempt, which knows the host really dialled and sets the rank that belongs to it.

use crate::host::abi::{self, Stop};
use crate::{host, vm};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use routing::attempt::{Attempt, Part, REMOVED, Start};
use routing::config::Module;
use routing::flow::LocalReply;
use routing::header::{self, http, root};
use routing::time::Millis;

/// For a body with trailers that shall be rewritten: the ABI lets nobody put it back once its last part is behind us.
const TRAILERS: &str = r#"{"error":{"message":"a request body with trailers cannot be served here","type":"invalid_request_error","param":null,"code":"trailers_not_supported"}}"#;

/// An attempt whose body has not begun to come by then goes on without a rank.
const BODY_WAIT: Millis = Millis(1000);

pub(crate) struct Upstream {
    id: u32,
    attempt: Attempt,
    /// The head waits for the body, which shall get the rank. What came of it is here, and nowhere else.
    taken: Option<Vec<u8>>,
}

impl Upstream {
    pub(crate) fn new(id: u32) -> Self {
        Self { id, attempt: Attempt::default(), taken: None }
    }

    fn begin(&mut self) -> Start {
        let note = host::text_property(header::PROPERTY);
        let address = host::text_property("upstream\0address").unwrap_or_default();
        let start = vm::with(|shared| {
            let start = self.attempt.begin(&mut shared.vm, host::now(), note.as_deref(), &address);
            start.count.into_iter().for_each(|counter| shared.count(counter));
            start
        });
        start.unwrap_or_default()
    }

    /// The head waits for its body, if this module and this Envoy can show it; else the rank is not told.
    fn wait(&mut self) -> bool {
        let waits = abi::module() >= Module::Body
            && vm::with(|shared| shared.attempts.begin(self.id, host::now(), BODY_WAIT)) == Some(true);
        if waits {
            self.taken = Some(Vec::new());
        } else {
            self.part(usize::MAX, false);
        }
        waits
    }

    fn part(&mut self, held: usize, end: bool) -> Part {
        let part = vm::with(|shared| {
            let part = self.attempt.part(&mut shared.vm, held, end);
            if let Part::Go(Some(counter)) = part {
                shared.count(counter);
            }
            part
        });
        part.unwrap_or(Part::Go(None))
    }

    /// What the engine gets of a body that is whole.
    fn rewritten(&mut self, whole: Vec<u8>) -> Vec<u8> {
        let new = vm::with(|shared| self.attempt.body(&mut shared.vm, &whole));
        match new {
            Some(Ok(new)) => {
                host::set_request_header(http::CONTENT_LENGTH, &new.len().to_string());
                new
            }
            Some(Err(counter)) => {
                vm::with(|shared| shared.count(counter));
                whole
            }
            None => whole,
        }
    }
}

impl Context for Upstream {
    /// The guard's knock ([`abi::knock`]): nothing of the body came.
    fn on_foreign_function(&mut self, _function: u32, _size: usize) {
        if self.taken.take().is_some() {
            vm::with(|shared| {
                shared.attempts.end(self.id);
                vm::rescued(&mut shared.attempts, root::UPSTREAM);
            });
            self.part(usize::MAX, false);
            host::resume_request();
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if self.taken.is_some() {
            vm::with(|shared| shared.attempts.end(self.id));
        }
    }
}

impl HttpContext for Upstream {
    fn on_http_request_headers(&mut self, _headers: usize, end: bool) -> Action {
        let start = self.begin();
        if let Some(reply) = &start.refuse {
            host::answer(reply);
            return abi::stop(Stop::All);
        }
        match &start.rank {
            Some(rank) => host::set_request_header(rank.header, &rank.value),
            None => host::remove_request_header(header::VLLM_RANK),
        }
        if let Some(bytes) = start.content_length {
            host::set_request_header(http::CONTENT_LENGTH, &bytes.to_string());
        }
        for name in REMOVED {
            host::remove_request_header(name);
        }
        match start.wants_body {
            true if !end && self.wait() => abi::stop(Stop::UntilBody),
            // There is no body: counted as one that cannot be rewritten.
            true if end => {
                self.rewritten(Vec::new());
                Action::Continue
            }
            _ => Action::Continue,
        }
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let Some(mut whole) = self.taken.take() else { return Action::Continue };
        if whole.is_empty() {
            vm::with(|shared| {
                shared.attempts.end(self.id);
                shared.attempts.saw_body(self.id, host::now());
            });
        }
        whole.extend(host::body::request(size));
        let part = self.part(whole.len(), end);
        if part == Part::Wait {
            self.taken = Some(whole);
            host::body::replace_request(&[]);
            return abi::stop(Stop::Taken);
        }
        let new = if part == Part::Read { self.rewritten(whole) } else { whole };
        host::body::replace_request(&new);
        Action::Continue
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        if self.taken.is_none() {
            return Action::Continue;
        }
        host::answer(&LocalReply { status: 400, retry_after_s: None, body: TRAILERS.to_owned() });
        Action::Pause
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end: bool) -> Action {
        let status = host::response_status().unwrap_or(0);
        let retry_after = host::retry_after(status);
        let now = host::now();
        vm::with(|shared| self.attempt.answered(&mut shared.vm, now, status, retry_after.as_deref()));
        Action::Continue
    }
}
