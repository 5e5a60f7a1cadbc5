//! Says in the log that discovery was refused for want of the token: nobody else tells, since Envoy goes on with empty pools. At most once
//! a minute, whoever asks and however often; each refusal is counted with all answers (`rankpin_http_requests_total`). Does not know tokens.

use super::{CLUSTERS_PATH, ENDPOINTS_PATH};
use crate::lock::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Between two warnings: an Envoy polls several times a second.
const PAUSE: Duration = Duration::from_secs(60);

/// When it was last told.
#[derive(Default)]
pub(super) struct Refused(Mutex<Option<Instant>>);

impl Refused {
    /// A request of this path was refused; `brought` is whether it had an `authorization` at all.
    pub(super) fn tell(&self, path: &str, brought: bool) {
        if ![CLUSTERS_PATH, ENDPOINTS_PATH].contains(&path) || !self.is_due(Instant::now()) {
            return;
        }
        let brought = if brought { "another token" } else { "no token" };
        tracing::warn!(
            path,
            brought,
            "Envoy's discovery is refused, its pools stay as they are or empty: let its cluster rankpin-service add the token (envoy/dynamic.yaml: with --token-file)"
        );
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut told = lock(&self.0);
        let due = told.is_none_or(|told| now.duration_since(told) >= PAUSE);
        if due {
            *told = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_at_once_and_then_once_a_minute() {
        let (refused, start) = (Refused::default(), Instant::now());
        let due = [0, 1, 59, 60, 61, 119, 120].map(|s| refused.is_due(start + Duration::from_secs(s)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
