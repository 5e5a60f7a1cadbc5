//! Which workers are asked for tokens: those that did not answer, or have no `/tokenize`, are left alone for a while.
//!
//! One that failed rests for a second, then twice as long after each failure. Once it has rested it is tried with a question that
//! nobody waits for, unless there is no other. Knows no HTTP.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The first rest of a worker that did not answer, and the longest.
pub(super) const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);
/// Workers of which that is remembered; then all are forgotten.
const RESTING_MAX: usize = 4096;

#[derive(Clone, Copy)]
struct Rest {
    until: Instant,
    pause: Duration,
    /// It has no such endpoint.
    lacks: bool,
}

#[derive(Default)]
pub(super) struct Resting(Mutex<HashMap<String, Rest>>);

/// Whom to ask.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Able {
    /// One after the other, until one answers.
    pub(super) first: Vec<String>,
    /// Rested, and nobody waits for it.
    pub(super) tried: Option<String>,
    /// Nobody is to be asked, and it is for want of the endpoint alone.
    pub(super) all_lack: bool,
}

impl Resting {
    /// `turn`: with whom to begin.
    pub(super) fn able(&self, now: Instant, workers: &[String], turn: usize) -> Able {
        let mut resting = self.lock();
        let (mut able, mut lacking) = (Able::default(), 0);
        let begin = turn.checked_rem(workers.len()).unwrap_or(0);
        for worker in workers.iter().cycle().skip(begin).take(workers.len()) {
            match resting.get_mut(worker) {
                None => able.first.push(worker.clone()),
                Some(rest) if rest.until > now => lacking += usize::from(rest.lacks),
                // The only one that tries it until this is over.
                Some(rest) if able.tried.is_none() => {
                    rest.until = now + rest.pause;
                    able.tried = Some(worker.clone());
                }
                Some(_) => {}
            }
        }
        if able.first.is_empty() {
            able.first.extend(able.tried.take());
        }
        able.all_lack = !workers.is_empty() && lacking == workers.len();
        able
    }

    /// It did not answer. What was asked before that was known says nothing new.
    pub(super) fn failed(&self, now: Instant, worker: &str) {
        let mut resting = self.lock();
        let pause = match resting.get(worker) {
            Some(rest) if rest.until > now => return,
            Some(rest) => (rest.pause * 2).min(REST_MAX),
            None => REST,
        };
        put(&mut resting, worker, Rest { until: now + pause, pause, lacks: false });
    }

    pub(super) fn lacks(&self, now: Instant, worker: &str) {
        put(&mut self.lock(), worker, Rest { until: now + REST_MAX, pause: REST_MAX, lacks: true });
    }

    /// It answered.
    pub(super) fn well(&self, worker: &str) {
        self.lock().remove(worker);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Rest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put(resting: &mut HashMap<String, Rest>, worker: &str, rest: Rest) {
    if resting.len() >= RESTING_MAX {
        resting.clear();
    }
    resting.insert(worker.to_owned(), rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn who_failed_rests_ever_longer_and_is_tried_once_while_others_are_asked() {
        let (resting, start, both) = (Resting::default(), Instant::now(), names(&["a", "b"]));
        let able = |at: Duration| resting.able(start + at, &both, 0);
        assert_eq!(able(Duration::ZERO).first, both);
        resting.failed(start, "a");
        // Fifteen others that were under way: that is one failure.
        (0..15).for_each(|_| resting.failed(start, "a"));
        assert_eq!(able(REST / 2), Able { first: names(&["b"]), ..Able::default() });
        let tried = Able { first: names(&["b"]), tried: Some("a".to_owned()), all_lack: false };
        assert_eq!(able(REST), tried);
        assert_eq!(able(REST), Able { first: names(&["b"]), ..Able::default() }, "by one alone");
        resting.failed(start + 2 * REST, "a");
        assert_eq!(able(3 * REST).tried, None, "twice as long");
        assert_eq!(able(4 * REST).tried.as_deref(), Some("a"));
        resting.well("a");
        assert_eq!(able(4 * REST).first, both);
    }

    #[test]
    fn the_only_one_is_asked_again_once_it_has_rested() {
        let (resting, start, one) = (Resting::default(), Instant::now(), names(&["a"]));
        resting.failed(start, "a");
        assert_eq!(resting.able(start, &one, 3), Able::default());
        assert_eq!(resting.able(start + REST, &one, 4).first, one);
        resting.lacks(start, "a");
        assert!(resting.able(start + 2 * REST, &one, 5).all_lack);
    }
}
