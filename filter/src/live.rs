//! What a flow may look at while one of its callbacks runs: the request, the pages, who answered and what the service said.

use crate::host::{self, abi};
use crate::store;
use routing::config::Module;
use routing::contract::RouteReply;
use routing::flow::{By, EnvoyReason, Head, RouteFailure};
use routing::header::shared;
use routing::pairs::Pairs;
use routing::session::RequestView;

/// Largest route answer read, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// Headers and pages of the running request, read when asked for.
pub(crate) struct Live {
    pub(crate) body_follows: bool,
    headers: Option<Vec<u8>>,
}

/// After the head, few ask.
pub(crate) const LIVE: Live = Live { body_follows: false, headers: None };

impl Live {
    /// At its head a request is asked for a dozen headers: all in one hostcall cost what two of them do.
    pub(crate) fn head(body_follows: bool) -> Self {
        Self { body_follows, headers: host::request_headers() }
    }

    /// In its body, with the headers that its head had.
    pub(crate) const fn body(headers: Option<Vec<u8>>) -> Self {
        Self { body_follows: false, headers }
    }

    /// The headers, for the body.
    pub(crate) fn into_headers(self) -> Option<Vec<u8>> {
        self.headers
    }
}

impl RequestView for Live {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        match &self.headers {
            Some(headers) => Pairs(headers).get(name).map(<[u8]>::to_vec),
            None => host::request_header(name),
        }
    }
}

impl Head for Live {
    fn page(&self, n: u32) -> Option<Vec<u8>> {
        store::page_bytes(n)
    }

    fn next_in_turn(&self, n: u32) -> u64 {
        store::next_number(&shared::cursor(n))
    }

    fn body_follows(&self) -> bool {
        self.body_follows && abi::module() >= Module::Body
    }

    fn body_hidden(&self) -> bool {
        self.body_follows && abi::module() < Module::Body
    }
}

/// Who answered.
pub(crate) fn origin(status: u16) -> By {
    let details = host::property("response\0code_details").unwrap_or_default();
    if details == b"via_upstream" {
        By::Engine(host::retry_after(status))
    } else {
        By::Envoy(EnvoyReason::of_details(&details))
    }
}

pub(crate) fn reply(headers: usize, body: usize) -> Result<RouteReply, RouteFailure> {
    match host::call_status().filter(|_| headers > 0) {
        Some(200) if body <= REPLY_BYTES_MAX => {
            serde_json::from_slice(&host::call_body(body)).map_err(|_| RouteFailure::Malformed)
        }
        // Envoy answers 504 in the service's place when the deadline passes.
        Some(504) => Err(RouteFailure::Timeout),
        _ => Err(RouteFailure::Failed),
    }
}
