//! Keeps a slow or dead service off the request path: after five failures in a row no calls for a second, then one probe.

use crate::time::{Millis, Timestamp};

/// Failures in a row that open the breaker.
const FAILURES_MAX: u32 = 5;
/// How long it stays open before one probe goes through.
const OPEN_FOR: Millis = Millis(1000);

/// State of the breaker: closed, or open until a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    open_until: Option<Timestamp>,
}

impl Breaker {
    /// Whether a call may be made now. When an open period ends, one caller gets through and the next period begins.
    pub fn allows(&mut self, now: Timestamp) -> bool {
        match self.open_until {
            None => true,
            Some(_) if self.is_open(now) => false,
            // The period is over, or the clock went back past it: one probe, the rest wait for its answer.
            Some(_) => {
                self.open_until = Some(now + OPEN_FOR);
                true
            }
        }
    }

    /// Whether no call may be made now, as far as can be told without making one.
    #[must_use]
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.open_until.is_some_and(|until| now < until && until.since(now) <= OPEN_FOR)
    }

    /// A call was answered.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A call timed out or failed.
    pub fn failed(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_MAX {
            self.open_until = Some(now + OPEN_FOR);
        }
    }
}
