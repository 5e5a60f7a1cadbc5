//! The service towards hosts that keep bindings of their own in step with it: who follows, from where, and what they apply.
//!
//! Whose place is taken is `hosts.rs`'s. Which binding wins, and what changed after what, is the state's; how it looks on the
//! wire is `http/bindings.rs`'s.

use super::hosts::{Cursor, Ended, SNAPSHOTS_MAX, STREAMS_MAX};
use super::{Followers, Service, not_an_answer};
use crate::http::problem::Problem;
use crate::state::{Binding, Changes, Command, Outcome, Position, Reply};
use axum::http::StatusCode;
use routing::id::SessionId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{OwnedSemaphorePermit, watch};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Where all bindings are read.
pub const SNAPSHOT_PATH: &str = "/v1/bindings/snapshot";
/// Most bindings that are applied under one lock: who asks where a request goes waits no longer than for these.
const APPLIED_AT_ONCE: usize = 256;

/// A host's stream. Its place is free again once it is dropped.
pub struct Following {
    /// Names the host's versions, and what is not told to it.
    pub writer: u64,
    changes: watch::Receiver<u64>,
    position: Position,
    ended: Ended,
    service: Arc<Service>,
    _place: OwnedSemaphorePermit,
}

/// What became of a binding that a host applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Became {
    /// In a word.
    pub outcome: Outcome,
    /// Why it was rejected.
    pub reason: Option<&'static str>,
    /// What goes before it.
    pub known: Option<Binding>,
}

/// A snapshot that is being read.
pub struct Reading {
    service: Arc<Service>,
    from: Option<SessionId>,
    _place: OwnedSemaphorePermit,
}

impl Service {
    /// The number of a host: in its versions, and of its changes. Exact in a JSON reader that knows doubles only; never 0, never ours.
    #[must_use]
    pub fn writer(&self, host: &str) -> u64 {
        let number = |seed| (xxh3_64_with_seed(host.as_bytes(), seed) >> 12) | 1;
        match number(0) {
            ours if ours == self.epoch.0 => number(1),
            other => other,
        }
    }

    /// Where the order of changes begins: before the first one of this life.
    #[must_use]
    pub const fn beginning(&self) -> Cursor {
        Cursor { epoch: self.epoch, position: Position(0) }
    }

    fn cursor(&self, position: Position) -> Cursor {
        Cursor { epoch: self.epoch, position }
    }

    /// Takes a host's place as a follower.
    ///
    /// # Errors
    /// [`Problem`]: it has one already, there is none, or the cursor leads nowhere any more.
    pub fn follow(self: &Arc<Self>, writer: u64, after: Cursor) -> Result<Following, Problem> {
        self.may_host()?;
        if after.epoch != self.epoch {
            return Err(gone(
                "cursor_of_another_life",
                "the service was started anew after it gave this cursor",
            ));
        }
        // Before the look: what changes after it wakes us.
        let changes = self.hosts.changes.subscribe();
        if self.changed_bindings(after.position, writer, 0).gap {
            return Err(gone("cursor_too_old", "not every change after this cursor is known any more"));
        }
        let place = Arc::clone(&self.hosts.streams).try_acquire_owned().map_err(|_| {
            Problem::busy("streams_full", format!("{STREAMS_MAX} hosts follow the bindings already"))
        })?;
        if !self.hosts.streaming().insert(writer) {
            let detail = "this writer's stream lives; it is free again once that connection ends";
            let title = "The writer follows already";
            return Err(
                Problem::new(StatusCode::CONFLICT, "writer_is_streaming", title, detail).retry_after(1)
            );
        }
        let service = Arc::clone(self);
        Ok(Following {
            writer,
            changes,
            position: after.position,
            ended: Ended::Gone,
            service,
            _place: place,
        })
    }

    /// All bindings, page by page, and the cursor to follow from: whatever changes while they are read comes after it.
    ///
    /// # Errors
    /// [`Problem`]: too many are being read.
    pub fn snapshot(self: &Arc<Self>) -> Result<(Cursor, Reading), Problem> {
        self.may_host()?;
        let place = Arc::clone(&self.hosts.snapshots).try_acquire_owned().map_err(|_| {
            Problem::busy("snapshots_full", format!("{SNAPSHOTS_MAX} snapshots are being read"))
        })?;
        self.hosts.snapshots_begun.fetch_add(1, Ordering::Relaxed);
        let cursor = self.cursor(self.position());
        Ok((cursor, Reading { service: Arc::clone(self), from: Some(SessionId(0)), _place: place }))
    }

