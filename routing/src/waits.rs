//! The requests of one VM that wait for their bodies: bounded, and none waits for ever.
//!
//! Envoy shows a paused request's body only where `allow_on_headers_stop_iteration` is on. One that never came, and no other that did,
//! is enough to give up waiting, but for a try now and then. Knows no request, only numbers of contexts.

use crate::time::{Millis, Timestamp};
use std::collections::VecDeque;

/// Most requests that wait at once; one more is decided without its body.
pub const WAITS_MAX: usize = 1024;
/// While waiting is given up, the first of so many requests that waits all the same: it may have been one sender that stood still.
const TRY_FIRST: u32 = 8;
/// From then on one in so many does.
const TRY_EVERY: u32 = 256;

/// A body that keeps coming may take so many times as long as one that does not come.
const SLOWEST: u64 = 30;

/// One request.
#[derive(Debug)]
struct Wait {
    id: u32,
    since: Timestamp,
    /// When its last part came.
    heard: Timestamp,
    limit: Millis,
}

/// Who waits, the longest first.
#[derive(Debug, Default)]
pub struct Waits {
    waiting: VecDeque<Wait>,
    /// A body was seen in this VM.
    seen: bool,
    /// One was let go before any body was seen.
    stood_still: bool,
    refused: u32,
}

impl Waits {
    /// A request wants to wait for its body, this long. `false`: it must not.
    pub fn begin(&mut self, id: u32, now: Timestamp, limit: Millis) -> bool {
        if self.hopeless() {
            self.refused = self.refused.wrapping_add(1);
            if self.refused != TRY_FIRST && !self.refused.is_multiple_of(TRY_EVERY) {
                return false;
            }
        }
        let room = self.waiting.len() < WAITS_MAX;
        if room {
            self.waiting.push_back(Wait { id, since: now, heard: now, limit });
        }
        room
    }

    /// A part of a waited-for body came: Envoy shows bodies, and this one is on its way.
    pub fn saw_body(&mut self, id: u32, now: Timestamp) {
        self.seen = true;
        if let Some(wait) = self.waiting.iter_mut().rev().find(|wait| wait.id == id) {
            wait.heard = now;
        }
    }

    /// It waits no more, however that came.
    pub fn end(&mut self, id: u32) {
        // Most waits are short, so the one that ends is rather among the last.
        if let Some(at) = self.waiting.iter().rposition(|wait| wait.id == id) {
            self.waiting.remove(at);
        }
    }

    /// Those whose body has stood still for too long, or takes [`SLOWEST`] times that, or that wait since a time that is yet to
    /// come. They go on waiting until [`Waits::end`].
    #[must_use]
    pub fn overdue(&self, now: Timestamp) -> Vec<u32> {
        let over = |since: Timestamp, limit| since > now || now.since(since) >= limit;
        let late = |wait: &&Wait| {
            over(wait.heard, wait.limit) || over(wait.since, Millis(wait.limit.0.saturating_mul(SLOWEST)))
        };
        self.waiting.iter().filter(late).map(|wait| wait.id).collect()
    }

    /// One was let go without its body. `true` once: it looks as if Envoy showed no body at all.
    pub fn rescued(&mut self) -> bool {
        !self.seen && !std::mem::replace(&mut self.stood_still, true)
    }

    fn hopeless(&self) -> bool {
        !self.seen && self.stood_still
    }
}