    /// Applies what a host knows; what became of each, in order.
    ///
    /// # Errors
    /// [`Problem`]: hosts are excluded.
    pub fn apply_of_host(&self, writer: u64, bindings: Vec<Binding>) -> Result<Vec<Became>, Problem> {
        self.may_host()?;
        let mut became = Vec::with_capacity(bindings.len());
        let mut bindings = bindings.into_iter().peekable();
        while bindings.peek().is_some() {
            let batch: Vec<Binding> = bindings.by_ref().take(APPLIED_AT_ONCE).collect();
            let told = batch.clone();
            match self.apply(Command::Apply { writer, bindings: batch }) {
                Reply::Applied(outcomes) => became.extend(self.explain_outcomes(&outcomes, &told)),
                other => return Err(not_an_answer(other)),
            }
        }
        Ok(became)
    }

    /// What the host cannot know: why one is refused, and what another one lost against. Its stream may have told that long ago, or
    /// while its worker was not declared.
    fn explain_outcomes(&self, outcomes: &[Outcome], told: &[Binding]) -> Vec<Became> {
        let (state, now) = (self.lock(), self.clock.now());
        let explain = |(outcome, told): (&Outcome, &Binding)| {
            let pins = || told.target.as_ref().is_none_or(|target| state.keeps_bindings_of(&target.worker));
            let (reason, known) = match outcome {
                Outcome::Rejected if pins() => (Some("there is no room for one more session"), None),
                Outcome::Rejected => (Some("the worker's pool keeps no bindings"), None),
                Outcome::IgnoredConflict | Outcome::IgnoredStale => {
                    (None, state.binding_of(now, told.session.id))
                }
                Outcome::Inserted | Outcome::Refreshed | Outcome::ReplacedNewer | Outcome::Parked => {
                    (None, None)
                }
            };
            Became { outcome: *outcome, reason, known }
        };
        outcomes.iter().zip(told).map(explain).collect()
    }

    fn may_host(&self) -> Result<(), Problem> {
        let detail = match self.hosts.followers {
            Followers::Hosts => None,
            Followers::Nobody => Some("the service was started without --outside-hosts"),
            Followers::Replicas => Some(
                "bindings are agreed on in the store that replicas share; hosts join a service without one",
            ),
        };
        if let Some(detail) = detail {
            let title = "Hosts are excluded";
            return Err(Problem::new(StatusCode::CONFLICT, "hosts_excluded", title, detail));
        }
        if self.is_stopping() {
            return Err(Problem::busy("stopping", "the service is stopping"));
        }
        Ok(())
    }
}

impl Following {
    /// What changed since, at most `max` changes looked at; none, and no gap: nothing.
    pub fn read(&mut self, max: usize) -> Changes {
        // Marked seen before looking: a change in between wakes us at once instead of being missed.
        self.changes.borrow_and_update();
        let service = &self.service;
        let changes = service.changed_bindings(self.position, self.writer, max);
        self.position = if changes.gap { self.position } else { changes.position };
        let told = u64::try_from(changes.bindings.len()).unwrap_or(u64::MAX);
        service.hosts.told.fetch_add(told, Ordering::Relaxed);
        changes
    }

    /// To go on from.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.service.cursor(self.position)
    }

    /// Ends when something changed that was not read.
    pub async fn changed(&mut self) {
        // The sender lives as long as the service, which we hold.
        let _ = self.changes.changed().await;
    }

    /// Ends when the service stops.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.service.stopping();
        async move { drop(stopping.wait_for(|stopping| *stopping).await) }
    }

    /// It is over, and not because its host went away.
    pub const fn end(&mut self, why: Ended) {
        self.ended = why;
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.service.hosts.streaming().remove(&self.writer);
        self.service.hosts.count_end(self.ended);
    }
}

impl Reading {
    /// The next page, at most `max` sessions looked at; `None`: that was all.
    pub fn page(&mut self, max: usize) -> Option<Vec<Binding>> {
        let from = self.from?;
        let (bindings, next) = self.service.bindings_from(from, max);
        self.from = next;
        Some(bindings)
    }

    /// Whether the service stops.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.service.is_stopping()
    }
}

fn gone(code: &'static str, detail: &str) -> Problem {
    let detail = format!("{detail}; read {SNAPSHOT_PATH} and follow from its cursor");
    Problem::new(StatusCode::GONE, code, "The cursor leads nowhere", detail).with_snapshot(SNAPSHOT_PATH)
}
